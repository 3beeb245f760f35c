#!/usr/bin/env python3
"""Makes docs/benchmarks.md, one screen of results, out of bench/results/, a page and a plot for each
benchmark in docs/benchmarks/, and what README.md says of its plots:

    scripts/benchmarks.py            writes them
    scripts/benchmarks.py --check    exit status 1 if they, or the plots, are not what the results say
"""

import json
import pathlib
import re
import statistics
import sys

import benchmark_pages

ROOT = pathlib.Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench/results"
PAGE = ROOT / "docs/benchmarks.md"
PAGES = ROOT / "docs/benchmarks"
README = ROOT / "README.md"
# The servers of the plots, and the least share of memory that counts as near all of it.
CURVES, NEAR_ALL = ["memcached", "redis"], 90
# Share of memcached's memory in the plot of terrace-kv.
KV_SHARE = 30
NOTE = "notes/2026-11-27-benchmarks.md"


def read(name):
    """The figures of one file of results."""
    return json.loads((RESULTS / f"{name}.json").read_text())["figures"]


def machine(name):
    about = json.loads((RESULTS / f"{name}.json").read_text())["machine"]
    return f"{about['cpu']}, Linux {about['kernel'].split('-')[0]}"


def to_zram(cell, figure):
    """Terrace's median, as a multiple of zram's."""
    return cell["terrace"][figure]["median"] / cell["peer"][figure]["median"]


def servers():
    """A row for each server and size."""
    for comparison in read("servers-main")["comparisons"]:
        for cell in comparison["cells"]:
            figures = ["ops_per_s", "p99_us", "p999_us", "cpu_us_per_op"]
            ratios = " | ".join(f"{to_zram(cell, figure):.2f}" for figure in figures)
            yield f"| {comparison['server']}, {cell['resident_percent']} % | {ratios} |"


def pages():
    """A row for each way that a page goes."""
    names = {
        "fault, median": "a fault, median",
        "fault, p99": "a fault, 99th percentile",
        "inline restore, one page": "`terrace_touch`, one page",
        "inline restore, of 16": "`terrace_touch`, a range of 16",
        "eviction, batches of 512": "an eviction",
    }
    figures = read("pages")
    for name, shown in names.items():
        row = figures[name]
        yield f"| {shown} | {row['terrace_us']:.1f} µs | {row['zram_us']:.1f} µs | {row['ratio']:.2f} |"


def idle_line():
    """What Terrace costs where nothing is evicted, beside the server alone."""
    of = {"CPU time of an operation": [], "memory of the server": []}
    for server in read("idle-servers")["servers"]:
        for row in server["ratios"]:
            if row["side"] == "terrace" and row["figure"] in of:
                of[row["figure"]].append(row["ratio_median"])
    cpu, memory = (f"{min(values):.2f} to {max(values):.2f}" for values in of.values())
    return f"{cpu} times the CPU time of a request, {memory} times the memory."


def page():
    told = benchmark_pages.honesty_told()
    heldout = read("policies-heldout")["machines"][0]
    metadata = statistics.mean(row["share"] for row in read("metadata"))
    lines = [
        "# Benchmarks",
        "",
        "<!-- Made by scripts/benchmarks.py from bench/results/. -->",
        "",
        f"Each result stands beside a peer's of the same run ({machine('servers-main')}, two CPUs).",
        f"What was tried and left out is in the [note]({NOTE}). Each benchmark has a page with its plot:",
        "",
        *benchmark_pages.links(),
        "",
        "## Servers at equal memory",
        "",
        "Zipf GETs over 32 connections. Each figure is a multiple of that with the kernel's zram.",
        "",
        "| server, memory | requests a second | p99 | p99.9 | CPU time a request |",
        "|---|---|---|---|---|",
        *servers(),
        "",
        "![memcached](../bench/results/servers-memcached-1000-zram-lz4.svg)",
        "",
        "## One page",
        "",
        "| what | Terrace | zram | ratio |",
        "|---|---|---|---|",
        *pages(),
        "",
        "## And",
        "",
        f"- Whole programs on all CPUs: {programs_line()}",
        f"- Servers of which nothing is evicted: {idle_line()}",
        f"- Time lost, as the report tells it: within a fifth of the truth, or two points, on {sum(row['is_right'] for row in told)} of {len(told)} runs at 80, 60 and 40 % of the memory.",
        f"- Metadata: {metadata * 100:.2f} % of the memory that is managed.",
        f"- Policies, on recordings that none was tuned on: {heldout['geomean_to_jenga']['mean']:.2f} times Jenga's modelled throughput.",
        f"- The allocator: {malloc_line()}",
        "",
        "`make bench` measures anew. `scripts/benchmarks.py` then makes this page.",
    ]
    return "\n".join(lines) + "\n"


def programs_line():
    """How much work whole programs do, beside zram."""
    work = [row["work_to_zram"]["median"] for row in read("programs")["rows"]]
    return f"{benchmark_pages.mean(work):.2f} times the work that they do over zram at equal memory."


def malloc_line():
    """How long the suite takes, beside jemalloc."""
    time, memory = (
        benchmark_pages.mean(benchmark_pages.malloc_ratios("size", figure).values()) for figure in ("seconds", "peak_bytes")
    )
    return f"{time:.2f} times jemalloc's time over the tests of the suite, {memory:.2f} times its memory."


