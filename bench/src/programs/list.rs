//! The programs: each computes for some seconds by itself, on data that it makes, and prints what
//! it found.

use anyhow::{Context, ensure};
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use terrace_testkit::random::Congruential;

/// A program of the system's.
pub struct Program {
    pub name: &'static str,
    /// A command that ends well where the program is here, and what to install where it is not.
    check: &'static [&'static str],
    install: &'static str,
    /// The program's command; it may make its input in the directory.
    pub command: fn(&Path) -> anyhow::Result<Vec<String>>,
    /// Flags that `terrace run` needs for it.
    pub flags: &'static str,
}

/// All programs.
pub const PROGRAMS: [Program; 17] = [
    program("cpython-index", &["python3", "--version"], "python3", |_| index("80000")),
    program("redis", &["redis-server", "--version"], "redis-server", |directory| {
        server(directory, "redis", REDIS, ASKED)
    }),
    program("memcached", &["memcached", "-V"], "memcached", |directory| {
        server(directory, "memcached", MEMCACHED, ASKED)
    }),
    program("xz", &["xz", "--version"], "xz-utils", xz),
    program("g++", &["g++", "--version"], "g++", gxx),
    program("node-map", &["node", "--version"], "nodejs", node),
    program("java-g1", &["javac", "--version"], "default-jdk", |directory| {
        java(directory, "Strings", STRINGS, "-XX:+UseG1GC")
    }),
    program("java-parallel", &["javac", "--version"], "default-jdk", |directory| {
        java(directory, "Strings", STRINGS, "-XX:+UseParallelGC")
    }),
    program("sqlite", &["python3", "-c", "import sqlite3"], "python3", |_| {
        Ok(words(["python3", "-c", SQLITE]))
    }),
    program("numpy", &["python3", "-c", "import numpy"], "python3-numpy", |_| {
        Ok(words(["python3", "-c", NUMPY]))
    }),
    program("polars", &["python3", "-c", "import polars"], "polars of PyPI", |_| {
        Ok(words(["python3", "-c", POLARS]))
    }),
    program("r", &["Rscript", "--version"], "r-base-core", |_| Ok(words(["Rscript", "-e", R]))),
    program("perl-hash", &["perl", "-v"], "perl", |_| Ok(words(["perl", "-e", PERL]))),
    program("sort", &["sort", "--version"], "coreutils", sort),
    program("go-map", &["go", "version"], "golang-go", |directory| go(directory, "map", GO)),
    program("go-discards", &["go", "version"], "golang-go", |directory| {
        go(directory, "discards", &GO.replace("GCPercent(100)", "GCPercent(10)"))
    }),
    Program {
        flags: "--inject",
        ..program(
            "jemalloc-discards",
            &["sh", "-c", HAS_JEMALLOC],
            "gcc and libjemalloc2",
            jemalloc,
        )
    },
];

/// Programs that plans are made for: some that compute for half a minute, and one that soon ends.
pub const PLANNED: [Program; 5] = [
    program("cpython-index", &["python3", "--version"], "python3", |_| index("1000000")),
    program("redis", &["redis-server", "--version"], "redis-server", |directory| {
        server(directory, "redis", REDIS, "--operations 6000000")
    }),
    program("memcached", &["memcached", "-V"], "memcached", |directory| {
        server(directory, "memcached", MEMCACHED, "--operations 6000000")
    }),
    program("perl-hash", &["perl", "-v"], "perl", |_| {
        Ok(words(["perl", "-e", &PERL.replace("3000000", "30000000")]))
    }),
    program("sort", &["sort", "--version"], "coreutils", sort),
];

