#!/bin/sh
# Runs a command on another kernel, or with other memory, than this machine has, in a QEMU guest: what Terrace does where the kernel lacks what
# it needs, and where there is far memory.
#
#     scripts/guest.sh fetch            gets the kernel, unless it is there; later runs download nothing
#     scripts/guest.sh run 'COMMAND'    as root, with sh; prints what it prints and ends with its status
#
# The guest sees the host's files where they are, but what it writes goes to a layer in its own memory. The kernel is unpacked under the
# target directory and never installed. Status 125: there was no guest; 124: the command did not end in
# time, or the guest's kernel died. For function only: nothing is to be timed there.
#
#     TERRACE_GUEST_KERNEL     6.1: Debian 12's own (default); 6.12: that of its backports
#     TERRACE_GUEST_MEMORY     plain: one node (default); node: a second node of 512 MiB without a CPU, farther away; cxl: the same as a CXL
#                              device that is brought up first
#     TERRACE_GUEST_INIT       shell: the command is all that runs (default); systemd: this machine's is process 1, and the command
#                              is a service of its own, which nothing else was started for
#     TERRACE_GUEST_DIR        where kernels are kept; default: guest in the target directory
#     TERRACE_GUEST_SECONDS    after so many the guest is ended; default: 600
set -eu

root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
dir=${TERRACE_GUEST_DIR:-${CARGO_TARGET_DIR:-$root/target}/guest}
seconds=${TERRACE_GUEST_SECONDS:-600}
kernel=${TERRACE_GUEST_KERNEL:-6.1}
memory=${TERRACE_GUEST_MEMORY:-plain}
init=${TERRACE_GUEST_INIT:-shell}
kernel_dir=$dir/$kernel
qemu_dir=$dir/qemu

fail() {
    echo "terrace: guest: $1" >&2
    exit 125
}

has() {
    for program; do
        command -v "$program" >/dev/null 2>&1 || fail "$program is missing; on Debian: scripts/setup.sh test"
    done
}

# What the guest needs to reach the host's files, and CXL memory. Everything else is built into the kernel.
modules='virtio_pci 9pnet_virtio 9p overlay'
module_directories='drivers/virtio net/9p fs/9p fs/netfs fs/overlayfs'
case $kernel in
6.1) suite=bookworm module_directories="$module_directories fs/fscache" ;;
6.12) suite=bookworm-backports module_directories="$module_directories drivers/cxl drivers/dax drivers/nvdimm" ;;
*) fail "there is no kernel $kernel; write 6.1 or 6.12" ;;
esac
qemu=qemu-system-x86_64
case $memory in
plain | node) ;;
cxl)
    # Debian 12's QEMU has no volatile CXL memory.
    qemu=$qemu_dir/usr/bin/qemu-system-x86_64
    modules="$modules cxl_acpi cxl_pci cxl_mem cxl_port dax_cxl kmem"
    ;;
*) fail "there is no memory $memory; write plain, node or cxl" ;;
esac
systemd=/lib/systemd/systemd
case $init in
shell) ;;
systemd) [ -x $systemd ] || fail "$systemd is missing; on Debian: scripts/setup.sh test" ;;
*) fail "there is no init $init; write shell or systemd" ;;
esac

# Runs `$2 $3 …` with a package index of suite $1, of our own, so that neither the host's apt configuration nor its release matters. It finds `$apt`, a
# list of options, and `$work`, a directory. Fails if no mirror has what it wants.
with_packages_of() {
    suite=$1
    shift
    [ "$(uname -m)" = x86_64 ] || fail 'the guest is an x86_64 machine, and runs on one only'
    has apt-get apt-cache dpkg-deb tar xz
    mkdir -p "$dir"
    work=$(mktemp -d "$dir/fetch.XXXXXX")
    trap 'rm -rf "$work"' EXIT
    trap 'exit 125' HUP INT TERM
    mkdir -p "$work/lists/partial" "$work/cache/archives/partial" "$work/unpacked"
    : >"$work/status"
    mirrors=$(apt-get indextargets --format '$(REPO_URI) $(RELEASE)' | awk '$2 ~ /^[a-z]+$/ && !seen[$1]++ { print $1 }')
    [ -n "$mirrors" ] || fail 'apt has no package lists; run apt-get update once'
    found=
    for mirror in $mirrors; do
        echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror $suite main" >"$work/sources.list"
        apt="-o Dir::Etc::sourcelist=$work/sources.list -o Dir::Etc::sourceparts=- -o Dir::State::lists=$work/lists
            -o Dir::State::status=$work/status -o Dir::Cache=$work/cache -o APT::Sandbox::User=root -o Acquire::Languages=none"
        # shellcheck disable=SC2086 # a list of options
        apt-get $apt -qq update </dev/null >&2 || continue
        if "$@"; then
            found=yes
            break
        fi
    done
    rm -rf "$work"
    trap - EXIT HUP INT TERM
    [ -n "$found" ] || fail "no mirror of apt's has $* of Debian $suite"
}

