"""The demonstration: one real program alone, observed by Terrace, and held to 60 % of its memory, with the same output.

    python3 demo/demo.py TERRACE [DIRECTORY]

TERRACE is the built `terrace` command; outputs and reports are left in DIRECTORY (default `.demo`). Exit status 1 if an output
differs or a run fails. TERRACE_DEMO_OPTIONS adds options of the program, for a smaller demonstration.
"""

import json
import os
import pathlib
import subprocess
import sys
import time

BUDGET = "60%"
LOOK_EVERY_S = 0.05
# How far a run is, is told so often: in one line of a terminal, or in lines of their own.
TOLD_EVERY_S = 1 if sys.stderr.isatty() else 10
TIME_LIMIT_S = 600
MIB = 1 << 20
# While the index grows, a share of memory is not held to: most of the time should be spent serving.
PROGRAM = [
    os.path.realpath(sys.executable),
    str(pathlib.Path(__file__).resolve().with_name("document_index.py")),
    "--operations=800000",
    *os.environ.get("TERRACE_DEMO_OPTIONS", "").split(),
]


class Failed(Exception):
    """The demonstration did not show what it should."""


class Run:
    """One run of the program, with its resident memory as seen from outside."""

    def __init__(self, name, directory, prefix):
        self.output = directory / f"{name}.out"
        self.report_file = directory / f"{name}.json"
        self.report_file.unlink(missing_ok=True)
        # Each look: how long since the one before, when, and what was resident.
        self.looks = []
        under_terrace = bool(prefix)
        if under_terrace:
            prefix = [*prefix, "--report", str(self.report_file), "--"]
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("TERRACE_", "LD_PRELOAD", "PYTHON"))}
        environment |= {"PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1"}
        start = time.monotonic()
        with open(self.output, "wb") as output, open(directory / f"{name}.err", "w+") as errors:
            process = subprocess.Popen(prefix + PROGRAM, stdin=subprocess.DEVNULL, stdout=output, stderr=errors, env=environment)
            self.watch(process, start, under_terrace)
            errors.seek(0)
            lines = errors.read().splitlines()
        self.elapsed_s = time.monotonic() - start
        if process.returncode != 0:
            raise Failed(f"the program ended with status {process.returncode}:\n" + "\n".join(lines))
        # The program's own line of speed; all else is Terrace's.
        speed = [line for line in lines if line.startswith("{")]
        self.speed = json.loads(speed[-1])
        self.text = "\n".join(line for line in lines if line not in speed)
        self.report = json.loads(self.report_file.read_text()) if under_terrace else None
        self.rss_peak = max((rss for _, _, rss in self.looks), default=0)
        self.rss_mean = self.mean_from(start)
        # Growing comes first, then serving, which is what the speed is of.
        end = self.looks[-1][1] if self.looks else start
        self.rss_serving = self.mean_from(end - self.speed["serve_s"])

    def mean_from(self, begin):
        """The program's resident memory from a time on, averaged over time."""
        looks = [(length, rss) for length, at, rss in self.looks if at >= begin]
        time_in_all = sum(length for length, _ in looks)
        return sum(length * rss for length, rss in looks) / time_in_all if time_in_all else 0

    def watch(self, process, start, under_terrace):
        """Waits for the end, and looks at the program's resident memory meanwhile."""
        last = told = start
        while process.poll() is None:
            time.sleep(LOOK_EVERY_S)
            now = time.monotonic()
            if now - start > TIME_LIMIT_S:
                process.kill()
                raise Failed(f"no end after {TIME_LIMIT_S} s")
            rss = resident_bytes(child_of(process.pid) if under_terrace else process.pid)
            if rss is not None:
                self.looks.append((now - last, now, rss))
            last = now
            if rss is not None and now - told >= TOLD_EVERY_S:
                told = now
                tell(f"  {now - start:.0f} s: {rss / MIB:.0f} MiB resident")
        tell("")


def child_of(pid):
    """The program that `terrace run` started."""
    try:
        children = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return None
    return next((child for child in children), None)


def resident_bytes(pid):
    try:
        return int(pathlib.Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError):
        return None


def step(text):
    print(f"\n== {text}", flush=True)


def tell(text):
    """Says how far it is; nothing clears the line of a terminal."""
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)
    elif text:
        print(text, file=sys.stderr, flush=True)


def table(runs):
    rows = [("", *runs)]
    rows.append(("memory while it serves", *(f"{run.rss_serving / MIB:.0f} MiB" for run in runs.values())))
    rows.append(("memory, average", *(f"{run.rss_mean / MIB:.0f} MiB" for run in runs.values())))
    rows.append(("memory, peak", *(f"{run.rss_peak / MIB:.0f} MiB" for run in runs.values())))
    rows.append(("time in all", *(f"{run.elapsed_s:.1f} s" for run in runs.values())))
    rows.append(("operations a second", *(f"{run.speed['operations_per_s']}" for run in runs.values())))
    return "\n".join(f"  {row[0]:<24}" + "".join(f"{cell:>14}" for cell in row[1:]) for row in rows)


def demonstrate(terrace, directory):
    directory.mkdir(parents=True, exist_ok=True)
    step("1 of 3, alone: CPython builds an index of JSON documents, then serves skewed lookups and searches")
    alone = Run("alone", directory, [])
    print(alone.output.read_text(), end="")
    step("2 of 3, terrace run --observe: the same, measured; nothing is moved")
    observed = Run("observed", directory, [terrace, "run", "--observe"])
    print(observed.text)
    step(f"3 of 3, terrace run --dram {BUDGET}")
    held = Run("held", directory, [terrace, "run", "--dram", BUDGET])
    print(held.text)

    step("summary (memory: resident size of the process, sampled from outside)")
    print(table({"alone": alone, "observed": observed, f"--dram {BUDGET}": held}))
    for run in (observed, held):
        if run.output.read_bytes() != alone.output.read_bytes():
            raise Failed(f"THE OUTPUT DIFFERS: compare {alone.output} with {run.output}. This is a bug in Terrace: please report it")
    print("  output                identical in all three runs")
    if not held.report["managed"] or held.report["state"] != "active":
        print("\n  Terrace could not move pages here (see the report above): `terrace doctor` says why, and how to change that.")
        return
    if not (alone.rss_serving and held.rss_serving):
        raise Failed("no look at the program's memory succeeded while it served")
    saved = 1 - held.rss_serving / alone.rss_serving
    saved_in_all = 1 - held.rss_mean / alone.rss_mean if alone.rss_mean else 0
    slower = held.speed["operations_per_s"] / alone.speed["operations_per_s"]
    lost = 1 - alone.elapsed_s / held.elapsed_s
    print(
        f"\n  With --dram {BUDGET} the program took {saved:.0%} less memory while it served, at {slower:.2f} times its speed alone."
        f"\n  From start to end, growing included, it took {saved_in_all:.0%} less ({held.report['saved_fraction']:.0%} by Terrace's own account)."
        f"\n  Of its whole time it lost {lost:.0%}; the report said {held.report['slowdown_estimate']:.0%}."
        "\n  Next, your own program: terrace run --observe -- PROGRAM (docs/first-hour.md)."
    )


def main():
    if len(sys.argv) not in (2, 3):
        print(__doc__, file=sys.stderr)
        return 2
    try:
        demonstrate(sys.argv[1], pathlib.Path(sys.argv[2] if len(sys.argv) == 3 else ".demo"))
    except Failed as problem:
        print(f"\ndemo: FAILED: {problem}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
