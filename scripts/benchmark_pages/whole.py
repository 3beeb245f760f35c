"""Programs and servers."""

from plots import bars

from .common import MIB, NOTE, Page, about, mean, read, span


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
            full.append([f"{comparison['server']}, {cell['resident_percent']} %", load] + [f"{r:.2f}" for r in ratios(cell)])
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
        not_run="hours",
        files=["servers", "servers-curve-memcached", "servers-curve-redis", *names],
        tables=[
            ("As multiples of the peer", ["what", "server, memory", "peer", *columns], rows),
            ("Other loads, as multiples of zram lz4", ["server, memory", "load: connections × depth", *columns], full),
        ],
        pictures=["servers-memcached-1000-zram-lz4", "servers-redis-1000-zram-lz4"],
        note=f"{NOTE}#servers-at-equal-memory-zram-servers",
    )


def programs():
    rows, ratios, without = [], {}, []
    for name, tiers in [("programs", "default"), ("programs-swap", "without swap as a tier, on a machine with it")]:
        results = read(name)
        without += [[row["program"], tiers, f"{row['share_percent']} %", " ".join(row["why"].replace("|", "/").split())] for row in results.get("without", [])]
        for row in results["rows"]:
            work, least, most = (row["work_to_zram"][which] for which in ["median", "least", "most"])
            samples = row["samples"]
            memory = [
                mean(each[f"terrace_{which}_bytes"] / each[f"zram_{which}_bytes"] for each in samples)
                if all(each.get(f"{side}_{which}_bytes") for side in ("terrace", "zram") for each in samples)
                else None
                for which in ("mean", "p95")
            ]
            tail = row.get("p99_to_zram")
            faults = [each["restored_pages"] / each["zram_restored_pages"] for each in samples if each.get("zram_restored_pages")]
            rows.append(
                [row["program"], tiers, f"{row['share_percent']} %", f"{row['alone_s']:.1f} s", f"{row['terrace_s']:.1f} s"]
                + [f"{row['zram_s']:.1f} s", f"{work:.2f}", f"{least:.2f} to {most:.2f} ({len(samples)})"]
                + [f"{tail:.2f}" if tail else "", f"{mean(faults):.2f}" if faults else ""]
                + [f"{ratio:.2f}" if ratio else "" for ratio in memory]
            )
            if name == "programs":
                ratios.setdefault(row["share_percent"], []).append(work)
    told = ", ".join(
        f"{mean(ratios[share]):.2f} at {share} % ({sum(work < 0.95 for work in ratios[share])} of {len(ratios[share])} below 0.95)"
        for share in sorted(ratios, reverse=True)
    )
    return Page(
        name="programs",
        title="Whole programs as people run them",
        result="The work that programs do a second, as a multiple of what they do over zram with as much memory, is on two "
        f"CPUs in the geometric mean {told}.",
        what="Whole programs at a share of their memory, with all CPUs and nothing pinned: 1 ÷ time.",
        how="Each program runs alone, then under `terrace run --dram`, then in a group over zram that has as much memory as Terrace took.",
        peer="a memory control group over zram lz4 whose limit keeps memory at what Terrace took, at the 95th percentile of time",
        command="sudo cargo run --release -p terrace-bench -- programs",
        not_run="hours",
        files=["programs", "programs-swap"],
        tables=[
            (
                "Times; work, p99 of servers' answers, faults and memory (mean and 95th percentile) as multiples of zram's",
                ["program", "tiers", "memory", "alone", "Terrace", "zram", "work", "least to most (runs)", "p99", "faults", "mean memory", "p95 memory"],
                rows,
            )
        ]
        + ([("Without a result", ["program", "tiers", "memory", "why"], without)] if without else []),
        pictures=["programs", "programs-swap"],
        note=f"{NOTE}#whole-programs-programs-honesty-and-slowdown",
    )


