//! Allocation sites: what each process told of them (`alloc::watch`), as part of the report, and
//! `terrace report sites`, which gives them the names of their functions.

use crate::quantity::{bytes, share};
use crate::report::args::SitesArguments;
use crate::terminal;
use addr2line::Loader;
use anyhow::{Context, Result, anyhow, bail};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::collections::HashMap;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

/// Columns of a tier, at least.
const TIER_WIDTH: usize = 7;
/// First word of a process's list.
const MAGIC: &str = "terrace-sites";
/// Sites of a process that the report has, at most: the largest and the hottest.
const SITES_MAX: usize = 1000;

/// What one process's callers of malloc hold, and how hot that is.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct Sites {
    /// The process.
    pub pid: u32,
    /// The names of the tiers, in the order of `tier_bytes`.
    pub tiers: Vec<String>,
    /// Samples that met other memory: mappings, stacks, what was allocated before objects were
    /// watched.
    pub samples_elsewhere: f64,
    /// The sites, those with the most samples first.
    pub sites: Vec<Site>,
}

/// One calling context.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct Site {
    /// Bytes of its live objects, as their size classes have them: a mean over time, as are the
    /// next and those by tier.
    pub bytes: u64,
    /// Live objects.
    pub objects: u64,
    /// Samples that met its objects.
    pub samples: f64,
    /// The zone that its next objects go to.
    pub zone: u32,
    /// Bytes of the site by tier.
    pub tier_bytes: Vec<u64>,
    /// Call stack of the allocation: the caller of malloc, its caller and so on. Each frame is a
    /// file and a return address in it.
    pub frames: Vec<String>,
}

impl Site {
    /// Whether it is no site, but what the program placed itself: the name is in parentheses.
    fn is_placed(&self) -> bool {
        self.frames.first().is_some_and(|frame| frame.starts_with('('))
    }
}

/// The lists of all processes in a run directory.
pub fn read_all(run_dir: &Path) -> Vec<Sites> {
    let files = std::fs::read_dir(run_dir).into_iter().flatten().flatten();
    let mut all: Vec<Sites> = files
        .filter_map(|file| {
            let name = file.file_name().into_string().ok()?;
            let (pid, _) = name.strip_suffix(".sites")?.split_once('-')?;
            // The run's processes write here: no link is followed, no pipe waited for.
            let mut options = std::fs::File::options();
            let mut opened = options
                .read(true)
                .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
                .open(file.path())
                .ok()?;
            let mut text = String::new();
            opened.read_to_string(&mut text).ok()?;
            parse(pid.parse().ok()?, &text)
        })
        .collect();
    all.sort_by_key(|sites| sites.pid);
    all
}

/// A process's list; `None` if it is none.
fn parse(pid: u32, text: &str) -> Option<Sites> {
    let mut lines = text.lines();
    // (A tier's directory may have spaces in its name.)
    let head: Vec<&str> = lines.next()?.splitn(6, ' ').collect();
    let [MAGIC, "1", "elsewhere", elsewhere, "tiers", tiers] = head[..] else { return None };
    let tiers: Vec<String> = tiers.split(',').map(str::to_owned).collect();
    let mut sites = lines.map(|line| site(line, tiers.len())).collect::<Option<Vec<Site>>>()?;
    sites.sort_by(|a, b| b.samples.total_cmp(&a.samples).then(b.bytes.cmp(&a.bytes)));
    if sites.len() > SITES_MAX {
        sites[SITES_MAX / 2..].sort_by_key(|site| std::cmp::Reverse(site.bytes));
        sites.truncate(SITES_MAX);
    }
    Some(Sites { pid, tiers, samples_elsewhere: elsewhere.parse().ok()?, sites })
}

fn site(line: &str, tiers: usize) -> Option<Site> {
    let mut fields = line.split('\t');
    let mut figures = fields.next()?.split(' ');
    let mut next = || figures.next();
    let (bytes, objects, samples, zone) = (
        next()?.parse().ok()?,
        next()?.parse().ok()?,
        next()?.parse().ok()?,
        next()?.parse().ok()?,
    );
    let tier_bytes = figures.map(|bytes| bytes.parse().ok()).collect::<Option<Vec<u64>>>()?;
    let mut frames = Vec::new();
    while let Some(offset) = fields.next() {
        let name = fields.next()?;
        // Without an offset it is the name of something else than a place in a file.
        frames.push(if offset == "-" { name.to_owned() } else { format!("{name}+0x{offset}") });
    }
    (tier_bytes.len() == tiers).then_some(Site {
        bytes,
        objects,
        samples,
        zone,
        tier_bytes,
        frames,
    })
}

/// The part of a report that is read again.
#[derive(Deserialize)]
struct Reported {
    command: Vec<String>,
    #[serde(default)]
    sites: Vec<Sites>,
}

