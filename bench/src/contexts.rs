//! How well context numbers tell true calling contexts apart, on real programs (Jenga §4.1).
//!
//! A preloaded probe (`bench/contexts/`) writes down, for each allocation, the ten innermost return
//! addresses as the compiler's own unwinder finds them. It also writes the numbers at several
//! depths.
//!
//! - *Purity*: of the allocations with one number, how many have the commonest true context there.
//!   Less than all means collisions.
//! - *Completeness*: of the allocations of one true context, how many have its commonest number.
//!   Less than all means splits.

use crate::machine;
use crate::results;
use anyhow::Context as _;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::fs;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Depths of context numbers, in the order of the probe's records (its `DEPTHS`); 0: the return
/// address and the height of the stack.
const DEPTHS: [usize; 8] = [0, 1, 2, 3, 4, 6, 10, 16];
const RECORD_WORDS: usize = 1 + DEPTHS.len();
const START_WITHIN: Duration = Duration::from_secs(20);

const SQL: &str = "create table t(k integer primary key, a text, b real); create index i on t(a);
with recursive c(x) as (select 1 union all select x+1 from c where x<50000) insert into t select x, 'name'||(x*7919%50021), x*1.5 from c;
select count(*), sum(b) from t where a > 'name5';
update t set b=b+1 where k%7=0; delete from t where k%11=0;
select substr(a,1,6), count(*) from t group by 1 order by 2 desc limit 3;
create table u as select a, max(b) m from t group by a having m > 100; select count(*) from t join u using(a);";

const PYTHON: &str = "
import json, re, random, collections
random.seed(1)
class Item:
    def __init__(self, n): self.n, self.tags, self.name = n, [str(random.random()) for _ in range(n % 7)], 'item%d' % n
items = [Item(n) for n in range(5000)]
text = json.dumps([vars(item) for item in items])
back = json.loads(text)
count = collections.Counter(w for row in back for w in re.findall('[a-z]+|[0-9]{2}', row['name']))
print(len(text), sorted(back, key=lambda row: row['name'])[0]['n'], count.most_common(1))
";

/// Runs the programs.
pub fn run() -> anyhow::Result<()> {
    println!(
        "Purity / completeness of context numbers against the true ten innermost return addresses, percent of allocations\n"
    );
    print!("{:>14} {:>12} {:>9}", "program", "allocations", "contexts");
    DEPTHS.iter().for_each(|depth| match depth {
        0 => print!(" {:>13}", "ra^sp"),
        depth => print!(" {:>13}", format!("depth {depth}")),
    });
    println!();
    let mut rows = Vec::new();
    for (program, of, run) in [
        ("redis-server", "redis-", redis as fn(&Path, &Probe) -> anyhow::Result<()>),
        ("sqlite3", "sqlite3", sqlite),
        ("python3", "python3", python),
        ("gcc cc1", "cc1", gcc),
        ("tree", "terrace-bench", tree),
    ] {
        let scratch = tempfile::tempdir()?;
        let probe = Probe { prefix: scratch.path().join("contexts") };
        run(scratch.path(), &probe).with_context(|| format!("{program} could not be measured"))?;
        let quality = quality(&probe.records(of)?)?;
        print!("{program:>14} {:>12} {:>9}", quality.allocations, quality.contexts);
        quality
            .by_depth
            .iter()
            .for_each(|(purity, completeness, _)| print!(" {purity:>6.1}/{completeness:>6.1}"));
        println!();
        let by_depth: Vec<Value> = DEPTHS
            .iter()
            .zip(&quality.by_depth)
            .map(|(depth, (purity, completeness, ids))| {
                json!({
                    "depth": depth, "purity": purity, "completeness": completeness, "numbers": ids,
                })
            })
            .collect();
        rows.push(json!({
            "program": program, "allocations": quality.allocations,
            "true_contexts": quality.contexts, "by_depth": by_depth,
        }));
    }
    println!();
    results::write("contexts", json!(rows))
}

/// The preloaded library and where it writes.
struct Probe {
    prefix: PathBuf,
}

impl Probe {
    fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> anyhow::Result<Command> {
        let library = std::env::current_exe()?.with_file_name("libterrace_contexts.so");
        anyhow::ensure!(
            library.exists(),
            "{} is missing: run `make build` first",
            library.display()
        );
        let mut command = Command::new(program);
        machine::ends_with_us(&mut command);
        command
            .env("LD_PRELOAD", library)
            .env("TERRACE_CONTEXTS", &self.prefix)
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        Ok(command)
    }

    /// Records of the program whose name begins with `program`: the longest file, if there are
    /// several processes.
    fn records(&self, program: &str) -> anyhow::Result<Vec<u8>> {
        let begin = format!("contexts.{program}");
        let mut longest = Vec::new();
        for file in
            fs::read_dir(self.prefix.parent().context("a prefix in a directory")?)?.flatten()
        {
            if file.file_name().to_string_lossy().starts_with(&begin)
                && file.metadata()?.len() as usize > longest.len()
            {
                longest = fs::read(file.path())?;
            }
        }
        anyhow::ensure!(!longest.is_empty(), "nothing was recorded of {program}");
        Ok(longest)
    }
}

fn done(mut command: Command) -> anyhow::Result<()> {
    let status = command.status()?;
    anyhow::ensure!(status.success(), "{:?} ended with {status}", command.get_program());
    Ok(())
}

