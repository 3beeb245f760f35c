#!/bin/sh
# Runs a command on Debian 12's own kernel, Linux 6.1, in a QEMU guest: what Terrace does where the kernel lacks what it needs.
#
#     scripts/guest.sh fetch            gets the kernel, unless it is there; later runs download nothing
#     scripts/guest.sh run 'COMMAND'    as root, with sh; prints what it prints and ends with its status
#
# The guest sees the host's files where they are, but what it writes goes to a layer in its own memory. The kernel is unpacked under the
# target directory and never installed. Status 125: there was no guest; 124: the command did not end in time. For function only: nothing
# is to be timed there.
#
#     TERRACE_GUEST_DIR        where the kernel is kept; default: guest in the target directory
#     TERRACE_GUEST_SECONDS    after so many the guest is ended; default: 600
set -eu

suite=bookworm
root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
dir=${TERRACE_GUEST_DIR:-${CARGO_TARGET_DIR:-$root/target}/guest}
qemu=qemu-system-x86_64
seconds=${TERRACE_GUEST_SECONDS:-600}

fail() {
    echo "terrace: guest: $1" >&2
    exit 125
}

has() {
    for program; do
        command -v "$program" >/dev/null 2>&1 || fail "$program is missing; on Debian: scripts/setup.sh test"
    done
}

# What the guest needs to reach the host's files. Everything else is built into the kernel.
modules='virtio_pci 9pnet_virtio 9p overlay'
module_directories='drivers/virtio net/9p fs/9p fs/netfs fs/fscache fs/overlayfs'

