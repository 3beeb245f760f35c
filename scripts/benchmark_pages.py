"""The pages of docs/benchmarks: for each benchmark what is measured, how, beside whom, the figures and a
plot, out of bench/results/. scripts/benchmarks.py writes them."""

import json
import math
import pathlib
import statistics
import textwrap
from dataclasses import dataclass, field

from plots import bars

ROOT = pathlib.Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench/results"
NOTE = "../notes/2026-11-27-benchmarks.md"
MIB = 1 << 20


@dataclass
class Page:
    """One page. Tables are triples of a heading, the names of columns, and rows."""

    name: str
    title: str
    result: str
    what: str
    how: str
    peer: str
    command: str
    files: list
    tables: list
    # The text of a plot, or paths of some that are there.
    plot: str = ""
    pictures: list = field(default_factory=list)
    note: str = ""


def about(name):
    return json.loads((RESULTS / f"{name}.json").read_text())


def read(name):
    """The figures of one file of results."""
    return about(name)["figures"]


def mean(values):
    """The geometric mean."""
    return math.exp(statistics.mean(map(math.log, values)))


def machine(files):
    """The machines of some files. Of a benchmark that gave a server one CPU, a file has that one."""
    cpus = {}
    for of in filter(None, (about(name).get("machine") for name in files)):
        kind = (of["cpu"].replace("(R)", ""), of["kernel"].split("-")[0])
        cpus[kind] = max(of["cpus"], cpus.get(kind, 0))
    lines = [f"{cpu}{f', {count} CPUs' if count > 1 else ''}, Linux {kernel}" for (cpu, kernel), count in cpus.items()]
    return "; ".join(lines) or f"Linux {about(files[0])['kernel'].split('-')[0]}"


def span(values, form="{:.2f}"):
    """The least and the most."""
    return f"{form.format(min(values))} to {form.format(max(values))}"


def servers():
    names = {
        "servers-main": "the main load",
        "servers-100": "values of 100 bytes",
        "servers-auto": "`--tiers auto`",
        "servers-sampled": "`--sampler clock`",
        "servers-unsampled": "the same hour, without samples",
        "servers-peers": "other peers",
        "servers-patience-first": "handlers that wait from the start",
        "servers-before-dictionary": "before zstd had dictionaries",
        "servers-before-dictionary-warm": "the same, warmed up longer",
        "servers-dictionary-memcached": "with dictionaries",
        "servers-dictionary-redis": "with dictionaries",
    }

    def ratios(cell, figures=("ops_per_s", "p99_us", "p999_us", "cpu_us_per_op")):
        return [cell["terrace"][figure]["median"] / cell["peer"][figure]["median"] for figure in figures]

    rows = []
    for name, about_it in names.items():
        for comparison in read(name)["comparisons"]:
            for cell in comparison["cells"]:
                against = comparison["against"].replace("zram:lz4", "zram lz4").replace(":", " ")
                rows.append(
                    [about_it, f"{comparison['server']}, {cell['resident_percent']} %", against]
                    + [f"{ratio:.2f}" for ratio in ratios(cell)]
                )
    full = []
    for comparison in read("servers")["comparisons"]:
        for cell in comparison["cells"]:
            load = f"{cell['get_percent']} % GET, {cell['connections']} × {cell['depth']}"
            full.append(
                [f"{comparison['server']}, {cell['resident_percent']} %", load] + [f"{r:.2f}" for r in ratios(cell)]
            )
    main = [ratios(cell) for comparison in read("servers-main")["comparisons"] for cell in comparison["cells"]]
    columns = ["requests a second", "p99", "p99.9", "CPU time a request"]
    return Page(
        name="servers",
        title="Servers at equal memory",
        result=f"At 50 and 30 % of their memory, servers under Terrace answer {span([r[0] for r in main])} times as many requests "
        f"as over zram. Their p99.9 is {span([r[2] for r in main])} times zram's.",
        what="memcached and redis-server within less memory than they would take: throughput, latency and CPU time.",
        how="Server and Terrace share CPU 0, the client has CPU 1. A peer's run at a share of the memory says how much both take in all. "
        "Repeats of the two follow one another; figures are medians.",
        peer="a memory control group over the kernel's zram (lz4), or zswap",
        command="sudo make bench-servers OPTIONS=--full",
        files=["servers", "servers-curve-memcached", "servers-curve-redis", *names],
        tables=[
            ("As multiples of the peer", ["what", "server, memory", "peer", *columns], rows),
            ("Other loads, as multiples of zram lz4", ["server, memory", "load: connections × depth", *columns], full),
        ],
        pictures=["servers-memcached-1000-zram-lz4", "servers-redis-1000-zram-lz4"],
        note=f"{NOTE}#servers-at-equal-memory-zram-servers",
    )