fn redis(scratch: &Path, probe: &Probe) -> anyhow::Result<()> {
    let socket = scratch.join("socket");
    let mut server = probe.command("redis-server")?;
    let mut server = server
        .args(["--port", "0", "--save", "", "--appendonly", "no", "--unixsocket"])
        .arg(&socket)
        .spawn()?;
    let begun = Instant::now();
    while UnixStream::connect(&socket).is_err() {
        anyhow::ensure!(
            begun.elapsed() < START_WITHIN && server.try_wait()?.is_none(),
            "redis-server did not start"
        );
        std::thread::sleep(Duration::from_millis(20));
    }
    let tests = "set,get,incr,lpush,rpush,lpop,sadd,hset,spop,zadd,zpopmin,lrange_100,mset";
    let mut load = Command::new("redis-benchmark");
    load.arg("-s")
        .arg(&socket)
        .args(["-n", "5000", "-r", "2000", "-q", "-t", tests])
        .stdout(Stdio::null());
    done(load)?;
    let mut end = Command::new("redis-cli");
    end.arg("-s").arg(&socket).args(["shutdown", "nosave"]);
    done(end)?;
    anyhow::ensure!(server.wait()?.success(), "redis-server did not end as it should have");
    Ok(())
}

fn sqlite(_: &Path, probe: &Probe) -> anyhow::Result<()> {
    let mut command = probe.command("sqlite3")?;
    command.args([":memory:", SQL]);
    done(command)
}

fn python(_: &Path, probe: &Probe) -> anyhow::Result<()> {
    // Not another in the path, which may be a script that starts this one.
    let mut command = probe.command("/usr/bin/python3")?;
    command.env("PYTHONMALLOC", "malloc").args(["-c", PYTHON]);
    done(command)
}

/// 300 functions with loops, branches and calls.
fn gcc(scratch: &Path, probe: &Probe) -> anyhow::Result<()> {
    let source = scratch.join("many.c");
    let mut text = String::from("#include <stdio.h>\n#include <string.h>\n#include <stdlib.h>\n");
    for n in 0..300 {
        text += &format!(
            "struct s{n} {{ int a[{}]; struct s{n} *next; char name[{}]; }};\n\
             static int f{n}(struct s{n} *p, int x) {{ int sum = 0; for (int i = 0; i < x; i++) {{ switch ((i * {n}) % 5) {{ case 0: sum += p->a[i % {}]; break; \
             case 1: sum ^= i; break; case 2: if (p->next) sum += f{n}(p->next, x - 1); break; default: sum += (int)strlen(p->name); }} }} return sum; }}\n\
             int g{n}(int x) {{ struct s{n} v; memset(&v, x, sizeof v); v.next = 0; v.name[sizeof v.name - 1] = 0; return f{n}(&v, x) + {n}; }}\n",
            n % 13 + 1,
            n % 29 + 2,
            n % 13 + 1,
        );
    }
    fs::write(&source, text)?;
    let mut command = probe.command("gcc")?;
    command.args(["-O2", "-c", "-o"]).arg(scratch.join("many.o")).arg(&source);
    done(command)
}

fn tree(_: &Path, probe: &Probe) -> anyhow::Result<()> {
    let mut command = probe.command(std::env::current_exe()?)?;
    // Its load is what is of interest: one second of lookups after it.
    command.args(["objects-program", "tree", "uniform", "100000", "1"]);
    done(command)
}

struct Quality {
    allocations: usize,
    contexts: usize,
    /// Purity, completeness, numbers.
    by_depth: Vec<(f64, f64, usize)>,
}

fn quality(bytes: &[u8]) -> anyhow::Result<Quality> {
    let words: Vec<u64> = bytes
        .chunks_exact(8)
        .map(|word| u64::from_ne_bytes(word.try_into().expect("eight bytes")))
        .collect();
    // Where the compiler's unwinder found no caller (0), nothing is known to compare with.
    let records: Vec<&[u64]> =
        words.chunks_exact(RECORD_WORDS).filter(|record| record[0] != 0).collect();
    anyhow::ensure!(
        records.len() * RECORD_WORDS * 10 > words.len() * 9,
        "of a tenth of the allocations no true context is known"
    );
    // The share of all that is the commonest of its group.
    let commonest = |group: usize, of: usize| {
        let mut counts: HashMap<(u64, u64), usize> = HashMap::new();
        records
            .iter()
            .for_each(|record| *counts.entry((record[group], record[of])).or_default() += 1);
        let mut most: HashMap<u64, usize> = HashMap::new();
        for ((group, _), count) in counts {
            let most = most.entry(group).or_default();
            *most = (*most).max(count);
        }
        (most.values().sum::<usize>() as f64 / records.len() as f64 * 100.0, most.len())
    };
    let by_depth = (1..RECORD_WORDS).map(|number| {
        let (purity, numbers) = commonest(number, 0);
        (purity, commonest(0, number).0, numbers)
    });
    Ok(Quality {
        allocations: records.len(),
        contexts: commonest(0, 0).1,
        by_depth: by_depth.collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quality_by_hand() {
        // Four allocations of two contexts: one number for all, one for each context, one for each
        // allocation.
        let records = [[1, 9, 1, 1], [1, 9, 1, 2], [2, 9, 2, 3], [2, 9, 2, 4]];
        let bytes: Vec<u8> = records
            .iter()
            .flat_map(|[truth, all, same, each]| [*truth, *all, *same, *each, 0, 0, 0, 0, 0])
            .flat_map(|word: u64| word.to_ne_bytes())
            .collect();
        let found = quality(&bytes).expect("quality");
        assert_eq!((found.allocations, found.contexts), (4, 2));
        assert_eq!(found.by_depth[..3], [(50.0, 100.0, 1), (100.0, 100.0, 2), (100.0, 50.0, 4)]);
    }
}
