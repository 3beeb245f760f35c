"""Models that place regions, live, and beside the simulator."""

import html
import re
import statistics

from plots import COLOURS

from .common import RESULTS, Page, about, read

OURS = "terrace-cost"
# The program of the plot, and words by which workloads of the simulator name the programs.
SHOWN = "redis"
WORDS = {
    "redis": {"redis"},
    "memcached": {"memcached"},
    "pagerank": {"pagerank", "pr", "graph"},
    "cpython-index": {"python", "cpython", "index"},
}
# Words of workloads with other accesses than the live ones: popular keys side by side.
OTHERS = {"gauss", "gaussian", "contiguous", "clustered"}
# Knobs of the settings' names in the simulator.
KNOBS = {"conservative": 0.9, "moderate": 0.5, "aggressive": 0.1, "p25": 0.9, "p50": 0.5, "p75": 0.1}
# The least rank correlation with which two orders agree.
AGREE = 0.8
# The plot's width and height, and where its axes are.
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 680, 420, 70, 520, 50, 360


def percent(value, form="{:.0f}"):
    """A part in percent; nothing where there is none."""
    return "" if value is None else f"{form.format(100 * value)} %"


def ranks(values):
    """The rank of each value, from 1; equal ones have their mean."""
    order = sorted(values)
    return [order.index(value) + (order.count(value) + 1) / 2 for value in values]


def spearman(first, second):
    """The rank correlation of two lists; None where there is none, as all of one are equal."""
    pairs = list(zip(ranks(first), ranks(second)))
    if len(pairs) < 3:
        return None
    middle = (len(pairs) + 1) / 2
    products = sum((a - middle) * (b - middle) for a, b in pairs)
    squares = [sum((pair[side] - middle) ** 2 for pair in pairs) for side in (0, 1)]
    return products / (squares[0] * squares[1]) ** 0.5 if all(squares) else None


def number(row, *names):
    """The first of some figures that a row has, or None."""
    values = (row.get(name) for name in names)
    return next((value for value in values if isinstance(value, (int, float)) and not isinstance(value, bool)), None)


def rows_in(value):
    """All rows of a model, wherever they are in a result."""
    if isinstance(value, list):
        for each in value:
            yield from rows_in(each)
    elif isinstance(value, dict):
        if isinstance(value.get("model"), str):
            yield value
        else:
            for each in value.values():
                yield from rows_in(each)


def knob_of(row):
    """The knob of a simulated row, or None."""
    knob = number(row, "knob", "alpha")
    if knob is not None:
        return knob
    name = next((row[key] for key in ("setting", "preset") if isinstance(row.get(key), str)), "")
    said = re.fullmatch(r"(?:alpha|knob) ?=? ?([\d.]+)", name)
    return float(said[1]) if said else KNOBS.get(name)


def simulated():
    """What the simulator says was saved and lost, by program, model and knob: medians of all seeds and
    sets of tiers. None where it was not run."""
    if not (RESULTS / "placement-sim.json").exists():
        return None
    points = {}
    for row in rows_in(about("placement-sim")):
        name = next((row[key] for key in ("workload", "program", "name") if isinstance(row.get(key), str)), "")
        words = set(re.split(r"[^a-z]+", name.lower()))
        knob, saved, lost = knob_of(row), number(row, "saved"), number(row, "lost", "slowdown")
        if None in (knob, saved, lost) or words & OTHERS:
            continue
        for program, names in WORDS.items():
            if words & names:
                points.setdefault((program, row["model"], knob), []).append((saved, lost))
    return {
        key: tuple(statistics.median(each[side] for each in of) for side in (0, 1)) for key, of in points.items()
    }


def correlations(rows):
    """For each program that was simulated, by its name: the number of points, and rank correlations of what was
    saved and of what was lost. First over all points, then of the models at one knob, as the mean over knobs."""
    by_simulation = simulated() or {}
    found = {}
    for row in rows:
        of = by_simulation.get((row["program"], row["model"], row["knob"]))
        if of and None not in (row["cost"], row["lost"]):
            live = (1 - row["cost"], row["lost"])
            found.setdefault(row["program"], []).append((row["knob"], live, of))
    for program, points in found.items():

        def correlation(side, knob=None):
            chosen = [(live[side], of[side]) for at, live, of in points if knob in (None, at)]
            return spearman(*map(list, zip(*chosen)))

        def at_one_knob(side):
            values = [correlation(side, knob) for knob in dict.fromkeys(at for at, _, _ in points)]
            values = [value for value in values if value is not None]
            return statistics.mean(values) if values else None

        yield program, len(points), [correlation(0), correlation(1), at_one_knob(0), at_one_knob(1)]


def saved_at(curve, lost):
    """The most that a curve saves where no more than that is lost: from no saving at no loss on, a straight
    line between any two of its points."""
    lost, points = max(lost, 0), sorted([(0, 0), *((max(x, 0), y) for x, y in curve)])
    most = max(y for x, y in points if x <= lost)
    for x, y in points:
        for further, more in points:
            if x <= lost < further:
                most = max(most, y + (more - y) * (lost - x) / (further - x))
    return most


