"""Where objects lie."""

import statistics

from plots import bars

from .common import NOTE, Page, read, span


def objects():
    rows = [
        [
            row["program"],
            row["keys"],
            row["objects"],
            f"{row['pages']:,.0f}",
            f"{row['pages_for_50']:,.0f}",
            f"{row['pages_for_80']:,.0f}",
        ]
        for row in read("objects-pages")["rows"]
    ]
    speed, groups = [], []
    sides = {
        "zram": "zram",
        "size": "Terrace, size",
        "context": "Terrace, context",
        "context_sampled": "Terrace, context and samples",
    }
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
            (
                "Pages that hold half, and four fifths, of the misses",
                ["program", "keys", "objects", "pages", "50 %", "80 %"],
                rows,
            ),
        ],
        plot=bars("lookups a second at 30 % of the memory", list(sides.values()), groups),
        note=f"{NOTE}#objects-by-context-objects",
    )


def contexts():
    rows, groups = [], []
    for program in read("contexts"):
        for depth in program["by_depth"]:
            if depth["depth"] in (0, 4, 6):
                name = "height of the stack" if depth["depth"] == 0 else f"{depth['depth']} return addresses"
                rows.append(
                    [
                        program["program"],
                        name,
                        f"{depth['numbers']:,}",
                        f"{depth['purity']:.1f} %",
                        f"{depth['completeness']:.1f} %",
                    ]
                )
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


def buckets():
    figures = read("buckets-1000")
    rows, groups = [], []
    for row in figures["rows"]:
        ratio = statistics.median(row["placed_per_s"]) / statistics.median(row["malloc_per_s"])
        rows.append(
            [
                row["workload"],
                f"{row['theta']}",
                f"{row['dram_percent']} %",
                f"{statistics.median(row['malloc_per_s']):,.0f}",
                f"{statistics.median(row['placed_per_s']):,.0f}",
                f"{ratio:.2f}",
            ]
        )
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
    memory = []
    for percent in [100, 30]:
        for side, shown in names.items():
            run = read(f"consolidate-chained-100-{percent}")["runs"][side][0]
            tenth, fifth = (run[f"utilisation_of_{part}"] for part in ("tenth", "fifth"))
            memory.append(
                [f"{percent} %", shown]
                + [f"{run[bytes] / 1e6:.1f} MB" for bytes in ("memory_bytes", "zram_bytes")]
                + [f"{run['moved']:,}" if run["moved"] else ""]
                + [f"{100 * before:.0f} → {100 * after:.0f} %" for before, after in (tenth, fifth)]
            )
    return Page(
        name="consolidate",
        title="Objects that move",
        result=f"At 30 % of its memory a hash table does {short[1] / short[0]:.2f} times the lookups once its entries were consolidated. "
        f"An oracle's layout does {short[2] / short[0]:.2f} times as many.",
        what="A hash table whose entries move so that hot ones share pages, all costs included.",
        how="A million entries of 100 bytes, lookups by Zipf 0.99, in a control group over zram, which is not in the group's limit. "
        "Speeds are of the last third of a run.",
        peer="the same table with entries scattered, and laid out by an oracle",
        command="sudo cargo run --release -p terrace-bench -- consolidate",
        files=["consolidate-chained-100-100", "consolidate-chained-100-30"],
        tables=[
            ("Lookups a second", ["memory", *names.values()], rows),
            (
                "Memory, and the part of hot pages that is hot, before → after",
                ["memory", "side", "the group's memory", "its zram", "objects moved", "if a tenth is hot", "if a fifth is hot"],
                memory,
            ),
        ],
        plot=bars(
            "lookups a second, as multiples of scattered",
            list(names.values()),
            [(name, [value / values[0] for value in values]) for name, values in groups],
            mark=1,
        ),
        note="../notes/2026-11-28-moving-objects-what-is-missed.md",
    )