def programs():
    rows, groups = [], []
    for name, tiers in [("programs", "default"), ("programs-swap", "without swap as a tier, on a machine with it")]:
        for row in read(name)["rows"]:
            work = row["work_to_zram"]["median"]
            rows.append(
                [row["program"], tiers, f"{row['share_percent']} %", f"{row['alone_s']:.1f} s", f"{row['terrace_s']:.1f} s"]
                + [f"{row['zram_s']:.1f} s", f"{work:.2f}"]
            )
            if name == "programs":
                groups.append(work)
    slower = sum(work < 1 for work in groups)
    return Page(
        name="programs",
        title="Whole programs as people run them",
        result=f"At 60 % of their memory, {slower} of {len(groups)} programs do less work a second than over zram, on two CPUs. "
        f"The geometric mean is {mean(groups):.2f} times zram's.",
        what="Whole programs at a share of their memory, with all CPUs and nothing pinned: 1 ÷ time.",
        how="Each program runs alone, then under `terrace run --dram`, then in a group over zram that has as much memory as Terrace took.",
        peer="a memory control group over zram lz4 whose limit keeps memory at what Terrace took",
        command="sudo cargo run --release -p terrace-bench -- programs",
        files=["programs", "programs-swap"],
        tables=[("Times, and work as a multiple of zram's", ["program", "tiers", "memory", "alone", "Terrace", "zram", "work"], rows)],
        pictures=["programs", "programs-swap"],
        note=f"{NOTE}#whole-programs-programs-honesty-and-slowdown",
    )


def honesty():
    figures = read("honesty")
    rows = [
        [row["program"], f"{100 * row['lost']:.0f} %", f"{100 * row['slowdown_told']:.0f} %", "yes" if row["is_right"] else "no"]
        for row in figures["rows"]
    ]
    return Page(
        name="honesty",
        title="The time that reports tell was lost",
        result=f"The report is right for {figures['right']} of {len(figures['rows'])} programs: within a fifth of the loss, or two points.",
        what="`slowdown_estimate` of the report, beside the time that whole programs lost.",
        how="Each program runs alone and at 60 % of its memory under Terrace, on all CPUs. Lost is 1 − alone ÷ Terrace.",
        peer="the clock",
        command="sudo cargo run --release -p terrace-bench -- honesty",
        files=["honesty"],
        tables=[("Share of the time", ["program", "lost", "told", "right"], rows)],
        plot=bars(
            "share of the time that was lost, and that the report tells, %",
            ["lost", "told"],
            [(row["program"], [100 * row["lost"], 100 * row["slowdown_told"]]) for row in figures["rows"]],
        ),
        note=f"{NOTE}#whole-programs-programs-honesty-and-slowdown",
    )


def pages():
    names = {
        "fault, median": "a fault, median",
        "fault, p99": "a fault, p99",
        "inline restore, one page": "terrace_touch, one page",
        "inline restore, of 16": "terrace_touch, a range of 16",
        "eviction, batches of 512": "an eviction",
    }
    figures = read("pages")
    rows = [
        [shown, f"{figures[name]['terrace_us']:.1f} µs", f"{figures[name]['zram_us']:.1f} µs", f"{figures[name]['ratio']:.2f}"]
        for name, shown in names.items()
    ]
    return Page(
        name="pages",
        title="One page",
        result=f"A fault takes {figures['fault, median']['ratio']:.2f} times as long as zram's. "
        f"An eviction takes {figures['eviction, batches of 512']['ratio']:.2f} times as long.",
        what="The time of a fault as the program sees it, of a restore that it asks for, and of an eviction.",
        how="Program and Terrace share CPU 0. Pages are touched in random order, and repeats are interleaved.",
        peer="the kernel's zram with lz4",
        command="sudo cargo run --release -p terrace-bench -- pages",
        files=["pages"],
        tables=[("Time of a page", ["what", "Terrace", "zram", "ratio"], rows)],
        plot=bars(
            "µs a page",
            ["Terrace", "zram lz4"],
            [(shown, [figures[name]["terrace_us"], figures[name]["zram_us"]]) for name, shown in names.items()],
        ),
        note=f"{NOTE}#restores-without-a-fault-in-pages",
    )


