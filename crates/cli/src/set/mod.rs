//! `terrace set`: other limits for a run that lives.
//!
//! What is asked for is put as a file into the run's directory, where only its user and root can
//! write. `terrace run`, or the keeper it left, takes it out at its next look at the processes. It
//! then says of itself what holds now: by that `terrace set` knows that it was heard.

pub mod args;

use crate::processes::statistics;
use crate::processes::tree::{Limits, Tree};
use crate::run::budget;
use crate::run::directory::{self, About, LiveRun, RUN_DIR_VARIABLE, RunDir};
use crate::status::plain;
use crate::{attach, say};
use anyhow::{Context, Result, bail, ensure};
use args::SetArguments;
use serde::{Deserialize, Serialize};
use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, fchown};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use terrace_control::settings::{Dram, Knob, Window};
use terrace_control::stats::TIER_NAME_BYTES;
use terrace_policy::slowdown::{Target, Wanted};

/// The file with what is asked for.
const REQUEST: &str = "set.json";
/// Most bytes of a request.
const REQUEST_BYTES: u64 = 4096;
/// Longest wait for an answer. A run looks at its processes once a second at the rarest; the rest
/// is for one that is stopped, or starved.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// How often a run looks whether anything is asked, and for processes that must be told.
const HEAR_EVERY: Duration = Duration::from_millis(500);

/// What is asked for, as the command line has it; `None` stays as it is.
#[derive(Debug, Deserialize, PartialEq, Serialize)]
struct Request {
    dram: Option<String>,
    slowdown: Option<String>,
    #[serde(default)]
    knob: Option<String>,
    #[serde(default)]
    window: Option<String>,
    #[serde(default)]
    tiers: Option<String>,
}

/// What holds in a run.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Now {
    limits: Limits,
    /// Knob and window of the model that places regions, if one does.
    model: Option<(Knob, Window)>,
    /// The tiers that take pages, a bit for each by its number.
    tiers: u64,
}

impl Request {
    /// What holds after it, with tiers of these names; `None` where it makes no sense.
    fn after(&self, now: Now, names: &[String]) -> Option<Now> {
        let tiers = self.tiers.as_ref().map_or(Ok(now.tiers), |list| chosen(list, names)).ok()?;
        let (limits, model) = (self.limits_after(now.limits)?, self.model_after(now.model)?);
        Some(Now { limits, model, tiers })
    }

    fn limits_after(&self, now: Limits) -> Option<Limits> {
        let dram = self.dram.as_ref().map_or(Ok(now.dram), |dram| dram.parse::<Dram>()).ok()?;
        let slowdown = match self.slowdown.as_ref().map(|slowdown| slowdown.parse::<Wanted>()) {
            None => now.slowdown,
            Some(Ok(Wanted::Off)) => None,
            Some(Ok(Wanted::At(target))) => Some(target),
            Some(Ok(Wanted::Auto) | Err(_)) => return None,
        };
        Some(Limits { dram, slowdown })
    }

    fn model_after(&self, now: Option<(Knob, Window)>) -> Option<Option<(Knob, Window)>> {
        let Some((knob, window)) = now else {
            return (self.knob.is_none() && self.window.is_none()).then_some(None);
        };
        let knob = self.knob.as_ref().map_or(Ok(knob), |knob| knob.parse()).ok()?;
        let window = self.window.as_ref().map_or(Ok(window), |window| window.parse()).ok()?;
        Some(Some((knob, window)))
    }
}

/// The tiers of a list, a bit for each by its number among all of a run's; `Err` says what is wrong
/// with it.
fn chosen(list: &str, names: &[String]) -> Result<u64> {
    let all = names.join(",");
    let wanted: Vec<&str> = list.split(',').map(str::trim).collect();
    let mut tiers = 0u64;
    for name in &wanted {
        let number = names.iter().position(|known| is_name(known, name)).with_context(|| {
            format!("{name:?} is none of the run's tiers, which are {all}: others take a new start")
        })?;
        tiers |= 1 << number;
    }
    ensure!(tiers & 1 == 1, "--tiers {list}: the first tier, {}, cannot be left out", names[0]);
    ensure!(tiers > 1, "--tiers {list}: then nothing could be moved; raise --dram instead");
    let missing = |name: &&String| name.starts_with("node:") && !wanted.contains(&name.as_str());
    if let Some(node) = names.iter().find(missing) {
        bail!("--tiers {list}: {node} cannot be left out while a program runs");
    }
    Ok(tiers)
}

