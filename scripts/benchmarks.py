#!/usr/bin/env python3
"""Makes docs/benchmarks.md, one screen of results, out of bench/results/:

    scripts/benchmarks.py            writes it
    scripts/benchmarks.py --check    exit status 1 if it is not what the results say
"""

import json
import pathlib
import statistics
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench/results"
PAGE = ROOT / "docs/benchmarks.md"
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


def idle():
    """A row for each server where nothing is evicted."""
    for server in read("idle-servers")["servers"]:
        ratios = {row["figure"]: row["ratio_median"] for row in server["ratios"] if row["side"] == "terrace"}
        cpu, memory = ratios["CPU time of an operation"], ratios["memory of the server"]
        size = f"{server['server']}, {server['items']:,} items"
        yield f"| {size} | {cpu:.3f} | {memory:.3f} |"


def page():
    honesty, heldout = read("honesty"), read("policies-heldout")["machines"][0]
    malloc = read("malloc")["to_base"]["means"]
    metadata = statistics.mean(row["share"] for row in read("metadata"))
    lines = [
        "# Benchmarks",
        "",
        "<!-- Made by scripts/benchmarks.py from bench/results/. -->",
        "",
        f"Each result stands beside a peer's of the same run ({machine('servers-main')}, two CPUs).",
        f"How each was measured, and what was tried and left out, is in the [note]({NOTE}).",
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
        "## Where nothing is evicted",
        "",
        "Each figure is a multiple of that of the server alone.",
        "",
        "| server | CPU time a request | memory |",
        "|---|---|---|",
        *idle(),
        "",
        "## And",
        "",
        f"- Time lost, as the report tells it: within a fifth of the truth on {honesty['right']} of {len(honesty['rows'])} programs.",
        f"- Metadata: {metadata * 100:.2f} % of the memory that is managed.",
        f"- Policies, on recordings that none was tuned on: {heldout['geomean_to_jenga']['mean']:.2f} times Jenga's modelled throughput.",
        f"- The allocator: {malloc_line(malloc)}",
        "",
        "`make bench` measures anew. `scripts/benchmarks.py` then makes this page.",
    ]
    return "\n".join(lines) + "\n"


def malloc_line(means):
    """How long the suite takes, beside jemalloc."""
    time, memory = means["time"]["size"], means["memory"]["size"]
    return f"{time:.2f} times jemalloc's time over the short tests of the suite, {memory:.2f} times its memory."


def main():
    text = page()
    if sys.argv[1:] == ["--check"]:
        if PAGE.read_text() != text:
            print("docs/benchmarks.md is not what bench/results/ says: run scripts/benchmarks.py")
            sys.exit(1)
    else:
        PAGE.write_text(text)


if __name__ == "__main__":
    main()
