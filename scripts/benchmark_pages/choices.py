"""Choices: policies, victims, placements."""

from plots import bars, curves

from .common import MIB, NOTE, Page, read, span


def victims():
    names = {
        "random": "random",
        "kernel": "the kernel's lists",
        "lru": "LRU",
        "ours_by_faults_only": "Terrace, without writes",
        "ours": "Terrace",
        "popularity": "true popularity",
        "optimum": "Belady's optimum",
    }
    rows = read("victims")
    half = next(row["faults_per_get"] for row in rows if row["resident_percent"] == 50)
    return Page(
        name="victims",
        title="Choice of victims",
        result=f"With half of the pages resident, Terrace's choice makes {half['ours']:.3f} faults a request. "
        f"The kernel's lists make {half['kernel']:.3f}, and random victims {half['random']:.3f}.",
        what="Faults a request, by how the pages that leave are chosen.",
        how="A simulation of memcached's load: items of 1,000 bytes, GETs by Zipf 0.99. The code that decides is the pager's.",
        peer="random choice, the kernel's lists, LRU, and two oracles",
        command="cargo run --release -p terrace-bench -- victims",
        files=["victims"],
        tables=[
            (
                "Faults a request",
                ["resident", *names.values()],
                [[f"{row['resident_percent']} %"] + [f"{row['faults_per_get'][name]:.3f}" for name in names] for row in rows],
            )
        ],
        plot=bars(
            "faults a request, half of the pages resident", ["faults"], [(shown, [half[name]]) for name, shown in names.items()]
        ),
        note=f"{NOTE}#choice-of-victims-victims",
    )


def accuracy():
    rows, groups = [], []
    for row in read("accuracy")["rows"]:
        of = [row[what][side] for what in ("accesses", "misses") for side in ("sampled", "oracle")]
        rows.append(
            [row["pattern"], f"{100 * row['room']:.0f} %", f"{row['seconds']:.0f} s"] + [f"{100 * value:.0f} %" for value in of]
        )
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
        tables=[
            ("Share in the hottest regions", ["pattern", "regions", "after", "accesses", "at best", "misses", "at best"], rows)
        ],
        plot=bars("accesses in the hottest fifth of the regions after 5 s, %", ["by samples", "at best"], groups),
        note=f"{NOTE}#samples-and-policies",
    )


def policies():
    sets = {
        "policies-heldout": "recordings that none was tuned on",
        "policies-tuning": "recordings that ours was tuned on",
        "policies-synthetic": "generated",
    }
    rows, groups = [], []
    for name, shown in sets.items():
        figures = read(name)
        for row in figures["rows"]:
            rows.append(
                [
                    shown,
                    row["workload"].split(":")[0],
                    row["fast"],
                    row["best"],
                    f"{row['to_jenga']['mean']:.2f}",
                    f"{row['to_best']['mean']:.2f}",
                ]
            )
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


def solver_goals(rows):
    """What the solver is to keep, beside the worst that was measured and where that was. Where no
    placement was found, time and memory count all the same."""
    largest = max(row["regions"] for row in rows)

    def worst(value, chosen, found=False):
        runs = [run for row in rows if chosen(row) for run in row["runs"]]
        runs = [run for run in runs if not found or run["bound_met"] and run["limits_met"]]
        return max(((value(run), run) for run in runs), key=lambda pair: pair[0])

    def placed(limits):
        return lambda row: row["regions"] == largest and row["tiers"] == 6 and row["limits"] == limits

    goals = [
        ("time, 6 tiers, without limits", 500, "ms", 0, *worst(lambda run: 1000 * run["elapsed_s"], placed(False))),
        ("time, 6 tiers, with limits", 2000, "ms", 0, *worst(lambda run: 1000 * run["elapsed_s"], placed(True))),
        ("memory", 200, "MiB", 0, *worst(lambda run: run["peak_bytes"] / MIB, lambda row: row["regions"] == largest)),
        ("distance from the bound", 0.1, "%", 3, *worst(lambda run: 100 * run["gap"], lambda row: row["regions"] > 1_000, found=True)),
    ]
    for what, goal, unit, digits, value, run in goals:
        where = f"{run['regions']:,} regions, {run['tiers']} tiers, knob {run['alpha']}"
        yield [what, f"{goal} {unit}", f"{value:.{digits}f} {unit}", where, "met" if value <= goal else "**missed**"]