/// Whether a tier that a process told of as `known` is the one that is asked for by `name`. A
/// statistics page has room for [`TIER_NAME_BYTES`] of a name; long ones (of directories) are cut.
fn is_name(known: &str, name: &str) -> bool {
    let is_cut = known.len() + char::MAX.len_utf8() > TIER_NAME_BYTES;
    known == name || is_cut && name.len() > TIER_NAME_BYTES && name.starts_with(known)
}

/// The list of tiers of which these are in use.
fn listed(tiers: u64, names: &[String]) -> String {
    let used = names.iter().enumerate().filter(|(number, _)| tiers >> number & 1 == 1);
    used.map(|(_, name)| name.as_str()).collect::<Vec<_>>().join(",")
}

/// All of these tiers, a bit for each by its number.
fn all_of(names: &[String]) -> u64 {
    (1 << names.len()) - 1
}

/// The names of a run's tiers: as one of its processes has them.
fn tier_names(directory: &Path) -> Vec<String> {
    let names = statistics::page_files(directory).find_map(|page| statistics::tier_names(&page));
    names.filter(|names| !names.is_empty()).unwrap_or_else(|| vec!["dram".into()])
}

/// What a run says of itself, and what it is asked.
pub struct Requests {
    directory: PathBuf,
    about: About,
    /// What processes are told of their model and their tiers, once anything was asked; and the
    /// pages of those that were told.
    model: Option<(Knob, Window)>,
    tiers: Option<u64>,
    told: HashSet<String>,
}

impl Requests {
    /// Says what runs; requests are heard from now on.
    pub fn begin(run_dir: &RunDir, about: About) -> Requests {
        directory::describe(run_dir.path(), &about);
        Requests {
            directory: run_dir.path().to_owned(),
            about,
            model: None,
            tiers: None,
            told: HashSet::new(),
        }
    }

    /// Has this process answer from now on.
    pub fn take_over(&mut self) {
        self.about.supervisor = Some(std::process::id());
        directory::describe(&self.directory, &self.about);
    }

    /// How long it need not look again.
    pub fn rest(&self) -> Duration {
        let tells = self.about.model.is_some() || self.tiers.is_some();
        if tells { HEAR_EVERY } else { Duration::MAX }
    }

    /// Does what is asked, if anything is. A run that moves nothing leaves all as it is.
    pub fn poll(&mut self, tree: &mut Tree) {
        let path = self.directory.join(REQUEST);
        if let Ok(file) = read_request(&path) {
            self.answer(serde_json::from_slice(&file).ok(), tree);
            let _ = fs::remove_file(path);
        }
        self.tell();
    }

    fn answer(&mut self, request: Option<Request>, tree: &mut Tree) {
        let names = tier_names(&self.directory);
        let tiers = self.tiers.unwrap_or_else(|| all_of(&names));
        let now = Now { limits: tree.limits(), model: model_of(&self.about), tiers };
        let Some(after) = request.and_then(|request| request.after(now, &names)) else { return };
        if self.about.limited && after.limits != now.limits {
            tree.set(after.limits);
            self.about.dram = after.limits.dram.to_string();
            self.about.slowdown = after.limits.slowdown.as_ref().map(Target::to_string);
        }
        if after.model != now.model {
            self.model = after.model;
            self.told.clear();
            self.about.model =
                after.model.map(|(knob, window)| (knob.to_string(), window.to_string()));
        }
        if after.tiers != now.tiers {
            self.tiers = Some(after.tiers);
            self.told.clear();
            self.about.tiers_now = Some(listed(after.tiers, &names));
        }
        if after != now {
            self.tell();
            directory::describe(&self.directory, &self.about);
        }
    }

    /// Tells each process the knob, the window and the tiers that hold now, once: a new one too.
    fn tell(&mut self) {
        if self.model.is_none() && self.tiers.is_none() {
            return;
        }
        for page in statistics::page_files(&self.directory) {
            // One that is being made is told at the next poll.
            if !self.told.contains(&page.name)
                && statistics::tier_names(&page).is_some()
                && self.write_page(&page.path).is_ok()
            {
                self.told.insert(page.name);
            }
        }
    }

