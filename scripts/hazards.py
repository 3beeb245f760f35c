#!/usr/bin/env python3
"""Makes docs/safety.md and the pages of docs/safety out of tests/hazards.toml, and looks whether each
test that they name is there:

    scripts/hazards.py            writes the pages
    scripts/hazards.py --check    exit status 1 if they are not what the table says, or a test is missing

A section has `title` and `page` (the first has neither: it is docs/safety.md itself), prose `before` and
`after` its hazards, and hazards: `hazard`, what `happens` under Terrace, the `test` that shows it, and
what that sees `without` the mitigation.
"""

import pathlib
import re
import subprocess
import sys

try:
    import tomllib
except ImportError:
    print("docs/safety.md was not looked at: Python 3.11 or newer reads its table", file=sys.stderr)
    sys.exit(0 if "--check" in sys.argv else 1)

ROOT = pathlib.Path(__file__).resolve().parent.parent
TABLE = ROOT / "tests/hazards.toml"
INDEX = ROOT / "docs/safety.md"
PAGES = ROOT / "docs/safety"
PARTS = {"happens": "Under Terrace", "test": "Test", "without": "Without the mitigation"}
MADE = "<!-- Made by scripts/hazards.py from tests/hazards.toml. -->"
COLUMNS = 120


def wrapped(text, first, rest):
    """A text in lines of some length, none of which begins as another item of a list would."""
    lines, line = [], first
    for word in text.split():
        begins_item = re.fullmatch(r"[-+*#>]+|\d+[.)]", word)
        if len(line) + len(word) >= COLUMNS and line.strip(" -") and not begins_item:
            lines.append(line.rstrip())
            line = rest
        line += word + " "
    return "\n".join([*lines, line.rstrip()])


def items(section):
    """The hazards of a section, one after the other."""
    for row in section.get("hazard", []):
        told = [wrapped(f"**{row['hazard']}**", "", ""), ""]
        told += [wrapped(f"*{name}:* {row[part]}", "- ", "  ") for part, name in PARTS.items() if row[part]]
        yield "\n".join(told) + "\n"


def page(section, heading):
    """A section in Markdown."""
    parts = [f"# {heading}\n\n{MADE}\n"]
    if "before" in section:
        parts.append(section["before"])
    parts += items(section)
    if "after" in section:
        parts.append(section["after"])
    return "\n".join(parts)


def pages(sections):
    """The text of each page, by its path."""
    first, *others = sections
    links = [f"- [{section['title']}](safety/{section['page']}.md)" for section in others]
    yield INDEX, page(first, "Safety") + "\n## By subject\n\n" + "\n".join(links) + "\n"
    for section in others:
        # Links are written as they are in docs/.
        text = page(section, f"Safety: {section['title'][0].lower()}{section['title'][1:]}")
        yield PAGES / f"{section['page']}.md", re.sub(r"\]\((?!http)", "](../", text)


def missing(sections):
    """Tests that are named and are nowhere in the sources."""
    files = subprocess.run(["git", "-C", ROOT, "ls-files", "*.rs"], stdout=subprocess.PIPE, check=True, text=True)
    sources = "\n".join((ROOT / name).read_text() for name in files.stdout.split() if (ROOT / name).exists())
    # Many are rows of a macro, so any mention of the name counts.
    there = set(re.findall(r"\w+", sources))
    for section in sections:
        for row in section.get("hazard", []):
            for text in re.findall(r"`([^`]+)`", row["test"]):
                name = text.split("::")[-1]
                if re.fullmatch(r"[a-z0-9_]+_[a-z0-9_]+", name) and name not in there:
                    yield f"tests/hazards.toml: no test {text} is there (of: {row['hazard'][:60]}...)"


def main():
    sections = tomllib.loads(TABLE.read_text())["section"]
    wanted = dict(pages(sections))
    there = {INDEX, *PAGES.glob("*.md")}
    if "--check" not in sys.argv:
        PAGES.mkdir(exist_ok=True)
        for path in there - wanted.keys():
            path.unlink()
        for path, text in wanted.items():
            path.write_text(text)
        there = wanted.keys()
    faults = list(missing(sections))
    for path in sorted(there | wanted.keys()):
        if not path.exists() or path.read_text() != wanted.get(path):
            name = path.relative_to(ROOT)
            faults.append(f"{name} is not what tests/hazards.toml says: run scripts/hazards.py")
    sys.exit("\n".join(faults) if faults else 0)


main()
