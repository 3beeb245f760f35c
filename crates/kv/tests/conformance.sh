#!/bin/bash
# Runs memcached's own tests of its protocol against terrace-kv:
#
#     conformance.sh SERVER MEMCACHED_SOURCE [FILE.t ...]
#
# TERRACE_KV_FLAGS has more flags for the server, separated by spaces.
#
# memcached's harness starts ./timedrun and ./memcached-debug of its directory. So a directory in
# which the latter starts the server is enough, and the tests stay as they are.
set -u

server=$(readlink -f "$1") && source=$(readlink -f "$2") || exit 2
shift 2
files=("$@")
[ ${#files[@]} -gt 0 ] || files=(
    getset.t cas.t incrdecr.t flags.t noreply.t touch.t getandtouch.t expirations.t flush-all.t
    bogus-commands.t quit.t multiversioning.t 64bit.t strtol-testing.t malicious-commands.t
    item_size_max.t stats.t stats-detail.t metaget.t issue_3.t issue_14.t issue_22.t issue_29.t
    issue_41.t issue_42.t issue_61.t issue_68.t issue_70.t issue_104.t issue_108.t issue_152.t
    issue_163.t issue_183.t issue_192.t
)

directory=$(mktemp -d) || exit 2
trap 'rm -rf "$directory"' EXIT
cp -r "$source/t" "$directory/t"
cc -O1 -w -o "$directory/timedrun" "$source/timedrun.c" || exit 2
printf '#!/bin/sh\nexec "%s" %s "$@"\n' "$server" "${TERRACE_KV_FLAGS:-}" >"$directory/memcached-debug"
chmod +x "$directory/memcached-debug"
cd "$directory" || exit 2
# Lets `debugtime` move the clock, as in memcached's debug build.
export TERRACE_KV_TEST=1

failed=0
for file in "${files[@]}"; do
    timeout -k 2 90 perl -I t/lib "t/$file" >out 2>err
    status=$?
    if [ $status -eq 0 ] && grep -q '^ok' out && ! grep -q '^not ok' out; then
        echo "pass $file $(grep -c '^ok' out)"
    else
        failed=$((failed + 1))
        echo "FAIL $file (exit status $status) $(grep -m1 '^not ok' out)"
        tail -5 err
    fi
done
echo "${#files[@]} files, $failed failed"
[ $failed -eq 0 ]
