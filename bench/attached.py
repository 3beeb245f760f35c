#!/usr/bin/env python3
"""Attaches to real programs while they work, detaches, and does so again; every answer is checked.

bench/attached.py [--seconds 60] [--repeats 3] [--share 0.6] [NAME...]: as root. Adds to
bench/results/attached.json how long a thread stood still, when memory was down to the budget, how
long it took to detach, and what was wrong. What misses a bar is told at the end, with status 1.
"""

import argparse
import hashlib
import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
TARGET = os.environ.get("CARGO_TARGET_DIR", os.path.join(ROOT, "target"))
TERRACE = os.path.join(TARGET, "release", "terrace")
RESULTS = os.path.join(HERE, "results", "attached.json")

PYTHON = """
import hashlib, random, subprocess, sys, threading, time
data = {n: hashlib.sha256(str(n).encode()).hexdigest() * 8 for n in range(300000)}
end = time.time() + float(sys.argv[1]); checks = wrong = 0
print("ready", flush=True)
while time.time() < end:
    for _ in range(2000):
        n = random.randrange(300000) if random.random() < .1 else random.randrange(30000)
        checks += 1; wrong += data[n] != hashlib.sha256(str(n).encode()).hexdigest() * 8
    data[n] = hashlib.sha256(str(n).encode()).hexdigest() * 8
    word = subprocess.run(["echo", str(n)], capture_output=True, text=True).stdout.strip()
    checks += 1; wrong += word != str(n)
print("checks", checks, "wrong", wrong)
"""

NODE = """
const crypto = require("crypto");
const of = n => crypto.createHash("sha1").update(String(n)).digest("hex").repeat(8);
const data = new Map(); for (let n = 0; n < 200000; n++) data.set(n, of(n));
const end = Date.now() + 1000 * Number(process.argv[1]); let checks = 0, wrong = 0;
console.log("ready");
(function work() {
  for (let i = 0; i < 3000; i++) {
    const n = Math.floor(Math.random() * (Math.random() < .1 ? 200000 : 20000));
    checks++; if (data.get(n) !== of(n)) wrong++;
    if (i % 10 == 0) data.set(n, of(n));
  }
  if (Date.now() < end) setImmediate(work); else console.log("checks", checks, "wrong", wrong);
})();
"""

JAVA = """
import java.util.*;
public class Checked {
    static String of(int n) { return ("value " + n * 31L + " ").repeat(20); }
    public static void main(String[] arguments) {
        Map<Integer, String> data = new HashMap<>();
        for (int n = 0; n < 200000; n++) data.put(n, of(n));
        long end = System.currentTimeMillis() + (long) (1000 * Double.parseDouble(arguments[0]));
        long checks = 0, wrong = 0;
        Random random = new Random(1);
        System.out.println("ready");
        while (System.currentTimeMillis() < end) {
            int n = random.nextInt(random.nextInt(10) == 0 ? 200000 : 20000);
            checks++;
            if (!of(n).equals(data.get(n))) wrong++;
            if (n % 10 == 0) data.put(n, of(n));
        }
        System.out.println("checks " + checks + " wrong " + wrong);
    }
}
"""


DISCARDS = """
package main

import (
	"fmt"
	"hash/crc32"
	"runtime/debug"
	"time"
)

func main() {
	debug.SetGCPercent(10)
	kept := make([][]byte, 4000)
	count, next := 0, time.Now().Add(time.Second)
	fmt.Println("ready")
	for round := 0; ; round++ {
		data := make([]byte, 8192)
		for i := range data {
			data[i] = byte(i * round)
		}
		crc32.ChecksumIEEE(data)
		kept[round%len(kept)] = data
		if count++; round%20000 == 0 {
			debug.FreeOSMemory()
		}
		if time.Now().After(next) {
			fmt.Println(count)
			count, next = 0, time.Now().Add(time.Second)
		}
	}
}
"""


