#!/bin/sh
# Unpacks the tarball of what was built for old C libraries in roots of Debian 11 (glibc 2.31) and 13
# (glibc 2.41), and runs it there. Pages of a program leave and come back, and terrace-kv gives what
# it was given:
#
#     scripts/try-portable.sh BUILT      BUILT has terrace, terrace-kv and libterrace.so
#
# Needs root, mmdebstrap, the right to userfaultfd, and a mirror of Debian.
set -eu
cd "$(dirname "$0")/.."
built=$1
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
trap 'exit 1' HUP INT TERM

cat >"$scratch/program.pl" <<'PROGRAM'
$text .= "line $_ of a text\n" for 1 .. 5_000_000;
sleep 3;
print length($text), "\n";
PROGRAM
cat >"$scratch/client.pl" <<'CLIENT'
use IO::Socket::UNIX;
for (1 .. 100) { last if $server = IO::Socket::UNIX->new("/tmp/kv.socket"); select undef, undef, undef, 0.1 }
$server or die "terrace-kv does not answer\n";
print $server "set a 0 0 4\r\nkept\r\nget a\r\n";
print scalar <$server> for 1 .. 3;
CLIENT

# Runs what is built in a root of this release of Debian.
try_in() {
    root=$scratch/$1
    mmdebstrap --quiet --mode=root --variant=essential --include=libgcc-s1 "$1" "$root" >"$scratch/log" 2>&1 ||
        { cat "$scratch/log" >&2; exit 1; }
    # As docs/install.md has it.
    tar xJf "$(tail -n 1 "$scratch/made")" --strip-components=1 --no-overwrite-dir --keep-directory-symlink -C "$root/usr/local"
    cp "$scratch/program.pl" "$scratch/client.pl" "$root"
    unshare --mount --pid --fork --kill-child -- sh tests/programs/in_root.sh "$root" '
        ldd --version | head -n 1
        export PATH=/usr/local/bin:$PATH
        terrace run --dram 64M --report /report.json -- perl /program.pl >/said
        cat /said
        grep -qx 113888896 /said
        terrace-kv -h >/help
        grep -q -e --dram /help
        terrace-kv -u nobody -s /tmp/kv.socket -a 0777 -m 64 & server=$!
        perl /client.pl >/answers
        cat /answers
        grep -q kept /answers
        kill $server
        wait $server' </dev/null
    # Without pages that left nothing was shown.
    moved=$(sed -n 's/^ *"demoted_pages": \([0-9]*\),*$/\1/p' "$root/report.json" | head -n 1)
    [ "${moved:-0}" -gt 1000 ] || { echo "terrace: try-portable: only ${moved:-no} pages left" >&2; exit 1; }
}

scripts/package.sh tarball "$built" "$scratch/packages" >"$scratch/made"
for release in bullseye trixie; do
    try_in "$release"
done