/// `terrace report sites`; the result is the exit status.
pub fn show(arguments: &SitesArguments) -> Result<u8> {
    let name = arguments.file.display();
    // What is no report is not read to its end, which it may not have.
    let file = std::fs::File::open(&arguments.file).map_err(|error| {
        anyhow!(
            "{name}: {error}; `terrace run --allocator context --report {name} -- CMD` makes one"
        )
    })?;
    let report: Reported =
        serde_json::from_reader(std::io::BufReader::new(file)).with_context(|| {
            format!("{name} is no report of `terrace run --report` (a recording has no sites)")
        })?;
    let sites = match arguments.process {
        Some(pid) => report.sites.iter().find(|sites| sites.pid == pid),
        None => report.sites.iter().max_by(|a, b| samples(a).total_cmp(&samples(b))),
    };
    let Some(sites) = sites else {
        let which = arguments
            .process
            .map_or_else(|| "nobody's".into(), |pid| format!("not process {pid}'s"));
        bail!(
            "{name} has {which} allocation sites: they are told by `terrace run --allocator context` with samples (--sampler clock)"
        );
    };
    let mut symbols = Symbols::default();
    let mut out = std::io::stdout().lock();
    if arguments.json {
        let all: Vec<_> = sites
            .sites
            .iter()
            .map(|site| json!({ "site": site, "functions": symbols.names(site) }))
            .collect();
        let answer = json!({
            "version": 1, "pid": sites.pid, "tiers": sites.tiers,
            "samples_elsewhere": sites.samples_elsewhere, "sites": all,
        });
        writeln!(out, "{answer:#}")?;
        return Ok(0);
    }
    let (bytes_in_all, met) =
        (sites.sites.iter().map(|site| site.bytes).sum::<u64>(), samples(sites));
    writeln!(
        out,
        "{}: process {}, {} in {} sites",
        report.command.join(" "),
        sites.pid,
        bytes(bytes_in_all),
        sites.sites.iter().filter(|site| !site.is_placed()).count()
    )?;
    writeln!(
        out,
        "samples: {met:.0} met objects of these, {:.0} other memory (mappings, stacks)",
        sites.samples_elsewhere
    )?;
    let density = |site: &Site| site.samples / site.bytes.max(1) as f64;
    let mut ranking: Vec<&Site> = sites.sites.iter().collect();
    let widths: Vec<usize> =
        sites.tiers.iter().map(|name| TIER_WIDTH.max(name.chars().count())).collect();
    let tiers: String = sites.tiers.iter().map(|name| format!(" {name:>TIER_WIDTH$}")).collect();
    // Under the first of the names.
    let indent = 43 + widths.iter().map(|width| 1 + width).sum::<usize>();
    let room = terminal::width().map(|width| width.saturating_sub(indent + 2).max(20));
    let mut list = |title: &str, ranking: &[&Site]| -> Result<()> {
        writeln!(
            out,
            "\n{title}\n  samples      bytes    objects  bytes each{tiers}  allocated by"
        )?;
        for site in ranking.iter().take(arguments.count) {
            let names: Vec<String> =
                symbols.names(site).into_iter().map(|name| fitted(name, room)).collect();
            let each = site.bytes / site.objects.max(1);
            let shares = site.tier_bytes.iter().zip(&widths);
            let shares: String = shares
                .map(|(part, width)| {
                    format!(" {:>width$}", share(*part as f64 / site.bytes.max(1) as f64))
                })
                .collect();
            let of_all = share(site.samples / met.max(f64::MIN_POSITIVE));
            let first = names.first().map_or("?", String::as_str);
            writeln!(
                out,
                "  {of_all:>7} {:>10} {:>10} {each:>11}{shares}  {first}",
                bytes(site.bytes),
                site.objects
            )?;
            for name in names.iter().skip(1) {
                writeln!(out, "{:indent$}  ← {name}", "")?;
            }
        }
        Ok(())
    };
    ranking.sort_by(|a, b| b.samples.total_cmp(&a.samples));
    ranking.retain(|site| site.samples > 0.0);
    if !ranking.is_empty() {
        list("hottest (most samples)", &ranking)?;
    }
    // A site that holds much of which nothing is met: a candidate for `Cold`.
    let mean = met / bytes_in_all.max(1) as f64;
    let mut cold: Vec<&Site> = sites
        .sites
        .iter()
        .filter(|site| (met == 0.0 || density(site) < mean / 4.0) && !site.is_placed())
        .collect();
    cold.sort_by_key(|site| std::cmp::Reverse(site.bytes));
    let title = match met {
        0.0 => "most bytes (no sample met any: the program ran too briefly, or sleeps)",
        _ => "coldest (most bytes with less than a quarter of the mean samples per byte)",
    };
    list(title, &cold)?;
    Ok(0)
}