    fn write_page(&self, page: &Path) -> io::Result<()> {
        if let Some((knob, window)) = self.model {
            statistics::write_model(page, knob, window)?;
        }
        self.tiers.map_or(Ok(()), |tiers| statistics::write_tiers(page, tiers))
    }
}

fn read_request(path: &Path) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    File::options()
        .read(true)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
        .open(path)?
        .take(REQUEST_BYTES)
        .read_to_end(&mut text)?;
    Ok(text)
}

/// Changes the limits of a run; the exit status is 0 where they hold now.
pub fn run(arguments: &SetArguments) -> Result<u8> {
    ensure!(
        arguments.slowdown != Some(Wanted::Auto),
        "--slowdown takes a share such as 2%, or off: `auto` is for the start of a run"
    );
    let request = Request {
        dram: arguments.dram.map(|dram| dram.to_string()),
        slowdown: arguments.slowdown.map(|slowdown| slowdown.to_string()),
        knob: arguments.knob.map(|knob| knob.to_string()),
        window: arguments.window.map(|window| window.to_string()),
        tiers: arguments.tiers.clone(),
    };
    if let Some(dram) = arguments.dram {
        budget::refuse_bare_number(dram)?;
        budget::warning(dram).iter().for_each(|warning| say(warning));
    }
    let run = match find(arguments.pid)? {
        Managed::Run(run) => run,
        Managed::Attached(pid) => return attach::set(pid, arguments),
    };
    let names = tier_names(&run.path);
    let before = changeable(&run, arguments, &names)?;
    let wanted = request.after(before, &names).context("these limits cannot be written")?;
    if wanted == before {
        say(&format!("{}: {} already", command(&run), told(before, arguments, &names)));
        return Ok(0);
    }
    ask(&run.path, &serde_json::to_vec(&request)?)?;
    let now = directory::about(&run.path).as_ref().and_then(|about| now_of(about, &names));
    ensure!(
        now == Some(wanted),
        "{} did not take it; `terrace status` shows what holds",
        command(&run)
    );
    let (after, before) = (told(wanted, arguments, &names), told(before, arguments, &names));
    say(&format!("{}: {after}, before {before}", command(&run)));
    Ok(0)
}

/// What has the limits of a process.
enum Managed {
    /// A run that it belongs to.
    Run(Box<LiveRun>),
    /// The process was attached to: its keeper, by the process's id.
    Attached(i32),
}

/// What has the limits of a process, by the run that it belongs to. A process without a page (a
/// companion, what the library cannot come into) is known by its environment.
fn find(pid: u32) -> Result<Managed> {
    let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    let prefix = format!("{RUN_DIR_VARIABLE}=");
    let directory = environment
        .split(|byte| *byte == 0)
        .find_map(|variable| variable.strip_prefix(prefix.as_bytes()));
    let is_of = |run: &LiveRun| {
        run.about.as_ref().and_then(|about| about.supervisor) == Some(pid)
            || statistics::newest_pages(&run.path).contains_key(&pid) && may_hold(&run.path, pid)
            || directory == Some(run.path.as_os_str().as_bytes())
    };
    let (runs, others) = directory::live();
    if let Some(run) = runs.into_iter().find(is_of) {
        return Ok(Managed::Run(Box::new(run)));
    }
    let attached = i32::try_from(pid).ok();
    if let Some(pid) = attached.filter(|pid| terrace_attach::attached().contains(pid)) {
        return Ok(Managed::Attached(pid));
    }
    let others = match others {
        0 => String::new(),
        _ => format!("; {others} more are other users', which only they and root can change"),
    };
    bail!("no run here has a process {pid}: `terrace status` lists them{others}")
}

/// Whether a page in this directory may be the process's. Its names are what its owner wrote, so
/// the owner must be root or the process's own user.
fn may_hold(directory: &Path, pid: u32) -> bool {
    let owner = |path: &Path| path.symlink_metadata().map(|about| about.uid()).ok();
    let whose = owner(directory);
    whose == Some(0) || whose.is_some() && whose == owner(Path::new(&format!("/proc/{pid}")))
}