/// Programs for a limit that follows the loss: they compute for 10 to 20 s by themselves, as such a
/// limit comes down slowly.
pub const SLOWED: [Program; 6] = [
    program("cpython-index", &["python3", "--version"], "python3", |_| index("500000")),
    program("redis", &["redis-server", "--version"], "redis-server", |directory| {
        server(directory, "redis", REDIS, "--operations 3000000")
    }),
    program("memcached", &["memcached", "-V"], "memcached", |directory| {
        server(directory, "memcached", MEMCACHED, "--operations 2000000")
    }),
    program("jvm-cache", &["javac", "--version"], "default-jdk", |directory| {
        java(directory, "Cache", CACHE, "-XX:+UseG1GC")
    }),
    program("polars", &["python3", "-c", "import polars"], "polars of PyPI", |_| {
        let longer = POLARS.replace("range(6)", "range(60)").replace("turn *", "turn % 6 *");
        Ok(words(["python3", "-c", &longer]))
    }),
    program("perl-hash", &["perl", "-v"], "perl", |_| {
        Ok(words(["perl", "-e", &PERL.replace("3000000", "16000000")]))
    }),
];

/// Programs for models that place regions: they compute for 10 to 15 s by themselves.
pub const PLACED: [Program; 4] = [
    program("redis", &["redis-server", "--version"], "redis-server", |directory| {
        server(directory, "redis", REDIS, "--operations 2400000")
    }),
    program("memcached", &["memcached", "-V"], "memcached", |directory| {
        server(directory, "memcached", MEMCACHED, "--operations 1500000")
    }),
    program("pagerank", &["sh", "-c", ":"], "dash", |_| page_rank()),
    program("cpython-index", &["python3", "--version"], "python3", |_| index("450000")),
];

const REDIS: &str = "redis-server --port 0 --save '' --unixsocket \"$socket\"";
const MEMCACHED: &str = "memcached -u nobody -t 4 -m 1024 -s \"$socket\"";

const ASKED: &str = "--operations 1200000";

/// Programs that take memory for most of their time.
pub const FILLING: [Program; 5] = [
    program("redis-fill", &["redis-server", "--version"], "redis-server", |directory| {
        server(directory, "redis", REDIS, "--phase fill")
    }),
    program("memcached-fill", &["memcached", "-V"], "memcached", |directory| {
        server(directory, "memcached", MEMCACHED, "--phase fill")
    }),
    program("xz", &["xz", "--version"], "xz-utils", xz),
    program("g++", &["g++", "--version"], "g++", gxx),
    program("r", &["Rscript", "--version"], "r-base-core", |_| Ok(words(["Rscript", "-e", R]))),
];

const fn program(
    name: &'static str,
    check: &'static [&'static str],
    install: &'static str,
    command: fn(&Path) -> anyhow::Result<Vec<String>>,
) -> Program {
    Program { name, check, install, command, flags: "" }
}

impl Program {
    /// What is to be installed where the program is missing; `None` where it is here.
    pub fn is_missing(&self) -> Option<&'static str> {
        let mut command = Command::new(self.check[0]);
        command.args(&self.check[1..]).stdout(Stdio::null()).stderr(Stdio::null());
        (!command.status().is_ok_and(|status| status.success())).then_some(self.install)
    }
}

/// A table with an index in memory; most lookups go to a small part of it.
const SQLITE: &str = "
import random, sqlite3
random.seed(1)
base = sqlite3.connect(':memory:')
base.execute('create table rows (id integer primary key, name text, body text)')
base.executemany('insert into rows values (?, ?, ?)', ((n, f'name {n * 7919 % 600000}', f'body of row {n} ' * 12) for n in range(600000)))
base.execute('create index names on rows (name)')
total = 0
for turn in range(300000):
    n = int(600000 * random.random() ** 4)
    total += len(base.execute('select body from rows where name = ?', (f'name {n}',)).fetchone()[0])
print(total)
";

/// Columns that are computed with one after the other.
const NUMPY: &str = "
import numpy
random = numpy.random.default_rng(1)
columns = [random.integers(0, 1000, 4000000).astype(float) for _ in range(12)]
total = 0.0
for turn in range(40):
    left, right = columns[turn % 12], columns[turn * 5 % 12]
    total += float(numpy.sort(left[:1000000] + right[:1000000])[::1000].sum() + (left * right).sum())
print(total)
";

/// A join and groups.
const POLARS: &str = "
import polars
rows = 6000000
frame = polars.DataFrame({'key': polars.Series(range(rows)) * 7919 % 100003, 'value': polars.Series(range(rows)) % 1013})
names = polars.DataFrame({'key': range(100003), 'name': [f'name {n % 5000}' for n in range(100003)]})
total = 0
for turn in range(6):
    joined = frame.filter(polars.col('value') > turn * 100).join(names, on='key')
    total += int(joined.group_by('name').agg(polars.col('value').sum()).select(polars.col('value').max()).item())