def fault_steps():
    steps = {
        "read": "fault to the handler's read",
        "room": "waiting for room",
        "claim": "claim",
        "decompress": "decompress",
        "copy": "UFFDIO_COPY",
        "return": "back to the program",
        "total": "in all",
        "zram_total": "zram, in all",
    }
    figures = read("fault-steps")
    one, two = figures["one CPU"], figures["two CPUs"]
    rows = [[shown, f"{one[step]['p50_us']:.1f} µs", f"{two[step]['p50_us']:.1f} µs"] for step, shown in steps.items()]
    eviction = {"scan_us": "scan", "move_us": "move", "compress_us": "compress", "store_us": "store", "empty_us": "empty the slot"}
    return Page(
        name="fault-steps",
        title="Steps of a fault",
        result=f"With all on one CPU a fault takes {one['total']['p50_us']:.1f} µs, and {two['total']['p50_us']:.0f} µs across two CPUs. "
        "Waking the other CPU, there and back, is the difference.",
        what="Where the time goes from the instruction that touches an evicted page to the next one, and where an eviction's goes.",
        how="Steps are measured in program and handler, with everything on one CPU, and with the program on another.",
        peer="zram lz4, in the same run",
        command="sudo cargo run --release -p terrace-bench -- fault-steps",
        files=["fault-steps"],
        tables=[
            ("A fault, medians", ["step", "one CPU", "two CPUs"], rows),
            ("An eviction, a page", ["step", "time"], [[shown, f"{figures['eviction'][step]:.2f} µs"] for step, shown in eviction.items()]),
        ],
        plot=bars(
            "µs of each step, medians",
            ["one CPU", "two CPUs"],
            [(shown, [one[step]["p50_us"], two[step]["p50_us"]]) for step, shown in steps.items()],
        ),
        note=f"{NOTE}#steps-of-a-fault-fault-steps",
    )


def faulters():
    names = {"faulters": "default", "faulters-wake-latency": "`--wake-latency 0`", "faulters-swap": "a machine with zram"}
    tables = []
    for name, shown in names.items():
        figures = read(name)
        rows = []
        for place in ["CPU 0", "CPUs 0 and 1"]:
            for row in figures[place]:
                if row["case"] in ("own, random", "own, sequential"):
                    ratios = [row[figure]["ratio"] for figure in ("pages_per_s", "touch_p50_us", "touch_p99_us", "cpu_us")]
                    rows.append([place, row["case"].removeprefix("own, "), str(row["threads"])] + [f"{ratio:.2f}" for ratio in ratios])
        tables.append((f"{shown[0].upper()}{shown[1:]}", ["where", "order", "threads", "pages a second", "p50", "p99", "CPU time a page"], rows))

    def ratio(name, place, threads):
        for row in read(name)[place]:
            if row["case"] == "own, random" and row["threads"] == threads:
                return row["pages_per_s"]["ratio"]
        return None

    counts = [1, 2, 8, 64]
    return Page(
        name="faulters",
        title="Threads that touch evicted memory",
        result=f"One thread on two CPUs gets {ratio('faulters', 'CPUs 0 and 1', 1):.2f} times zram's pages a second. "
        f"With `--wake-latency 0` it gets {ratio('faulters-wake-latency', 'CPUs 0 and 1', 1):.2f} times as many, "
        f"and where swap is a tier {ratio('faulters-swap', 'CPUs 0 and 1', 1):.2f} times.",
        what="Pages a second that 1 to 64 threads bring back, the time of a touch, and CPU time a page.",
        how="The same program on both sides, on CPU 0 only and on two CPUs; each thread has pages of its own.",
        peer="the kernel's zram with lz4",
        command="sudo cargo run --release -p terrace-bench -- faulters\nsudo cargo run --release -p terrace-bench -- faulters --terrace-flags '--wake-latency 0'\nsudo cargo run --release -p terrace-bench -- faulters --swap",
        files=list(names),
        tables=tables,
        plot=bars(
            "pages a second in random order on two CPUs, as multiples of zram's",
            ["default", "--wake-latency 0", "a machine with zram"],
            [(f"{n} threads" if n > 1 else "1 thread", [ratio(name, "CPUs 0 and 1", n) for name in names]) for n in counts],
            mark=1,
        ),
        note=f"{NOTE}#threads-that-touch-evicted-memory-faulters",
    )


def calls():
    figures = read("calls")
    sides = ["alone, resident", "terrace, resident", "terrace, out", "zram, out"]
    rows = [[row["call"]] + [f"{row[side]['p50_us']:.0f} µs" for side in sides] for row in figures["calls"]["rows"]]
    held = [
        [row["side"], f"{row['processes']:,}", f"{row['threads']:,}", f"{row['group_bytes'] / MIB:,.0f} MiB"]
        for row in figures["processes"]["rows"]
    ]
    of = {row["call"]: row["terrace, out"]["p50_us"] for row in figures["calls"]["rows"]}
    return Page(
        name="calls",
        title="A program's own memory calls",
        result=f"mremap of 1 MiB whose pages are out takes {of['mremap'] / 1000:.1f} ms, as they are restored first. "
        f"munmap takes {of['munmap']:.0f} µs, and a fork with 64 MiB {of['fork'] / 1000:.1f} ms.",
        what="munmap, madvise and mremap of 1 MiB, through the C library and by instruction; fork; and a thousand processes.",
        how="Each call is timed alone, over zram, and under Terrace, with its pages resident and with its pages out.",
        peer="the program alone, and over zram lz4",
        command="sudo cargo run --release -p terrace-bench -- calls",
        files=["calls"],
        tables=[
            ("Medians", ["call", *sides], rows),
            ("A thousand processes", ["side", "processes", "threads", "memory of the group"], held),
        ],
        plot=bars(
            "µs a call, medians",
            sides,
            [(row["call"].replace("(MADV_DONTNEED)", ""), [row[side]["p50_us"] for side in sides]) for row in figures["calls"]["rows"] if row["call"] != "fork"],
        ),
        note=f"{NOTE}#a-programs-own-memory-calls-and-a-thousand-processes-calls",
    )


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
        files=["idle-servers", "idle-cpu", "idle-cpu-evening", "idle-cpu-allocators", "idle-cpu-12000000", "idle-sampled", "idle-memory"],
        tables=[
            ("Servers, as multiples of the server alone", ["server", "CPU time a request", "memory", "memory with `terrace run`"], server_rows),
            ("CPU time", ["program", "side", "against", "ratio", "95 %"], cpu),
            ("Memory of python3", ["objects", "held", "side", "PSS", "more than alone"], memory),
        ],
        plot=bars("as multiples of the server alone", ["CPU time a request", "memory"], groups, mark=1),
        note=f"{NOTE}#where-nothing-is-evicted-idle",
    )


