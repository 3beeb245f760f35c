"""What the pages of benchmarks have in common."""

import json
import math
import pathlib
import statistics
import textwrap
from dataclasses import dataclass, field

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
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
    # More plots: their texts by name.
    plots: dict = field(default_factory=dict)
    note: str = ""
    # Why no test runs the command, by tests/tests/documents.rs.
    not_run: str = "quiet"


# Its words on a page.
NOT_RUN = {"quiet": "no test has a quiet machine", "hours": "no test has the time"}


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
        f"```sh not-run={page.not_run}",
        f"{page.command}  # {NOT_RUN[page.not_run]}",
        "```",
        "",
        *(f"![{page.title}]({picture})" for picture in pictures),
        *(f"\n![{page.title}]({name}.svg)" for name in page.plots),
    ]
    for heading, columns, rows in page.tables:
        lines += ["", f"## {heading}", "", "| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
        lines += ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([*lines, "", wrapped(f"Figures: {links}."), ""])