print(total)
";

/// A map of strings, of which most lookups go to a small part.
const STRINGS: &str = "import java.util.*; public class Strings { public static void main(String[] a) { \
     HashMap<String, String> map = new HashMap<>(); Random random = new Random(1); long sum = 0; \
     for (int i = 0; i < 900000; i++) map.put(\"key \" + i, \"value of some length \" + i); \
     for (int i = 0; i < 8000000; i++) { double u = random.nextDouble(); \
     sum += map.get(\"key \" + (int) (900000 * u * u * u * u)).length(); } System.out.println(sum); } }";

/// A cache of strings that has room for half of the keys, and replaces what was used least
/// recently.
const CACHE: &str = "import java.util.*; public class Cache { public static void main(String[] a) { \
     LinkedHashMap<String, String> cache = new LinkedHashMap<String, String>(16, 0.75f, true) { \
     protected boolean removeEldestEntry(Map.Entry<String, String> eldest) { return size() > 700000; } }; \
     Random random = new Random(1); long sum = 0, misses = 0; \
     for (int i = 0; i < 40000000; i++) { double u = random.nextDouble(); \
     String key = \"key \" + (int) (1400000 * u * u * u * u); String value = cache.get(key); \
     if (value == null) { misses++; value = \"value of some length for \" + key; cache.put(key, value); } \
     sum += value.length(); } System.out.println(sum + \" \" + misses); } }";

/// Vectors and a data frame.
const R: &str = "set.seed(1); n <- 2000000; d <- data.frame(k = sample(5000, n, TRUE), v = runif(n), t = sample(letters, n, TRUE)); s <- 0; \
    for (i in 1:8) { a <- tapply(d$v, d$k, sum); o <- order(d$v)[1:1000]; s <- s + sum(a[1:10]) + sum(d$k[o]) }; cat(format(s, digits = 12), '\\n')";

