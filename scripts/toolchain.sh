#!/bin/sh
# Finds a Rust toolchain that is new enough, on PATH or in ~/.cargo/bin, and runs a command with it:
#
#     scripts/toolchain.sh cargo build          runs the command
#     scripts/toolchain.sh                      only looks; exit status 1 if there is none
#
# What is new enough stands in Cargo.toml (rust-version).
set -eu

root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
wanted=$(sed -n 's/^rust-version = "\([0-9]*\)\.\([0-9]*\).*"/\1 \2/p' "$root/Cargo.toml")

# Whether `$1 --version` works and is at least the wanted one.
new_enough() {
    version=$("$1" --version 2>/dev/null) || return 1
    # shellcheck disable=SC2086 # two numbers
    printf '%s\n' "$version" | awk -v major="${wanted% *}" -v minor="${wanted#* }" '{
        split($2, part, "."); exit !(part[1] > major || part[1] == major && part[2] + 0 >= minor)
    }'
}

found() {
    new_enough "${1}cargo" && new_enough "${1}rustc"
}

if ! found ''; then
    own=${CARGO_HOME:-${HOME:-}/.cargo}/bin
    found "$own/" || {
        [ $# -eq 0 ] || echo "terrace: no Rust of version ${wanted% *}.${wanted#* } or newer on PATH or in $own: run scripts/setup.sh" >&2
        exit 1
    }
    PATH=$own:$PATH
    export PATH
fi
[ $# -eq 0 ] || exec "$@"
