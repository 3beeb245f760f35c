#!/bin/bash
# Runs memcached's own tests of its protocol against terrace-kv:
#
#     conformance.sh SERVER MEMCACHED_SOURCE runs|data|FILE.t ...
#
# `runs` is all that conformance.table says runs, `data` what reads back what it stored.
# TERRACE_KV_FLAGS has more flags for the server, separated by spaces.
#
# memcached's harness starts ./timedrun and ./memcached-debug of its directory. So a directory in
# which the latter starts the server is enough, and the tests stay as they are.
set -u

table=$(dirname "$(readlink -f "$0")")/conformance.table
server=$(readlink -f "$1") && source=$(readlink -f "$2") || exit 2
shift 2
case $* in
runs) mapfile -t files < <(awk '!/^#/ && ($2 == "runs" || $2 == "data") { print $1 }' "$table") ;;
data) mapfile -t files < <(awk '!/^#/ && $2 == "data" { print $1 }' "$table") ;;
*) files=("$@") ;;
esac

directory=$(mktemp -d) || exit 2
trap 'rm -rf "$directory"' EXIT
cp -r "$source/t" "$directory/t"
cc -O1 -w -o "$directory/timedrun" "$source/timedrun.c" || exit 2
printf '#!/bin/sh\nexec "%s" %s "$@"\n' "$server" "${TERRACE_KV_FLAGS:-}" >"$directory/memcached-debug"
chmod +x "$directory/memcached-debug"
cd "$directory" || exit 2
# Lets `debugtime` move the clock, as in memcached's debug build.
export TERRACE_KV_TEST=1

# Most of them mostly sleep.
at_once=4

one() {
    local file=$1 begun=$SECONDS status
    timeout -k 2 90 perl -I t/lib "t/$file" >"out.$file" 2>"err.$file"
    status=$?
    if [ $status -eq 0 ] && grep -q '^ok' "out.$file" && ! grep -q '^not ok' "out.$file"; then
        echo "pass $file $(grep -c '^ok' "out.$file") ($((SECONDS - begun)) s)"
    else
        echo "FAIL $file (exit status $status) $(grep -m1 '^not ok' "out.$file")"
        tail -5 "err.$file"
    fi >"report.$file"
}

for file in "${files[@]}"; do
    while [ "$(jobs -rp | wc -l)" -ge $at_once ]; do
        wait -n
    done
    one "$file" &
done
wait
failed=0
for file in "${files[@]}"; do
    cat "report.$file"
    grep -q '^pass' "report.$file" || failed=$((failed + 1))
done
echo "${#files[@]} files, $failed failed"
[ $failed -eq 0 ]