def threads():
    rows = read("threads")
    cells = [
        [row["side"], f"{row['threads']:,}", f"{row['pss_kib'] / 1024:.1f} MiB", "" if row["kib_a_thread"] is None else f"{row['kib_a_thread']:.0f} KiB"]
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
        tables=[("Overhead", ["managed", "overhead", "share"], [[f"{row['managed_gib']} GiB", f"{row['overhead_bytes'] / MIB:.1f} MiB", f"{100 * row['share']:.2f} %"] for row in rows])],
        plot=bars("% of the managed memory", ["%"], [*((f"{row['managed_gib']} GiB", [100 * row["share"]]) for row in rows), ("Jenga's paper", [0.3])]),
    )


def victims():
    names = {"random": "random", "kernel": "the kernel's lists", "lru": "LRU", "ours_by_faults_only": "Terrace, without writes", "ours": "Terrace", "popularity": "true popularity", "optimum": "Belady's optimum"}
    rows = read("victims")
    half = next(row["faults_per_get"] for row in rows if row["resident_percent"] == 50)
    return Page(
        name="victims",
        title="Choice of victims",
        result=f"With half of the pages resident, Terrace's choice makes {half['ours']:.3f} faults a request. "
        f"The kernel's lists make {half['kernel']:.3f}, and random victims {half['random']:.3f}.",
        what="Faults a request by who chooses the pages that leave.",
        how="A simulation of memcached's load: items of 1,000 bytes, GETs by Zipf 0.99. The code that decides is the pager's.",
        peer="random choice, the kernel's lists, LRU, and two oracles",
        command="cargo run --release -p terrace-bench -- victims",
        files=["victims"],
        tables=[("Faults a request", ["resident", *names.values()], [[f"{row['resident_percent']} %"] + [f"{row['faults_per_get'][name]:.3f}" for name in names] for row in rows])],
        plot=bars("faults a request, half of the pages resident", ["faults"], [(shown, [half[name]]) for name, shown in names.items()]),
        note=f"{NOTE}#choice-of-victims-victims",
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
        plot=bars("geometric means over all tests, as multiples of jemalloc's", ["time", "peak memory"], [(side, [time[side], memory[side]]) for side in sides], mark=1),
        note=f"{NOTE}#allocators-malloc",
    )


def contexts():
    rows, groups = [], []
    for program in read("contexts"):
        for depth in program["by_depth"]:
            if depth["depth"] in (0, 4, 6):
                name = "height of the stack" if depth["depth"] == 0 else f"{depth['depth']} return addresses"
                rows.append([program["program"], name, f"{depth['numbers']:,}", f"{depth['purity']:.1f} %", f"{depth['completeness']:.1f} %"])
        by = {depth["depth"]: depth["purity"] for depth in program["by_depth"]}
        groups.append((program["program"], [by[0], by[4]]))
    return Page(
        name="contexts",
        title="Calling contexts",
        result=f"With four return addresses, purity is {span([row[1][1] for row in groups], '{:.0f}')} % by program. No context is split.",
        what="How well context numbers tell true calling contexts apart, on real programs.",
        how="A probe notes for each allocation the ten innermost return addresses, by the compiler's unwinder. Purity is the share of the "
        "allocations with one number that have its commonest context. Completeness is the reverse.",
        peer="the true call stacks",
        command="cargo run --release -p terrace-bench -- contexts",
        files=["contexts"],
        tables=[("Purity and completeness", ["program", "context is", "numbers", "purity", "completeness"], rows)],
        plot=bars("purity, %", ["height of the stack", "4 return addresses"], groups),
        note=f"{NOTE}#context-numbers-against-true-stacks-contexts",
    )


