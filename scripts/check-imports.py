#!/usr/bin/env python3
"""Finds circles of imports between the files of a crate.

A file imports another where its code names a module of the same crate: `use crate::a::B`,
`crate::a::b()`, `super::a`, `self::a`. Files that reach each other by imports are one circle. A
circle of two is allowed: two files may share one idea. A larger one cannot be read file by file.

Left out: unit tests (`#[cfg(test)]`), comments and strings. A module that only declares others
(`mod a;`) does not import them; one that re-exports (`pub use a::B`) does. A name that reaches a
crate's root by `use crate::Name` is looked up in what the root re-exports.

Also finds imports from a lower layer of a crate into a higher one (`LAYERS`).

Usage: scripts/check-imports.py [--all]
  --all   print circles of two files, too
Exit status 1 if a circle has more than two files, or a lower layer imports a higher one.
"""

import re
import subprocess
import sys
from pathlib import Path

LARGEST = 2

# For a crate: folders and files that make up its lower layer, and modules of its higher one, which
# they must not import. What moves pages is given `Mm` alone, and cannot start or end threads and
# processes. The files beside the folders are what these import; `touch` names `Pager`.
LAYERS = {
    "crates/pager": (
        ("pages", "evict", "fault", "counters", "first_thread", "stats_line", "trace"),
        ("pager", "mover", "memory", "locking", "touch", "copy_evicted"),
    ),
}


def without_comments_and_strings(text):
    """The code of a file, with its comments, strings and characters blanked."""
    pattern = re.compile(
        r'//[^\n]*|/\*.*?\*/|r(#*)".*?"\1|b?"(?:\\.|[^"\\])*"|b?\'(?:\\.[^\']*|[^\\\'])\'', re.S
    )
    return pattern.sub(lambda match: '""' if match.group().endswith('"') else " ", text)


def without_tests(text):
    """The code of a file without the items that are marked `#[cfg(test)]`."""
    while True:
        start = re.search(r"#\[cfg\((?:all\()?test\b[^\]]*\]", text)
        if not start:
            return text
        depth, end = 0, start.end()
        while end < len(text):
            letter = text[end]
            depth += letter in "{(["
            depth -= letter in "})]"
            end += 1
            if depth == 0 and (letter == ";" or letter == "}"):
                break
        text = text[: start.start()] + text[end:]


def modules_of(source):
    """Paths of modules (tuples of names) to the files of one crate's `src`."""
    modules = {}
    for file in sorted(source.rglob("*.rs")):
        parts = list(file.relative_to(source).with_suffix("").parts)
        if parts[-1] in ("mod", "lib", "main"):
            parts.pop()
        if not parts and file.name == "main.rs" and (source / "lib.rs").exists():
            parts = ["main"]
        modules[tuple(parts)] = file
    return modules


def uses_of(text):
    """Every path that a file names from `crate`, `super` or `self`, with nested lists spread."""
    for match in re.finditer(r"\b(?:crate|super|self)(?:\s*::\s*(?=[\w{*]))", text):
        yield from spread(text, match.start(), [])
    for match in re.finditer(r"\buse\s+(?=\w+\s*::)", text):
        yield from spread(text, match.end(), [])


def spread(text, position, prefix):
    """Paths that begin at `position`: `a::{b, c::d}` is two."""
    path = list(prefix)
    while True:
        match = re.compile(r"\s*([A-Za-z_]\w*|\*)").match(text, position)
        if not match:
            break
        path.append(match.group(1))
        position = match.end()
        colons = re.compile(r"\s*::\s*").match(text, position)
        if not colons:
            break
        position = colons.end()
        if position < len(text) and text[position] == "{":
            yield from spread_list(text, position + 1, path)
            return
        if position < len(text) and text[position] == "<":
            break
    if path:
        yield path


def spread_list(text, position, prefix):
    """Paths of the list that begins after a brace."""
    depth, start = 1, position
    items = []
    while position < len(text) and depth:
        letter = text[position]
        if letter == "{":
            depth += 1
        elif letter == "}":
            depth -= 1
        if (letter == "," and depth == 1) or depth == 0:
            items.append((start, position))
            start = position + 1
        position += 1
    for begin, end in items:
        if text[begin:end].strip():
            yield from spread(text[:end], begin, prefix)


