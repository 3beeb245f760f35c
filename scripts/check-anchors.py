#!/usr/bin/env python3
"""Looks whether each link to a heading of a page, here or in another, leads to one. Exit status 1 and a
line for each that does not. Dated notes may link to pages as they were."""

import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent


def without_code(text):
    """A page without its blocks."""
    return re.sub(r"^[ \t]*```.*?^[ \t]*```", "", text, flags=re.DOTALL | re.MULTILINE)


def anchor(heading):
    """What a heading is called in links."""
    text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").strip().lower()
    return re.sub(r"[^\w\- ]", "", text).replace(" ", "-")


def main():
    listed = ["git", "-C", ROOT, "ls-files", "--cached", "--others", "--exclude-standard", "*.md"]
    names = subprocess.run(listed, stdout=subprocess.PIPE, check=True, text=True).stdout.split()
    pages = {ROOT / name: without_code((ROOT / name).read_text()) for name in names if (ROOT / name).exists()}
    anchors = {path: {anchor(line) for line in re.findall(r"^#+ (.*)$", text, re.MULTILINE)} for path, text in pages.items()}
    faults = []
    for path, text in pages.items():
        if path.is_relative_to(ROOT / "docs/notes"):
            continue
        for page, heading in re.findall(r"\]\(([^)#\s]*)#([^)\s]+)\)", text):
            other = (path.parent / page).resolve() if page else path
            if "://" not in page and other in anchors and heading not in anchors[other]:
                faults.append(f"{path.relative_to(ROOT)}: {page} has no heading #{heading}")
    print("\n".join(faults), end="\n" if faults else "")
    sys.exit(bool(faults))


main()