# shellcheck disable=SC2086 # lists of options and of paths
get_kernel() {
    package=$(apt-cache $apt depends linux-image-amd64 2>/dev/null | sed -n "s/^ *Depends: \\(linux-image-$series\\..*\\)/\\1/p" | head -n 1)
    # The newest of the series, where the suite has moved on.
    [ -n "$package" ] || package=$(apt-cache $apt pkgnames "linux-image-$kernel." | grep -E -- '-amd64$' | grep -vE -- '-(rt|cloud)-' | sort -V | tail -n 1)
    [ -n "$package" ] || return 1
    (cd "$work" && apt-get $apt -qq download "$package" </dev/null >&2) || fail "$package cannot be downloaded"
    version=${package#linux-image-}
    wanted=$(for directory in $module_directories; do echo "./*lib/modules/$version/kernel/$directory"; done)
    dpkg-deb --fsys-tarfile "$work"/linux-image-*.deb | tar -x --wildcards -C "$work/unpacked" "./boot/vmlinuz-$version" $wanted ||
        fail "$package does not hold what was expected"
    [ -e "$work/unpacked/lib" ] || mv "$work/unpacked/usr/lib" "$work/unpacked/lib"
    # busybox cannot.
    find "$work/unpacked/lib" -name '*.ko.xz' -exec xz -d {} +
    mkdir -p "$kernel_dir"
    rm -rf "$kernel_dir/lib"
    mv "$work/unpacked/lib" "$kernel_dir/lib"
    # The last: it stands for all.
    mv "$work/unpacked/boot/vmlinuz-$version" "$kernel_dir/vmlinuz"
}

# shellcheck disable=SC2086 # a list of options
get_qemu() {
    (cd "$work" && apt-get $apt -qq download qemu-system-x86 qemu-system-common qemu-system-data seabios </dev/null >&2) || return 1
    for package in "$work"/*.deb; do
        dpkg-deb -x "$package" "$work/unpacked"
    done
    rm -rf "$qemu_dir"
    mv "$work/unpacked" "$qemu_dir"
}

fetch() {
    series=$(echo "$kernel" | sed 's/\./\\./')
    [ -e "$kernel_dir/vmlinuz" ] || with_packages_of "$suite" get_kernel
    [ "$memory" != cxl ] || [ -e "$qemu" ] || with_packages_of bookworm-backports get_qemu
}

# How the guest's command runs, and the guest's end: the shell's command, where the host finds what it printed, busybox.
ends_after() {
    cat <<END
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root
$1 -s <$2/command >$2/stdout 2>$2/stderr
echo \$? >$2/status.part
$3 mv $2/status.part $2/status
$3 sync
$3 poweroff -f
END
}

# Units of the guest's systemd, in directory $1. What this machine would start is not wanted: consoles, timers, mounts.
write_units() {
    mkdir "$1"
    cat >"$1/guest.target" <<'UNIT'
[Unit]
Description=What the guest is for
DefaultDependencies=no
AllowIsolate=yes
Wants=guest.service
UNIT
    cat >"$1/guest.service" <<'UNIT'
[Unit]
Description=The command of scripts/guest.sh
DefaultDependencies=no
Wants=systemd-journald.socket systemd-journald-dev-log.socket
After=systemd-journald.socket systemd-journald-dev-log.socket

[Service]
Type=oneshot
ExecStart=/bin/sh /run/systemd/system/guest.sh
UNIT
    ends_after /bin/sh /run/exchange "$(command -v busybox)" >"$1/guest.sh"
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
    cp -r "$kernel_dir/lib/modules" "$initrd/lib/modules"
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
mount -t cgroup2 cgroup /root/sys/fs/cgroup
mount -t tmpfs shm /root/dev/shm
mount -t tmpfs -o mode=755 run /root/run
ip link set lo up
if [ "$memory" = cxl ]; then
    . /cxl-up >/exchange/cxl 2>&1 || echo "terrace: guest: no CXL memory: \$(cat /exchange/cxl)" >&2
fi
if [ "$init" = systemd ]; then
    mkdir -p /root/run/systemd /root/run/exchange
    cp -r /units /root/run/systemd/system
    mount -o bind /exchange /root/run/exchange
    # It is no container, and nothing of this machine's is to be started beside.
    rm -rf /root/.dockerenv /root/etc/systemd/system/*.wants /root/lib/systemd/system/*.target.wants /root/lib/systemd/system-generators
    exec switch_root /root $systemd --unit=guest.target
fi
$(ends_after 'chroot /root /bin/sh' /exchange /bin/busybox)
INIT
    chmod 755 "$initrd/init"
    [ "$init" != systemd ] || write_units "$initrd/units"
    # What the cxl command would do: a region of the device's volatile memory, as memory of a node.
    cat >"$initrd/cxl-up" <<'CXL'
cxl_up() {
    cd /sys/bus/cxl/devices || return 1
    endpoint=$(ls -d endpoint* | head -n 1)
    decoder=decoder${endpoint#endpoint}.0
    echo online_movable >/sys/devices/system/memory/auto_online_blocks
    region=$(cat decoder0.0/create_ram_region) && echo "$region" >decoder0.0/create_ram_region || return 1
    echo 256 >"$region/interleave_granularity" && echo 1 >"$region/interleave_ways" || return 1
    echo ram >"$decoder/mode" && cat mem0/ram/size >"$decoder/dpa_size" && cat mem0/ram/size >"$region/size" || return 1
    echo "$decoder" >"$region/target0" && echo 1 >"$region/commit" && echo "$region" >/sys/bus/cxl/drivers/cxl_region/bind || return 1
    for _ in 1 2 3 4 5 6 7 8 9 10; do
        [ ! -d /sys/devices/system/node/node1 ] || return 0
        sleep 1
    done
    echo 'no node came of it'
    return 1
}
cxl_up
CXL
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
        # One thread emulates both processors. With a thread for each (QEMU 7.2), a translation
        # of code that the other processor changes meanwhile can outlive the change. Linux
        # changes its scheduler's code as it runs, and dies of an old breakpoint: `Oops: int3`.
        accelerator=tcg,thread=single
        echo 'terrace: guest: no hardware virtualisation here: the guest is emulated, which takes several times as long' >&2
    fi
    set -- -machine q35 -cpu max -m 1536
    near='-object memory-backend-ram,id=near,size=1024M'
    far='-object memory-backend-ram,id=far,size=512M'
    # shellcheck disable=SC2086 # lists of options
    case $memory in
    # Latencies in ns, bandwidths in bytes a second, as firmware says them.
    node) set -- -machine q35,hmat=on -cpu max -m 1536 $near $far \
        -numa node,nodeid=0,cpus=0-1,memdev=near -numa node,nodeid=1,memdev=far,initiator=0 -numa dist,src=0,dst=1,val=20 \
        -numa hmat-lb,initiator=0,target=0,hierarchy=memory,data-type=access-latency,latency=80 \
        -numa hmat-lb,initiator=0,target=0,hierarchy=memory,data-type=access-bandwidth,bandwidth=100G \
        -numa hmat-lb,initiator=0,target=1,hierarchy=memory,data-type=access-latency,latency=250 \
        -numa hmat-lb,initiator=0,target=1,hierarchy=memory,data-type=access-bandwidth,bandwidth=20G ;;
    # In a virtual machine's own eyes the kernel does not trust its caches with CXL.
    cxl) set -- -L "$qemu_dir/usr/share/qemu" -L "$qemu_dir/usr/share/seabios" -machine q35,cxl=on -cpu max,-hypervisor \
        -m 1024,maxmem=8G,slots=4 $far -device pxb-cxl,bus_nr=12,bus=pcie.0,id=cxl.1 \
        -device cxl-rp,port=0,bus=cxl.1,id=rp1,chassis=0,slot=2 -device cxl-type3,bus=rp1,volatile-memdev=far,id=cxl-vmem0,sn=1 \
        -M cxl-fmw.0.targets.0=cxl.1,cxl-fmw.0.size=4G ;;
    esac
    timeout -k 5 "$seconds" "$qemu" "$@" -nodefaults -no-user-config -no-reboot -display none \
        -serial "file:$run/console" -accel "$accelerator" -smp 2 \
        -kernel "$kernel_dir/vmlinuz" -initrd "$run/initrd.gz" \
        -append 'console=ttyS0 loglevel=4 oops=panic panic=-1 mitigations=off nokaslr tsc=unstable clocksource=hpet' \
        -fsdev local,id=host,path=/,security_model=none,readonly=on,multidevs=remap \
        -device virtio-9p-pci,fsdev=host,mount_tag=host,bus=pcie.0 \
        -fsdev "local,id=exchange,path=$run/exchange,security_model=none,multidevs=remap" \
        -device virtio-9p-pci,fsdev=exchange,mount_tag=exchange,bus=pcie.0 </dev/null >"$run/qemu" 2>&1 || true
    cat "$run/exchange/stderr" >&2 2>/dev/null || true
    cat "$run/exchange/stdout" 2>/dev/null || true
    if [ ! -s "$run/exchange/status" ]; then
        tail -n 20 "$run/qemu" "$run/console" >&2 || true
        end="the command did not end in $seconds s, or the guest died (see above)"
        # `oops=panic` makes every oops a panic. The run is not repeated: the command may have
        # caused it.
        if grep -q 'Kernel panic' "$run/console" 2>/dev/null; then
            grep -aE 'Oops|BUG:|RIP: 0010|Kernel panic' "$run/console" | head -n 4 >&2 || true
            end="the guest's kernel died (see above)"
        fi
        [ -e "$run/exchange/stdout" ] || fail "it did not start: $end"
        echo "terrace: guest: $end" >&2
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