/// What holds in a run, if what is asked for can be changed there.
fn changeable(run: &LiveRun, asked: &SetArguments, names: &[String]) -> Result<Now> {
    let pid = asked.pid;
    ensure!(
        run.supervised,
        "the `terrace run` of process {pid} was killed, so its limits stay as they are until the \
         program ends"
    );
    let about = run.about.as_ref().with_context(|| {
        format!("the run of process {pid} says nothing of itself: another version's?")
    })?;
    ensure!(
        !about.observe,
        "the run of process {pid} moves nothing (--observe): start it again without --observe"
    );
    let now = now_of(about, names).context("its limits cannot be read: another version's?")?;
    ensure!(
        now.model.is_some() || asked.knob.is_none() && asked.window.is_none(),
        "no model places regions in the run of process {pid}, so it has no knob and no window: \
         start it again with --knob A"
    );
    let (what, alone) = match now.model {
        Some(_) => ("", "its model alone moves pages"),
        None => (", or its program could not be managed", "nothing in it moves pages"),
    };
    ensure!(
        about.limited || asked.dram.is_none() && asked.slowdown.is_none(),
        "the run of process {pid} was started without a limit{what}, so {alone}: start it again with \
         --dram SIZE or --slowdown PCT"
    );
    if let Some(list) = &asked.tiers {
        ensure!(
            about.limited || now.model.is_some(),
            "nothing in the run of process {pid} moves pages, so tiers have no effect: start it \
             again with --dram SIZE or --slowdown PCT"
        );
        ensure!(
            names.len() > 1,
            "no process of the run of {pid} has tiers yet: try again when one moves pages"
        );
        chosen(list, names)?;
    }
    Ok(now)
}

fn now_of(about: &About, names: &[String]) -> Option<Now> {
    let slowdown = about.slowdown.as_ref().map(|target| target.parse()).transpose().ok()?;
    let limits = Limits { dram: about.dram.parse().ok()?, slowdown };
    // While no process has a page, nothing is known of them.
    let list = about.tiers_now.as_ref().filter(|_| names.len() > 1);
    let tiers = list.map_or(Ok(all_of(names)), |list| chosen(list, names));
    Some(Now { limits, model: model_of(about), tiers: tiers.ok()? })
}

fn model_of(about: &About) -> Option<(Knob, Window)> {
    let (knob, window) = about.model.as_ref()?;
    Some((knob.parse().ok()?, window.parse().ok()?))
}

fn command(run: &LiveRun) -> String {
    let command = run.about.as_ref().map_or(String::new(), |about| about.command.join(" "));
    plain(&command)
}

/// What holds, of what is asked about: limits, tiers, the model's settings.
fn told(now: Now, asked: &SetArguments, names: &[String]) -> String {
    let mut parts = Vec::new();
    if asked.dram.is_some() || asked.slowdown.is_some() {
        let slowdown = now.limits.slowdown.map_or("off".into(), |target| target.to_string());
        parts.push(format!("--dram {} --slowdown {slowdown}", budget::shown(now.limits.dram)));
    }
    if let Some((knob, window)) =
        now.model.filter(|_| asked.knob.is_some() || asked.window.is_some())
    {
        parts.push(format!("--knob {knob} --window {window}"));
    }
    if asked.tiers.is_some() {
        parts.push(format!("--tiers {}", listed(now.tiers, names)));
    }
    parts.join(" ")
}

/// Puts a request into a run's directory, and waits until it is taken.
fn ask(directory: &Path, text: &[u8]) -> Result<()> {
    // A directory that is replaced meanwhile is not gone into.
    let place = File::options()
        .read(true)
        .custom_flags(libc::O_DIRECTORY | libc::O_NOFOLLOW)
        .open(directory)
        .context("the run has just ended")?;
    let owner = place.metadata()?;
    let directory = PathBuf::from(format!("/proc/self/fd/{}", place.as_raw_fd()));
    let (hidden, request) =
        (directory.join(format!(".set.{}", std::process::id())), directory.join(REQUEST));
    let deadline = Instant::now() + ANSWER_WITHIN;
    let mut file = File::options()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&hidden)
        .context("nothing can be asked of the run")?;
    let asked = fchown(&file, Some(owner.uid()), Some(owner.gid()))
        .and_then(|()| file.write_all(text))
        .and_then(|()| put(&hidden, &request, deadline));
    let _ = fs::remove_file(&hidden);
    asked.context("nothing can be asked of the run")?;
    while request.symlink_metadata().is_ok() {
        if Instant::now() >= deadline {
            let _ = fs::remove_file(&request);
            bail!(
                "the run did not answer within {} s, and nothing was changed: is its `terrace run` \
                 stopped?",
                ANSWER_WITHIN.as_secs()
            );
        }
        std::thread::sleep(POLL_INTERVAL);
    }
    Ok(())
}

