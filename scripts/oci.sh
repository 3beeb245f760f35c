#!/bin/sh
# Makes an OCI image of a Debian root in which Terrace's package is installed. No registry is asked:
#
#     scripts/oci.sh PACKAGE.deb RESULTS [SUITE]
#
# SUITE is that of this machine unless it is said. The image's path, a tar archive in OCI's layout with
# one image named `latest`, is printed last. Needs root, mmdebstrap and umoci.
set -eu

package=$(realpath "$1")
mkdir -p "$2"
results=$(CDPATH='' cd -- "$2" && pwd)
suite=${3:-$(sed -n 's/^VERSION_CODENAME=//p' /etc/os-release)}
for program in mmdebstrap umoci; do
    command -v "$program" >/dev/null || { echo "terrace: oci: $program is missing; on Debian: scripts/setup.sh package" >&2; exit 1; }
done
[ "$(id -u)" = 0 ] || { echo 'terrace: oci: only root can make a root of Debian' >&2; exit 1; }
version=$(dpkg-deb --field "$package" Version)
architecture=$(dpkg-deb --field "$package" Architecture)
SOURCE_DATE_EPOCH=$(git -C "$(dirname "$0")/.." log -1 --format=%ct 2>/dev/null || stat -c %Y "$package")
export SOURCE_DATE_EPOCH
created=$(date --utc --date="@$SOURCE_DATE_EPOCH" +%Y-%m-%dT%H:%M:%SZ)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
trap 'exit 1' HUP INT TERM

# What the package depends on, and nothing that is not essential beside. Lists and caches stay outside.
depends=$(dpkg-deb --field "$package" Depends | sed 's/([^)]*)//g; s/ //g')
mmdebstrap --quiet --mode=root --variant=essential --include="$depends" \
    --customize-hook="cp '$package' \"\$1/package.deb\"" \
    --customize-hook='chroot "$1" dpkg --install /package.deb' \
    --customize-hook='rm "$1/package.deb"' \
    --customize-hook='rm -rf "$1"/usr/share/doc/*/changelog* "$1"/usr/share/locale/* "$1"/var/log/*' \
    "$suite" "$scratch/root" >"$scratch/log" 2>&1 || { cat "$scratch/log" >&2; exit 1; }

image=$scratch/layout:latest
umoci init --layout "$scratch/layout"
umoci new --image "$image"
umoci unpack --image "$image" "$scratch/bundle"
rmdir "$scratch/bundle/rootfs"
mv "$scratch/root" "$scratch/bundle/rootfs"
umoci repack --image "$image" --history.created "$created" --history.comment "Debian $suite and terrace $version" "$scratch/bundle"
# The command of `terrace run`: a program and its arguments follow.
umoci config --image "$image" --no-history --created "$created" --architecture "$architecture" --os linux \
    --config.entrypoint /usr/bin/terrace --config.cmd --help --config.env PATH=/usr/sbin:/usr/bin:/sbin:/bin \
    --config.label org.opencontainers.image.title=terrace --config.label "org.opencontainers.image.version=$version"
umoci gc --layout "$scratch/layout"
archive=$results/terrace-$version-$architecture.oci.tar
tar -cf "$archive" -C "$scratch/layout" --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$SOURCE_DATE_EPOCH" .
echo "$archive"
