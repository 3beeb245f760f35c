# For the steps of services.rs, in a guest with systemd: what a service did is told if a step fails.
set -eu
unit=terrace@redis
trap '[ $? = 0 ] || told >&2' EXIT

told() {
    echo "--- $unit"
    systemctl --no-pager --full status "$unit" || true
    journalctl --no-pager --lines 60 || true
}

# Tries a command until it succeeds, for a minute on a machine that does nothing else.
soon() {
    for _ in $(seq $((200 * TERRACE_TEST_SLOW))); do
        ! "$@" >/dev/null 2>&1 || return 0
        sleep 0.3
    done
    echo "in vain: $*" >&2
    return 1
}

shown() {
    systemctl show --value --property "$1" "$unit"
}

answers() {
    [ "$(redis-cli ping)" = PONG ]
}

# Whether another process than $1 is the service's, and works.
is_another() {
    [ "$(shown MainPID)" != "$1" ] && [ "$(shown ActiveState)" = active ]
}

# Whether its main process has less memory of its own in DRAM than this many KiB.
is_smaller() {
    resident=$(awk '/^RssAnon:/ { print $2 }' "/proc/$(shown MainPID)/status")
    [ "$resident" -lt "$1" ]
}

# What the service with a socket answers to a word.
said_to() {
    python3 -c 'if True:
        import socket, sys
        peer = socket.socket(socket.AF_UNIX)
        peer.connect("/run/watched.socket")
        peer.sendall(sys.argv[1].encode())
        print(peer.recv(64).decode())' "$1"
}

# Owner, group and mode of the device: they say which users may use it.
device() {
    stat -c '%U %G %a' /dev/userfaultfd
}

is_the_groups() {
    [ "$(device)" = 'root terrace 660' ]
}

has_no_process_left() {
    ! pgrep 'redis-server|terrace|signal-witness'
}
