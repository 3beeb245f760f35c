#!/bin/sh
# Installs what is missing for one job, and nothing if nothing is:
#
#     scripts/setup.sh build | demo | test | programs | bench | package | ci
#
# As root on Debian it installs packages. Elsewhere it lists what is missing, once, and exits with status 1.
set -eu

scripts=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
rust=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' "$scripts/../Cargo.toml")
job=${1:-build}

has() {
    for program; do
        command -v "$program" >/dev/null 2>&1 || return 1
    done
}

with_toolchain() {
    "$scripts/toolchain.sh" "$@" >/dev/null 2>&1
}

# Where TLS libraries look for certificates; cargo downloads with them.
has_certificates() {
    for file in "${SSL_CERT_FILE:-}" "${CARGO_HTTP_CAINFO:-}" /etc/ssl/certs/ca-certificates.crt /etc/pki/tls/certs/ca-bundle.crt \
        /etc/ssl/ca-bundle.pem /etc/ssl/cert.pem; do
        [ -z "$file" ] || [ ! -e "$file" ] || return 0
    done
    return 1
}

# A module of the Python that is first in the path, or of the system's.
has_module() {
    for python in python3 /usr/bin/python3; do
        ! "$python" -c "import $1" 2>/dev/null || return 0
    done
    return 1
}

can_compile() {
    has cc && echo '#include <stdlib.h>' | cc -x c -fsyntax-only - 2>/dev/null
}

# `packages`: what Debian calls it. `names`: what it is, for everybody else. `services`: packages that bring a service. `peers`: packages that are
# installed where that is possible, and done without elsewhere.
packages='' names='' services='' peers='' needs_rust=
missing() {
    packages="$packages $1"
    names="$names
  - $2"
}

"$scripts/toolchain.sh" || {
    needs_rust=yes
    names="$names
  - Rust $rust or newer, rustc and cargo (rustup, or your distribution's)"
}
can_compile || missing 'gcc libc6-dev' 'a C compiler with the C library headers (gcc, libc6-dev)'
has make || missing make 'GNU make'
has_certificates || missing ca-certificates 'CA certificates (ca-certificates)'
case $job in build) ;; demo | test | programs | bench | package | ci)
    has python3 || missing python3 'Python 3.8 or newer (python3)'
    ;;
*)
    echo "terrace: setup: what is \`$job\`? Write build, demo, test, programs, bench, package or ci" >&2
    exit 2
    ;;
esac
case $job in test | programs | bench | ci)
    has redis-server redis-cli redis-benchmark || { missing 'redis-server redis-tools' 'Redis (redis-server, redis-cli)'; services="$services redis-server"; }
    has memcached || { missing memcached 'memcached'; services="$services memcached"; }
    has sqlite3 || missing sqlite3 'SQLite (sqlite3)'
    ;;
esac
case $job in test | programs | ci)
    has openssl || missing openssl 'OpenSSL (openssl)'
    has g++ || missing g++ 'a C++ compiler (g++)'
    # Programs that a preloaded library cannot come into.
    has musl-gcc || missing musl-tools 'a C compiler for musl (musl-gcc)'
    # For guests with an older kernel, and with far memory.
    if [ "$(uname -m)" = x86_64 ]; then
        has qemu-system-x86_64 || missing qemu-system-x86 'QEMU for x86_64 (qemu-system-x86)'
        has busybox || missing busybox-static 'busybox (busybox-static)'
        has xz || missing xz-utils 'xz (xz-utils)'
    fi
    has pkg-config || missing pkg-config 'pkg-config'
    has groff || missing groff 'groff'
    has strace || missing strace 'strace'
    has git || missing git 'git'
    has perl || missing perl 'Perl (perl)'
    # Clients of memcached.
    has memccat memccp memcstat memcping || missing libmemcached-tools "libmemcached's tools (memccat, memccp)"
    has_module pymemcache || missing python3-pymemcache 'pymemcache (python3-pymemcache)'
    has go || missing golang-go 'Go (go)'
    has node || missing nodejs 'Node.js (node)'
    has java keytool || missing default-jre-headless 'a Java runtime without display (java, keytool)'
    has gunicorn || missing gunicorn 'gunicorn'
    ;;
