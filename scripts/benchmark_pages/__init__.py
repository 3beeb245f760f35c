"""The pages of docs/benchmarks: for each benchmark what is measured, how, beside whom, the figures and a
plot, out of bench/results/. scripts/benchmarks.py writes them."""

from .choices import accuracy, placement_sim, policies, sim, solver, victims
from .common import RESULTS, mean, text, wrapped
from .idle import huge, idle, malloc, malloc_ratios, metadata, sampled, threads, top
from .objects import buckets, consolidate, contexts, objects
from .placement import placement
from .single import calls, fault_steps, faulters, pages
from .whole import (
    adapt, adapt_slowdown, attached, costs, fill, honesty, honesty_told, kv, kv_memory, plans, programs, servers, slowdown
)

__all__ = ["kv_memory", "links", "malloc_ratios", "mean", "shown", "written"]

ALL = {
    "programs and servers": [servers, programs, fill, honesty, costs, kv, adapt],
    "single pages and calls": [pages, fault_steps, faulters, calls],
    "where nothing leaves": [idle, threads, metadata, malloc, sampled, huge, top],
    "choices": [victims, accuracy, policies, solver, sim],
    "objects": [objects, contexts, buckets, consolidate],
}

# These have a page once they were measured.
LATER = {
    "programs and servers": {"attached": attached, "plans": plans, "slowdown": slowdown, "adapt-slowdown": adapt_slowdown},
    "choices": {"placement-sim": placement_sim, "placement": placement},
}
for group, makers in LATER.items():
    ALL[group] += [make for name, make in makers.items() if (RESULTS / f"{name}.json").exists()]


def written():
    """The text of each file of docs/benchmarks, by its name."""
    files = {}
    for page in (make() for group in ALL.values() for make in group):
        files[f"{page.name}.md"] = text(page)
        if page.plot:
            files[f"{page.name}.svg"] = page.plot
        files |= {f"{name}.svg": plot for name, plot in page.plots.items()}
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
