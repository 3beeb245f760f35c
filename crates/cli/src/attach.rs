//! `terrace attach` and `terrace detach`: processes that already run.

use crate::set::args::SetArguments;
use anyhow::{Result, anyhow, bail};
use clap::Args;
use std::path::PathBuf;
use terrace_attach::{Budget, Limit, Sample};
use terrace_control::settings::Dram;
use terrace_policy::slowdown::{self, Slowdown, Wanted};
use terrace_tiers::{CodecKind, MediumKind, TierKind, parse_tiers};

/// Printed below the options of `--help`.
pub const HELP: &str = "\
One thread of the process stands still for a millisecond or two. Nothing is preloaded, no allocator is replaced. A process
beside it, in its memory, moves pages on request; `terrace-keeper` outside compresses and restores them until `terrace detach`.
Needs root, Linux 6.8 and a 64-bit x86 program; who cannot be attached to is told why, and nothing is changed.

Examples:
  terrace attach $(pidof exporter) --dram 200M
  terrace attach $(pidof java) --slowdown 2% --tiers dram,zstd --report java.json
  terrace attach --outside $(pidof postgres) --dram 1G
  terrace attach --outside $(pidof postgres) --dram 1G --tiers dram,node:1
  terrace status
  terrace detach $(pidof exporter)";

/// `terrace attach`.
#[derive(Args, Debug)]
#[command(group = clap::ArgGroup::new("whom").required(true).args(["pids", "cgroup"]))]
pub struct AttachArguments {
    /// Processes
    #[arg(value_name = "PID", value_parser = clap::value_parser!(i32).range(1..))]
    pub pids: Vec<i32>,
    /// DRAM that each may take together with the children that it makes from now on, compressed
    /// pages included: 200M, 4G, or 60% of its most data
    #[arg(long, value_name = "SIZE|PCT", allow_hyphen_values = true)]
    pub dram: Option<Dram>,
    /// Take what costs no more of the program's time than this, such as 2%: the default is 2%
    /// without --dram
    #[arg(long, value_name = "PCT|off")]
    pub slowdown: Option<Wanted>,
    /// Where pages go: dram and one tier of compressed pages, such as zstd
    #[arg(long, value_name = "LIST", default_value = "dram,lz4")]
    pub tiers: String,
    /// Write the figures of a process to this file, as JSON, when it ends or is detached from
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
    /// Stop and enter nothing: the kernel's swap takes the pages, on request (MADV_PAGEOUT), or a
    /// node of --tiers, such as dram,node:1 (move_pages)
    #[arg(long)]
    pub outside: bool,
    /// With --outside: all processes of this control group, a directory; --dram is for all of them
    #[arg(long, value_name = "PATH", requires = "outside")]
    pub cgroup: Option<PathBuf>,
    /// The descriptor of what the processes of a family know of each other
    #[arg(long, hide = true)]
    pub family: Option<i32>,
}

/// `terrace detach`.
#[derive(Args, Debug)]
pub struct DetachArguments {
    /// Processes
    #[arg(value_name = "PID", required = true, value_parser = clap::value_parser!(i32).range(1..))]
    pub pids: Vec<i32>,
}

/// Attaches to each process; the exit status is 0 if all could be attached to.
pub fn attach(arguments: &AttachArguments) -> Result<u8> {
    let (codec, tier, node) = match arguments.outside {
        true => outside_tier(&arguments.tiers)?,
        false => tier(&arguments.tiers).map(|(codec, tier)| (codec, tier, None))?,
    };
    if node.is_some() && arguments.dram.is_none() {
        bail!("--tiers {tier} needs --dram: what a page on a node costs is not told from outside");
    }
    let report = arguments.report.as_ref().map(std::path::absolute).transpose()?;
    if report.is_some() && arguments.pids.len() != 1 {
        bail!("--report takes the figures of one process: attach to the others by themselves");
    }
    crate::run::budget::refuse_bare_number(arguments.dram.unwrap_or(Dram::Unlimited))?;
    let limit = || Limit {
        budget: budget(arguments.dram, arguments.slowdown),
        make: parsed,
        tiers: arguments.tiers.clone(),
        family: arguments.family,
        codec,
        node,
        tier: tier.clone(),
        report: report.clone(),
    };
    if let Some(group) = &arguments.cgroup {
        crate::say(&terrace_attach::attach_group(group, limit())?);
        return Ok(0);
    }
    each(&arguments.pids, |pid| match arguments.outside {
        true => terrace_attach::attach_outside(pid, limit()),
        false => terrace_attach::attach(pid, limit()),
    })
}

/// The codec that compresses pages in a list of tiers, and the tier's name.
pub fn tier(list: &str) -> Result<(CodecKind, String)> {
    let tiers = parse_tiers(list)?;
    let mut compressed = tiers.iter().filter(|tier| tier.kind != TierKind::Dram);
    match (compressed.next(), compressed.next()) {
        (Some(tier), None) => match &tier.kind {
            TierKind::Compressed { codec, medium: MediumKind::Dram, .. } => {
                Ok((*codec, tier.name.clone()))
            }
            _ => bail!(
                "`{}` is no tier of an attached process: those are compressed pages in DRAM; \
                 --outside takes the kernel's swap, or a node",
                tier.name
            ),
        },
        _ => bail!("--tiers {list}: an attached process has dram and one tier more"),
    }
}