def objects():
    rows = [
        [row["program"], row["keys"], row["objects"], f"{row['pages']:,.0f}", f"{row['pages_for_50']:,.0f}", f"{row['pages_for_80']:,.0f}"]
        for row in read("objects-pages")["rows"]
    ]
    speed, groups = [], []
    sides = {"zram": "zram", "size": "Terrace, size", "context": "Terrace, context", "context_sampled": "Terrace, context and samples"}
    for row in read("objects-speed-30")["rows"]:
        name = f"{row['program']}, {row['keys']}"
        values = [statistics.mean(row[side]) for side in sides]
        speed.append([name] + [f"{value:,.0f}" for value in values])
        groups.append((name, values))
    return Page(
        name="objects",
        title="Objects by context",
        result="At 30 % of the memory, ordering objects by context is slower than by size on these programs: "
        f"{span([row[1][2] / row[1][1] for row in groups])} times the lookups.",
        what="How many pages hold the cache misses of programs of small objects, and what that is worth when memory is short.",
        how="Accesses go through a model of a cache of 4 MiB. Speed is lookups a second at equal memory, means of the runs.",
        peer="glibc, jemalloc, and an oracle that sorts objects by their misses; zram",
        command="sudo cargo run --release -p terrace-bench -- objects",
        files=["objects-pages", "objects-speed-30"],
        tables=[
            ("Lookups a second at 30 % of the memory", ["program, keys", *sides.values()], speed),
            ("Pages that hold half, and four fifths, of the misses", ["program", "keys", "objects", "pages", "50 %", "80 %"], rows),
        ],
        plot=bars("lookups a second at 30 % of the memory", list(sides.values()), groups),
        note=f"{NOTE}#objects-by-context-objects",
    )


def buckets():
    figures = read("buckets-1000")
    rows, groups = [], []
    for row in figures["rows"]:
        ratio = statistics.median(row["placed_per_s"]) / statistics.median(row["malloc_per_s"])
        rows.append([row["workload"], f"{row['theta']}", f"{row['dram_percent']} %", f"{statistics.median(row['malloc_per_s']):,.0f}", f"{statistics.median(row['placed_per_s']):,.0f}", f"{ratio:.2f}"])
        if row["workload"] == "C" and not any(name == f"{row['dram_percent']} %, Zipf {row['theta']}" for name, _ in groups):
            groups.append((f"{row['dram_percent']} %, Zipf {row['theta']}", [ratio]))
    whole = [float(row[5]) for row in rows if row[2] == "100 %" and row[0] == "C"]
    return Page(
        name="buckets",
        title="A hash table whose buckets are arenas",
        result=f"With values of 1,000 bytes and all memory, reads are {span(whole)} times as fast with a bucket in an arena. "
        "With less memory they are slower, as nodes then lie beside large values.",
        what="M2T's case: a chained hash table, with each bucket in an arena and as malloc puts its objects.",
        how=f"YCSB workloads over {figures['keys']:,} keys with {figures['repeats']} run each, at shares of the memory that the table takes.",
        peer="the same table with malloc's placement",
        command="sudo cargo run --release -p terrace-bench -- buckets",
        files=["buckets-1000"],
        tables=[("Operations a second", ["YCSB", "Zipf", "memory", "malloc", "arenas", "ratio"], rows)],
        plot=bars("YCSB C, arenas as multiples of malloc", ["ratio"], groups, mark=1),
        note=f"{NOTE}#a-hash-table-whose-buckets-are-arenas-buckets",
    )


def consolidate():
    rows, groups = [], []
    names = {"scattered": "scattered", "consolidated": "consolidated while it runs", "oracle": "laid out by an oracle"}
    for percent in [100, 30]:
        runs = read(f"consolidate-chained-100-{percent}")["runs"]
        values = [statistics.median(run["per_s"] for run in runs[side]) for side in names]
        groups.append((f"{percent} % of the memory", values))
        rows.append([f"{percent} %"] + [f"{value:,.0f}" for value in values])
    short = groups[1][1]
    return Page(
        name="consolidate",
        title="Objects that move",
        result=f"At 30 % of its memory a hash table does {short[1] / short[0]:.2f} times the lookups once its entries were consolidated. "
        f"An oracle's layout does {short[2] / short[0]:.2f} times as many.",
        what="A hash table whose entries move so that hot ones share pages, all costs included.",
        how="A million entries of 100 bytes, lookups by Zipf 0.99, in a control group over zram. Speeds are of the last third of a run.",
        peer="the same table with entries scattered, and laid out by an oracle",
        command="sudo cargo run --release -p terrace-bench -- consolidate",
        files=["consolidate-chained-100-100", "consolidate-chained-100-30"],
        tables=[("Lookups a second", ["memory", *names.values()], rows)],
        plot=bars("lookups a second, as multiples of scattered", list(names.values()), [(name, [value / values[0] for value in values]) for name, values in groups], mark=1),
        note="../notes/2026-11-27-moving-objects-and-kv.md",
    )