# A package index of our own, so that neither the host's apt configuration nor its release matters.
fetch() {
    [ ! -e "$dir/vmlinuz" ] || return 0
    [ "$(uname -m)" = x86_64 ] || fail 'the guest is an x86_64 machine, and runs on one only'
    has apt-get apt-cache dpkg-deb tar
    mkdir -p "$dir"
    work=$(mktemp -d "$dir/fetch.XXXXXX")
    trap 'rm -rf "$work"' EXIT
    trap 'exit 125' HUP INT TERM
    mkdir -p "$work/lists/partial" "$work/cache/archives/partial" "$work/unpacked"
    : >"$work/status"
    mirrors=$(apt-get indextargets --format '$(REPO_URI) $(RELEASE)' | awk '$2 ~ /^[a-z]+$/ && !seen[$1]++ { print $1 }')
    [ -n "$mirrors" ] || fail 'apt has no package lists; run apt-get update once'
    for mirror in $mirrors; do
        echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror $suite main" >"$work/sources.list"
        apt="-o Dir::Etc::sourcelist=$work/sources.list -o Dir::Etc::sourceparts=- -o Dir::State::lists=$work/lists
            -o Dir::State::status=$work/status -o Dir::Cache=$work/cache -o APT::Sandbox::User=root -o Acquire::Languages=none"
        # shellcheck disable=SC2086 # a list of options
        apt-get $apt -qq update </dev/null >&2 || continue
        # shellcheck disable=SC2086
        package=$(apt-cache $apt depends linux-image-amd64 2>/dev/null | sed -n 's/^ *Depends: \(linux-image-6\.1\..*\)/\1/p' | head -n 1)
        [ -z "$package" ] || break
    done
    [ -n "${package:-}" ] || fail "no mirror of apt's has the kernel of Debian $suite"
    # shellcheck disable=SC2086
    (cd "$work" && apt-get $apt -qq download "$package" </dev/null >&2) || fail "$package cannot be downloaded"
    version=${package#linux-image-}
    wanted=$(for directory in $module_directories; do echo "./lib/modules/$version/kernel/$directory"; done)
    # shellcheck disable=SC2086
    dpkg-deb --fsys-tarfile "$work"/linux-image-*.deb | tar -x -C "$work/unpacked" "./boot/vmlinuz-$version" $wanted ||
        fail "$package does not hold what was expected"
    rm -rf "$dir/lib"
    mv "$work/unpacked/lib" "$dir/lib"
    # The last: it stands for all.
    mv "$work/unpacked/boot/vmlinuz-$version" "$dir/vmlinuz"
    rm -rf "$work"
    trap - EXIT HUP INT TERM
}

# The guest's first files: busybox, the modules and what it runs at first.
write_initrd() {
    initrd=$run/initrd
    mkdir -p "$initrd/bin" "$initrd/proc" "$initrd/sys" "$initrd/dev" "$initrd/host" "$initrd/layer" "$initrd/root" "$initrd/exchange"
    busybox=$(command -v busybox)
    cp "$busybox" "$initrd/bin/busybox"
    # None for a static one.
    for library in $(ldd "$busybox" 2>/dev/null | grep -o '/[^ )]*'); do
        mkdir -p "$initrd${library%/*}"
        cp "$library" "$initrd$library"
    done
    mkdir -p "$initrd/lib"
    cp -r "$dir/lib/modules" "$initrd/lib/modules"
    version=$(ls "$initrd/lib/modules")
    # Paths in what it writes are relative to where it runs.
    (cd "$initrd/lib/modules/$version" && busybox depmod -b "$initrd" "$version")
    cat >"$initrd/init" <<INIT
#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/bin
mount -t proc proc /proc && mount -t sysfs sysfs /sys && mount -t devtmpfs dev /dev
for module in $modules; do
    modprobe \$module || echo "terrace: guest: no module \$module" >/dev/console
done
share=trans=virtio,version=9p2000.L,msize=512000
mount -t 9p -o \$share,cache=none exchange /exchange || poweroff -f
mount -t 9p -o ro,\$share,cache=loose host /host || poweroff -f
mount -t tmpfs layer /layer && mkdir /layer/upper /layer/work
mount -t overlay -o lowerdir=/host,upperdir=/layer/upper,workdir=/layer/work root /root || poweroff -f
for there in proc sys dev; do
    mount -o rbind /\$there /root/\$there
done
mkdir -p /dev/pts /dev/shm
mount -t devpts pts /root/dev/pts
mount -t tmpfs shm /root/dev/shm
mount -t tmpfs run /root/run
ip link set lo up
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root
chroot /root /bin/sh -s </exchange/command >/exchange/stdout 2>/exchange/stderr
echo \$? >/exchange/status.part
/bin/busybox mv /exchange/status.part /exchange/status
/bin/busybox sync
/bin/busybox poweroff -f
INIT
    chmod 755 "$initrd/init"
    (cd "$initrd" && find . | busybox cpio -o -H newc 2>/dev/null) | gzip -1 >"$run/initrd.gz"
}

run() {
    fetch
    has "$qemu" busybox timeout gzip
    run=$(mktemp -d "${TMPDIR:-/tmp}/terrace-guest.XXXXXX")
    trap 'rm -rf "$run"' EXIT
    trap 'exit 125' HUP INT TERM
    mkdir "$run/exchange"
    printf '%s\n' "$1" >"$run/exchange/command"
    write_initrd
    # /dev/kvm alone is no sign: where the processor's own virtualisation is not to be had, kernels have hung in it.
    if [ -w /dev/kvm ] && grep -qwE 'vmx|svm' /proc/cpuinfo; then
        accelerator=kvm
    else
        accelerator=tcg,thread=multi
        echo 'terrace: guest: no hardware virtualisation here: the guest is emulated, which takes several times as long' >&2
    fi
    timeout -k 5 "$seconds" "$qemu" -nodefaults -no-user-config -no-reboot -display none \
        -serial "file:$run/console" -machine q35 -accel "$accelerator" -cpu max -smp 2 -m 1536 \
        -kernel "$dir/vmlinuz" -initrd "$run/initrd.gz" -append 'console=ttyS0 loglevel=4 panic=-1' \
        -fsdev local,id=host,path=/,security_model=none,readonly=on,multidevs=remap \
        -device virtio-9p-pci,fsdev=host,mount_tag=host \
        -fsdev "local,id=exchange,path=$run/exchange,security_model=none,multidevs=remap" \
        -device virtio-9p-pci,fsdev=exchange,mount_tag=exchange </dev/null >"$run/qemu" 2>&1 || true
    cat "$run/exchange/stderr" >&2 2>/dev/null || true
    cat "$run/exchange/stdout" 2>/dev/null || true
    if [ ! -s "$run/exchange/status" ]; then
        tail -n 20 "$run/qemu" "$run/console" >&2 || true
        [ -e "$run/exchange/stdout" ] || fail 'it did not start (see above)'
        echo "terrace: guest: the command did not end in $seconds s" >&2
        exit 124
    fi
    exit "$(cat "$run/exchange/status")"
}

case ${1:-} in
fetch) fetch ;;
run) run "${2:?what shall it run?}" ;;
*)
    echo "usage: scripts/guest.sh fetch | run 'COMMAND'" >&2
    exit 2
    ;;
esac
