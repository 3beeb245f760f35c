//! Whole programs: what they do, in a directory of its own.

use super::allocator::Allocator;
use super::program::{figures, peak_bytes};
use super::tests::{Test, scaled};
use super::{Run, output_within};
use crate::servers::process;
use crate::start::answers;
use anyhow::{Context, bail};
use serde_json::Value;
use std::fmt::Write as _;
use std::fs;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use terrace_testkit::child::Ended;
use terrace_testkit::process::name;

const START_WITHIN: Duration = Duration::from_secs(30);
const END_WITHIN: Duration = Duration::from_secs(20);

/// Debian's interpreter, not a wrapper of the user's: see `idle`.
const PYTHON: &str = "/usr/bin/python3";
/// Program that makes documents, writes them as JSON and reads them again, as often as its argument
/// says.
const JSON: &str = "
import json, random, sys
random.seed(7)
def document(n):
    return {'id': n, 'name': 'user-%d' % n, 'score': random.random(), 'active': n % 3 == 0, 'tags': ['tag-%d' % random.randrange(1000) for _ in range(n % 12)],
            'friends': [{'id': random.randrange(100000), 'name': 'friend-%d' % k, 'note': 'x' * random.randrange(200)} for k in range(n % 7)]}
documents = {str(n): document(n) for n in range(12000)}
for round in range(int(sys.argv[1])):
    text = json.dumps(documents, indent=round % 2 or None)
    documents = json.loads(text)
print(len(text))
";

/// What the whole programs of a run work on.
pub struct Inputs {
    directory: tempfile::TempDir,
    scale: f64,
}