/// A name, cut off where a line has no more room.
fn fitted(name: String, room: Option<usize>) -> String {
    match room {
        Some(room) if name.chars().count() > room => {
            name.chars().take(room - 1).chain(['…']).collect()
        }
        _ => name,
    }
}

fn samples(sites: &Sites) -> f64 {
    sites.sites.iter().map(|site| site.samples).sum()
}

/// The symbols of the files that were met.
#[derive(Default)]
pub(super) struct Symbols {
    files: HashMap<String, Option<Loader>>,
}

impl Symbols {
    fn names(&mut self, site: &Site) -> Vec<String> {
        site.frames.iter().map(|frame| self.name(frame)).collect()
    }

    /// The function of a frame, with its line where that is known; the frame itself where the file
    /// has no names.
    pub(super) fn name(&mut self, frame: &str) -> String {
        let Some((file, offset)) = frame.rsplit_once("+0x") else { return frame.into() };
        let Ok(address) = u64::from_str_radix(offset, 16) else { return frame.into() };
        let loader = self.files.entry(file.to_owned()).or_insert_with(|| Loader::new(file).ok());
        let Some(loader) = loader else { return frame.into() };
        // The call, not what it returns to.
        let address = address.saturating_sub(1);
        let line = loader
            .find_location(address)
            .ok()
            .flatten()
            .and_then(|place| Some((place.file?.to_owned(), place.line?)));
        let inlined = loader.find_frames(address).ok().and_then(|mut frames| {
            let function = frames.next().ok()??.function?;
            Some(function.demangle().ok()?.into_owned())
        });
        let symbol = || {
            loader
                .find_symbol(address)
                .map(|name| addr2line::demangle_auto(name.into(), None).into_owned())
        };
        let short = Path::new(file).file_name().map_or(file.into(), |name| name.to_string_lossy());
        match (inlined.or_else(symbol), line) {
            (Some(name), Some((source, line))) => format!("{name} ({source}:{line})"),
            (Some(name), None) => format!("{name} ({short})"),
            (None, _) => format!("{short}+0x{offset}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIST: &str = "terrace-sites 1 elsewhere 12.5 tiers dram,lz4\n\
        8192 3 1.0 0 8192 0\t-\t(placed)\n\
        4096 64 0.0 3 0 4096\t1a2b\t/usr/bin/app\tff\t/lib/libc.so.6\n\
        1024 2 900.5 1 1024 0\t7f00\t\n";

    #[test]
    fn a_list_is_read_and_sorted() {
        let sites = parse(7, LIST).unwrap();
        assert_eq!((sites.pid, sites.samples_elsewhere, sites.tiers.len()), (7, 12.5, 2));
        assert_eq!(sites.sites[0].samples, 900.5);
        assert_eq!(sites.sites[0].frames, ["+0x7f00"]);
        assert_eq!(sites.sites[1].frames, ["(placed)"]);
        assert_eq!(sites.sites[2].frames, ["/usr/bin/app+0x1a2b", "/lib/libc.so.6+0xff"]);
        assert_eq!(sites.sites[2].tier_bytes, [0, 4096]);
    }

    #[test]
    fn long_names_are_cut_off_where_there_is_a_terminal() {
        let fitted = |room| fitted("insert (table.c:12)".into(), room);
        assert_eq!(fitted(None), "insert (table.c:12)");
        assert_eq!((fitted(Some(19)), fitted(Some(8))), (fitted(None), "insert …".into()));
    }

    #[test]
    fn what_is_none_is_refused() {
        for wrong in [
            "",
            "x",
            "terrace-sites 2 elsewhere 1 tiers a",
            &LIST.replace("4096 64", "4096 x"),
            &LIST.replace(" 0 4096\t", " 0\t"),
        ] {
            assert_eq!(parse(7, wrong), None, "{wrong}");
        }
    }

    /// A function that is never inlined, whatever is inlined elsewhere.
    #[inline(never)]
    fn a_function_that_is_named() -> usize {
        std::env::args().count()
    }

    #[test]
    fn own_functions_have_names() {
        assert!(a_function_that_is_named() > 0);
        let mut symbols = Symbols::default();
        let own = std::env::current_exe().unwrap();
        let object = std::fs::read(&own).unwrap();
        let file = object::File::parse(&*object).unwrap();
        use object::{Object, ObjectSymbol};
        let symbol = file
            .symbols()
            .find(|symbol| {
                symbol.name().is_ok_and(|name| name.contains("a_function_that_is_named"))
            })
            .unwrap();
        let name = symbols.name(&format!("{}+0x{:x}", own.display(), symbol.address() + 5));
        assert!(name.contains("sites.rs"), "{name}");
        assert_eq!(symbols.name("/nowhere+0x12"), "/nowhere+0x12");
    }
}