/// Where pages go that are moved from outside: a node of the list, or the kernel's swap.
fn outside_tier(list: &str) -> Result<(CodecKind, String, Option<u32>)> {
    let tiers = parse_tiers(list)?;
    let below: Vec<_> = tiers.iter().filter(|tier| tier.kind != TierKind::Dram).collect();
    if let [tier] = below[..] {
        match &tier.kind {
            TierKind::Node { node } => {
                return Ok((CodecKind::Lz4, tier.name.clone(), Some(*node)));
            }
            // The default list says nothing of swap.
            TierKind::Swap | TierKind::Compressed { medium: MediumKind::Dram, .. } => {
                return Ok((CodecKind::Lz4, "swap".into(), None));
            }
            _ => {}
        }
    }
    bail!(
        "--tiers {list}: with --outside pages go to the kernel's swap, or to a node (dram,node:1)"
    )
}

/// What a process that is attached to may take, from values as the command line has them.
fn parsed(dram: Option<&str>, slowdown: Option<&str>) -> Result<Budget> {
    let dram = dram.map(str::parse).transpose().map_err(|error| anyhow!("--dram: {error}"))?;
    let slowdown = slowdown.map(str::parse).transpose().map_err(anyhow::Error::msg)?;
    Ok(budget(dram, slowdown))
}

fn budget(dram: Option<Dram>, slowdown: Option<Wanted>) -> Budget {
    let target = slowdown.unwrap_or(Wanted::Auto).target(dram.is_some());
    let words = [
        dram.map(|dram| format!("--dram {}", crate::run::budget::shown(dram))),
        target.map(|target| format!("--slowdown {target}")),
    ];
    let budget = Budget {
        text: words.into_iter().flatten().collect::<Vec<_>>().join(" "),
        dram: dram.map(|dram| dram.to_string()),
        slowdown: slowdown.map(|slowdown| slowdown.to_string()),
        dram_bytes: match dram {
            Some(Dram::Bytes(bytes)) => Some(bytes),
            _ => None,
        },
        follow: None,
    };
    let share = dram.filter(|dram| matches!(dram, Dram::Share(_)));
    if share.is_none() && target.is_none() {
        return budget;
    }
    let (mut slowdown, mut most) = (target.map(Slowdown::new), 0);
    let follow = move |sample: Sample| {
        most = most.max(sample.data);
        let Sample { now_s, data, physical, waited_s } = sample;
        let sample = slowdown::Sample { now_s, most, data, physical, lost_s: waited_s };
        let by_loss = slowdown.as_mut().map_or(u64::MAX, |slowdown| slowdown.limit(sample, LEAST));
        share.map_or(by_loss, |share| share.budget_bytes(most).min(by_loss))
    };
    Budget { follow: Some(Box::new(follow)), ..budget }
}

/// Least limit that a slowdown sets for a process, bytes.
const LEAST: u64 = 1 << 20;

/// Detaches from each process; the exit status is 0 if all could be detached from.
pub fn detach(arguments: &DetachArguments) -> Result<u8> {
    each(&arguments.pids, |pid| {
        Ok(match terrace_attach::detach(pid)? {
            Some(ms) => format!("detached from {pid}: everything was back after {ms} ms"),
            None => {
                format!("detached from {pid}: what the kernel has moved comes back as it is used")
            }
        })
    })
}

/// Has a process that was attached to keep to another limit; the exit status.
pub fn set(pid: i32, arguments: &SetArguments) -> Result<u8> {
    if arguments.tiers.is_some() || arguments.knob.is_some() || arguments.window.is_some() {
        bail!(
            "{pid} was attached to: --dram and --slowdown can be changed; others take `terrace detach \
             {pid}` and attaching again"
        );
    }
    let dram = arguments.dram.map(|dram| dram.to_string());
    let slowdown = arguments.slowdown.map(|slowdown| slowdown.to_string());
    let said = terrace_attach::set(pid, dram.as_deref(), slowdown.as_deref())?;
    crate::say(&format!("{pid}: {said}"));
    Ok(0)
}

/// How the processes stand that were attached to, as far as this user may ask.
pub fn figures() -> Vec<terrace_attach::AttachedStats> {
    let pids = terrace_attach::attached().into_iter();
    pids.filter_map(|pid| terrace_attach::status(pid).ok()).collect()
}

fn each(pids: &[i32], act: impl Fn(i32) -> Result<String>) -> Result<u8> {
    let mut status = 0;
    for pid in pids {
        match act(*pid) {
            Ok(text) => crate::say(&text),
            Err(error) => {
                crate::say(&format!("{error:#}"));
                status = crate::OUR_FAULT;
            }
        }
    }
    Ok(status)
}