impl Inputs {
    /// Writes the inputs.
    pub fn new(scale: f64) -> anyhow::Result<Inputs> {
        let inputs = Inputs {
            directory: tempfile::Builder::new().prefix("terrace-malloc-").tempdir()?,
            scale,
        };
        fs::write(inputs.path("script.sql"), sql(scaled(150_000, scale)))?;
        fs::write(inputs.path("program.c"), c_source(scaled(350, scale)))?;
        Ok(inputs)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Runs a whole program, beside `terrace-bench malloc-launch`.
    pub fn run(&self, test: Test, allocator: Allocator) -> anyhow::Result<Run> {
        let rounds = scaled(8, self.scale).to_string();
        let (input, words): (Option<&str>, Vec<String>) = match test {
            Test::PythonMalloc | Test::Python => {
                (None, [PYTHON, "-c", JSON, &rounds].map(str::to_owned).to_vec())
            }
            Test::Sqlite => {
                (Some("script.sql"), ["sqlite3", ":memory:"].map(str::to_owned).to_vec())
            }
            Test::Gcc => {
                let of = |name: &str| self.path(name).to_string_lossy().into_owned();
                (
                    None,
                    vec![
                        "gcc".into(),
                        "-O2".into(),
                        "-c".into(),
                        of("program.c"),
                        "-o".into(),
                        of("program.o"),
                    ],
                )
            }
            Test::Redis => return self.redis(allocator),
            _ => bail!("{} is no program of others", test.name()),
        };
        let own = std::env::current_exe()?.to_string_lossy().into_owned();
        let mut all = vec![own, "malloc-launch".into()];
        if let Some(name) = input {
            all.extend(["--input".into(), self.path(name).to_string_lossy().into_owned()]);
        }
        all.push("--".into());
        all.extend(words);
        let all: Vec<&str> = all.iter().map(String::as_str).collect();
        let mut command = allocator.command(&test.cpus(), &all, false)?;
        command
            .env("PYTHONHASHSEED", "0")
            .env("PYTHONMALLOC", if test == Test::PythonMalloc { "malloc" } else { "default" });
        Ok(serde_json::from_str::<Value>(&output_within(command)?)?.into())
    }

    /// Runs redis-server on CPU 0, asked by redis-benchmark on the last one. CPU time and memory
    /// are those of the server at the end of the questions.
    fn redis(&self, allocator: Allocator) -> anyhow::Result<Run> {
        let socket = self.path("redis.sock");
        let _ = fs::remove_file(&socket);
        let at = socket.to_string_lossy().into_owned();
        let words = [
            "redis-server",
            "--port",
            "0",
            "--unixsocket",
            &at,
            "--appendonly",
            "no",
            "--io-threads",
            "1",
            "--save",
            "",
        ];
        let mut command = allocator.command(&Test::Redis.cpus(), &words, true)?;
        command
            .current_dir(self.directory.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0);
        // `terrace run` hands the signal on.
        let mut server = Ended::by_request(command.spawn()?, END_WITHIN);
        let pid = wait_for(&mut server, &socket)?;
        let last = std::thread::available_parallelism().map_or(0, |cpus| cpus.get() - 1);
        let questions = scaled(100_000, self.scale).to_string();
        let ask = "set,get,incr,lpush,rpush,lpop,rpop,sadd,hset,spop,zadd,zpopmin,lrange_100";
        let mut client = Command::new("taskset");
        client.args([
            "-c",
            &last.to_string(),
            "redis-benchmark",
            "-s",
            &at,
            "-q",
            "-n",
            &questions,
            "-r",
            "100000",
            "-d",
            "200",
        ]);
        client.args(["-P", "32", "-c", "32", "-t", ask]);
        let begun = Instant::now();
        output_within(client)?;
        let seconds = begun.elapsed().as_secs_f64();
        Ok(figures(seconds, process::cpu_s(pid)?, peak_bytes(&pid.to_string())?, 0).into())
    }
}

/// Waits until redis-server listens. Returns the number of its process.
fn wait_for(server: &mut Child, socket: &Path) -> anyhow::Result<u32> {
    answers("redis-server", server, START_WITHIN, || UnixStream::connect(socket).ok())?;
    // taskset becomes the program, or `terrace run`, whose child the program is.
    if name(server.id()).context("redis-server is gone")? == "terrace" {
        process::child(server.id()).context("terrace run has no child")
    } else {
        Ok(server.id())
    }
}

/// SQL that makes a table in memory with this many rows, an index, and questions about them.
fn sql(rows: u64) -> String {
    format!(
        "create table t(id integer primary key, name text, city text, amount real, note text);
         with recursive n(i) as (select 1 union all select i + 1 from n where i < {rows})
         insert into t select i, 'user-' || (i * 7919 % 100003), 'city-' || (i * 31 % 997), i * 0.37, substr('a note that is somewhat longer than a name, for row ', 1, 20 + i % 40) || i from n;
         create index by_name on t(name);
         create index by_city on t(city, amount);
         select city, count(*), sum(amount) from t group by city order by 3 desc limit 10;
         update t set note = note || ' changed', amount = amount + 1 where id % 3 = 0;
         select count(*) from t a join t b on a.name = b.name and a.id < b.id;
         delete from t where id % 5 = 0;
         create table s as select city, group_concat(name, ',') as names from t group by city;
         select sum(length(names)) from s;
         select note from t order by note desc limit 5;\n"
    )
}

/// C source of this many functions with loops, branches, structures and calls of one another.
fn c_source(functions: u64) -> String {
    let mut text = String::from(
        "#include <stdlib.h>\n#include <string.h>\n#include <stdio.h>\nstruct node { struct node *next; long key, weight[4]; char name[24]; };\n",
    );
    for n in 0..functions {
        let other = n.saturating_sub(1 + n % 7);
        let [a, b, c] = [3 + n % 11, 5 + n % 17, 1 + n % 5];
        let call =
            if n == 0 { "key".to_owned() } else { format!("work_{other}(list->next, key - {c})") };
        let _ = write!(
            text,
            "long work_{n}(struct node *list, long key) {{
    long sum = {n}, table[{b}] = {{0}};
    for (struct node *at = list; at; at = at->next) {{
        switch (at->key % {a}) {{
        case 0: sum += at->weight[0] * {b}; break;
        case 1: sum ^= at->weight[1] << {c}; table[(unsigned long)sum % {b}]++; break;
        case 2: for (int i = 0; i < 4; i++) table[i] += at->weight[i] > key ? at->weight[i] : key; break;
        default: if (at->name[0] == 'a' + {c}) sum -= (long)strlen(at->name); else sum += at->key / {a};
        }}
        if (at->key > key && at->next && at->next->key < {n}) {{
            struct node *gone = at->next;
            at->next = gone->next;
            free(gone);
        }}
    }}
    for (int i = 0; i < {b}; i++) sum += table[i] * (i % {c} ? -1 : 1);
    if (list && key > {c}) sum += {call};
    return sum;
}}\n"
        );
    }
    text
}