def curve(server):
    """For each point of a plot, less memory first: Terrace's share of the memory that the unlimited
    server has, and its throughput and 99th percentile as multiples of zram's."""
    points = []
    for cell in read(f"servers-curve-{server}")["comparisons"][0]["cells"]:
        share = 100 * cell["terrace"]["memory_mean_bytes"]["median"] / cell["unlimited"]["memory_mean_bytes"]["median"]
        points.append((share, to_zram(cell, "ops_per_s"), to_zram(cell, "p99_us")))
    return sorted(points)


def of_the_plot():
    """What README.md says of its plot, in the plot's own measure of memory."""
    below = {name: [point for point in curve(name) if point[0] < NEAR_ALL] for name in CURVES}
    above = [point for name in CURVES for point in curve(name) if point[0] >= NEAR_ALL]

    def span(name, figure):
        values = [point[figure] for point in below[name]]
        return f"{min(values):.2f} to {max(values):.2f}"

    shares = [point[0] for points in below.values() for point in points]
    return (
        f"With {min(shares):.0f} to {max(shares):.0f} % of the unlimited server's memory, memcached has "
        f"{span('memcached', 1)} times zram's throughput, and {span('memcached', 2)} times its p99.\n"
        f"[redis](bench/results/servers-redis-1000-zram-lz4.svg) has {span('redis', 1)} and {span('redis', 2)} times. "
        f"From {NEAR_ALL} % on, the worst is {min(point[1] for point in above):.2f} times the throughput, and {max(point[2] for point in above):.2f} times the p99.\n"
    )


def of_the_kv_plot():
    """What README.md says of the plot of terrace-kv, at the share of memory that the plot shows."""
    cells = {(depth, connections): of for (share, connections, depth), of in benchmark_pages.kv_memory().items() if share == KV_SHARE}

    def to(peer, figure):
        values = [of["terrace-kv"][figure] / of[peer][figure] for _, of in sorted(cells.items())]
        return " and ".join(f"{value:.2f}" for value in values)

    (few, many), (deep, deep_many) = sorted(cells)
    return (
        f"Each with {KV_SHARE} % of the memory that memcached takes alone, [terrace-kv](docs/terrace-kv.md) answers {to('memcached-zram', 'ops_per_s')} times memcached's "
        f"requests over zram,\nand {to('redis-zram', 'ops_per_s')} times redis's. "
        f"Its p99.9 is {to('memcached-zram', 'p999_us')} times memcached's, and {to('redis-zram', 'p999_us')} times redis's. "
        f"(First {few} request is under way on each of {many} connections, then {deep} on each of {deep_many}.)\n"
    )


def shows_the_results(server):
    """Whether the dots of a plot lie where its server's results are: Terrace's, then zram's, of the
    throughput, and then those of the 99th percentile."""
    svg = (RESULTS / f"servers-{server}-1000-zram-lz4.svg").read_text()
    dots = [(int(x), int(y)) for x, y in re.findall(r'<circle cx="(\d+)" cy="(\d+)"', svg)]
    comparison = read(f"servers-curve-{server}")["comparisons"][0]
    for panel, figure in enumerate(["ops_per_s", "p99_us"]):
        points = []
        for side in ["terrace", "peer"]:
            of_side = [
                (
                    cell[side]["memory_mean_bytes"]["median"] / cell["unlimited"]["memory_mean_bytes"]["median"],
                    cell[side][figure]["median"],
                )
                for cell in comparison["cells"]
            ]
            points += sorted(of_side)
        drawn = dots[panel * len(points) : (panel + 1) * len(points)]
        for axis in [0, 1]:
            values, pixels = [point[axis] for point in points], [dot[axis] for dot in drawn]
            if len(pixels) != len(values):
                return False
            low, high = values.index(min(values)), values.index(max(values))
            scale = (pixels[high] - pixels[low]) / (values[high] - values[low])
            if any(abs(pixels[low] + (v - values[low]) * scale - p) > 2 for v, p in zip(values, pixels)):
                return False
    return True


def main():
    text, readme = page(), README.read_text()
    before, rest = readme.split("zram-lz4.svg)\n\n", 1)
    between, kv = rest[rest.index("On all CPUs") :], "![terrace-kv"
    between, after = between[: between.index("Each with ")], between[between.index(kv) :]
    told = f"{before}zram-lz4.svg)\n\n{of_the_plot()}{between}{of_the_kv_plot()}\n{after}"
    wanted = {PAGE: text, README: told} | {PAGES / name: made for name, made in benchmark_pages.written().items()}
    if sys.argv[1:] == ["--check"]:
        faults = [
            f"{path.relative_to(ROOT)} is not what bench/results/ says: run scripts/benchmarks.py"
            for path in sorted({*wanted, *PAGES.glob("*")})
            if not path.exists() or path.read_text() != wanted.get(path)
        ]
        faults += [
            f"bench/results/{path.name} is on no page of docs/benchmarks: scripts/benchmark_pages has them"
            for path in sorted(RESULTS.glob("*.json"))
            if path.stem not in benchmark_pages.shown()
        ]
        faults += [f"the plot of {name} shows other figures" for name in CURVES if not shows_the_results(name)]
        print("\n".join(faults), end="\n" if faults else "")
        sys.exit(bool(faults))
    PAGES.mkdir(exist_ok=True)
    for path in {*PAGES.glob("*")} - wanted.keys():
        path.unlink()
    for path, made in wanted.items():
        path.write_text(made)


if __name__ == "__main__":
    main()