def kv():
    names = ["ceiling", "memcached", "redis", "terrace-kv"]
    tables, groups = [], []
    for file, shown in [("kv-tcp", "TCP"), ("kv-unix", "A Unix socket")]:
        rows = {}
        for row in read(file)["rows"]:
            rows.setdefault((row["value_bytes"], row["connections"], row["depth"]), {})[row["server"]] = row
        cells = [
            [f"{value} bytes", f"{connections} × {depth}"] + [f"{of[name]['ops_per_s']:,.0f}" if name in of else "" for name in names]
            for (value, connections, depth), of in rows.items()
        ]
        tables.append((f"{shown}: requests a second", ["values", "connections × depth", *names], cells))
        if file == "kv-tcp":
            for (value, connections, depth), of in rows.items():
                if connections == 50 and all(name in of for name in names):
                    groups.append((f"{value} bytes, depth {depth}", [of[name]["ops_per_s"] / of["memcached"]["ops_per_s"] for name in names[1:]]))
    sides = ["memcached-zram", "redis-zram", "memcached-terrace", "terrace-kv"]
    short = {}
    for row in read("kv-memory")["rows"]:
        short.setdefault((row["share"], row["connections"], row["depth"]), {})[row["side"]] = row["to_memcached_zram"]
    cells = [[f"{share} %", f"{connections} × {depth}"] + [f"{of[side]:.2f}" for side in sides] for (share, connections, depth), of in short.items()]
    tables.insert(0, ("At equal memory: requests a second, as multiples of memcached's over zram", ["memory", "connections × depth", *sides], cells))
    single = [of["terrace-kv"] for (_, _, depth), of in short.items() if depth == 1]
    return Page(
        name="kv",
        title="terrace-kv",
        result=f"At equal memory terrace-kv answers {span(single)} times as many requests as memcached over zram, one request at a time on each connection.",
        what="terrace-kv beside memcached and redis: with all of its memory, and at a share of memcached's.",
        how="The server has CPU 0, the client CPU 1, and every value is checked. The ceiling is a server that keeps nothing.",
        peer="memcached and redis, alone and over zram",
        command="cargo run --release -p terrace-bench -- kv\nsudo cargo run --release -p terrace-bench -- kv-memory",
        files=["kv-memory", "kv-tcp", "kv-unix"],
        tables=tables,
        plot=bars("requests a second over TCP, 50 connections, as multiples of memcached's", names[1:], groups, mark=1),
        note="../notes/2026-11-27-moving-objects-and-kv.md",
    )


def accuracy():
    rows, groups = [], []
    for row in read("accuracy")["rows"]:
        of = [row[what][side] for what in ("accesses", "misses") for side in ("sampled", "oracle")]
        rows.append([row["pattern"], f"{100 * row['room']:.0f} %", f"{row['seconds']:.0f} s"] + [f"{100 * value:.0f} %" for value in of])
        if row["room"] == 0.2 and row["seconds"] == 5:
            groups.append((row["pattern"], [100 * value for value in of[:2]]))
    return Page(
        name="accuracy",
        title="What samples know",
        result=f"After five seconds, the fifth of the regions that samples rank hottest has {span([row[1][0] / row[1][1] for row in groups])} times the accesses of the truly hottest.",
        what="The share of accesses, and of a modelled cache's misses, in the regions that samples rank hottest.",
        how=f"Programs over {read('accuracy')['size_mib']:,} MiB are sampled by the clock while every access is counted.",
        peer="the truth: regions ranked by their counts",
        command="cargo run --release -p terrace-bench -- accuracy",
        files=["accuracy"],
        tables=[("Share in the hottest regions", ["pattern", "regions", "after", "accesses", "at best", "misses", "at best"], rows)],
        plot=bars("accesses in the hottest fifth of the regions after 5 s, %", ["by samples", "at best"], groups),
        note=f"{NOTE}#samples-and-policies",
    )


def adapt():
    rows = []
    for pattern in read("adapt")["patterns"]:
        for policy in pattern["policies"]:
            rows.append([pattern["pattern"], policy["policy"], f"{policy['accesses_per_s']:,.0f}", f"{policy['recover_s']:.1f} s", f"{policy['demoted_pages']:,.0f}"])
    jump = {policy["policy"]: policy["accesses_per_s"] for pattern in read("adapt")["patterns"] if pattern["pattern"] == "jump" for policy in pattern["policies"]}
    return Page(
        name="adapt",
        title="Loads that change",
        result=f"Where the hot set jumps, `terrace` makes {jump['terrace'] / jump['jenga']:.1f} times the accesses that `jenga` makes.",
        what="How policies follow a load that changes: throughput over time, time to recover, moves.",
        how="`terrace load memory` of 512 MiB at a budget of 50 %, under each policy in turn, everything on one CPU.",
        peer="the published policies `jenga`, `memtis` and `memtis-qc`, and `faults`",
        command="cargo run --release -p terrace-bench -- adapt",
        files=["adapt"],
        tables=[("By pattern and policy", ["pattern", "policy", "accesses a second", "to recover", "pages evicted"], rows)],
        pictures=["adapt-jump", "adapt-drift", "adapt-scan"],
        note=f"{NOTE}#samples-and-policies",
    )


