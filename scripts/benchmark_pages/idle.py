"""Where nothing leaves."""

import statistics

from plots import bars

from .common import MIB, NOTE, Page, mean, read, span


def idle():
    server_rows, groups = [], []
    for server in read("idle-servers")["servers"]:
        name = f"{server['server']}, {server['items']:,} items"
        of = {row["figure"]: row for row in server["ratios"] if row["side"] == "terrace" and row["against"] == "alone"}
        figures = ["CPU time of an operation", "memory of the server", "memory with `terrace run`"]
        server_rows.append([name] + [f"{of[figure]['ratio_median']:.3f}" for figure in figures])
        groups.append((name, [of[figure]["ratio_median"] for figure in figures[:2]]))
    cpu = []
    for name, shown in [
        ("idle-cpu", "python3"),
        ("idle-cpu-evening", "python3, another evening"),
        ("idle-cpu-allocators", "python3, all allocators"),
        ("idle-cpu-12000000", "python3, eight times as long"),
        ("idle-sampled", "python3, with samples"),
    ]:
        for row in read(name)["ratios"]:
            low, high = row["ratio_95"]
            cpu.append([shown, row["side"], row["against"], f"{row['ratio_median']:.3f}", f"{low:.2f} to {high:.2f}"])
    memory = [
        [row["program"], f"{row['mib']} MiB", row["side"], f"{row['pss_mib']:.0f} MiB", f"{row['pss_more_percent']:+.1f} %"]
        for row in read("idle-memory")
    ]
    most = max(row[1][0] for row in groups)
    return Page(
        name="idle",
        title="Where nothing is evicted",
        result=f"A server of which nothing is evicted takes {most:.3f} times the CPU time of a request at most. "
        f"It takes {span([row[1][1] for row in groups], '{:.3f}')} times the memory.",
        what="What Terrace costs a program of which nothing is evicted, in CPU time and memory.",
        how="Servers and python3 run in turn alone, with the system's jemalloc, and under Terrace. Intervals are of 95 %.",
        peer="the program alone, and with jemalloc, as a replaced allocator alone makes a difference",
        command="cargo run --release -p terrace-bench -- idle\nsudo cargo run --release -p terrace-bench -- idle --only servers",
        files=[
            "idle-servers",
            "idle-cpu",
            "idle-cpu-evening",
            "idle-cpu-allocators",
            "idle-cpu-12000000",
            "idle-sampled",
            "idle-memory",
        ],
        tables=[
            (
                "Servers, as multiples of the server alone",
                ["server", "CPU time a request", "memory", "memory with `terrace run`"],
                server_rows,
            ),
            ("CPU time", ["program", "side", "against", "ratio", "95 %"], cpu),
            ("Memory of python3", ["objects", "held", "side", "PSS", "more than alone"], memory),
        ],
        plot=bars("as multiples of the server alone", ["CPU time a request", "memory"], groups, mark=1),
        note=f"{NOTE}#where-nothing-is-evicted-idle",
    )


def threads():
    rows = read("threads")
    cells = [
        [
            row["side"],
            f"{row['threads']:,}",
            f"{row['pss_kib'] / 1024:.1f} MiB",
            "" if row["kib_a_thread"] is None else f"{row['kib_a_thread']:.0f} KiB",
        ]
        for row in rows
    ]
    many = {row["side"]: row["kib_a_thread"] for row in rows if row["threads"] == 1000}
    return Page(
        name="threads",
        title="Memory of a thread",
        result=f"A thread takes {many['terrace']:.0f} KiB under Terrace, and {many['jemalloc']:.0f} KiB with jemalloc.",
        what="What each thread of a program costs in memory.",
        how="Threads allocate a little, free half of it, and sleep. The first thread's memory is taken off.",
        peer="the program alone (glibc), and with jemalloc",
        command="cargo run --release -p terrace-bench -- threads",
        files=["threads"],
        tables=[("Memory", ["side", "threads", "PSS", "a thread"], cells)],
        plot=bars("KiB a thread, of 1,000 threads", ["KiB"], [(side, [value]) for side, value in many.items()]),
        note=f"{NOTE}#threads-threads",
    )


def metadata():
    rows = read("metadata")
    return Page(
        name="metadata",
        title="Metadata",
        result=f"Terrace keeps {100 * max(row['share'] for row in rows):.2f} % of the managed memory at most for what it knows of it.",
        what="Memory of Terrace's own for each byte that it manages.",
        how="Memory is filled, and three quarters of it are evicted. The report's overhead counts Terrace's reservations page by page.",
        peer="Jenga, whose paper has 0.3 %",
        command="cargo run --release -p terrace-bench -- metadata",
        files=["metadata"],
        tables=[
            (
                "Overhead",
                ["managed", "overhead", "share"],
                [
                    [f"{row['managed_gib']} GiB", f"{row['overhead_bytes'] / MIB:.1f} MiB", f"{100 * row['share']:.2f} %"]
                    for row in rows
                ],
            )
        ],
        plot=bars(
            "% of the managed memory",
            ["%"],
            [*((f"{row['managed_gib']} GiB", [100 * row["share"]]) for row in rows), ("Jenga's paper", [0.3])],
        ),
    )


def malloc_ratios(side, figure):
    """For each test of the suite the median of a side, as a multiple of jemalloc's."""
    ratios = {}
    for test in read("malloc")["tests"]:
        of = test["sides"]
        if of.get(side, {}).get(figure) and of.get("jemalloc", {}).get(figure):
            ratios[test["test"]] = statistics.median(of[side][figure]) / statistics.median(of["jemalloc"][figure])
    return ratios


