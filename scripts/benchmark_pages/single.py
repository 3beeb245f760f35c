"""Single pages and calls."""

from plots import bars

from .common import MIB, NOTE, Page, read


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
    means = lambda step: [f"{place[step]['mean_us']:.1f} µs" if "mean_us" in place[step] else "" for place in (one, two)]
    rows = [
        [shown, f"{one[step]['p50_us']:.1f} µs", f"{two[step]['p50_us']:.1f} µs", *means(step)] for step, shown in steps.items()
    ]
    eviction = {
        "scan_us": "scan",
        "move_us": "move",
        "compress_us": "compress",
        "store_us": "store",
        "empty_us": "empty the slot",
    }
    return Page(
        name="fault-steps",
        title="Steps of a fault",
        result=f"With all on one CPU a fault takes {one['total']['p50_us']:.1f} µs, and {two['total']['p50_us']:.1f} µs on two CPUs, "
        f"{two['total']['p50_us'] / two['zram_total']['p50_us']:.1f} times zram's. The mean there is "
        f"{two['total']['mean_us']:.0f} µs, {two['total']['mean_us'] / two['zram_total']['mean_us']:.1f} times zram's.",
        what="Where the time goes from the instruction that touches an evicted page to the next one, and where an eviction's goes.",
        how="Steps are measured in program and handler, with everything on one CPU, and with two CPUs for all.",
        peer="zram lz4, in the same run",
        command="sudo cargo run --release -p terrace-bench -- fault-steps",
        files=["fault-steps"],
        tables=[
            ("A fault", ["step", "one CPU, median", "two CPUs, median", "one CPU, mean", "two CPUs, mean"], rows),
            (
                "An eviction, a page",
                ["step", "time"],
                [[shown, f"{figures['eviction'][step]:.2f} µs"] for step, shown in eviction.items()],
            ),
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
                    shown_figures = ("pages_per_s", "touch_p50_us", "touch_p99_us", "cpu_us", "memory_mib")
                    ratios = [f"{row[figure]['ratio']:.2f}" if figure in row else "" for figure in shown_figures]
                    rows.append([place, row["case"].removeprefix("own, "), str(row["threads"])] + ratios)
        tables.append(
            (
                f"{shown[0].upper()}{shown[1:]}",
                ["where", "order", "threads", "pages a second", "p50", "p99", "CPU time a page", "memory while all is out"],
                rows,
            )
        )

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
            [
                (row["call"].replace("(MADV_DONTNEED)", ""), [row[side]["p50_us"] for side in sides])
                for row in figures["calls"]["rows"]
                if row["call"] != "fork"
            ],
        ),
        note=f"{NOTE}#a-programs-own-memory-calls-and-a-thousand-processes-calls",
    )
