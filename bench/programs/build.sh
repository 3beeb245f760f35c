#!/bin/sh
# Builds the programs whose accesses are recorded:
#
#     bench/programs/build.sh DIR [PROGRAM...]
#
# into DIR; all of them, or only those named.
#
# They are compiled with -fsanitize=thread, and linked with our recorder instead of libtsan
# (crates/recorder). Without TERRACE_RECORD they run as they are, only slower. Needed are:
#
# - gcc, g++, make and cargo;
# - for redis-server, Debian's source packages (apt-get and dpkg-source; the machine's own settings
#   stay as they are);
# - for SQLite, the package registry (cargo).
set -eu

here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
root=$here/../..
[ $# -ge 1 ] || { sed -n '2,6s/^# \{0,1\}//p' "$0" >&2; exit 2; }
mkdir -p "$1"
dir=$(CDPATH='' cd -- "$1" && pwd)
shift
own='btree graph cg lookup logistic'
[ $# -gt 0 ] || set -- $own sqlite redis

"$root/scripts/toolchain.sh" cargo build --release --quiet --manifest-path "$root/Cargo.toml" -p terrace-recorder
target=${CARGO_TARGET_DIR:-$root/target}
archive=$(CDPATH='' cd -- "$target/release" && pwd)/libterrace_recorder.a

# What the compiler would make of memcpy and its kin itself would not be seen.
compile="-O2 -g -fsanitize=thread -fno-builtin-memcpy -fno-builtin-memmove -fno-builtin-memset -fno-builtin-memcmp"
# All of the archive: it defines malloc, and what the program may call by a weak name.
link="@$root/crates/recorder/link.flags -Wl,--whole-archive $archive -Wl,--no-whole-archive -lm -lpthread -ldl"

# The amalgamation, as the crate libsqlite3-sys brings it.
sqlite_source() {
    [ -e "$dir/sqlite/sqlite3.c" ] && return
    mkdir -p "$dir/sqlite/src"
    printf '[package]\nname = "source"\nversion = "0.0.0"\n[workspace]\n[dependencies]\nlibsqlite3-sys = { version = "0.35", features = ["bundled"] }\n' \
        >"$dir/sqlite/Cargo.toml"
    : >"$dir/sqlite/src/lib.rs"
    manifest=$("$root/scripts/toolchain.sh" cargo metadata --format-version 1 --manifest-path "$dir/sqlite/Cargo.toml" |
        sed 's/.*"manifest_path":"\([^"]*libsqlite3-sys[^"]*\)".*/\1/')
    cp "${manifest%/*}"/sqlite3/sqlite3.[ch] "$dir/sqlite"
}

# Debian's source package: a twin of the machine's sources that lists sources too.
redis_source() {
    [ -d "$dir/redis" ] && return
    apt=$dir/apt
    mkdir -p "$apt/lists/partial" "$apt/parts" "$apt/source"
    cat /etc/apt/sources.list /etc/apt/sources.list.d/*.list 2>/dev/null | sed -n 's/^deb \(.*debian.*\)/deb-src \1/p' >"$apt/parts/twin.list"
    for file in /etc/apt/sources.list.d/debian*.sources; do
        [ ! -e "$file" ] || sed 's/^Types:.*/Types: deb-src/' "$file" >"$apt/parts/${file##*/}"
    done
    set -- -q -o Dir::Etc::sourcelist=/dev/null -o "Dir::Etc::sourceparts=$apt/parts" -o "Dir::State::lists=$apt/lists" -o APT::Sandbox::User=root
    apt-get "$@" update
    (cd "$apt/source" && apt-get "$@" source redis)
    mv "$apt"/source/redis-*/ "$dir/redis"
}

for program; do
    echo "$program"
    case $program in
    sqlite)
        sqlite_source
        for source in "$here/sqlite_points.c" "$dir/sqlite/sqlite3.c"; do
            object=$dir/sqlite/$(basename "$source" .c).o
            # shellcheck disable=SC2086
            [ "$object" -nt "$source" ] ||
                gcc $compile -DSQLITE_THREADSAFE=0 -DSQLITE_OMIT_LOAD_EXTENSION -I"$dir/sqlite" -c "$source" -o "$object"
        done
        # shellcheck disable=SC2086
        gcc "$dir/sqlite/sqlite_points.o" "$dir/sqlite/sqlite3.o" $link -o "$dir/sqlite_points"
        ;;
    redis)
        redis_source
        # The libraries that it brings (Lua, hiredis) are built as always. Not linked with
        # -fsanitize: that would bring libtsan. Linked anew in any case: the recorder may be another
        # one.
        rm -f "$dir/redis/src/redis-server"
        make -C "$dir/redis/src" -s -j2 redis-server MALLOC=libc BUILD_TLS=no USE_SYSTEMD=no OPTIMIZATION=-O2 \
            REDIS_CFLAGS="$compile -w" REDIS_LDFLAGS="$link"
        cp "$dir/redis/src/redis-server" "$dir/redis-server"
        gcc -O2 "$here/redis_client.c" -lm -o "$dir/redis_client"
        ;;
    *)
        source=$here/$program.c compiler=gcc
        [ -e "$source" ] || source=$here/$program.cpp compiler=g++
        [ -e "$source" ] || { echo "there is no program $program" >&2; exit 2; }
        # shellcheck disable=SC2086
        $compiler $compile -c "$source" -o "$dir/$program.o"
        # shellcheck disable=SC2086
        $compiler "$dir/$program.o" $link -o "$dir/$program"
        ;;
    esac
done