def imports_of(modules):
    """For each module the modules that its file imports."""
    code = {
        module: without_tests(without_comments_and_strings(file.read_text()))
        for module, file in modules.items()
    }
    names = {module: exports(module, code[module], modules) for module in modules}
    return {
        module: {
            target
            for path in uses_of(text)
            if (target := resolve(path, module, modules, names)) is not None and target != module
        }
        for module, text in code.items()
    }


def exports(module, text, modules):
    """Names that a module passes on from others: name to module."""
    passed = {}
    for match in re.finditer(r"\bpub(?:\([^)]*\))?\s+use\s+", text):
        for path in spread(text, match.end(), []):
            target = lookup(absolute(path, module, modules), modules)
            if target is not None and target != module:
                passed[path[-1]] = target
    return passed


def absolute(path, module, modules):
    """The path from the crate's root, or None where it leaves the crate."""
    path = list(path)
    if path[0] == "crate":
        return path[1:]
    here = list(module)
    if path[0] == "self":
        return here + path[1:]
    if path[0] == "super":
        while path and path[0] == "super":
            path.pop(0)
            here = here[:-1]
        return here + path
    return here + path if tuple(here + path[:1]) in modules else None


def lookup(path, modules):
    """The deepest module of the crate that a path names."""
    if path is None:
        return None
    for length in range(len(path), 0, -1):
        if tuple(path[:length]) in modules:
            return tuple(path[:length])
    return ()


def resolve(path, module, modules, names):
    """The module that a path leads to: through re-exports to where a name comes from."""
    whole = absolute(path, module, modules)
    target = lookup(whole, modules)
    if target is None or len(whole) == len(target):
        return target if target else None
    seen = set()
    name = whole[len(target)]
    while name in names.get(target, {}) and target not in seen:
        seen.add(target)
        target = names[target][name]
    return target if target in modules else None


def circles_of(graph):
    """The strongly connected parts of two files or more, the largest first (Tarjan 1972)."""
    index, low, stack, on_stack, found = {}, {}, [], set(), []

    def visit(node):
        index[node] = low[node] = len(index)
        stack.append(node)
        on_stack.add(node)
        for target in graph[node]:
            if target not in index:
                visit(target)
                low[node] = min(low[node], low[target])
            elif target in on_stack:
                low[node] = min(low[node], index[target])
        if low[node] == index[node]:
            circle = []
            while True:
                circle.append(stack.pop())
                on_stack.discard(circle[-1])
                if circle[-1] == node:
                    break
            if len(circle) > 1:
                found.append(sorted(circle))

    for node in sorted(graph):
        if node not in index:
            visit(node)
    return sorted(found, key=len, reverse=True)


def main():
    sys.setrecursionlimit(10_000)
    root = Path(__file__).resolve().parent.parent
    tracked = subprocess.run(
        ["git", "ls-files", "*Cargo.toml"], cwd=root, check=True, capture_output=True, text=True
    ).stdout.split()
    too_large, pairs, upward = 0, 0, 0
    for manifest in tracked:
        source = (root / manifest).parent / "src"
        if not source.is_dir():
            continue
        graph = imports_of(modules_of(source))
        lower, higher = LAYERS.get(str(Path(manifest).parent), ((), ()))
        for module in sorted(module for module in graph if module[:1] and module[0] in lower):
            for target in sorted(target for target in graph[module] if target[:1] and target[0] in higher):
                upward += 1
                print(f"{source.relative_to(root)}: {'::'.join(module)} imports {'::'.join(target)}")
        for circle in circles_of(graph):
            is_large = len(circle) > LARGEST
            too_large += is_large
            pairs += not is_large
            if is_large or "--all" in sys.argv:
                show(str(source.relative_to(root)), graph, circle)
    print(f"circles of imports: {too_large} above two files, {pairs} of two")
    print(f"imports from a lower layer into a higher one: {upward}")
    sys.exit(too_large > 0 or upward > 0)


def show(source, graph, circle):
    """Prints a circle and which of its files import which."""
    print(f"{source}: a circle of {len(circle)} files")
    for module in circle:
        inside = sorted("::".join(other) or "the root" for other in graph[module] & set(circle))
        print(f"  {'::'.join(module) or 'the root'} -> {', '.join(inside)}")


main()