def fill():
    rows, ratios = [], []
    for row in read("fill")["rows"]:
        times = [row[f"{side}_s"] for side in ("alone", "terrace", "zram")]
        ratios.append(row["terrace_s"] / row["zram_s"])
        rows.append(
            [row["program"], f"{row['share_percent']} %"]
            + [f"{seconds:.1f} s" for seconds in times]
            + [f"{ratios[-1]:.2f}", str(len(row["samples"]))]
        )
    return Page(
        name="fill",
        title="Programs that grow",
        result=f"Under `--dram 60%` programs that grow take {min(ratios):.2f} to {max(ratios):.2f} times as long as over zram "
        "that is held to the same share of their peak from the start. While there is room, a share is enforced when growth has ended.",
        what="Programs that take memory for most of their time: servers that are filled, a compressor, a compiler, R.",
        how="Each program runs alone, under `terrace run --dram 60%`, and in a group over zram that is limited to 60 % of the peak alone.",
        peer="a memory control group over zram lz4",
        command="sudo cargo run --release -p terrace-bench -- fill --shares 60",
        files=["fill"],
        tables=[("Times", ["program", "memory", "alone", "Terrace", "zram", "Terrace ÷ zram", "runs"], rows)],
        plot=bars(
            "time, as a multiple of zram's",
            ["Terrace"],
            [(row[0], [ratio]) for row, ratio in zip(rows, ratios)],
        ),
        note="../notes/2026-11-28-the-time-told-again.md",
    )


def honesty_told():
    """The runs of honesty that are told a time: attached programs are not."""
    return [row for row in read("honesty")["rows"] if row["slowdown_told"] is not None]


def honesty():
    told = honesty_told()
    right = sum(row["is_right"] for row in told)
    less_than_half = sum(not row["is_half_or_more"] for row in told)
    rows = [
        [
            row["program"],
            f"{row['share_percent']} %",
            f"{100 * row['lost']:.0f} %",
            f"{100 * row['slowdown_told']:.0f} %",
            "yes" if row["is_right"] else "no",
        ]
        for row in told
    ]
    return Page(
        name="honesty",
        title="The time that reports tell was lost",
        result=f"The report is right for {right} of {len(told)} runs: within a fifth of the loss, or two points. "
        f"It tells less than half of the loss for {less_than_half} of them.",
        what="`slowdown_estimate` of the report, beside the time that whole programs lost.",
        how="Each program runs alone and at a share of its memory under Terrace, on all CPUs. Lost is 1 − alone ÷ Terrace.",
        peer="the clock",
        command="sudo cargo run --release -p terrace-bench -- honesty",
        files=["honesty"],
        tables=[("Share of the time", ["program", "memory", "lost", "told", "right"], rows)],
        plot=bars(
            "share of the time that was lost, and that the report tells, %",
            ["lost", "told"],
            [
                (row["program"], [100 * row["lost"], 100 * row["slowdown_told"]])
                for row in told
                if row["share_percent"] == 60
            ],
        ),
        note="../notes/2026-11-28-the-time-told-again.md",
    )


def plans():
    rows = read("plans")["rows"]
    near = sum(abs(row["lost_expected"] - row["lost"]) <= max(0.02, 0.5 * row["lost"]) for row in rows)
    return Page(
        name="plans",
        title="What plans expect",
        result=f"{near} of {len(rows)} settings lose what `terrace plan` expects, within half of it or two points.",
        what="The part of the time that is lost, and the memory, beside what `terrace plan` says of its three settings.",
        how="Each program is planned for, which observes it; then it runs with each setting, between two runs alone.",
        peer="the clock",
        command="sudo cargo run --release -p terrace-bench -- plans",
        files=["plans"],
        tables=[
            (
                "Lost time, and memory as a share of that alone",
                ["program", "setting", "lost: expected", "lost", "memory: expected", "memory"],
                [
                    [row["program"], row["setting"]]
                    + [f"{100 * row[name]:.0f} %" for name in ("lost_expected", "lost", "memory_expected", "memory")]
                    for row in rows
                ],
            )
        ],
        plot=bars(
            "share of the time that was lost at the moderate setting, and that was expected, %",
            ["lost", "expected"],
            [
                (row["program"], [100 * row["lost"], 100 * row["lost_expected"]])
                for row in rows
                if row["setting"] == "moderate"
            ],
        ),
    )


