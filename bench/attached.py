#!/usr/bin/env python3
"""Attaches to real programs while they work, detaches, and does so again; every answer is checked.

    bench/attached.py [--seconds 60] [--repeats 3] [--share 0.6] [NAME]...   as root
    bench/attached.py --table                                  prints what the results say

Each run is a line of bench/results/attached-runs.jsonl as soon as it is over: how long a thread stood
still, when memory was down to the budget, how long it took to detach, and what was wrong. A run that
has a line with the same options is not made again, so what was stopped goes on where it was; --again
makes all of them anew. The last run of each program with these options goes to
bench/results/attached.json, of which scripts/benchmarks.py makes docs/benchmarks/attached.md. What
misses a bar is told at the end, with status 1. `scripts/setup.sh programs` installs the programs.
"""

import argparse
import contextlib
import hashlib
import json
import os
import platform
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
RUNS = os.path.join(HERE, "results", "attached-runs.jsonl")
RESULTS = os.path.join(HERE, "results", "attached.json")

PYTHON = """
import hashlib, random, subprocess, sys, threading, time
data = {n: hashlib.sha256(str(n).encode()).hexdigest() * 8 for n in range(300000)}
over = threading.Event(); checks = wrong = 0
threading.Thread(target=lambda: (sys.stdin.read(), over.set()), daemon=True).start()
print("ready", flush=True)
while not over.is_set():
    for _ in range(2000):
        n = random.randrange(300000) if random.random() < .1 else random.randrange(30000)
        checks += 1; wrong += data[n] != hashlib.sha256(str(n).encode()).hexdigest() * 8
    data[n] = hashlib.sha256(str(n).encode()).hexdigest() * 8
    word = subprocess.run(["echo", str(n)], stdin=subprocess.DEVNULL, capture_output=True, text=True).stdout.strip()
    checks += 1; wrong += word != str(n)
print("checks", checks, "wrong", wrong)
"""

NODE = """
const crypto = require("crypto");
const of = n => crypto.createHash("sha1").update(String(n)).digest("hex").repeat(8);
const data = new Map(); for (let n = 0; n < 200000; n++) data.set(n, of(n));
let checks = 0, wrong = 0, over = false;
process.stdin.on("end", () => { over = true; }).resume();
console.log("ready");
(function work() {
  for (let i = 0; i < 3000; i++) {
    const n = Math.floor(Math.random() * (Math.random() < .1 ? 200000 : 20000));
    checks++; if (data.get(n) !== of(n)) wrong++;
    if (i % 10 == 0) data.set(n, of(n));
  }
  if (!over) setImmediate(work); else console.log("checks", checks, "wrong", wrong);
})();
"""

JAVA = """
import java.util.*;
public class Checked {
    static volatile boolean over = false;
    static void await() {
        try {
            while (System.in.read() >= 0) {}
        } catch (java.io.IOException error) {
            System.err.println(error);
        }
        over = true;
    }
    static String of(int n) { return ("value " + n * 31L + " ").repeat(20); }
    public static void main(String[] arguments) {
        Map<Integer, String> data = new HashMap<>();
        for (int n = 0; n < 200000; n++) data.put(n, of(n));
        Thread input = new Thread(Checked::await);
        input.setDaemon(true);
        input.start();
        long checks = 0, wrong = 0;
        Random random = new Random(1);
        System.out.println("ready");
        while (!over) {
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


# Blocks of all sizes come and go, and jemalloc's background threads discard what is free.
DISCARDS_JEMALLOC = """
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