/// Gives a file its second name, once no other request has that.
fn put(file: &Path, name: &Path, deadline: Instant) -> io::Result<()> {
    loop {
        match fs::hard_link(file, name) {
            Err(error)
                if error.kind() == io::ErrorKind::AlreadyExists && Instant::now() < deadline =>
            {
                std::thread::sleep(POLL_INTERVAL);
            }
            done => return done,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_said_stays() {
        let now = Limits { dram: Dram::Share(0.6), slowdown: Some(Target(0.02)) };
        let after = |dram: Option<&str>, slowdown: Option<&str>| {
            let (dram, slowdown) = (dram.map(str::to_owned), slowdown.map(str::to_owned));
            let request = Request { dram, slowdown, knob: None, window: None, tiers: None };
            request.after(Now { limits: now, model: None, tiers: 1 }, &[]).map(|after| after.limits)
        };
        assert_eq!(after(None, None), Some(now));
        assert_eq!(after(Some("2G"), None), Some(Limits { dram: Dram::Bytes(2 << 30), ..now }));
        assert_eq!(after(None, Some("off")), Some(Limits { slowdown: None, ..now }));
        assert_eq!(
            after(Some("unlimited"), Some("5%")),
            Some(Limits { dram: Dram::Unlimited, slowdown: Some(Target(0.05)) })
        );
        for (dram, slowdown) in [(Some("much"), None), (None, Some("auto")), (None, Some("-1"))] {
            assert_eq!(after(dram, slowdown), None, "{dram:?} {slowdown:?}");
        }
    }

    #[test]
    fn a_tier_is_known_by_a_name_that_the_page_has_no_room_for() {
        let long = format!("zstd@file:/srv/{}", "directory/".repeat(8));
        let names = vec!["dram".to_owned(), "lz4".to_owned(), long[..TIER_NAME_BYTES].to_owned()];
        assert_eq!(chosen(&format!("dram,{long}"), &names).unwrap(), 0b101);
        assert!(chosen("dram,zstd@file:/srv/other", &names).is_err());
    }

    #[test]
    fn a_list_of_tiers_is_some_of_the_runs() {
        let names = ["dram", "lz4", "zstd", "node:1"].map(str::to_owned);
        let of = |list| chosen(list, &names);
        assert_eq!(of("dram,zstd,node:1").ok(), Some(0b1101));
        assert_eq!(listed(0b1101, &names), "dram,zstd,node:1");
        assert_eq!(all_of(&names), 0b1111);
        for (list, why) in [
            ("dram,lzo,node:1", "is none of the run's tiers"),
            ("lz4,node:1", "cannot be left out"),
            ("dram", "nothing could be moved"),
            ("dram,lz4", "node:1 cannot be left out"),
        ] {
            assert!(of(list).is_err_and(|error| error.to_string().contains(why)), "{list}");
        }
    }

    #[test]
    fn a_model_has_a_knob_and_a_window() {
        let after = |model, knob: Option<&str>, window: Option<&str>| {
            let (knob, window) = (knob.map(str::to_owned), window.map(str::to_owned));
            let limits = Limits { dram: Dram::Unlimited, slowdown: None };
            let request = Request { dram: None, slowdown: None, knob, window, tiers: None };
            request.after(Now { limits, model, tiers: 1 }, &[]).map(|after| after.model)
        };
        let model = Some((Knob(0.5), Window(5_000)));
        assert_eq!(after(model, None, None), Some(model));
        assert_eq!(after(model, Some("0.9"), None), Some(Some((Knob(0.9), Window(5_000)))));
        assert_eq!(after(model, None, Some("1s")), Some(Some((Knob(0.5), Window(1_000)))));
        assert_eq!(after(None, None, None), Some(None));
        assert_eq!(after(None, Some("0.9"), None), None, "no model has it");
        assert_eq!(after(model, Some("2"), None), None);
    }
}
