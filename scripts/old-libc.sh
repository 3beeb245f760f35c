#!/bin/sh
# Makes a compiler driver that links against Debian 11's C library (glibc 2.31), so that what is built
# with it runs there and on all that is newer:
#
#     scripts/old-libc.sh DIRECTORY      prints the driver's path
#
# Where no root of Debian 11 can be made (no mmdebstrap, no network), prints that of the machine's own
# `cc`, and says on standard error that the build needs this machine's C library.
set -eu
mkdir -p "$1"
directory=$(CDPATH= cd -- "$1" && pwd)
root=$directory/debian-11
driver=$directory/cc-for-debian-11
if [ ! -e "$root/complete" ]; then
    rm -rf "$root"
    # Packages are only unpacked: nothing of them is run, so that needs no root.
    if ! mmdebstrap --quiet --mode=auto --variant=extract --include=libc6-dev bullseye "$root" >&2; then
        echo 'terrace: package: no root of Debian 11 (mmdebstrap, network): this build needs a C library as new as this machine has' >&2
        command -v cc
        exit 0
    fi
    # Links are meant from that root.
    find "$root/usr/lib" "$root/lib" "$root/lib64" -type l | while read -r link; do
        target=$(readlink "$link")
        case $target in
        /*) ln -sfn "$(realpath -m --relative-to="$(dirname "$link")" "$root$target")" "$link" ;;
        esac
    done
    touch "$root/complete"
fi
# Before the compiler's own directories, which lead to this machine's library.
machine=$(uname -m)-linux-gnu
cat >"$driver" <<DRIVER
#!/bin/sh
exec cc --sysroot="$root" -B"$root/usr/lib/$machine/" -L"$root/usr/lib/$machine" -L"$root/lib/$machine" "\$@"
DRIVER
chmod +x "$driver"
echo "$driver"