int main(void) {
    static char *kept[4000];
    unsigned long count = 0, number = 1;
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    time_t next = now.tv_sec;
    puts("ready");
    for (;;) {
        number = number * 6364136223846793005ul + 1442695040888963407ul;
        size_t size = 256 + (number >> 40) % 32768;
        char **place = &kept[(number >> 24) % 4000];
        free(*place);
        *place = malloc(size);
        memset(*place, (int)number, size);
        /* All goes, so that a second later it is discarded. */
        if (++count % 200000 == 0)
            for (size_t at = 0; at < 4000; at++) {
                free(kept[at]);
                kept[at] = NULL;
            }
        clock_gettime(CLOCK_MONOTONIC, &now);
        if (now.tv_sec != next) {
            printf("%lu\\n", count);
            fflush(stdout);
            count = 0;
            next = now.tv_sec;
        }
    }
}
"""


def costs(pairs, seconds, name):
    """What a program that discards often does in a second, alone and attached with nothing evicted. Where
    it is `registered`, half of it was evicted before, so that each discard is an event."""
    of_jemalloc, registered = "jemalloc" in name, name.endswith("-registered")
    text, kind, command = ((DISCARDS_JEMALLOC, "c", ["gcc", "-O2", "-o"]) if of_jemalloc
                           else (DISCARDS, "go", ["go", "build", "-o"]))
    own = {"LD_PRELOAD": JEMALLOC, "MALLOC_CONF": "background_thread:true,dirty_decay_ms:200,muzzy_decay_ms:0"}
    with tempfile.TemporaryDirectory() as directory:
        source = os.path.join(directory, f"discards.{kind}")
        with open(source, "w") as file:
            file.write(text)
        program = built("attached-" + name.removesuffix("-registered"), (command, [source]))
        process = subprocess.Popen([program], stdout=subprocess.PIPE, text=True,
                                   env={**os.environ, **(own if of_jemalloc else {})})
        line = lambda: process.stdout.readline().strip()
        alone, attached = [], []
        try:
            assert line() == "ready"
            line()
            for _ in range(pairs):
                alone += [int(line()) for _ in range(seconds)]
                half = max(64 << 20, resident(process.pid) // 2)
                began = terrace("attach", process.pid, "--dram", f"{half >> 10}K" if registered else "4G")
                assert began.returncode == 0, began.stderr
                if registered:
                    for _ in range(3):
                        line()
                    began = terrace("set", process.pid, "--dram", "4G")
                    assert began.returncode == 0, began.stderr
                    line()
                line()
                attached += [int(line()) for _ in range(seconds)]
                now = figures(process.pid)
                terrace("detach", process.pid)
                line()
        finally:
            process.kill()
            process.wait()
    ratio = sum(attached) / sum(alone)
    return {"alone": alone, "attached": attached, "ratio": round(ratio, 3),
            **{name: now[name] for name in ["events", "evicted_pages", "restored_pages", "zero_pages"]}}


def keeper(seconds):
    """CPU time of keeper, guard and stub, % of a CPU, beside a program that sleeps: with nothing to evict, and
    while they hold it to half of its memory."""
    text = "import sys; held = [bytes([n % 251]) * 4096 for n in range(50000)]; print('ready', flush=True); sys.stdin.read()"
    process = subprocess.Popen([sys.executable, "-c", text], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    found = {"seconds": seconds}
    try:
        assert process.stdout.readline().strip() == "ready"
        for name, dram in [("nothing_to_evict", "4G"), ("half_evicted", f"{resident(process.pid) >> 11}K")]:
            began = terrace("attach", process.pid, "--dram", dram)
            assert began.returncode == 0, began.stderr
            time.sleep(5)
            now = figures(process.pid)
            assert now, "the keeper does not answer"
            pids = [now[role] for role in ["keeper", "guard", "stub"] if now.get(role)]
            before = sum(map(cpu_seconds, pids))
            time.sleep(seconds)
            found[name] = round(100 * (sum(map(cpu_seconds, pids)) - before) / seconds, 3)
            left = terrace("detach", process.pid)
            assert left.returncode == 0, left.stderr
    finally:
        process.kill()
        process.wait()
    return found


def cpu_seconds(pid):
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def stops(cycles):
    """How long a thread of the Go program stands still, of so many times; alone, and while twice as many
    loops as there are CPUs have all of their time."""
    found = {}
    for name, loops in [("quiet", 0), ("busy", 2 * os.cpu_count())]:
        with tempfile.TemporaryDirectory() as directory, contextlib.ExitStack() as last:
            load = last.enter_context(contextlib.closing(start("go", directory)))
            for _ in range(loops):
                busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
                last.callback(busy.wait)
                last.callback(busy.kill)
            time.sleep(1)
            took = []
            for _ in range(cycles):
                attached = terrace("attach", load.pids[0], "--dram", "4G")
                stop = re.search(r"stood still for ([\d.]+) ms", attached.stdout + attached.stderr)
                assert stop, attached.stderr
                took.append(float(stop.group(1)))
                terrace("detach", load.pids[0])
        took.sort()
        found[name] = {"loops": loops, "cycles": cycles, "median_ms": took[cycles // 2],
                       "p90_ms": took[cycles * 9 // 10], "most_ms": took[-1]}
    return found


class Load:
    """A program that prints "ready", and once its input ends "checks N wrong N"."""

    def __init__(self, command, directory, **variables):
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True, cwd=directory,
            env={**os.environ, **variables})
        self.pids = [self.process.pid]
        if self.process.stdout.readline().strip() != "ready":
            self.close()
            raise SystemExit(f"{command[0]} does not begin")

    def end(self):
        self.process.stdin.close()
        text = self.process.stdout.read()
        found = re.search(r"checks (\d+) wrong (\d+)", text)
        checks, wrong = map(int, found.groups()) if found else (0, 1)
        return checks, wrong, self.process.wait()

    def close(self):
        """Ends it where it has not ended."""
        self.process.kill()
        self.process.wait()


class Server:
    """A server with clients in this process, which check what they get."""

    KEYS, CLIENTS = 100000, 4

    def __init__(self, command, port, directory):
        self.process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, cwd=directory)
        self.pids, self.port = [self.process.pid], port
        self.checks, self.wrong = [0] * self.CLIENTS, [0] * self.CLIENTS
        self.stop, self.clients = False, []
        try:
            self.await_port()
            self.fill()
        except BaseException:
            self.close()
            raise
        self.clients = [threading.Thread(target=self.work, args=(n,)) for n in range(self.CLIENTS)]
        for client in self.clients:
            client.start()

    def await_port(self):
        for _ in range(200):
            try:
                return self.connect().close()
            except OSError:
                time.sleep(0.05)
        raise SystemExit(f"nobody listens on port {self.port}")

    def connect(self):
        return socket.create_connection(("127.0.0.1", self.port), timeout=300)

    @staticmethod
    def value(key):
        return (hashlib.md5(str(key).encode()).hexdigest() * 32).encode()

    def fill(self):
        with self.connect() as connection, connection.makefile("rb") as answers:
            for start in range(0, self.KEYS, 500):
                keys = range(start, start + 500)
                connection.sendall(b"".join(map(self.setting, keys)))
                for _ in keys:
                    answers.readline()

    def work(self, seed):
        choice = random.Random(seed)
        with self.connect() as connection, connection.makefile("rb") as answers:
            while not self.stop:
                key = choice.randrange(self.KEYS if choice.random() < 0.1 else self.KEYS // 10)
                self.checks[seed] += 1
                try:
                    self.wrong[seed] += self.got(connection, answers, key) != self.value(key)
                    if choice.random() < 0.05:
                        self.set(connection, answers, key)
                except OSError as error:
                    print(error, file=sys.stderr)
                    self.wrong[seed] += 1
                    return

    def set(self, connection, answers, key):
        connection.sendall(self.setting(key))
        answers.readline()

    def end(self):
        self.stop = True
        for client in self.clients:
            client.join()
        self.process.send_signal(signal.SIGTERM)
        return sum(self.checks), sum(self.wrong), self.process.wait()

    def close(self):
        """Ends it where it has not ended."""
        self.stop = True
        self.process.kill()
        self.process.wait()


class Redis(Server):
    def setting(self, key):
        value = self.value(key)
        return b"*3\r\n$3\r\nSET\r\n$%d\r\n%d\r\n$%d\r\n%s\r\n" % (
            len(str(key)), key, len(value), value)

    @staticmethod
    def got(connection, answers, key):
        connection.sendall(b"*2\r\n$3\r\nGET\r\n$%d\r\n%d\r\n" % (len(str(key)), key))
        answers.readline()
        return answers.readline().strip()


class Memcached(Server):
    def setting(self, key):
        value = self.value(key)
        return b"set %d 0 0 %d\r\n%s\r\n" % (key, len(value), value)

    @staticmethod
    def got(connection, answers, key):
        connection.sendall(b"get %d\r\n" % key)
        answers.readline()
        got = answers.readline().strip()
        answers.readline()
        return got


class Nginx(Server):
    """nginx with one worker, which is attached to. What it sends goes through its own memory, and it
    has room for many connections, which is what is cold in it."""

    KEYS = 200
    CONFIG = """
