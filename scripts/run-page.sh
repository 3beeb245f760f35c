#!/bin/sh
# Runs the commands of a page, as its reader would, one after the other in an empty directory:
#
#     scripts/run-page.sh PAGE [HAVE]...
#
# Commands are those of blocks that begin with ```sh; `needs=A,B` lists what must be in HAVE, or the
# block is passed over with a line that says so; `not-run=WHAT` is for what no test can have. terrace
# is the one on PATH. The page's program is tests/documents/app. EXAMPLES names its directory.
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
        if (inside) { inside = 0; print ""; next }
        if (ignored) { ignored = 0; next }
        if ($0 !~ /^[ \t]*```sh( |$)/) { ignored = 1; next }
        why = ""
        for (i = 2; i <= NF; i++) {
            split($i, word, "=")
            if (word[1] == "not-run") why = "no test has " word[2]
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
    inside { print substr($0, indent + 1) }' "$page" >"$scratch/commands"
mkdir "$scratch/page"
cp "$root/tests/documents/app" "$scratch/page/"
cd "$scratch/page"
EXAMPLES=$root/examples
export EXAMPLES
sh -eux ../commands