def below(rows):
    """For each program, of all points of other models, the one that is the furthest above the curve of ours:
    its row, by how much, and the spread of the runs. The spread is None where there was one run each."""
    for program in dict.fromkeys(row["program"] for row in rows):
        of = [row for row in rows if row["program"] == program and None not in (row["lost"], row["memory"])]
        ours = [row for row in of if row["model"] == OURS]
        others = [row for row in of if row["model"] != OURS]
        if not ours or not others:
            continue
        curve = [(row["lost"], 1 - row["memory"]) for row in ours]
        distances = [(1 - row["memory"]) - saved_at(curve, row["lost"]) for row in others]
        worst = max(range(len(others)), key=distances.__getitem__)
        spreads = [
            max(row["memory_to"] - row["memory_from"], row["lost_to"] - row["lost_from"]) for row in [others[worst], *ours]
        ]
        repeats = min(len(row["samples"]) for row in [others[worst], *ours])
        yield others[worst], distances[worst], max(spreads) if repeats > 1 else None


def verdict(distance, spread):
    """Whether ours is not below, by more than the spread."""
    if distance <= 0:
        return "met"
    return "not judged" if spread is None else "met" if distance <= spread else "**missed**"


def curves(title, across, down, series):
    """Points that lines join, as SVG: `series` are pairs of a name and points."""
    points = [point for _, of in series for point in of]
    ends = []
    for axis in (0, 1):
        least, most = (end([0, *(point[axis] for point in points)]) for end in (min, max))
        step = next(step for step in (1, 2, 5, 10, 20, 50, 100, 200, 500) if step == 500 or (most - least) / step <= 8)
        ends.append((least // step * step, max(-(-most // step), 1) * step, step))

    def x_of(value):
        return LEFT + (value - ends[0][0]) * (RIGHT - LEFT) / (ends[0][1] - ends[0][0])

    def y_of(value):
        return BOTTOM - (value - ends[1][0]) * (BOTTOM - TOP) / (ends[1][1] - ends[1][0])

    def styles(mode):
        return "".join(
            f".c{n}{{fill:{COLOURS[n % len(COLOURS)][mode]}}}.l{n}{{stroke:{COLOURS[n % len(COLOURS)][mode]}}}"
            for n in range(len(series))
        )

    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}">',
        "<style>text{font-family:sans-serif;font-size:13px;fill:#111}.v{font-size:11px}.p{fill:#fff}.g{stroke:#ccc}"
        f"polyline{{fill:none;stroke-width:2}}{styles(0)}@media (prefers-color-scheme: dark)"
        f"{{text{{fill:#ddd}}.p{{fill:#111}}.g{{stroke:#444}}{styles(1)}}}</style>",
        f'<rect class="p" width="{WIDTH}" height="{HEIGHT}"/>',
        f'<text x="12" y="26">{html.escape(title)}</text>',
    ]
    least, most, step = ends[0]
    for n in range(round((most - least) / step) + 1):
        x = f"{x_of(least + n * step):.1f}"
        out.append(f'<line class="g" x1="{x}" x2="{x}" y1="{TOP}" y2="{BOTTOM}"/>')
        out.append(f'<text class="v" x="{x}" y="{BOTTOM + 16}" text-anchor="middle">{least + n * step:g}</text>')
    least, most, step = ends[1]
    for n in range(round((most - least) / step) + 1):
        y = y_of(least + n * step)
        out.append(f'<line class="g" x1="{LEFT}" x2="{RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        out.append(f'<text class="v" x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{least + n * step:g}</text>')
    out.append(f'<text x="{(LEFT + RIGHT) / 2:.0f}" y="{BOTTOM + 40}" text-anchor="middle">{html.escape(across)}</text>')
    middle = (TOP + BOTTOM) / 2
    out.append(
        f'<text x="20" y="{middle:.0f}" text-anchor="middle" transform="rotate(-90 20 {middle:.0f})">{html.escape(down)}</text>'
    )
    for number_of, (name, of) in enumerate(series):
        places = [(x_of(x), y_of(y)) for x, y in of]
        out.append(f'<polyline class="l{number_of}" points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in places)}"/>')
        out += [f'<circle class="c{number_of}" cx="{x:.1f}" cy="{y:.1f}" r="4"/>' for x, y in places]
        y = TOP + 20 * number_of
        out.append(f'<rect class="c{number_of}" x="{RIGHT + 20}" y="{y}" width="12" height="12"/>')
        out.append(f'<text x="{RIGHT + 37}" y="{y + 11}">{html.escape(name)}</text>')
    return "\n".join(out + ["</svg>", ""])


def table(program, rows):
    """The table of one program, a row a model: what was at each knob stands side by side."""
    knobs = list(dict.fromkeys(row["knob"] for row in rows))
    models = {}
    for row in rows:
        models.setdefault(row["model"], {})[row["knob"]] = row

    def cell(of, shown):
        return " · ".join(shown(of[knob]) if knob in of else "–" for knob in knobs)

    def share(name):
        return lambda row: "–" if row[name] is None else f"{100 * row[name]:.0f}"

    def lost(row):
        ends = "" if row["lost"] is None else f" ({100 * row['lost_from']:.0f} to {100 * row['lost_to']:.0f})"
        return share("lost")(row) + ends + "".join(f", {row[what]} {what}" for what in ("ended", "failed") if row[what])

    def latency(name):
        return lambda row: "–" if row[name] is None else f"{row[name] / 1000:.2f}"

    def alone(name):
        return statistics.median(row[name] for row in rows if row[name] is not None)

    heads = ["model", "lost (least to most)", "told", "memory", "cost of the data"]
    shown = [lost, share("told"), share("memory"), share("cost")]
    for head, name in [("p95", "p95_us"), ("p99.9", "p999_us")]:
        # Servers have them.
        if any(row[name] is not None and row[f"alone_{name}"] is not None for row in rows):
            heads.append(f"{head}, ms (alone {alone(f'alone_{name}') / 1000:.2f})")
            shown.append(latency(name))
    cells = [[f"`{model}`", *(cell(of, each) for each in shown)] for model, of in models.items()]
    at = " · ".join(f"{knob:g}" for knob in knobs)
    return (f"{program}, {alone('alone_s'):.0f} s alone: percent, at knobs of {at}", heads, cells)


def placement():
    figures = read("placement")
    rows = [row for row in figures["rows"] if row["alone_s"] is not None]
    programs = list(dict.fromkeys(row["program"] for row in rows))
    tables = [table(program, [row for row in rows if row["program"] == program]) for program in programs]
    worst = list(below(rows))
    missed = sum(verdict(distance, spread) == "**missed**" for _, distance, spread in worst)
    judged = sum(verdict(distance, spread) != "not judged" for _, distance, spread in worst)
    tables.append(
        (
            "Points of other models, the furthest above the curve of ours",
            ["program", "model", "knob", "above, of memory", "spread of runs", "verdict"],
            [
                [
                    row["program"],
                    f"`{row['model']}`",
                    f"{row['knob']:g}",
                    percent(distance, "{:.1f}"),
                    percent(spread, "{:.1f}"),
                    verdict(distance, spread),
                ]
                for row, distance, spread in worst
            ],
        )
    )
    if judged:
        curve = f"`{OURS}` is below another model's curve by more than the spread of runs on {missed} of {judged} programs."
    else:
        curve = f"Whether `{OURS}` is below other models' curves cannot be judged: there was one run each."
    compared = list(correlations(rows))

    def agrees(of):
        # The knob alone would make all points agree.
        return None not in of[2:] and min(of[2:]) >= AGREE

    def shown(value):
        return "" if value is None else f"{value:.2f}"

    if compared:
        tables.append(
            (
                "Rank correlation, live and simulated: of all points, and of the models at one knob",
                ["program", "points", "saved", "lost", "saved, at one knob", "lost, at one knob", f"at least {AGREE:g}"],
                [
                    [program, str(points), *map(shown, of), "yes" if agrees(of) else "**no**"]
                    for program, points, of in compared
                ],
            )
        )
        agreeing = sum(agrees(of) for _, _, of in compared)
        order = f"Simulated and live order of the models agree on {agreeing} of {len(compared)} programs."
    else:
        order = "The order of models was not compared with the simulator's."
    knobs = ", ".join(f"{knob:g}" for knob in dict.fromkeys(row["knob"] for row in rows))
    models = list(dict.fromkeys(row["model"] for row in rows))
    program = SHOWN if SHOWN in programs else next(iter(programs), SHOWN)
    series = [
        (
            model,
            [
                (100 * (1 - row["memory"]), 100 * row["lost"])
                for row in sorted(rows, key=lambda row: -row["knob"])
                if (row["program"], row["model"]) == (program, model) and None not in (row["memory"], row["lost"])
            ],
        )
        for model in models
    ]
    return Page(
        name="placement",
        title="Models that place regions",
        result=f"{curve} {order}",
        what="The part of the time that is lost, as measured and as reports tell it; memory as a share of that alone; what the data "
        "cost beside all of them in DRAM; and latencies of servers.",
        how=f"Each model at each knob over `{figures['tiers']}`, with windows of {figures['window']}, in random order, "
        f"{figures['repeats']} repeats. Runs alone stand between them, and each run is compared with the two around it. PageRank "
        "goes on for a set time: what is lost is that of as much work. Medians. A curve goes from no "
        "saving at no loss through the model's settings. The spread is the widest range of lost time or memory among the runs in "
        "question.",
        peer="the published models, in the same settings",
        command="sudo cargo run --release -p terrace-bench -- placement",
        not_run="hours",
        files=["placement"],
        tables=tables,
        plot=curves(f"{program}, at knobs of {knobs}", "memory saved, %", "time lost, %", series),
    )