def in_percent(value, form="{:.1f}"):
    """A part in percent; nothing where there is none."""
    return "" if value is None else f"{form.format(100 * value)} %"


def slowdown():
    figures = read("slowdown")
    rows = figures["rows"]
    pressures = ["0.1%", "1%"]
    cells = [
        [
            row["program"],
            f"{row['alone_s']:.1f} s",
            in_percent(row["target"], "{:g}"),
            in_percent(row["terrace"]["slower"]),
            f"{in_percent(row['terrace']['from'])} to {in_percent(row['terrace']['to'])} ({len(row['samples'])})",
            row["verdict"],
            in_percent(row["terrace"]["saved"]),
            *(f"{in_percent(row[pressure]['slower'])}, {in_percent(row[pressure]['saved'])}" for pressure in pressures),
            f"{row['saved_to_peer']:.2f} (to {row['peer']})" if row["saved_to_peer"] is not None else "",
        ]
        for row in rows
    ]
    mean_of = figures["saved_to_peer_mean"]
    compared = sum(row["saved_to_peer"] is not None for row in rows)
    times = f", {mean_of:.2f} times as much in the geometric mean of {compared}" if mean_of is not None else ""
    # A ratio needs savings on both sides. The programs without one are named, each way.
    without = [row for row in rows if row["saved_to_peer"] is None]
    ours = [row["program"] for row in without if (row["terrace"]["saved"] or 0) <= 0]
    theirs = [row["program"] for row in without if row["program"] not in ours]
    left_out = [
        f"{', '.join(names)}: {who} saves nothing"
        for names, who in [(ours, "Terrace"), (theirs, "the peer")]
        if names
    ]
    told = f" Not in the mean: {'; '.join(left_out)}." if left_out else ""
    return Page(
        name="slowdown",
        title="With nothing said of memory",
        result=f"`terrace run` keeps its target on {figures['met']} of {len(rows)} programs, misses it on {figures['missed']}, and "
        f"{figures['not_judged']} cannot be judged. It saves more than the peer with the nearest slowdown on {figures['saves_more']}{times}.{told}",
        what="How much slower whole programs are under `terrace run`, and how much less memory they have on average.",
        how="Each repeat runs a program alone, under Terrace, and over zram at each of two pressures, in random order. Medians, with "
        "the bootstrap's 90 % interval. The target is kept where the median is at most two points above it and the lower end is "
        "below it. An interval wider than four points is not judged, and neither are fewer than five repeats. A peer that saves less "
        "than half a point counts as saving nothing.",
        peer="a memory control group over zram lz4, whose limit follows its pressure of 0.1 % or 1 % as senpai's does",
        command="sudo cargo run --release -p terrace-bench -- slowdown",
        not_run="hours",
        files=["slowdown"],
        tables=[
            (
                "Slower, and memory saved",
                ["program", "alone", "target", "slower", "interval (runs)", "verdict", "saved"]
                + [f"peer at {pressure.replace('%', ' %')}: slower, saved" for pressure in pressures]
                + ["saved, to the nearest peer"],
                cells,
            )
        ],
        plot=bars(
            "memory saved, %",
            ["Terrace", *(f"peer at {pressure}" for pressure in pressures)],
            [
                (row["program"], [max(0, 100 * (row[side]["saved"] or 0)) for side in ("terrace", *pressures)])
                for row in rows
            ],
        ),
    )