def solver():
    rows, groups = [], []
    goals = list(solver_goals(read("solver")["rows"]))
    missed = [row for row in goals if row[4] != "met"]
    told = " ".join(f"Missed: {row[0]}, {row[2]} at worst instead of {row[1]}." for row in missed)
    for row in read("solver")["rows"]:
        limits = "with" if row["limits"] else "without"
        rows.append(
            [
                row["set"],
                f"{row['regions']:,}",
                limits,
                f"{row['median_ms']:.1f} ms",
                f"{row['most_ms']:.1f} ms",
                f"{100 * row['largest_gap']:.3f} %",
                f"{100 * row['largest_gap_to_optimum']:.3f} %" if row.get("largest_gap_to_optimum") is not None else "",
                f"{row['peak_mib']:.0f} MiB",
            ]
        )
        if row["regions"] == 1_000_000:
            groups.append((f"{row['set'].removeprefix('tierscape-')}, {limits} limits", [row["median_ms"]]))
    most = max(row["largest_gap"] for row in read("solver")["rows"] if row["regions"] == 1_000_000)
    return Page(
        name="solver",
        title="The placement solver",
        result=f"A million regions take {span([row[1][0] for row in groups], '{:.0f}')} ms (medians), and are within {100 * most:.2f} % of the least time. {told}".rstrip(),
        what="Time, memory and distance from the best of the solver that places regions over tiers.",
        how="Generated problems over TierScape's two sets of tiers, with and without limits of media. Distances are the largest.",
        peer="the lower bound of the Lagrangian dual; up to 1,000 regions the optimum, by HiGHS, where it was asked for",
        note="../notes/2026-11-27-solver-and-optimum.md",
        command="cargo run --release -p terrace-bench -- solver",
        files=["solver"],
        tables=[
            ("By size", ["tiers", "regions", "limits", "median", "most", "from the bound", "from the optimum", "memory"], rows),
            ("Goals", ["what", "goal", "worst", "at", "verdict"], goals),
        ],
        plot=bars("ms for a million regions, medians", ["ms"], groups),
    )


def sim():
    figures = read("sim")
    rows = [
        [
            row["stream"].split(":")[0],
            f"{row['units']:,}",
            row["policy"],
            f"{row['simulated_per_s'] / 1e6:.0f} M",
            f"{row['ratio']:.2f}",
        ]
        for row in figures["rows"]
    ]
    files = [
        [
            row["recording"],
            f"{row['bytes_a_record']:.1f}",
            f"{row['file_per_s'] / 1e6:.0f} M",
            f"{row['memory_per_s'] / 1e6:.0f} M",
            f"{row['ratio']:.2f}",
        ]
        for row in figures["recordings"]
    ]
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


OURS = "terrace-cost"
# What stands for the workloads of TierScape, and others where what is hot changes.
PLAYED = {
    "gauss": "keys by a normal distribution as wide as 2.5 % of the memory (memtier on memcached and redis; values of any size below a page)",
    "scattered-1k": "keys by Zipf 0.99, scattered; four values of 1 KiB in a page",
    "scattered-4k": "the same with values of 4 KiB, one in a page",
    "jump": "90 % of the accesses in a fifth of the memory, which jumps once",
    "drift": "the same, but the fifth moves on all the time",
    "scan": "Zipf over a fifth, and a scan through all",
    "phases": "one quarter of the memory after the other, 20 changes",
    "redis": "redis-server, recorded: Zipf keys, values of 50 bytes to 4 KiB",
    "bfs": "breadth-first search on R-MAT, recorded",
    "pr": "PageRank on R-MAT, recorded",
    "lookup": "cross sections looked up as in XSBench, recorded",
}
NOT_PLAYED = [
    ["memcached, recorded", "`bench/programs/build.sh` does not build it with the recorder's hooks; `gauss` and `scattered-…` stand for its keys"],
    ["python, recorded", "no interpreter is built with them either"],
    ["a neighbour sampler over feature rows (GraphSAGE)", "no such program is among those that are recorded"],
    ["`load memory` stairs, needle, zigzag", "there are no such patterns; `drift` and `jump` are the nearest"],
]


