#!/bin/sh
# Runs the commands of a page, as its reader would, one after the other in an empty directory:
#
#     scripts/run-page.sh PAGE [HAVE]...
#
# Commands are those of blocks that begin with ```sh; `needs=A,B` lists what must be in HAVE, or the
# block is passed over with a line that says so; `not-run=WHAT` is for what no test can have, and
# `run-by=FILE` for what another test has. terrace is the one on PATH. A command in the background
# that fails, fails the page where it says `wait`, or at its end.
# What stands in a block that says `file=NAME`, as ```toml file=NAME does, is written to that file.
# The page's program is tests/documents/app, and dump.bin has 2 MB of numbers. EXAMPLES names the
# directory of examples.
set -eu
root=$(CDPATH='' cd -- "$(dirname "$0")/.." && pwd)
page=$(realpath "$1")
shift
have=" $* "
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
trap 'exit 1' HUP INT TERM
awk -v have="$have" '
    /^[ \t]*```/ {
        if (inside) { inside = 0; print is_file ? "BLOCK" : ""; next }
        if (ignored) { ignored = 0; next }
        is_file = match($0, / file=[^ ]+/)
        if (!is_file && $0 !~ /^[ \t]*```sh( |$)/) { ignored = 1; next }
        if (is_file) print "cat >" substr($0, RSTART + 6, RLENGTH - 6) " <<\047BLOCK\047"
        why = ""
        for (i = 2; i <= NF; i++) {
            split($i, word, "=")
            if (word[1] == "not-run") why = "no test has " word[2]
            if (word[1] == "run-by") why = word[2] " runs it"
            if (word[1] == "needs") {
                count = split(word[2], needed, ",")
                for (n = 1; n <= count; n++)
                    if (index(have, " " needed[n] " ") == 0) why = "needs " needed[n]
            }
        }
        if (why != "") { print "passed over: " FILENAME ":" FNR ": " why >"/dev/stderr"; ignored = 1; next }
        inside = 1
        indent = match($0, /[^ ]/) - 1
        next
    }
    # `wait` alone says nothing of how a command in the background ended, so each is waited for.
    inside {
        line = substr($0, indent + 1)
        if (is_file) { print line; next }
        if (line == "wait") line = "for job in $jobs; do wait $job; done; jobs="
        else if (line ~ /[^&]&$/) line = line "\njobs=\"${jobs:-} $!\""
        print line
    }
    END { print "for job in ${jobs:-}; do wait $job; done" }' "$page" >"$scratch/commands"
mkdir "$scratch/page"
cp "$root/tests/documents/app" "$scratch/page/"
seq 300000 >"$scratch/page/dump.bin"
cd "$scratch/page"
EXAMPLES=$root/examples
export EXAMPLES
sh -eux ../commands