def sampled():
    rows, groups = [], []
    for number, pattern in enumerate(read("sampled")["patterns"]):
        low, high = pattern["slower_95"]
        again = any(name == pattern["pattern"] for name, _ in groups)
        name = f"{pattern['pattern']}, again" if again else pattern["pattern"]
        rows.append([name, f"{pattern['samples_per_s']:.0f}", f"{pattern['slower']:.3f}", f"{low:.3f} to {high:.3f}", f"{100 * pattern['told_cpu_fraction']:.1f} %"])
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
        tables=[("Time, as a multiple of that without samples", ["pattern", "samples a second", "time", "95 %", "told by the report"], rows)],
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
            rows.append([pattern["pattern"], side["side"], f"{side['late_accesses_per_s']:,.0f}", f"{side['late_to_alone']:.2f}", f"{low:.2f} to {high:.2f}"])
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


def policies():
    sets = {"policies-heldout": "recordings that none was tuned on", "policies-tuning": "recordings that ours was tuned on", "policies-synthetic": "generated"}
    rows, groups = [], []
    for name, shown in sets.items():
        figures = read(name)
        for row in figures["rows"]:
            rows.append([shown, row["workload"].split(":")[0], row["fast"], row["best"], f"{row['to_jenga']['mean']:.2f}", f"{row['to_best']['mean']:.2f}"])
        of = figures["machines"][0]
        groups.append((shown.removeprefix("recordings that "), [of["geomean_to_jenga"]["mean"], of["geomean_to_best"]["mean"]]))
    return Page(
        name="policies",
        title="Policies in the simulator",
        result=f"On recordings that none was tuned on, `terrace` has {groups[0][1][0]:.2f} times Jenga's modelled throughput. It has {groups[0][1][1]:.2f} times that of each workload's best rival.",
        what="Modelled throughput of tiering policies over two tiers of memory.",
        how="`terrace sim` over generated and recorded accesses, with five seeds. Means over workloads are geometric.",
        peer="Jenga, Memtis, HeMem, TPP, Nomad, HybridTier, AutoNUMA, first touch",
        command="cargo run --release -p terrace-bench -- policies",
        files=list(sets),
        tables=[("`terrace`, as a multiple of", ["set", "workload", "fast tier", "best rival", "Jenga", "best rival"], rows)],
        plot=bars("modelled throughput of terrace, as a multiple", ["of Jenga's", "of the best rival's"], groups, mark=1),
        note=f"{NOTE}#tiering-policies-in-the-simulator-policies",
    )


def sim():
    figures = read("sim")
    rows = [[row["stream"].split(":")[0], f"{row['units']:,}", row["policy"], f"{row['simulated_per_s'] / 1e6:.0f} M", f"{row['ratio']:.2f}"] for row in figures["rows"]]
    files = [[row["recording"], f"{row['bytes_a_record']:.1f}", f"{row['file_per_s'] / 1e6:.0f} M", f"{row['memory_per_s'] / 1e6:.0f} M", f"{row['ratio']:.2f}"] for row in figures["recordings"]]
    small = [row for row in figures["rows"] if row["units"] == 10240]
    groups = [(f"{row['stream'].split(':')[0]}, {row['policy']}", [row["simulated_per_s"] / 1e6]) for row in small]
    jenga = next(row for row in small if row["policy"] == "jenga")
    return Page(
        name="sim",
        title="The simulator's speed",
        result=f"The simulator plays {jenga['simulated_per_s'] / 1e6:.0f} million accesses a second with Jenga's policy over 10,240 units.",
        what="Accesses a second that `terrace sim` plays.",
        how=f"{figures['accesses'] // 1_000_000} million accesses of each stream in one thread, and recordings from their compressed files.",
        peer="a bare loop that counts the accesses to each unit; the same accesses from memory",
        command="cargo run --release -p terrace-bench -- sim",
        files=["sim"],
        tables=[
            ("Streams", ["stream", "units", "policy", "accesses a second", "of the bare loop"], rows),
            ("Recordings", ["recording", "bytes an access", "from the file", "from memory", "ratio"], files),
        ],
        plot=bars("million accesses a second, 10,240 units", ["accesses"], groups),
        note=f"{NOTE}#the-simulators-speed-sim",
    )


