#!/usr/bin/env python3
"""Speed against budget, for five shapes of what is hot: the chart of docs/explanation/costs.md.

    bench/costs.py TERRACE [SHAPE]...   measures these shapes (all), by `terrace load memory`
    bench/costs.py                      draws bench/results/costs.svg from bench/results/costs.json
    bench/costs.py --check              exit status 1 if the drawing is not what the figures say

The load does nothing but touch memory, in one thread, so it loses more than a program that also
computes. Speed is counted in the last seconds of each run, when memory is down to the budget.
"""

import json
import os
import pathlib
import platform
import statistics
import subprocess
import sys

RESULTS = pathlib.Path(__file__).resolve().parent / "results"
SIZE_MIB = 256
SECONDS = 7
# The last of them, which count: until then memory comes down, and it is learnt what is hot.
COUNTED_S = 3
INTERVAL_S = 0.1
BUDGETS = [100, 80, 60, 40]
# Each with what is written beside its line, and the options of `terrace load memory`.
SHAPES = {
    "skewed": ("few pages are popular", ["zipf", "--theta", "1.2"]),
    "flat": ("a long tail", ["zipf", "--theta", "0.8"]),
    "jump": ("hot part moves each 4 s", ["jump", "--change-every", "4"]),
    "scan": ("one pass after the other", ["scan"]),
    "uniform": ("all alike", ["zipf", "--theta", "0"]),
}
COLOURS = {
    "skewed": ("#0060a0", "#6cb8f0"),
    "flat": ("#b04000", "#f0a060"),
    "jump": ("#207030", "#70c880"),
    "scan": ("#802080", "#d890d8"),
    "uniform": ("#505050", "#b0b0b0"),
}


def speed(command):
    """Accesses a second in the last seconds of a run."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True)
    counts = json.loads(done.stdout)["over_time"]
    return statistics.mean(counts[-round(COUNTED_S / INTERVAL_S) :])


def measure(terrace, shape):
    """The speed alone, and for each budget, in percent of the data, as a share of it."""
    load = [terrace, "load", "memory", *SHAPES[shape][1], "--size", f"{SIZE_MIB}M"]
    load += ["--seconds", str(SECONDS), "--json"]
    alone = speed(load)
    row = {"alone_accesses_per_s": alone, "share_of_speed": {}}
    for budget in BUDGETS:
        # What Terrace itself needs is part of the budget, so that at 100 % nothing has to leave.
        mib = SIZE_MIB * budget // 100 + (16 if budget == 100 else 0)
        run = [terrace, "run", "--dram", f"{mib}M", "--", *load]
        row["share_of_speed"][str(budget)] = speed(run) / alone
        print(f"{shape} {budget} %: {row['share_of_speed'][str(budget)]:.3f}", flush=True)
    return row


def machine():
    cpu = [line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")]
    return {"cpu": cpu[0] if cpu else platform.machine(), "cpus": os.cpu_count(), "kernel": platform.release()}


def spread(labels, least):
    """Heights for labels, in their order, that are so far apart at least."""
    placed = []
    for height, name in sorted(labels):
        height = max(height, placed[-1][0] + least) if placed else height
        placed.append((height, name))
    over = max(0, placed[-1][0] - BOTTOM)
    return [(height - over, name) for height, name in placed] if over else placed


LEFT, RIGHT, TOP, BOTTOM = 60, 470, 50, 330


def draw(figures):
    """The chart as SVG, which follows the reader's choice of light or dark."""
    styles = "".join(f".{name}{{stroke:{light}}}.t{name}{{fill:{light}}}" for name, (light, _) in COLOURS.items())
    dark = "".join(f".{name}{{stroke:{dark}}}.t{name}{{fill:{dark}}}" for name, (_, dark) in COLOURS.items())
    out = [
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 680 390" width="680" height="390">',
        "<style>text{font-family:sans-serif;font-size:13px;fill:#111}.p{fill:#fff}.g{stroke:#ddd}"
        f"polyline{{fill:none;stroke-width:2.5}}{styles}@media (prefers-color-scheme: dark)"
        f"{{text{{fill:#ddd}}.p{{fill:#111}}.g{{stroke:#444}}{dark}}}</style>",
        '<rect class="p" width="680" height="390"/>',
        f'<text x="{LEFT}" y="28">speed, % of the speed alone: memory is touched, and nothing is computed</text>',
    ]
    def across(budget):
        return LEFT + (100 - budget) * (RIGHT - LEFT) / (100 - BUDGETS[-1])

    def down(share):
        return BOTTOM - min(share, 1.1) * (BOTTOM - TOP) / 1.1

    for percent in range(0, 101, 20):
        y = down(percent / 100)
        out.append(f'<line class="g" x1="{LEFT}" x2="{RIGHT}" y1="{y:.0f}" y2="{y:.0f}"/>')
        out.append(f'<text x="{LEFT - 8}" y="{y + 4:.0f}" text-anchor="end">{percent}</text>')
    for budget in BUDGETS:
        out.append(f'<text x="{across(budget):.0f}" y="{BOTTOM + 20}" text-anchor="middle">{budget}</text>')
    out.append(f'<text x="{(LEFT + RIGHT) // 2}" y="{BOTTOM + 44}" text-anchor="middle">budget (--dram), % of the data</text>')
    labels = []
    for name, row in figures["shapes"].items():
        shares = row["share_of_speed"]
        points = " ".join(f"{across(budget):.0f},{down(shares[str(budget)]):.1f}" for budget in BUDGETS)
        out.append(f'<polyline class="{name}" points="{points}"/>')
        labels.append((down(shares[str(BUDGETS[-1])]), name))
    for height, name in spread(labels, 17):
        out.append(f'<text class="t{name}" x="{RIGHT + 10}" y="{height + 4:.0f}">{SHAPES[name][0]}</text>')
    return "\n".join(out + ["</svg>", ""])


def main():
    data, picture = RESULTS / "costs.json", RESULTS / "costs.svg"
    if len(sys.argv) > 1 and sys.argv[1] != "--check":
        before = json.loads(data.read_text())["figures"]["shapes"] if data.exists() else {}
        new = {name: measure(sys.argv[1], name) for name in sys.argv[2:] or SHAPES}
        shapes = {name: row for name, row in ((name, new.get(name, before.get(name))) for name in SHAPES) if row}
        figures = {"size_mib": SIZE_MIB, "seconds": SECONDS, "shapes": shapes}
        data.write_text(json.dumps({"machine": machine(), "figures": figures}, indent=2) + "\n")
    text = draw(json.loads(data.read_text())["figures"])
    if "--check" not in sys.argv:
        picture.write_text(text)
    elif picture.read_text() != text:
        sys.exit("bench/results/costs.svg is not what costs.json says: run bench/costs.py")


main()