def adapt_slowdown():
    figures = read("adapt-slowdown")
    target = in_percent(figures["target"], "{:g}")
    jumps, steady = figures["jumps"], figures["steady"]
    back = [jump["back_s"] for row in jumps for jump in row["jumps"]]
    never = back.count(None)
    longest = max((seconds for seconds in back if seconds is not None), default=None)
    told = f"After none of {never} jumps of the hot set is the loss back under {target} before the next."
    if longest is not None:
        but = f", but for {never} of {len(back)} jumps, after which it is not back before the next" if never else ""
        told = f"After a jump of the hot set the loss is back under {target} within {longest:.1f} s{but}."
    moved = max(row["moved_most"] for row in steady)
    verdict = {True: "met", False: "**missed**"}
    return Page(
        name="adapt-slowdown",
        title="A limit that follows the loss",
        result=f"{told} At a constant load the limit moves "
        f"by {100 * moved:.1f} % a minute at most.",
        what="How the limit of `terrace run --slowdown` follows a hot set that jumps, and how much it moves at a constant load.",
        how=f"`terrace load memory` of {figures['size']}, {figures['repeats']} runs of {figures['seconds']:.0f} s, with a change each "
        f"{figures['change_every_s']:.0f} s or none. The loss is what reports tell, from one second to the next; the limit "
        "follows 1.1 times that. What comes of a jump is above the target in one of the three seconds after it, and is back where two "
        "seconds in a row are not above it. Movements count from the 60th second on, as a part of the limit.",
        peer=f"the target of {target}; {figures['back_within_s']:g} s, and {in_percent(figures['moves_less'], '{:g}')} a minute",
        command=f"cargo run --release -p terrace-bench -- adapt --slowdown {target.replace(' ', '')}",
        files=["adapt-slowdown"],
        tables=[
            (
                "Jumps",
                ["pattern", "hot set", "jumps", "back after, median", "most", "never back", "highest loss", "verdict"],
                [
                    [
                        row["pattern"],
                        f"{row['hot_bytes'] / MIB:.0f} MiB",
                        str(len(row["jumps"])),
                        f"{row['back_s']:.1f} s",
                        f"{row['back_most_s']:.1f} s",
                        str(sum(jump["back_s"] is None for jump in row["jumps"])),
                        in_percent(max(jump["loss_most"] for jump in row["jumps"])),
                        verdict[row["is_met"]],
                    ]
                    for row in jumps
                ],
            ),
            (
                "Movements in a minute at a constant load",
                ["pattern", "minutes", "median", "most", "verdict"],
                [
                    [
                        row["pattern"],
                        str(len(row["moved_in_each_minute"])),
                        in_percent(row["moved"]),
                        in_percent(row["moved_most"]),
                        verdict[row["is_met"]],
                    ]
                    for row in steady
                ],
            ),
        ],
        plot=bars(
            "time until the loss is back under the target, or until the next jump, s",
            ["median", "most"],
            [(row["pattern"], [row["back_s"], row["back_most_s"]]) for row in jumps],
            mark=figures["back_within_s"],
        ),
    )


def costs():
    figures = read("costs")
    budgets = ["100", "80", "60", "40"]
    rows = [
        [name] + [f"{100 * row['share_of_speed'][budget]:.0f} %" for budget in budgets] for name, row in figures["shapes"].items()
    ]
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


# The servers compared at equal memory, and how the plot names some of them.
SIDES = ["memcached-zram", "redis-zram", "memcached-terrace", "terrace-kv", "terrace-kv-consolidated"]
SHOWN = {"terrace-kv-consolidated": "consolidated"}


def kv_memory():
    """The rows at equal memory: by share of memory, connections and depth, and by side."""
    cells = {}
    for row in read("kv-memory")["rows"]:
        cells.setdefault((row["share"], row["connections"], row["depth"]), {})[row["side"]] = row
    return cells


