#!/bin/sh
# Runs what was built for old C libraries in a root of Debian 11 (glibc 2.31), whose pages leave and
# come back:
#
#     scripts/try-portable.sh BUILT      BUILT has terrace and libterrace.so
#
# Needs root, mmdebstrap, the right to userfaultfd, and a mirror of Debian.
set -eu
cd "$(dirname "$0")/.."
built=$1
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
trap 'exit 1' HUP INT TERM
root=$scratch/root
mmdebstrap --quiet --mode=root --variant=essential --include=libgcc-s1 bullseye "$root" >"$scratch/log" 2>&1 || { cat "$scratch/log" >&2; exit 1; }
install -D -t "$root/opt/terrace" "$built/terrace" "$built/libterrace.so"
cat >"$root/program.pl" <<'PROGRAM'
$text .= "line $_ of a text\n" for 1 .. 5_000_000;
sleep 3;
print length($text), "\n";
PROGRAM
unshare --mount --pid --fork --kill-child -- sh tests/programs/in_root.sh "$root" '
    ldd --version | head -n 1
    /opt/terrace/terrace run --dram 64M --report /report.json -- perl /program.pl >/said
    cat /said
    grep -qx 113888896 /said' </dev/null
# Without pages that left nothing was shown.
moved=$(sed -n 's/^ *"demoted_pages": \([0-9]*\),*$/\1/p' "$root/report.json" | head -n 1)
[ "${moved:-0}" -gt 1000 ] || { echo "terrace: try-portable: only ${moved:-no} pages left" >&2; exit 1; }
