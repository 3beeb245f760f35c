#!/bin/sh
# Makes a package of a release build, out of what `make install` puts into an empty directory:
#
#     scripts/package.sh deb | rpm | tarball BUILT RESULTS
#
# BUILT has terrace, terrace-kv and libterrace.so; the package's path in RESULTS is printed last. Paths of this machine in it are refused, unless
# TERRACE_PACKAGE_PATHS=any says that it is not to be given away.
set -eu

kind=$1
mkdir -p "$3"
built=$(CDPATH='' cd -- "$2" && pwd)
results=$(CDPATH='' cd -- "$3" && pwd)
cd "$(dirname "$0")/.."
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml)
machine=$(uname -m)
packaging=$PWD/packaging
# Files are as old as the commit, so that one commit makes one package.
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct 2>/dev/null || stat -c %Y Cargo.toml)
export SOURCE_DATE_EPOCH
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
trap 'exit 1' HUP INT TERM
umask 022

tree=$scratch/terrace-$version-$machine-linux
# What the package's directory is on the machine that it comes to; where its files are until then.
case $kind in
deb | rpm) prefix=/usr root=$tree place=$tree/usr ;;
tarball) prefix=/usr/local root=$scratch/root place=$scratch/root/usr/local ;;
*) echo "terrace: package: what is \`$kind\`? Write deb, rpm or tarball" >&2; exit 2 ;;
esac
make --silent install PREFIX=$prefix DESTDIR="$root" RELEASE="$built" >"$scratch/log" 2>&1 || { cat "$scratch/log" >&2; exit 1; }
[ -s "$place/share/doc/terrace/copyright" ] || { cat "$scratch/log" >&2; echo 'terrace: package: no licences' >&2; exit 1; }
strip --strip-unneeded "$place/bin/terrace" "$place/bin/terrace-kv" "$place/lib/terrace/libterrace.so"
find "$place/share/man" -type f -exec gzip -9n {} +
if [ "${TERRACE_PACKAGE_PATHS:-}" != any ]; then
    for path in "$PWD" "${CARGO_HOME:-$HOME/.cargo}" "$scratch"; do
        ! grep -rlF -- "$path" "$root" || { echo "terrace: package: the files above name $path" >&2; exit 1; }
    done
fi

in_template() {
    sed "s|@VERSION@|$version|; s|@ARCHITECTURE@|${architecture:-}|; s|@DEPENDS@|${depends:-}|; s|@SIZE@|${size:-}|" "$packaging/$1"
}

make_deb() {
    architecture=$(dpkg --print-architecture)
    # It reads the name of the package from there, and nothing else.
    mkdir "$scratch/debian"
    printf 'Source: terrace\n\nPackage: terrace\nArchitecture: any\n' >"$scratch/debian/control"
    depends=$(cd "$scratch" && dpkg-shlibdeps -O "$place/bin/terrace" "$place/bin/terrace-kv" "$place/lib/terrace/libterrace.so" 2>"$scratch/log" |
        sed -n 's/^shlibs:Depends=//p') && [ -n "$depends" ] || { cat "$scratch/log" >&2; exit 1; }
    size=$(du -sk --apparent-size "$tree" | cut -f 1)
    mkdir -p "$tree/DEBIAN" "$tree/etc/terrace"
    in_template control.in >"$tree/DEBIAN/control"
    for script in postinst prerm postrm; do
        install -m 755 "$packaging/$script" "$tree/DEBIAN/$script"
    done
    (cd "$tree" && find usr -type f -print0 | sort -z | xargs -0 md5sum) >"$tree/DEBIAN/md5sums"
    package=$results/terrace_${version}_$architecture.deb
    dpkg-deb --root-owner-group -Zxz --build "$tree" "$package" >&2
}

make_rpm() {
    mkdir -p "$tree/etc/terrace"
    # Directories of its own, and all files.
    (cd "$tree" && find . -type f | sed 's|^\.||; s|^\(.*/man/.*\)|%doc \1|' | sort) >"$scratch/files"
    printf '%%dir %s\n' /etc/terrace /usr/lib/terrace /usr/share/doc/terrace >>"$scratch/files"
    in_template terrace.spec.in >"$scratch/terrace.spec"
    rpmbuild -bb --quiet --target "$machine" --define "_topdir $scratch/rpm" --define "tree $tree" --define "listed $scratch/files" \
        "$scratch/terrace.spec" >"$scratch/log" 2>&1 || { cat "$scratch/log" >&2; exit 1; }
    package=$results/terrace-$version-1.$machine.rpm
    mv "$scratch/rpm/RPMS/$machine/$(basename "$package")" "$package"
}

make_tarball() {
    mv "$place" "$tree"
    package=$tree.tar.xz
    tar -cJf "$package" -C "$scratch" --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$SOURCE_DATE_EPOCH" "$(basename "$tree")"
    mv "$package" "$results/"
    package=$results/$(basename "$package")
}

"make_$kind"
echo "$package"
