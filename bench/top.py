#!/usr/bin/env python3
"""What `terrace top` costs while it watches a run, at its default interval, in a terminal of 80 × 24:

    bench/top.py TERRACE [PROCESSES] [SECONDS]     20 processes for 30 s

Its CPU time is the kernel's count in nanoseconds. Bar: 0.1 % of a CPU at 20 processes.
"""

import fcntl
import json
import os
import pathlib
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time

RESULTS = pathlib.Path(__file__).resolve().parent / "results/top.json"
# Enough to be managed, and then idle.
PROGRAM = "b = bytearray(80 << 20)\nfor i in range(0, len(b), 4096): b[i] = i & 255\nimport time\ntime.sleep(1000)"
SETTLE_S = 20


def drain(terminal, seconds):
    """Reads what is drawn, for so long."""
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        if select.select([terminal], [], [], left)[0]:
            os.read(terminal, 65536)


def main():
    terrace = sys.argv[1]
    processes, seconds = (int(word) for word in (sys.argv[2:] + ["20", "30"][len(sys.argv[2:]) :]))
    script = f'for i in $(seq {processes}); do /usr/bin/python3 -c "$PROGRAM" & done; wait'
    run = subprocess.Popen(
        [terrace, "run", "--dram", "60%", "--", "sh", "-c", script],
        env=dict(os.environ, PROGRAM=PROGRAM), stderr=subprocess.DEVNULL, start_new_session=True,
    )
    try:
        time.sleep(SETTLE_S)
        pid, terminal = pty.fork()
        if pid == 0:
            os.execve(terrace, [terrace, "top"], dict(os.environ, TERM="vt100"))
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        drain(terminal, 5)
        spent = lambda: int(pathlib.Path(f"/proc/{pid}/schedstat").read_text().split()[0])
        begun, before = time.monotonic(), spent()
        drain(terminal, seconds)
        share = (spent() - before) / 1e9 / (time.monotonic() - begun)
        os.write(terminal, b"q")
        os.waitpid(pid, 0)
    finally:
        os.killpg(run.pid, signal.SIGTERM)
        run.wait()
    print(f"{processes} processes: {100 * share:.4f} % of a CPU")
    figures = {"processes": processes, "seconds": seconds, "share_of_a_cpu": share}
    RESULTS.write_text(json.dumps({"kernel": os.uname().release, "figures": figures}, indent=2) + "\n")


main()
