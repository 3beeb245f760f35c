#!/usr/bin/env python3
"""Runs a command while each CPU is held in bursts of up to half a second, as a host that gives a
guest no time does. What fails then, and not otherwise, relies on how fast something is.

Usage, as root: scripts/with-stalls.py COMMAND [ARGUMENTS...]
"""

import os
import random
import signal
import subprocess
import sys
import time

HELD_S = (0.001, 0.01, 0.05, 0.2, 0.5)
FREE_S = (0.001, 0.01, 0.05, 0.1)


def hold(cpu, parent):
    """Holds one CPU in bursts by a real-time thread, until the parent is gone."""
    os.sched_setaffinity(0, {cpu})
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(50))
    random.seed(cpu)
    while os.getppid() == parent:
        end = time.monotonic() + random.choice(HELD_S)
        while time.monotonic() < end:
            pass
        time.sleep(random.choice(FREE_S))


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    if os.geteuid() != 0:
        sys.exit("with-stalls.py needs root: it holds CPUs by real-time threads.")
    parent, holders = os.getpid(), []
    for cpu in os.sched_getaffinity(0):
        pid = os.fork()
        if pid == 0:
            hold(cpu, parent)
            os._exit(0)
        holders.append(pid)
    try:
        status = subprocess.call(sys.argv[1:])
    finally:
        ended = [pid for pid in holders if os.waitpid(pid, os.WNOHANG)[0]]
        for pid in set(holders) - set(ended):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    if ended:
        sys.exit("with-stalls.py: a CPU was not held to the end (see above), so this run shows nothing.")
    sys.exit(status if status >= 0 else 128 - status)


if __name__ == "__main__":
    main()