/// A hash of strings; most lookups go to a small part of it.
const PERL: &str = "
srand(1);
my %hash;
$hash{\"key $_\"} = \"value of some length $_\" x 3 for 1 .. 900000;
my $sum = 0;
for (1 .. 3000000) { $sum += length $hash{'key ' . (1 + int(900000 * rand() ** 4))} }
print \"$sum\\n\";
";

/// A map of strings, of which most lookups go to a small part. Some entries are replaced, so that
/// the collector goes round.
const GO: &str = r#"package main

import (
	"fmt"
	"runtime/debug"
)

func main() {
	debug.SetGCPercent(100)
	const entries = 700000
	values, sum, x := make(map[int]string), 0, uint64(1)
	for n := 0; n < entries; n++ {
		values[n] = fmt.Sprintf("value %d of some length: %0120d", n, n)
	}
	for turn := 0; turn < 4000000; turn++ {
		x = x*6364136223846793005 + 1442695040888963407
		u := float64(x>>11) / (1 << 53)
		n := int(entries * u * u * u * u)
		sum += len(values[n])
		if turn%20 == 0 {
			values[n] = fmt.Sprintf("another %d of some length: %0120d", n, turn)
		}
	}
	fmt.Println(sum)
}
"#;

/// 380 MiB of blocks of 256 bytes to 32 KiB. Few of them are replaced often; a run of 400 goes and
/// comes back after each 20,000 replacements.
const DISCARDS: &str = r#"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *malloc_conf = "background_thread:true,dirty_decay_ms:200,muzzy_decay_ms:0";
enum { BLOCKS = 24000, TURNS = 1500000, RUN = 400 };
static char *kept[BLOCKS];
static unsigned long state = 1;

static unsigned long drawn(void) {
    state = state * 6364136223846793005ul + 1442695040888963407ul;
    return state >> 11;
}

static void replace(unsigned at) {
    size_t size = 256 + drawn() % 32512;
    free(kept[at]);
    if (!(kept[at] = malloc(size)))
        exit(1);
    char record[65];
    int length = sprintf(record, "{\"number\": %u, \"text\": \"of block %lu\"}", at, state >> 50);
    for (size_t byte = 0; byte < size; byte += length)
        memcpy(kept[at] + byte, record, byte + length <= size ? (size_t)length : size - byte);
}

int main(void) {
    unsigned long sum = 0;
    for (unsigned at = 0; at < BLOCKS; at++)
        replace(at);
    for (unsigned turn = 1; turn <= TURNS; turn++) {
        double u = drawn() * 0x1p-53;
        unsigned at = (unsigned)(BLOCKS * u * u * u * u);
        sum += kept[at][100];
        replace(at);
        if (turn % 20000 == 0) {
            unsigned from = drawn() % (BLOCKS - RUN);
            for (unsigned n = from; n < from + RUN; n++) {
                free(kept[n]);
                kept[n] = NULL;
            }
            for (unsigned n = from; n < from + RUN; n++)
                replace(n);
        }
    }
    printf("%lu\n", sum);
}
"#;

/// A server that is filled with 400 MiB and, as `what` says, asked by 16 connections. What these
/// found goes into the file `$SERVED`, as JSON.
fn server(
    directory: &Path,
    protocol: &str,
    command: &str,
    what: &str,
) -> anyhow::Result<Vec<String>> {
    let terrace = crate::machine::terrace()?;
    // A server that gives up root makes its socket after that.
    let script = format!(
        "socket=$(mktemp -u {directory}/socket.XXXXXX); umask 0; chmod 777 {directory}; {command} >/dev/null & server=$!
         until [ -S \"$socket\" ]; do sleep 0.01; done
         {terrace} load kv \"$socket\" --protocol {protocol} --items 350000 --connections 16 \
             {what} --warm-up 0 --json >\"${{SERVED:-/dev/null}}\" && served=yes
         kill $server; wait $server; [ \"$served\" ] && echo served",
        directory = directory.display(),
        terrace = terrace.display(),
    );
    Ok(words(["sh", "-c", &script]))
}

/// PageRank over a generated graph for a set time. How much it did goes into the file `$SERVED`, as
/// JSON.
fn page_rank() -> anyhow::Result<Vec<String>> {
    let script = format!(
        "{} load memory graph --size 256M --seconds 10 --json >\"${{SERVED:-/dev/null}}\" && echo served",
        crate::machine::terrace()?.display()
    );
    Ok(words(["sh", "-c", &script]))
}

fn sort(directory: &Path) -> anyhow::Result<Vec<String>> {
    let input = directory.join("lines");
    make_text(&input, 160 << 20, |random| {
        format!("{random:016x} line with some text {}\n", random >> 40 & 4095)
    })?;
    let command = format!("LC_ALL=C sort --parallel=1 -S 600M {} | cksum", input.display());
    Ok(words(["sh", "-c", &command]))
}

/// Makes a file of at least this many bytes, unless it is there: lines of random numbers, always
/// the same.
fn make_text(path: &Path, bytes: usize, line: impl Fn(u64) -> String) -> anyhow::Result<()> {
    if path.exists() {
        return Ok(());
    }
    let mut random = Congruential::new(1);
    let mut text = String::new();
    while text.len() < bytes {
        text.push_str(&line(random.draw()));
    }
    Ok(fs::write(path, text)?)
}

fn words<const N: usize>(words: [&str; N]) -> Vec<String> {
    words.map(str::to_owned).to_vec()
}

fn index(operations: &str) -> anyhow::Result<Vec<String>> {
    // The interpreter itself, not a script that finds one.
    let output = Command::new("python3")
        .args(["-c", "import os, sys; print(os.path.realpath(sys.executable))"])
        .output()?;
    let python = String::from_utf8(output.stdout)?;
    let index = concat!(env!("CARGO_MANIFEST_DIR"), "/../demo/document_index.py");
    Ok(words([python.trim(), index, "--documents", "70000", "--operations", operations]))
}

fn xz(directory: &Path) -> anyhow::Result<Vec<String>> {
    let input = directory.join("input");
    // It repeats itself over long distances, a little changed.
    make_text(&input, 10 << 20, |random| {
        format!("record {} of {} holds {:x}\n", random >> 50, random >> 44 & 1023, random >> 40)
    })?;
    Ok(words(["sh", "-c", &format!("exec xz -T1 -7 -c {} | cksum", input.display())]))
}

fn gxx(directory: &Path) -> anyhow::Result<Vec<String>> {
    let source = directory.join("unit.cc");
    if !source.exists() {
        let mut text = String::from(
            "#include <algorithm>\n#include <functional>\n#include <map>\n#include <regex>\n#include <string>\n#include <vector>\n",
        );
        for n in 0..60 {
            text.push_str(&format!(
                "struct T{n} {{ int a; bool operator<(const T{n} &o) const {{ return a < o.a; }} }};\n\
                 int f{n}(const std::string &s) {{ std::map<T{n}, std::vector<std::string>> m; m[{{{n}}}].push_back(s); \
                 std::vector<T{n}> v(10); std::sort(v.begin(), v.end()); std::function<int(int)> g = [&](int x) {{ return x + v[0].a; }}; \
                 std::regex r(\"a{n}+b\"); return g({n}) + std::regex_match(s, r) + m.size(); }}\n"
            ));
        }
        fs::write(&source, text)?;
    }
    Ok(words(["g++", "-O2", "-c", &source.to_string_lossy(), "-o", "/dev/null"]))
}

fn node(_: &Path) -> anyhow::Result<Vec<String>> {
    const SCRIPT: &str = "const map = new Map(); let sum = 0, x = 1; \
        for (let i = 0; i < 700000; i++) map.set('key ' + i, { number: i, text: 'value of ' + i, list: [i, i + 1] }); \
        for (let i = 0; i < 2000000; i++) { x = (x * 48271) % 2147483647; const u = x / 2147483647; \
        sum += map.get('key ' + Math.floor(700000 * u * u * u * u)).number; } console.log(sum)";
    Ok(words(["node", "-e", SCRIPT]))
}

/// A static binary, as Go's toolchain makes them without C.
fn go(directory: &Path, name: &str, text: &str) -> anyhow::Result<Vec<String>> {
    let (source, binary) =
        (directory.join(format!("{name}.go")), directory.join(format!("go-{name}")));
    if !binary.exists() {
        fs::write(&source, text)?;
        let built = Command::new("go")
            .args(["build", "-o"])
            .args([&binary, &source])
            .env("CGO_ENABLED", "0")
            .status();
        ensure!(built.context("no go")?.success(), "go build failed");
    }
    Ok(words([&binary.to_string_lossy()]))
}

/// Looks for a compiler, and for what it links.
const HAS_JEMALLOC: &str = "cc --version && ldconfig -p | grep -q libjemalloc.so.2";

/// A program of which jemalloc's background thread discards what has been free for 200 ms. Terrace
/// is attached to it, as a preloaded library would replace jemalloc.
fn jemalloc(directory: &Path) -> anyhow::Result<Vec<String>> {
    let (source, binary) = (directory.join("discards.c"), directory.join("discards"));
    if !binary.exists() {
        fs::write(&source, DISCARDS)?;
        let mut command = Command::new("cc");
        command.args(["-O2", "-o"]).args([&binary, &source]).arg("-l:libjemalloc.so.2");
        ensure!(command.status().context("no cc")?.success(), "cc failed");
    }
    Ok(words([&binary.to_string_lossy()]))
}

/// A class whose source is `text`, compiled once in the directory.
fn java(directory: &Path, class: &str, text: &str, collector: &str) -> anyhow::Result<Vec<String>> {
    let source = directory.join(format!("{class}.java"));
    if !directory.join(format!("{class}.class")).exists() {
        fs::write(&source, text)?;
        ensure!(
            Command::new("javac").arg(&source).status().context("no javac")?.success(),
            "javac failed"
        );
    }
    let errors = format!("-XX:ErrorFile={}/error", directory.display());
    let classes = directory.to_string_lossy();
    // In a control group with a limit, it would begin with a smaller heap than alone.
    let same_heap = "-XX:-UseContainerSupport";
    Ok(words(["java", "-Xmx1g", same_heap, collector, &errors, "-cp", &classes, class]))
}
