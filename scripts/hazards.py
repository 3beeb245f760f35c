#!/usr/bin/env python3
"""Makes docs/safety.md out of tests/hazards.toml, and looks whether each test that it names is there:

    scripts/hazards.py            writes the page
    scripts/hazards.py --check    exit status 1 if it is not what the table says, or a test is missing

A section has `title`, prose `before` and `after` its table, and hazards: `hazard`, what `happens` under
Terrace, the `test` that shows it, and what that sees `without` the mitigation.
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
PAGE = ROOT / "docs/safety.md"
COLUMNS = ["hazard", "happens", "test", "without"]
HEAD = "| hazard | what happens under Terrace | test | without the mitigation |\n|---|---|---|---|\n"


def page(sections):
    """The page in Markdown."""
    parts = ["# Safety\n\n<!-- Made by scripts/hazards.py from tests/hazards.toml. -->\n"]
    for section in sections:
        if "title" in section:
            parts.append(f"## {section['title']}\n")
        if "before" in section:
            parts.append(section["before"])
        rows = ["| " + " | ".join(row[column] for column in COLUMNS) + " |\n" for row in section.get("hazard", [])]
        if rows:
            parts.append(HEAD + "".join(rows))
        if "after" in section:
            parts.append(section["after"])
    return "\n".join(parts)


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
    text = page(sections)
    if "--check" not in sys.argv:
        PAGE.write_text(text)
    faults = list(missing(sections))
    if PAGE.read_text() != text:
        faults.append("docs/safety.md is not what tests/hazards.toml says: run scripts/hazards.py")
    sys.exit("\n".join(faults) if faults else 0)


main()