esac
# Large ones, which are started as their users start them.
if [ "$job" = programs ]; then
    has cpio || missing cpio 'cpio'
    has javac || missing default-jdk-headless 'a Java compiler without display (javac)'
    has nginx || { missing nginx-light 'nginx'; services="$services nginx"; }
    has php-fpm8.2 || { missing php8.2-fpm 'PHP 8.2 as a server (php-fpm8.2)'; services="$services php8.2-fpm"; }
    has uwsgi && [ -e /usr/lib/uwsgi/plugins/python3_plugin.so ] ||
        { missing 'uwsgi-core uwsgi-plugin-python3' 'uWSGI with its plugin for Python 3 (uwsgi)'; }
    [ -e /usr/lib/postgresql/15/bin/postgres ] && has psql ||
        { missing postgresql-15 'PostgreSQL 15 (postgres, psql)'; services="$services postgresql"; }
    has soffice || missing libreoffice-writer-nogui 'LibreOffice Writer (soffice)'
    has chromium || missing chromium 'Chromium (chromium)'
fi
id=$(sed -n 's/^ID=//p' /etc/os-release 2>/dev/null | tr -d '"') || true
# Packages are made on Debian. Elsewhere tests of them are skipped, and `make rpm` says what it has not.
if [ "$id" = debian ]; then
    case $job in test | package | ci)
        has dpkg-shlibdeps || missing dpkg-dev 'tools to build Debian packages (dpkg-shlibdeps)'
        has rpmbuild || missing rpm 'tools to build RPM packages (rpmbuild)'
        has umoci || missing umoci 'a tool that makes OCI images (umoci)'
        has mmdebstrap || missing mmdebstrap 'a tool that makes roots of Debian (mmdebstrap)'
        ;;
    esac
    case $job in test | ci)
        # For a checker of Kubernetes manifests, which is no package of Debian's.
        python3 -c 'import ensurepip' 2>/dev/null || missing python3-venv 'environments of Python (python3-venv)'
        # A second compiler for C programs with moving objects. Its sanitizers are a package of their own, which it only recommends.
        has clang && [ -e "$(clang -print-resource-dir)/lib/linux/libclang_rt.tsan-$(uname -m).a" ] ||
            missing 'clang libclang-rt-dev' 'clang with its sanitizers (clang, libclang-rt-dev)'
        # For services in a guest. Nothing of it runs on this machine.
        has systemd-analyze || missing systemd 'systemd, and a tool that checks units (systemd-analyze)'
        has udevadm || missing udev 'udev (udevadm)'
        has pgrep || missing procps 'pgrep (procps)'
        ;;
    esac