def kv():
    names = ["ceiling", "memcached", "redis", "terrace-kv"]
    figures = ["server_us_per_op", "p99_us", "p999_us"]
    tables, groups = [], []
    for file, shown in [("kv-tcp", "TCP"), ("kv-unix", "A Unix socket")]:
        rows = {}
        for row in read(file)["rows"]:
            rows.setdefault((row["value_bytes"], row["connections"], row["depth"]), {})[row["server"]] = row
        cells = [
            [f"{value} bytes", f"{connections} × {depth}"]
            + [f"{of[name]['ops_per_s']:,.0f}" if name in of else "" for name in names]
            + [f"{of['terrace-kv'][figure] / of['memcached'][figure]:.2f}" for figure in figures]
            for (value, connections, depth), of in rows.items()
        ]
        heads = ["values", "connections × depth", *names, "its CPU an operation", "its p99", "its p99.9"]
        title = f"{shown}: requests a second; and terrace-kv's CPU time and latencies as multiples of memcached's"
        tables.append((title, heads, cells))
        size = {name: max(row["bytes_per_item"] for row in read(file)["rows"] if row["server"] == name and row["value_bytes"] == 100) for name in names[1:]}
        if file == "kv-tcp":
            for (value, connections, depth), of in rows.items():
                if connections == 50 and all(name in of for name in names):
                    groups.append(
                        (
                            f"{value} bytes, depth {depth}",
                            [of[name]["ops_per_s"] / of["memcached"]["ops_per_s"] for name in names[1:]],
                        )
                    )
    memory = kv_memory()
    requests, tails = [], []
    for (share, connections, depth), of in memory.items():
        setting = [f"{share} %", f"{connections} × {depth}"]
        requests.append(setting + [f"{of[side]['to_memcached_zram']:.2f}" if side in of else "" for side in SIDES])
        tails.append(setting + [f"{of[side]['p999_us'] / 1000:.2f}" if side in of else "" for side in SIDES])
    tables.append(hits())
    columns = ["memory", "connections × depth", *SIDES]
    tables[:0] = [
        ("At equal memory: requests a second, as multiples of memcached's over zram", columns, requests),
        ("At equal memory: p99.9, ms", columns, tails),
    ]
    groups_of_memory = [
        (f"{share} %, depth {depth}", [of[side]["to_memcached_zram"] if side in of else None for side in SIDES])
        for (share, _, depth), of in memory.items()
        if share == 30
    ]
    single = [of["terrace-kv"]["to_memcached_zram"] for (_, _, depth), of in memory.items() if depth == 1]
    tail_to = {
        peer: span([of["terrace-kv"]["p999_us"] / of[peer]["p999_us"] for of in memory.values()]) for peer in SIDES[:2]
    }
    return Page(
        name="kv",
        title="terrace-kv",
        result=f"At equal memory terrace-kv answers {span(single) if len(set(single)) > 1 else f'{single[0]:.2f}'} times as many requests as memcached over zram, one request at a time on each connection. "
        f"Its p99.9 is {tail_to['memcached-zram']} times memcached's over zram, and {tail_to['redis-zram']} times redis's.",
        what="terrace-kv beside memcached and redis: with all of its memory, and at a share of memcached's.",
        how="The server has CPU 0, the client CPU 1, and every value is checked. The ceiling is a server that keeps nothing. "
        + f"An item of 100 bytes takes {', '.join(f'{bytes:.0f} in {name}' for name, bytes in size.items())}.",
        peer="memcached and redis, alone and over zram",
        command="cargo run --release -p terrace-bench -- kv\ncargo run --release -p terrace-bench -- kv-hits\nsudo cargo run --release -p terrace-bench -- kv-memory",
        files=["kv-memory", "kv-hits", "kv-tcp", "kv-unix"],
        tables=tables,
        plot=bars("requests a second over TCP, 50 connections, as multiples of memcached's", names[1:], groups, mark=1),
        plots={
            "kv-memory": bars(
                "requests a second at 30 % of memcached's memory, as multiples of memcached's over zram",
                [SHOWN.get(side, side) for side in SIDES],
                groups_of_memory,
                mark=1,
            )
        },
        note="../notes/2026-11-28-kv-on-one-core.md",
    )


def hits():
    """The table of hit ratios with the same accesses and the same limit on items."""
    figures = read("kv-hits")
    caches = list(dict.fromkeys(row["cache"] for row in figures["rows"]))
    rows = {}
    for row in figures["rows"]:
        took = row["process_bytes"]
        shown = f"{row['hits'] * 100:.1f} %" + (f", {took / 1e6:.1f} MB" if took else "")
        rows.setdefault((row["limit_mib"], row["theta"], row["jump"]), {})[row["cache"]] = shown
    cells = [
        [f"{limit} MiB", f"{theta}", "jumps" if jump else "stays"] + [of[cache] for cache in caches]
        for (limit, theta, jump), of in rows.items()
    ]
    title = f"Part of GETs that hit, and what the process took, at the same limit on items; {figures['keys']:,} keys"
    return (title, ["limit", "exponent", "hot set", *caches], cells)