def costs(pairs, seconds):
    """What a program that discards often does in a second, alone and attached with all resident."""
    with tempfile.TemporaryDirectory() as directory:
        source = os.path.join(directory, "discards.go")
        with open(source, "w") as file:
            file.write(DISCARDS)
        program = built("attached-discards", (["go", "build", "-o"], [source]))
        process = subprocess.Popen([program], stdout=subprocess.PIPE, text=True)
        line = lambda: process.stdout.readline().strip()
        assert line() == "ready"
        line()
        alone, attached = [], []
        for _ in range(pairs):
            alone += [int(line()) for _ in range(seconds)]
            terrace("attach", process.pid, "--dram", "4G")
            line()
            attached += [int(line()) for _ in range(seconds)]
            now = figures(process.pid)
            terrace("detach", process.pid)
            line()
        process.kill()
    ratio = sum(attached) / sum(alone)
    return {"alone": alone, "attached": attached, "ratio": round(ratio, 3),
            "events": now["events"], "evicted_pages": now["evicted_pages"]}


def stops(cycles, seconds):
    """How long a thread of the Go program stands still, of so many times; alone, and while twice as many
    loops as there are CPUs have all of their time."""
    found = {}
    for name, loops in [("quiet", 0), ("busy", 2 * os.cpu_count())]:
        with tempfile.TemporaryDirectory() as directory:
            load = start("go", seconds, directory)
            busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(loops)]
            time.sleep(1)
            took = []
            for _ in range(cycles):
                attached = terrace("attach", load.pids[0], "--dram", "4G")
                stop = re.search(r"stood still for ([\d.]+) ms", attached.stdout + attached.stderr)
                assert stop, attached.stderr
                took.append(float(stop.group(1)))
                terrace("detach", load.pids[0])
            for each in busy:
                each.kill()
                each.wait()
            load.process.kill()
            load.process.wait()
        took.sort()
        found[name] = {"loops": loops, "cycles": cycles, "median_ms": took[cycles // 2],
                       "p90_ms": took[cycles * 9 // 10], "most_ms": took[-1]}
    return found


class Load:
    """A program that prints "ready", and at its end "checks N wrong N"."""

    def __init__(self, command, directory, **variables):
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True, cwd=directory,
            env={**os.environ, **variables})
        assert self.process.stdout.readline().strip() == "ready"
        self.pids = [self.process.pid]

    def end(self):
        text = self.process.stdout.read()
        checks, wrong = re.search(r"checks (\d+) wrong (\d+)", text).groups()
        return int(checks), int(wrong), self.process.wait()


class Server:
    """A server with clients in this process, which check what they get."""

    KEYS = 100000

    def __init__(self, command, port, kind, directory):
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, cwd=directory)
        self.pids, self.port, self.kind = [self.process.pid], port, kind
        self.checks = self.wrong = 0
        self.stop = False
        for _ in range(100):
            try:
                self.connect().close()
                break
            except OSError:
                time.sleep(0.05)
        connection = self.connect()
        for start in range(0, self.KEYS, 500):
            for key in range(start, start + 500):
                connection.sendall(self.setting(key))
            self.read_lines(connection, 500)
        connection.close()
        self.clients = [threading.Thread(target=self.work, args=(n,)) for n in range(4)]
        for client in self.clients:
            client.start()

    def connect(self):
        return socket.create_connection(("127.0.0.1", self.port))

    @staticmethod
    def value(key):
        return (hashlib.md5(str(key).encode()).hexdigest() * 32).encode()

    def setting(self, key):
        value = self.value(key)
        if self.kind == "redis":
            return b"*3\r\n$3\r\nSET\r\n$%d\r\n%d\r\n$%d\r\n%s\r\n" % (
                len(str(key)), key, len(value), value)
        return b"set %d 0 0 %d\r\n%s\r\n" % (key, len(value), value)

    @staticmethod
    def read_lines(connection, count):
        while count > 0:
            count -= connection.recv(65536).count(b"\r\n")

    def work(self, seed):
        choice, connection = random.Random(seed), self.connect()
        answers = connection.makefile("rb")
        while not self.stop:
            key = choice.randrange(self.KEYS if choice.random() < 0.1 else self.KEYS // 10)
            if self.kind == "redis":
                connection.sendall(b"*2\r\n$3\r\nGET\r\n$%d\r\n%d\r\n" % (len(str(key)), key))
                answers.readline()
                got = answers.readline().strip()
            else:
                connection.sendall(b"get %d\r\n" % key)
                answers.readline()
                got = answers.readline().strip()
                answers.readline()
            self.checks += 1
            self.wrong += got != self.value(key)
            if choice.random() < 0.05:
                connection.sendall(self.setting(key))
                answers.readline()

    def end(self):
        self.stop = True
        for client in self.clients:
            client.join()
        self.process.send_signal(signal.SIGTERM)
        return self.checks, self.wrong, self.process.wait()


class Postgres:
    """A server with one session that joins and sorts the same rows again and again."""

    def __init__(self, directory):
        programs = sorted(p for p in os.listdir("/usr/lib/postgresql"))[-1]
        path = f"/usr/lib/postgresql/{programs}/bin/"
        data = os.path.join(directory, "data")
        os.chmod(directory, 0o777)
        user = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
        run = lambda *words: subprocess.run(
            [*user, *words], check=True, stdout=subprocess.DEVNULL, cwd=directory)
        run(path + "initdb", "-D", data, "-A", "trust", "-U", "postgres")
        self.server = subprocess.Popen(
            [*user, path + "postgres", "-D", data, "-k", directory, "-c", "listen_addresses=",
             "-c", "work_mem=200MB"], stderr=subprocess.DEVNULL, cwd=directory)
        for _ in range(100):
            if os.path.exists(os.path.join(directory, ".s.PGSQL.5432")):
                break
            time.sleep(0.1)
        time.sleep(1)
        self.client = subprocess.Popen(
            ["psql", "-h", directory, "-U", "postgres", "-qAt"], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, text=True)
        self.ask("create temp table t as select n, md5(n::text) m from generate_series(1,200000) n; select 1;")
        self.right = self.ask(self.QUERY)
        backend = int(self.ask("select pg_backend_pid();"))
        self.pids, self.checks, self.wrong, self.stop = [backend], 0, 0, False
        self.thread = threading.Thread(target=self.work)
        self.thread.start()

    QUERY = ("select md5(string_agg(a.m, '' order by a.m desc)) from t a join t b on a.m = b.m;")

    def ask(self, query):
        self.client.stdin.write(query + "\n")
        self.client.stdin.flush()
        return self.client.stdout.readline().strip()

    def work(self):
        while not self.stop:
            self.checks += 1
            self.wrong += self.ask(self.QUERY) != self.right

    def end(self):
        self.stop = True
        self.thread.join()
        self.client.stdin.close()
        self.client.wait()
        self.server.send_signal(signal.SIGINT)
        return self.checks, self.wrong, self.server.wait()


def built(name, command):
    program = os.path.join(TARGET, "terrace-programs", name)
    os.makedirs(os.path.dirname(program), exist_ok=True)
    subprocess.run([*command[0], program, *command[1]], check=True,
                   env={**os.environ, "CGO_ENABLED": "0", "GOFLAGS": "-buildvcs=false"})
    return program


def start(name, seconds, directory):
    programs = os.path.join(ROOT, "tests", "programs")
    if name == "go":
        program = built("attached-go", (["go", "build", "-o"], [f"{programs}/attached.go"]))
        return Load([program, str(int(seconds))], directory)
    if name == "musl":
        program = built("attached-musl", (
            ["musl-gcc", "-static", "-O2", "-o"], [f"{programs}/attached.c", "-lpthread"]))
        return Load([program, str(int(seconds))], directory)
    if name == "python":
        return Load([sys.executable, "-c", PYTHON, str(seconds)], directory)
    if name == "jemalloc":
        return Load([sys.executable, "-c", PYTHON, str(seconds)], directory, PYTHONMALLOC="malloc",
                    LD_PRELOAD=JEMALLOC,
                    MALLOC_CONF="background_thread:true,dirty_decay_ms:100,muzzy_decay_ms:100")
    if name == "node":
        return Load(["node", "-e", NODE, str(seconds)], directory)
    if name == "java":
        with open(os.path.join(directory, "Checked.java"), "w") as file:
            file.write(JAVA)
        return Load(["java", "-XX:+UseG1GC", "-Xmx512m", "Checked.java", str(seconds)], directory)
    if name == "redis":
        return Server(["redis-server", "--port", "17811", "--save", "", "--appendonly", "no"],
                      17811, "redis", directory)
    if name == "memcached":
        return Server(["memcached", "-u", "root", "-m", "512", "-p", "17812", "-l", "127.0.0.1"],
                      17812, "memcached", directory)
    if name == "postgresql":
        return Postgres(directory)
    raise SystemExit(f"no program is called {name}")


JEMALLOC = "/usr/lib/x86_64-linux-gnu/libjemalloc.so.2"
# A program, or a library.
NEEDS = {"go": "go", "musl": "musl-gcc", "python": sys.executable, "jemalloc": JEMALLOC,
         "java": "java", "node": "node",
         "redis": "redis-server", "memcached": "memcached", "postgresql": "psql"}


def terrace(*words):
    return subprocess.run([TERRACE, *map(str, words)], capture_output=True, text=True)


def figures(pid):
    status = json.loads(terrace("status", "--json").stdout)
    return next((each for each in status["attached"] if each["pid"] == pid), None)


def of_status(pid, line):
    with open(f"/proc/{pid}/status") as file:
        return int(re.search(line + r":\s+(\d+)", file.read()).group(1)) << 10


def resident(pid):
    return of_status(pid, "RssAnon")


def physical(pid, now):
    """From outside: what the process has, and the store and record of pages that the keeper has."""
    return resident(pid) + of_status(now["keeper"], "RssShmem")


# The bars: a thread stands still for so many ms, memory is down after so many seconds, and a program that
# discards often does so much of what it does alone.
STOP_MS, DOWN_S, RATIO = 5, 10, 0.97


def missed(name, result):
    """The bars that a result misses, in words."""
    found = [] if result.get("ratio", 1) >= RATIO else [f"throughput {result['ratio']} of alone"]
    if result.get("wrong"):
        found.append(f"{result['wrong']} wrong")
    for each in result.get("rounds", []):
        if "error" in each or each["detach_error"] or each["stale_pages"]:
            found.append(json.dumps(each))
            continue
        if each["stopped_ms"] > STOP_MS:
            found.append(f"a thread stood still for {each['stopped_ms']} ms")
        if each["down_to_budget_s"] is None or each["down_to_budget_s"] > DOWN_S:
            found.append(f"down to the budget after {each['down_to_budget_s']} s")
    return [f"{name}: {text}" for text in found]


def attach_once(pid, seconds, share):
    before = resident(pid)
    budget = int(before * share)
    attached = terrace("attach", pid, "--dram", f"{budget >> 10}K")
    stop = re.search(r"stood still for ([\d.]+) ms", attached.stdout + attached.stderr)
    if not stop:
        return {"error": (attached.stdout + attached.stderr).strip()}
    begun, down, now, taken = time.time(), None, None, None
    while time.time() - begun < seconds:
        time.sleep(0.5)
        now = figures(pid) or now
        taken = physical(pid, now) if now else None
        if down is None and taken is not None and taken <= budget * 1.05:
            down = round(time.time() - begun, 1)
    detached = terrace("detach", pid)
    took = re.search(r"after (\d+) ms", detached.stdout + detached.stderr)
    return {
        "stopped_ms": float(stop.group(1)), "resident_before": before, "budget": budget,
        "down_to_budget_s": down, "physical_at_end": taken,
        "evicted_pages": now and now["evicted_pages"], "restored_pages": now and now["restored_pages"],
        "stale_pages": now and now["stale_pages"], "note": now and now["note"],
        "detached_ms": int(took.group(1)) if took else None,
        "detach_error": "" if took else (detached.stdout + detached.stderr).strip(),
    }


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--share", type=float, default=0.6)
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    results = {}
    if os.path.exists(RESULTS):
        with open(RESULTS) as file:
            results = json.load(file)
    failed = []
    for name in options.names or [*NEEDS, "discards", "stops"]:
        if name in ["discards", "stops"]:
            results[name] = costs(4, 4) if name == "discards" else stops(40, 120)
            failed += missed(name, results[name])
            print(name, json.dumps(results[name]), flush=True)
            with open(RESULTS, "w") as file:
                json.dump(results, file, indent=1)
                file.write("\n")
            continue
        if not shutil.which(NEEDS[name]) and not os.path.exists(NEEDS[name]):
            print(f"skipped: {name}: {NEEDS[name]} is not installed")
            continue
        with tempfile.TemporaryDirectory() as directory:
            load = start(name, (options.seconds + 2) * options.repeats + 4, directory)
            time.sleep(1)
            rounds = [attach_once(load.pids[0], options.seconds, options.share)
                      for _ in range(options.repeats)]
            checks, wrong, status = load.end()
        results[name] = {"seconds": options.seconds, "share": options.share, "checks": checks,
                         "wrong": wrong, "status": status, "rounds": rounds}
        failed += missed(name, results[name])
        print(name, json.dumps(results[name]), flush=True)
        with open(RESULTS, "w") as file:
            json.dump(results, file, indent=1)
            file.write("\n")
    for text in failed:
        print("missed:", text)
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
