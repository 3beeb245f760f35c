#!/bin/sh
# Runs the redis-server of DIR (build.sh) with its client, which loads it and ends it:
#
#     KEYS=200000 OPERATIONS=1000000 SEED=1 bench/programs/redis.sh DIR [WORDS...]
#
# WORDS come before the server's command, such as `env LD_PRELOAD=libjemalloc.so.2`
# or `terrace run --allocator context --`.
#
# The client tells the recorder when to count (TERRACE_RECORD_START=now: from the beginning).
set -eu
[ $# -ge 1 ] || { sed -n '2,6s/^# \{0,1\}//p' "$0" >&2; exit 2; }
dir=$1
shift
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
# A recorder that counts from the beginning asks for no signal.
trap '' USR2
TERRACE_RECORD_START=${TERRACE_RECORD_START:-signal} "$@" "$dir/redis-server" --port 0 --unixsocket "$scratch/socket" --save '' --appendonly no --daemonize no --dir "$scratch" \
    --loglevel warning --hz 10 --activerehashing yes >"$scratch/log" &
server=$!
"$dir/redis_client" "$scratch/socket" "${KEYS:-200000}" "${OPERATIONS:-1000000}" "${SEED:-1}" || { cat "$scratch/log" >&2; kill "$server"; exit 1; }
wait "$server"