daemon off; worker_processes 1; pid nginx.pid; error_log error.log; user root;
events {{ worker_connections 100000; }}
http {{
    access_log off; sendfile off; keepalive_requests 100000000; output_buffers 4 256k;
    server {{ listen 127.0.0.1:{port}; root files; }}
}}
"""

    def __init__(self, program, port, directory):
        os.mkdir(os.path.join(directory, "files"))
        for key in range(self.KEYS):
            with open(os.path.join(directory, "files", str(key)), "wb") as file:
                file.write(self.value(key))
        config = os.path.join(directory, "nginx.conf")
        with open(config, "w") as file:
            file.write(self.CONFIG.format(port=port))
        super().__init__([program, "-p", directory, "-c", config, "-e", "error.log"], port, directory)

    @staticmethod
    def value(key):
        return Server.value(key) * 200

    def fill(self):
        """The files are there; the worker may be made after the port."""
        self.pids = []
        while not self.pids:
            time.sleep(0.05)
            self.pids = children(self.process.pid)

    @staticmethod
    def set(connection, answers, key):
        """No file is changed."""

    @staticmethod
    def got(connection, answers, key):
        connection.sendall(b"GET /%d HTTP/1.1\r\nHost: here\r\n\r\n" % key)
        length = 0
        while (line := answers.readline()).strip():
            name, _, value = line.partition(b":")
            length = int(value) if name.lower() == b"content-length" else length
        return answers.read(length)

    def close(self):
        # Of a master that is killed the worker would stay.
        if self.process.poll() is None:
            self.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(20)
        super().close()


def children(pid):
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return [int(word) for word in file.read().split()]


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
        self.client, self.thread = None, None
        self.stop, self.checks, self.wrong = False, 0, 0
        self.server = subprocess.Popen(
            [*user, path + "postgres", "-D", data, "-k", directory, "-c", "listen_addresses=",
             "-c", "work_mem=200MB"], stderr=subprocess.DEVNULL, cwd=directory)
        try:
            self.begin(directory)
        except BaseException:
            self.close()
            raise

    def begin(self, directory):
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
        self.pids = [backend]
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

    def close(self):
        """Ends it where it has not ended."""
        self.stop = True
        if self.client and self.client.poll() is None:
            self.client.kill()
            self.client.wait()
        if self.server.poll() is None:
            # At once, and its processes with it.
            self.server.send_signal(signal.SIGQUIT)
            self.server.wait()


def built(name, command):
    program = os.path.join(TARGET, "terrace-programs", name)
    os.makedirs(os.path.dirname(program), exist_ok=True)
    subprocess.run([*command[0], program, *command[1]], check=True,
                   env={**os.environ, "CGO_ENABLED": "0", "GOFLAGS": "-buildvcs=false"})
    return program


def start(name, directory):
    programs = os.path.join(ROOT, "tests", "programs")
    if name == "go":
        program = built("attached-go", (["go", "build", "-o"], [f"{programs}/attached.go"]))
        return Load([program, FOR_EVER, "told"], directory)
    if name == "musl":
        program = built("attached-musl", (
            ["musl-gcc", "-static", "-O2", "-o"], [f"{programs}/attached.c", "-lpthread"]))
        return Load([program, FOR_EVER, "told"], directory)
    if name == "python":
        return Load([sys.executable, "-c", PYTHON], directory)
    if name == "jemalloc":
        return Load([sys.executable, "-c", PYTHON], directory, PYTHONMALLOC="malloc",
                    LD_PRELOAD=JEMALLOC,
                    MALLOC_CONF="background_thread:true,dirty_decay_ms:100,muzzy_decay_ms:100")
    if name == "node":
        return Load(["node", "-e", NODE], directory)
    if name == "java":
        with open(os.path.join(directory, "Checked.java"), "w") as file:
            file.write(JAVA)
        return Load(["java", "-XX:+UseG1GC", "-Xmx512m", "Checked.java"], directory)
    if name == "redis":
        return Redis(["redis-server", "--port", "17811", "--save", "", "--appendonly", "no"],
                     17811, directory)
    if name == "memcached":
        return Memcached(["memcached", "-u", "root", "-m", "512", "-p", "17812", "-l", "127.0.0.1"],
                         17812, directory)
    if name == "nginx":
        return Nginx(needed("nginx"), 17813, directory)
    if name == "postgresql":
        return Postgres(directory)
    raise SystemExit(f"no program is called {name}: there are {', '.join(ALL)}")


# Seconds, of those that end when their input does.
FOR_EVER = "100000"
JEMALLOC = "/usr/lib/x86_64-linux-gnu/libjemalloc.so.2"
# A program, or a library.
NEEDS = {"go": "go", "musl": "musl-gcc", "python": sys.executable, "jemalloc": JEMALLOC,
         "java": "javac", "node": "node", "redis": "redis-server", "memcached": "memcached",
         "postgresql": "psql", "nginx": "nginx", "discards": "go", "discards-jemalloc": JEMALLOC,
         "discards-jemalloc-registered": JEMALLOC}
ALL = [*NEEDS, "stops", "keeper"]


def needed(name):
    """The path of what a program needs; None where it is not installed."""
    # Servers may be where only root looks.
    path = os.environ["PATH"] + ":/usr/sbin:/sbin"
    return shutil.which(NEEDS[name], path=path) or (os.path.exists(NEEDS[name]) and NEEDS[name]) or None


def terrace(*words):
    return subprocess.run([TERRACE, *map(str, words)], capture_output=True, text=True)


def figures(pid):
    status = json.loads(terrace("status", "--json").stdout or '{"attached": []}')
    # Of a keeper that does not answer in time nothing is told.
    return next((each for each in status["attached"] if each["pid"] == pid and each["keeper"]), None)


def of_status(pid, line):
    with open(f"/proc/{pid}/status") as file:
        found = re.search(line + r":\s+(\d+)", file.read())
    if not found:
        raise ProcessLookupError(f"process {pid} has ended")
    return int(found.group(1)) << 10


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
    if result.get("status"):
        found.append(f"it ended with status {result['status']}")
    for each in result.get("rounds", []):
        if "error" in each or each["detach_error"] or each["stale_pages"]:
            found.append(json.dumps(each))
            continue
        if each["stopped_ms"] > STOP_MS:
            found.append(f"a thread stood still for {each['stopped_ms']} ms")
        if each["down_to_budget_s"] is None or each["down_to_budget_s"] > DOWN_S:
            found.append(f"down to the budget after {each['down_to_budget_s']} s")
    return [f"{name}: {text}" for text in found]


def most_resident(pid):
    """The most memory that it has in two seconds: a sort or a collection may just have ended."""
    most = 0
    for _ in range(8):
        most = max(most, resident(pid))
        time.sleep(0.25)
    return most


def attach_once(pid, seconds, share):
    before = most_resident(pid)
    budget = int(before * share)
    attached = terrace("attach", pid, "--dram", f"{budget >> 10}K")
    stop = re.search(r"stood still for ([\d.]+) ms", attached.stdout + attached.stderr)
    if not stop:
        return {"error": (attached.stdout + attached.stderr).strip()}
    begun, down, now, taken = time.time(), None, None, None
    while time.time() - begun < seconds:
        time.sleep(0.5)
        now = figures(pid) or now
        try:
            taken = physical(pid, now) if now else None
        except OSError as error:
            return {"error": str(error)}
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


def run(name, options):
    """A run of one program: what was found."""
    if name.startswith("discards"):
        return costs(4, 4, name)
    if name == "stops":
        return stops(40)
    if name == "keeper":
        return keeper(60)
    # Its file system has room for a database, and no directory above it is closed to other users.
    with tempfile.TemporaryDirectory() as directory:
        with contextlib.closing(start(name, directory)) as load:
            time.sleep(1)
            rounds = [attach_once(load.pids[0], options.seconds, options.share)
                      for _ in range(options.repeats)]
            checks, wrong, status = load.end()
    return {"checks": checks, "wrong": wrong, "status": status, "rounds": rounds}


def runs():
    """The runs that there are, the oldest first."""
    if not os.path.exists(RUNS):
        return []
    found = []
    with open(RUNS) as file:
        for line in file:
            # What was being written when it was stopped is no run.
            with contextlib.suppress(ValueError):
                found.append(json.loads(line))
    return found


def machine():
    with open("/proc/cpuinfo") as file:
        cpu = re.search(r"model name\s*: (.*)", file.read())
    return {"cpu": cpu.group(1) if cpu else platform.machine(), "cpus": os.cpu_count(),
            "kernel": platform.release()}


def write_results(options):
    """Writes the last run of each program with these options. What was not run again stays; what was
    run on another machine than that names its own."""
    here, figures = machine(), {}
    first = here
    with contextlib.suppress(OSError, ValueError), open(RESULTS) as file:
        before = json.load(file)
        if before["options"] == options:
            first, figures = before["machine"], before["figures"]
    for each in runs():
        if each["options"] == options:
            own = each.get("machine", here)
            figures[each["name"]] = each["result"] | ({} if own == first else {"machine": own})
    told = {"machine": first, "options": options,
            "figures": {name: figures[name] for name in ALL if name in figures}}
    with open(RESULTS, "w") as file:
        json.dump(told, file, indent=1)
        file.write("\n")


def table():
    """What the results say, a line for each program."""
    with open(RESULTS) as file:
        results = json.load(file)["figures"]
    print(f"{'program':12} {'MiB':>6} {'budget':>6} {'still ms':>8} {'down s':>6} {'out':>8} {'back':>8} "
          f"{'detach ms':>9} {'checks':>10} {'wrong':>5}")
    for name, result in results.items():
        if "rounds" not in result:
            print(f"{name:12} {json.dumps({key: value for key, value in result.items() if key not in ['alone', 'attached']})}")
            continue
        for each in result["rounds"]:
            if "error" in each:
                print(f"{name:12} {each['error']}")
                continue
            shown = [each["resident_before"] >> 20, each["budget"] >> 20, each["stopped_ms"], each["down_to_budget_s"],
                     each["evicted_pages"], each["restored_pages"], each["detached_ms"], result["checks"], result["wrong"]]
            widths = [6, 6, 8, 6, 8, 8, 9, 10, 5]
            print(f"{name:12} " + " ".join(f"{str(value):>{width}}" for value, width in zip(shown, widths)))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60, help="how long each program is attached to at a time")
    parser.add_argument("--repeats", type=int, default=3, help="how often")
    parser.add_argument("--share", type=float, default=0.6, help="the budget, of the memory that it had before")
    parser.add_argument("--again", action="store_true", help="also what has a line")
    parser.add_argument("--table", action="store_true", help="prints what the results say")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(ALL)}; without any, all")
    options = parser.parse_args()
    if options.table:
        return table()
    if unknown := set(options.names) - set(ALL):
        parser.error(f"no program is called {', '.join(sorted(unknown))}: there are {', '.join(ALL)}")
    same = {"seconds": options.seconds, "repeats": options.repeats, "share": options.share}
    failed = []
    for name in options.names or ALL:
        done = [each for each in runs() if each["name"] == name and each["options"] == same]
        if done and not options.again:
            print(f"{name}: has a line")
            failed += missed(name, done[-1]["result"])
            continue
        if name in NEEDS and not needed(name):
            print(f"skipped: {name}: {NEEDS[name]} is not installed")
            continue
        result = run(name, options)
        failed += missed(name, result)
        line = json.dumps({"name": name, "options": same, "machine": machine(), "result": result})
        print(line, flush=True)
        with open(RUNS, "a+") as file:
            # The line before may have been cut off.
            file.seek(max(file.tell() - 1, 0))
            file.write(("" if file.read() in ["", "\n"] else "\n") + line + "\n")
        write_results(same)
    for text in failed:
        print("missed:", text)
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
