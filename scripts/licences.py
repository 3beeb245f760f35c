#!/usr/bin/env python3
"""Prints the licences of all that is linked into the terrace command and libterrace.so.

    scripts/licences.py >copyright

Crates come from `cargo metadata`, without what only builds. Their texts come from their own files,
and those of the C libraries in them from one directory further down. Each text is printed once.
"""
import json
import os
import re
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
LINKED = ("terrace-cli", "terrace-runtime", "terrace-objects", "terrace-kv")
NAMES = re.compile(r"(licen[cs]e|copying|copyright|notice)", re.IGNORECASE)
TOOLCHAIN = os.path.join(ROOT, "scripts", "toolchain.sh")


def said_by(*command):
    return subprocess.run([TOOLCHAIN, *command], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout


def host():
    return re.search(r"^host: (.*)$", said_by("rustc", "-vV"), re.MULTILINE).group(1)


def linked_crates():
    metadata = json.loads(said_by("cargo", "metadata", "--format-version", "1", "--locked", "--filter-platform", host()))
    packages = {package["id"]: package for package in metadata["packages"]}
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
    waiting = [package["id"] for package in metadata["packages"] if package["name"] in LINKED]
    seen = set(waiting)
    while waiting:
        for dependency in nodes[waiting.pop()]["deps"]:
            package = packages[dependency["pkg"]]
            is_linked = any(kind["kind"] is None for kind in dependency["dep_kinds"])
            is_macro = any("proc-macro" in target["kind"] for target in package["targets"])
            if is_linked and not is_macro and package["id"] not in seen:
                seen.add(package["id"])
                waiting.append(package["id"])
    own = set(metadata["workspace_members"])
    return sorted((packages[crate] for crate in seen - own), key=lambda package: (package["name"], package["version"]))


def texts_in(directory):
    """Licence files of a directory. Beside a LICENSE, COPYING is the other of two to choose from (zstd)."""
    files = sorted(entry.name for entry in os.scandir(directory) if entry.is_file() and NAMES.match(entry.name))
    if any(name.upper().startswith("LICEN") for name in files):
        files = [name for name in files if not name.upper().startswith("COPYING")]
    for name in files:
        with open(os.path.join(directory, name), encoding="utf-8", errors="replace") as file:
            yield file.read().strip() + "\n"


def texts_of(package):
    directory = os.path.dirname(package["manifest_path"])
    below = sorted(entry.path for entry in os.scandir(directory) if entry.is_dir())
    return [text for place in (directory, *below) for text in texts_in(place)]


def bracketed(marks):
    return ", ".join(f"[{mark}]" for mark in marks)


def main():
    numbers = {}
    own = sorted(numbers.setdefault(text, len(numbers) + 1) for text in texts_in(ROOT))
    print(f"Terrace: Apache-2.0 OR MIT; {bracketed(own)}\n")
    print("It is linked with the Rust standard library (MIT OR Apache-2.0, copyright The Rust Project")
    print("contributors), and with the following. Numbers in brackets are the texts below.\n")
    missing = []
    for package in linked_crates():
        texts = texts_of(package)
        marks = sorted({numbers.setdefault(text, len(numbers) + 1) for text in texts})
        if not package["license"]:
            missing.append(package["name"])
        authors = ", ".join(author.split(" <")[0] for author in package["authors"]) or "its authors"
        shown = bracketed(marks) or f"its package has no text; copyright {authors}"
        print(f"{package['name']} {package['version']}: {package['license']}; {shown}")
    for text, number in numbers.items():
        print(f"\n{'-' * 72}\n[{number}]\n\n{text}", end="")
    if missing:
        sys.exit(f"terrace: no licence is declared by: {', '.join(missing)}")


main()