def adapt():
    rows = []
    for pattern in read("adapt")["patterns"]:
        for policy in pattern["policies"]:
            rows.append(
                [
                    pattern["pattern"],
                    policy["policy"],
                    f"{policy['accesses_per_s']:,.0f}",
                    f"{policy['recover_s']:.1f} s",
                    f"{policy['demoted_pages']:,.0f}",
                ]
            )
    jump = {
        policy["policy"]: policy["accesses_per_s"]
        for pattern in read("adapt")["patterns"]
        if pattern["pattern"] == "jump"
        for policy in pattern["policies"]
    }
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


def on_its_machine(result):
    return f" (on {result['machine']['cpu']})" if "machine" in result else ""


def attached():
    about_it = about("attached")
    options, figures = about_it["options"], about_it["figures"]
    rows, groups, alike = [], [], []
    for name, result in figures.items():
        rounds = [each for each in result.get("rounds", []) if "error" not in each]
        if not rounds:
            continue

        def most(figure, form="{}"):
            values = [each[figure] for each in rounds]
            return "never" if None in values else form.format(max(values))

        before = max(each["resident_before"] for each in rounds)
        rows.append(
            [name, f"{before / MIB:.0f} MiB", most("stopped_ms", "{:.1f} ms"), most("down_to_budget_s", "{:.1f} s")]
            + [f"{sum(each[figure] for each in rounds):,}" for figure in ["evicted_pages", "restored_pages"]]
            + [most("detached_ms", "{} ms"), f"{result['checks']:,}", f"{result['wrong']:,}"]
        )
        over = [each["physical_at_end"] / each["budget"] for each in rounds if each["physical_at_end"]]
        rows[-1].insert(4, f"{100 * max(over, default=0):.0f} %")
        shares = [each["physical_at_end"] / each["resident_before"] for each in rounds if each["physical_at_end"]]
        groups.append((name, [max(shares, default=None)]))
        alike.append(result["wrong"])
    others = []
    for name, what in [("discards", "a Go program"), ("discards-jemalloc", "a program with jemalloc")]:
        for suffix, state in [("", "with nothing registered"), ("-registered", "half of it evicted before, with nothing more evicted")]:
            if name + suffix in figures:
                where = on_its_machine(figures[name + suffix])
                others.append([f"{what} that discards often, attached, {state}, beside itself alone{where}", f"{figures[name + suffix]['ratio']:.3f}"])
    for key, what in [("nothing_to_evict", "with nothing to evict"), ("half_evicted", "that is held to half of its memory")]:
        if key in figures.get("keeper", {}):
            where = on_its_machine(figures["keeper"])
            others.append([f"keeper, guard and stub beside a sleeping program {what}, of a CPU{where}", f"{figures['keeper'][key]:.2f} %"])
    for load, found in figures.get("stops", {}).items():
        what = f"a thread stands still, {load}, of {found['cycles']} times: median, 90th percentile, most"
        others.append([what, " · ".join(f"{found[key]:.1f} ms" for key in ["median_ms", "p90_ms", "most_ms"])])
    share = f"{options['share'] * 100:.0f} %"
    return Page(
        name="attached",
        title="Programs that already run",
        result=f"{len(rows)} programs were attached to while they worked, and checked {'all that' if not any(alike) else 'what'} "
        f"they read: {sum(alike)} answers were wrong.",
        what="How long a thread stands still, when memory is down to the budget, how long detaching takes, and what is read wrong.",
        how=f"Each program is attached to {options['repeats']} times for {options['seconds']:.0f} s, with {share} of its memory. "
        "It checks what it reads, or clients do. Figures are the most of those times, and pages the sum. "
        "In budget means within 5 % of it, for the first time.",
        peer="the program's own memory before",
        command="sudo bench/attached.py",
        files=["attached"],
        tables=[
            (
                "Programs",
                ["program", "before", "stood still", "in budget after", "at the end, of the budget", "pages out", "back", "detached in", "checks", "wrong"],
                rows,
            ),
            *([("And", ["what", "figure"], others)] if others else []),
        ],
        plot=bars("DRAM of program and store at the end, as a share of that before", ["attached"], groups, mark=options["share"]),
        note="../notes/2026-11-28-attached-measured.md",
    )