def placement_sim():
    figures = read("placement-sim")
    points = {}
    for row in figures["rows"]:
        points.setdefault((row["workload"], row["tiers"], row["model"]), []).append(row)
    workloads = [row["name"] for row in figures["workloads"]]
    sets = list(dict.fromkeys(row["tiers"] for row in figures["rows"]))
    models = list(dict.fromkeys(row["model"] for row in figures["rows"]))

    def lost(part):
        return f"{100 * part:.1f}" if part < 0.0995 else f"{100 * part:.0f}"

    def three(workload, tiers, model, form):
        return " ".join(map(form, points[workload, tiers, model][:3]))

    def cost(row):
        return f"{100 - 100 * row['saved']:.0f}/{lost(row['slowdown'])}"

    def verdict(row):
        if not row["against"]:
            return [row["workload"], short(row["tiers"]), "none", "", "", "", "", "not below"]
        each = [100 * below for below in row["below_of_each"]]
        told = "within the spread" if row["within"] else "**below by more**"
        return [row["workload"], short(row["tiers"]), row["against"], f"{lost(row['slowdown'])} %"] + [
            f"{100 * row['below']:.1f}", span(each, "{:.1f}"), f"{100 * row['spread']:.1f}", told
        ]

    def short(tiers):
        return tiers.removeprefix("tierscape-")

    below = [row for row in figures["verdicts"] if row["against"] and not row["within"]]
    worst = max(figures["verdicts"], key=lambda row: row["below"])
    told = f"The most is {100 * worst['below']:.1f} points below {worst['against']}, over `{worst['workload']}` and {short(worst['tiers'])}." if worst["against"] else ""
    servers = [name for name in workloads if name == "gauss" or name.startswith("scattered")]
    tails = [
        [workload, short(tiers)] + [f"{row['p95']:.1f}/{row['p999']:.1f}" for row in (points[workload, tiers, model][1] for model in models)]
        for workload in servers
        for tiers in sets
    ]
    shown = "scattered-1k" if "scattered-1k" in workloads else workloads[0]
    seeds = len(figures["seeds"])
    return Page(
        name="placement-sim",
        title="Placement models in the simulator",
        result=f"`{OURS}` is below another model's curve by more than the seeds' spread in {len(below)} of {len(figures['verdicts'])} "
        f"pairs of workload and tiers. {told}".rstrip(),
        what="What placement models over several tiers cost (all in DRAM is 100), and how much longer the program takes.",
        how=f"The simulator plays each workload with {seeds} seeds over two sets of tiers: generated ones for {figures['accesses'] // 1_000_000} million "
        "accesses, recordings at their own pace. Each model has its three settings (25th, 50th, 75th percentile; knob 0.9, 0.5, 0.1). "
        f"Figures are means over seeds. `{OURS}` is judged by a curve of 12 knobs, others by their settings, the 95th percentile too. "
        "Recordings count from when 95 % of their pages were touched. Seeds change only how their regions compress.",
        peer="models of HeMem, GSwap, TMO and TierScape",
        command="cargo run --release -p terrace-bench -- placement-sim",
        not_run="hours",
        files=["placement-sim"],
        tables=[
            *(
                (
                    f"Cost/slowdown in %, by setting: {tiers}",
                    ["workload", *models],
                    [[workload] + [three(workload, tiers, model, cost) for model in models] for workload in workloads],
                )
                for tiers in sets
            ),
            (
                f"How far `{OURS}` saves less than another model at the same slowdown, points",
                ["workload", "tiers", "most below", "at a slowdown of", "by", "by seed", "spread of the seeds", "verdict"],
                [verdict(row) for row in figures["verdicts"]],
            ),
            (
                "p95/p99.9 of requests in the moderate setting, as multiples of all in DRAM; requests do not queue",
                ["workload", "tiers", *models],
                tails,
            ),
            ("Workloads", ["name", "what it is"], [[name, PLAYED[name]] for name in workloads]),
            (
                "Not played",
                ["workload", "why"],
                NOT_PLAYED + [[f"{name}, recorded", "no recording could be made on this machine"] for name in figures["missing"]],
            ),
        ],
        plot=curves(
            f"cost saved against slowdown: {shown}, {short(sets[-1])}",
            ["slowdown, %", "saved, %"],
            [
                (model, [(100 * row["slowdown"], 100 * row["saved"]) for row in points[shown, sets[-1], model]])
                for model in [OURS, *(model for model in models if model != OURS)]
            ],
        ),
    )