def malloc():
    sides = ["size", "context", "glibc", "mimalloc", "tcmalloc"]
    tests = [test["test"] for test in read("malloc")["tests"]]
    tables = []
    for figure, shown in [("seconds", "Time"), ("peak_bytes", "Peak memory")]:
        of = {side: malloc_ratios(side, figure) for side in sides}
        rows = [[test] + [f"{of[side][test]:.2f}" if test in of[side] else "" for side in sides] for test in tests]
        rows.append(["**geometric mean**"] + [f"**{mean(of[side].values()):.2f}**" for side in sides])
        tables.append((f"{shown}, as multiples of jemalloc's", ["test", *sides], rows))
    time = {side: mean(malloc_ratios(side, "seconds").values()) for side in sides}
    memory = {side: mean(malloc_ratios(side, "peak_bytes").values()) for side in sides}
    return Page(
        name="malloc",
        title="Allocators",
        result=f"Terrace's allocator takes {time['size']:.2f} times jemalloc's time and {memory['size']:.2f} times its memory. "
        f"Ordered by context it takes {time['context']:.2f} times the time.",
        what="Time and peak memory of allocator tests and whole programs: geometric means over all tests.",
        how="Tests in the manner of known suites, and programs whose output is compared. Repeats are interleaved.",
        peer="jemalloc 5.3, glibc, mimalloc and tcmalloc",
        command="make bench-malloc",
        files=["malloc"],
        tables=tables,
        plot=bars(
            "geometric means over all tests, as multiples of jemalloc's",
            ["time", "peak memory"],
            [(side, [time[side], memory[side]]) for side in sides],
            mark=1,
        ),
        note=f"{NOTE}#allocators-malloc",
    )


def sampled():
    rows, groups = [], []
    for number, pattern in enumerate(read("sampled")["patterns"]):
        low, high = pattern["slower_95"]
        again = any(name == pattern["pattern"] for name, _ in groups)
        name = f"{pattern['pattern']}, again" if again else pattern["pattern"]
        rows.append(
            [
                name,
                f"{pattern['samples_per_s']:.0f}",
                f"{pattern['slower']:.3f}",
                f"{low:.3f} to {high:.3f}",
                f"{100 * pattern['told_cpu_fraction']:.1f} %",
            ]
        )
        groups.append((name, [pattern["slower"]]))
    return Page(
        name="sampled",
        title="What sampling costs",
        result=f"With samples at the full rate, programs take {span([row[1][0] for row in groups])} times as long. One run and the next differ by more.",
        what="What sampling costs a program whose memory stays where it is.",
        how="Reader and interrupts share the program's CPU, so both are in it. Intervals are of 95 %.",
        peer="the same run without samples",
        command="cargo run --release -p terrace-bench -- sampled",
        files=["sampled"],
        tables=[
            (
                "Time, as a multiple of that without samples",
                ["pattern", "samples a second", "time", "95 %", "told by the report"],
                rows,
            )
        ],
        plot=bars("time, as a multiple of that without samples", ["time"], groups, mark=1),
        note=f"{NOTE}#samples-and-policies",
    )


def huge():
    rows, groups = [], []
    for pattern in read("huge")["patterns"]:
        values = [side["late_to_alone"] for side in pattern["sides"]]
        groups.append((pattern["pattern"], values))
        for side in pattern["sides"]:
            low, high = side["late_to_alone_interval"]
            rows.append(
                [
                    pattern["pattern"],
                    side["side"],
                    f"{side['late_accesses_per_s']:,.0f}",
                    f"{side['late_to_alone']:.2f}",
                    f"{low:.2f} to {high:.2f}",
                ]
            )
    sides = [side["side"] for side in read("huge")["patterns"][0]["sides"]]
    return Page(
        name="huge",
        title="Huge pages for hot memory",
        result=f"With `--huge-pages hot` a program that reads at random has {span([row[1][3] for row in groups])} times its speed alone, "
        f"where huge pages everywhere would give {span([row[1][1] for row in groups])} times.",
        what="What huge pages for hot memory bring a program of which nothing has to leave.",
        how="`terrace load memory` of 512 MiB; program and Terrace share one CPU. Speeds are of the second half of a run.",
        peer="the program alone, with and without huge pages",
        command="cargo run --release -p terrace-bench -- huge",
        files=["huge"],
        tables=[("Speed, as a multiple of that alone", ["pattern", "side", "accesses a second", "ratio", "interval"], rows)],
        plot=bars("speed, as a multiple of that alone", sides, groups, mark=1),
        note=f"{NOTE}#huge-pages-for-hot-memory-huge",
    )


def top():
    figures = read("top")
    return Page(
        name="top",
        title="terrace top",
        result=f"`terrace top` takes {100 * figures['share_of_a_cpu']:.2f} % of a CPU with {figures['processes']} processes.",
        what="CPU time of `terrace top` while it shows processes.",
        how=f"{figures['processes']} managed processes for {figures['seconds']} seconds, in a pseudo-terminal.",
        peer="the goal of 0.1 %",
        command="bench/top.py target/release/terrace",
        files=["top"],
        tables=[
            (
                "CPU time",
                ["processes", "share of a CPU"],
                [[str(figures["processes"]), f"{100 * figures['share_of_a_cpu']:.2f} %"]],
            )
        ],
        plot=bars("% of a CPU", ["%"], [("terrace top", [100 * figures["share_of_a_cpu"]]), ("the goal", [0.1])]),
    )