fi
# Other allocators. A benchmark says which it leaves out.
has_library() {
    for file in /usr/lib/*/"$1" /usr/lib64/"$1" /usr/lib/"$1"; do
        [ ! -e "$file" ] || return 0
    done
    return 1
}
if [ "$job" = bench ] && [ "$id" = debian ] && [ "$(id -u)" = 0 ]; then
    has_library libjemalloc.so.2 || peers="$peers libjemalloc2"
    has_library libmimalloc.so.2 || peers="$peers libmimalloc2.0"
    has_library libtcmalloc_minimal.so.4 || peers="$peers libtcmalloc-minimal4"
    for peer in $peers; do
        names="$names
  - for comparison: $peer"
    done
fi
if [ "$job" = ci ] && [ -z "$needs_rust" ]; then
    with_toolchain cargo fmt --version || missing rustfmt-web 'rustfmt of the same toolchain (rustup component add rustfmt)'
    with_toolchain cargo clippy --version || missing rust-web-clippy 'clippy of the same toolchain (rustup component add clippy)'
fi

# What is no package of Debian's: the older kernel, and a checker of Kubernetes manifests. Without one of them a test is skipped, which is no
# reason to have none.
fetch() {
    case $job in test | programs | ci) "$scripts/guest.sh" fetch || echo 'terrace: setup: no kernel for the guest, see above; tests on it are skipped' >&2 ;; esac
    case $job in test | ci)
        "$scripts/kubernetes.sh" "${CARGO_TARGET_DIR:-$scripts/../target}/kubernetes-validate" >/dev/null ||
            echo 'terrace: setup: no checker of manifests, see above; the test with it is skipped' >&2
        ;;
    esac
}

[ -n "$names" ] || { fetch; exit 0; }

say_and_stop() {
    echo "terrace: $1. Missing for \`$job\`:$names" >&2
    exit 1
}
[ "$id" = debian ] && has apt-get dpkg || say_and_stop 'packages are installed on Debian only; please install them yourself'
[ "$(id -u)" = 0 ] || say_and_stop 'packages can be installed as root only; run this as root once, or install them yourself'

# No service shall run that did not run before: Debian starts what it installs unless this file forbids it.
policy=/usr/sbin/policy-rc.d
mark='# Written by the set-up of Terrace while it installs, and removed by it.'
forbid_starts() {
    # Somebody's own stays in charge; one of ours may be left from a set-up that was killed.
    if [ -e "$policy" ] && ! grep -qxF "$mark" "$policy"; then
        return
    fi
    printf '#!/bin/sh\n%s\nexit 101\n' "$mark" >"$policy"
    chmod 755 "$policy"
    trap 'rm -f "$policy"' EXIT
    trap 'exit 1' HUP INT TERM
}

echo "terrace: setting up for \`$job\`:$names"
export DEBIAN_FRONTEND=noninteractive
forbid_starts
apt-get -o DPkg::Lock::Timeout=300 update -qq </dev/null

if [ -n "$needs_rust" ]; then
    # Debian's backport for its browsers is kept new; the ordinary package is that of the release.
    for flavour in -web ''; do
        candidate=$(apt-cache policy "rustc$flavour" | sed -n 's/^ *Candidate: //p')
        if [ -n "$candidate" ] && [ "$candidate" != '(none)' ] && dpkg --compare-versions "$candidate" ge "$rust"; then
            packages="$packages rustc$flavour cargo$flavour"
            [ "$job" != ci ] || case $flavour in
            -web) packages="$packages rustfmt-web rust-web-clippy" ;;
            *) packages="$packages rustfmt rust-clippy" ;;
            esac
            needs_rust=
            break
        fi
    done
    [ -z "$needs_rust" ] || say_and_stop "this Debian has no Rust $rust; please install one with rustup"
fi

# This release may not have all of them.
for peer in $peers; do
    candidate=$(apt-cache policy "$peer" | sed -n 's/^ *Candidate: //p')
    case $candidate in '' | '(none)') echo "terrace: setup: this Debian has no $peer" >&2 ;; *) packages="$packages $peer" ;; esac
done

# Nothing of the user's is removed for it: an old rustc package is in the way of the new one.
# shellcheck disable=SC2086 # a list of packages
[ -z "$packages" ] || apt-get -o DPkg::Lock::Timeout=300 install -y -q --no-install-recommends --no-remove $packages </dev/null || {
    echo "terrace: apt-get could not install:$packages (see above; an older rustc or cargo package must be removed first)" >&2
    exit 1
}
# Nor shall a service run from the next start on.
for service in $services; do
    if has systemctl; then
        systemctl --quiet disable --now "$service" </dev/null >/dev/null 2>&1 || true
    elif has update-rc.d; then
        update-rc.d "$service" disable >/dev/null 2>&1 || true
    fi
done
fetch