def solver():
    rows, groups = [], []
    for row in read("solver")["rows"]:
        limits = "with" if row["limits"] else "without"
        rows.append([row["set"], f"{row['regions']:,}", limits, f"{row['median_ms']:.1f} ms", f"{row['most_ms']:.1f} ms", f"{100 * row['largest_gap']:.3f} %", f"{row['peak_mib']:.0f} MiB"])
        if row["regions"] == 1_000_000:
            groups.append((f"{row['set'].removeprefix('tierscape-')}, {limits} limits", [row["median_ms"]]))
    most = max(row["largest_gap"] for row in read("solver")["rows"] if row["regions"] == 1_000_000)
    return Page(
        name="solver",
        title="The placement solver",
        result=f"A million regions take {span([row[1][0] for row in groups], '{:.0f}')} ms, and are within {100 * most:.2f} % of the least time.",
        what="Time, memory and distance from the best of the solver that places regions over tiers.",
        how="Generated problems over TierScape's two sets of tiers, with and without limits of media. The distance is from a lower bound.",
        peer="the lower bound of the Lagrangian dual",
        command="cargo run --release -p terrace-bench -- solver",
        files=["solver"],
        tables=[("By size", ["tiers", "regions", "limits", "median", "most", "largest distance", "memory"], rows)],
        plot=bars("ms for a million regions, medians", ["ms"], groups),
    )


def top():
    figures = read("top")
    return Page(
        name="top",
        title="terrace top",
        result=f"`terrace top` takes {100 * figures['share_of_a_cpu']:.2f} % of a CPU with {figures['processes']} processes.",
        what="CPU time of `terrace top` while it shows processes.",
        how=f"{figures['processes']} managed processes for {figures['seconds']} seconds, in a pseudo-terminal.",
        peer="the bar of 0.1 %",
        command="bench/top.py target/release/terrace",
        files=["top"],
        tables=[("CPU time", ["processes", "share of a CPU"], [[str(figures["processes"]), f"{100 * figures['share_of_a_cpu']:.2f} %"]])],
        plot=bars("% of a CPU", ["%"], [("terrace top", [100 * figures["share_of_a_cpu"]]), ("the bar", [0.1])]),
    )


def costs():
    figures = read("costs")
    budgets = ["100", "80", "60", "40"]
    rows = [[name] + [f"{100 * row['share_of_speed'][budget]:.0f} %" for budget in budgets] for name, row in figures["shapes"].items()]
    skewed = figures["shapes"]["skewed"]["share_of_speed"]
    return Page(
        name="costs",
        title="Speed against budget",
        result=f"A load that only touches memory keeps {100 * skewed['80']:.0f} % of its speed at a budget of 80 %, if few pages are popular. All other shapes keep less.",
        what="Speed against budget, for five shapes of what is hot.",
        how=f"`terrace load memory` touches {figures['size_mib']} MiB in one thread and computes nothing. Speed is of the last seconds of {figures['seconds']}.",
        peer="the load alone",
        command="bench/costs.py target/release/terrace",
        files=["costs"],
        tables=[("Share of the speed alone", ["shape", *(f"budget {budget} %" for budget in budgets)], rows)],
        pictures=["costs"],
    )


ALL = {
    "programs and servers": [servers, programs, honesty, costs, kv, adapt],
    "single pages and calls": [pages, fault_steps, faulters, calls],
    "where nothing leaves": [idle, threads, metadata, malloc, sampled, huge, top],
    "choices": [victims, accuracy, policies, solver, sim],
    "objects": [objects, contexts, buckets, consolidate],
}


def wrapped(line, first=""):
    """A line in lines of some length."""
    rest = " " * len(first)
    return textwrap.fill(line, 120, initial_indent=first, subsequent_indent=rest, break_long_words=False, break_on_hyphens=False)


def text(page):
    """A page in Markdown."""
    links = ", ".join(f"[{name}](../../bench/results/{name}.json)" for name in page.files)
    pictures = [f"../../bench/results/{name}.svg" for name in page.pictures] or [f"{page.name}.svg"]
    told = [
        f"**Measured**: {page.what}",
        f"**How**: {page.how}",
        f"**Beside**: {page.peer}.",
        f"**Machine**: {machine(page.files)}.",
    ]
    if page.note:
        told.append(f"**More**: [what was tried, and what it says]({page.note}).")
    lines = [
        f"# {page.title}",
        "",
        "<!-- Made by scripts/benchmarks.py from bench/results/. -->",
        "",
        wrapped(page.result),
        "",
        *(wrapped(line, "- ") for line in told),
        "",
        "```sh not-run=hours",
        page.command,
        "```",
        "",
        *(f"![{page.title}]({picture})" for picture in pictures),
    ]
    for heading, columns, rows in page.tables:
        lines += ["", f"## {heading}", "", "| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
        lines += ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([*lines, "", wrapped(f"Figures: {links}."), ""])


def written():
    """The text of each file of docs/benchmarks, by its name."""
    files = {}
    for page in (make() for group in ALL.values() for make in group):
        files[f"{page.name}.md"] = text(page)
        if page.plot:
            files[f"{page.name}.svg"] = page.plot
    return files


def shown():
    """The results that are on some page."""
    return {name for group in ALL.values() for make in group for name in make().files}


def links():
    """A line for each group of pages, for the index."""
    for group, pages_of in ALL.items():
        made = [make() for make in pages_of]
        of = " · ".join(f"[{page.title}](benchmarks/{page.name}.md)" for page in made)
        yield wrapped(f"**{group[0].upper()}{group[1:]}**: {of}", "- ")
