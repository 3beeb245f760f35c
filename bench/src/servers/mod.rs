//! memcached and redis-server within less memory than they would take. They run under Terrace, and
//! in a memory control group over one of the kernel's compressed swaps, at equal memory.
//!
//! One repeat:
//!
//! 1. The server starts in a group without limit over an empty swap, is filled, and is measured.
//! 2. For each share of what it took, a fresh server is filled in a group, whose limit is then
//!    lowered to that share, by steps. T is what group and swap take together while the server is
//!    measured.
//! 3. For each share, a fresh server under `terrace run --dram T` is filled and measured. It is
//!    over a new swap of the same kind, if Terrace is told to use one.
//!
//! Repeats follow one another, so both sides see the same machine. The server and all its threads
//! have CPU 0, the client and the benchmark CPU 1.

mod curve;
pub mod group;
pub mod idle;
pub mod measure;
pub mod peer;
pub mod process;
pub mod server;
mod table;

pub use server::pin;

use crate::interrupt;
use crate::results;
use anyhow::{Context, bail};
use clap::Args;
use measure::{Amount, Data, ITEM_OVERHEAD_BYTES, Load, Sample, Timing};
use peer::Peer;
use serde_json::{Value, json};
use server::{Running, Server};
use std::time::Duration;

/// What is measured. Lists are separated by commas.
#[derive(Args, Clone)]
pub struct Options {
    /// Servers
    #[arg(long, value_delimiter = ',', default_value = "memcached,redis")]
    servers: Vec<Server>,
    /// Against what: zram:lz4, zram:lzo-rle, zswap [default: zram:lz4; with --full all]
    #[arg(long, value_delimiter = ',')]
    against: Option<Vec<Peer>>,
    /// Bytes of a value [default: 1000; with --full 1000,100]
    #[arg(long, value_delimiter = ',')]
    value_bytes: Option<Vec<usize>>,
    /// Percent of the unlimited size that the peer is limited to [default: 50; with --full
    /// 80,50,30]
    #[arg(long, value_delimiter = ',', value_parser = clap::value_parser!(u32).range(5..=100))]
    resident: Option<Vec<u32>>,
    /// GETs of 100 operations; the others are SETs [default: 100; with --full 100,90]
    #[arg(long, value_delimiter = ',', value_parser = clap::value_parser!(u32).range(0..=100))]
    get_share: Option<Vec<u32>>,
    /// Connections [default: 32; with --full 1,32]
    #[arg(long, value_delimiter = ',')]
    connections: Option<Vec<usize>>,
    /// Requests on the way on each [default: 1; with --full 1,16]
    #[arg(long, value_delimiter = ',')]
    depth: Option<Vec<usize>>,
    /// Items [default: as many as make 400 MiB; with --full 2 GiB]
    #[arg(long)]
    items: Option<u64>,
    /// Interleaved repeats. One that fails (the kernel may end the peer for want of memory) counts
    /// for neither side and is made again, as often as this in all
    #[arg(long, default_value_t = 5)]
    repeats: usize,
    /// Seconds of each measurement
    #[arg(long, default_value_t = 5.0)]
    seconds: f64,
    /// Operations for each item before the first measurement within a limit: until what is in
    /// memory is what the load wants there
    #[arg(long, default_value_t = 2.0)]
    warm_up: f64,
    /// Everything that was promised to be compared: some hours
    #[arg(long)]
    full: bool,
    /// Throughput and p99 against memory, from 100 to 30 %, as one SVG for each server in
    /// bench/results/
    #[arg(long)]
    curve: bool,
    /// More flags for `terrace run`, separated by spaces
    #[arg(long, default_value = "", allow_hyphen_values = true)]
    terrace_flags: String,
}

/// Options with nothing left open.
struct Plan {
    /// Peers, and the name of what each compresses with here.
    against: Vec<(Peer, &'static str)>,
    value_bytes: Vec<usize>,
    resident: Vec<u32>,
    loads: Vec<Load>,
}

/// Share of a server without a limit, percent.
const UNLIMITED: u32 = 100;
const CLIENT_CPU: usize = 1;
/// Warm-up of a further load, s: the first load has warmed up the server.
const SAME_LOAD_S: f64 = 1.0;
/// Wait after filling, so that memory is what it will be.
const SETTLE: Duration = Duration::from_millis(500);

/// All samples of one configuration.
#[derive(Clone)]
pub struct Cell {
    pub resident: u32,
    pub load: Load,
    pub unlimited: Vec<Sample>,
    pub peer: Vec<Sample>,
    pub terrace: Vec<Sample>,
}

/// A server with one size of values, against one peer.
pub struct Comparison {
    pub data: Data,
    pub against: Peer,
    pub compressor: &'static str,
    pub version: String,
    pub cells: Vec<Cell>,
    pub failures: Vec<String>,
    /// What Terrace's group takes beyond what the budget is about: page tables, sockets, texts,
    /// memory that is not managed. Bytes, once known.
    pub beside: Option<u64>,
}

impl Options {
    fn plan(&self) -> anyhow::Result<Plan> {
        fn list<T: Clone>(given: &Option<Vec<T>>, full: bool, all: &[T], few: &[T]) -> Vec<T> {
            given.clone().unwrap_or_else(|| if full { all } else { few }.to_vec())
        }
        let full = self.full;
        let mut resident = list(&self.resident, full, &[80, 50, 30], &[50]);
        if self.curve && self.resident.is_none() {
            resident = vec![100, 90, 80, 70, 60, 50, 40, 30];
        }
        // The limit only goes down.
        resident.sort_by_key(|percent| std::cmp::Reverse(*percent));
        resident.dedup();
        let mut loads = Vec::new();
        for get_percent in list(&self.get_share, full, &[100, 90], &[100]) {
            for connections in list(&self.connections, full, &[1, 32], &[32]) {
                for depth in list(&self.depth, full, &[1, 16], &[1]) {
                    loads.push(Load { get_percent, connections, depth });
                }
            }
        }
        // What writes comes last: it changes what the server holds.
        loads.sort_by_key(|load| std::cmp::Reverse(load.get_percent));
        let mut against: Vec<(Peer, &'static str)> = Vec::new();
        let known = [Peer::Zram("lz4"), Peer::Zram("lzo-rle"), Peer::Zswap];
        for peer in list(&self.against, full, &known, &known[..1]) {
            match peer.swap_on(64 << 20) {
                Ok(swap) => against.push((peer, swap.compressor())),
                Err(error) => println!("left out: {peer}: {error:#}"),
            }
        }
        if against.is_empty()
            || self.repeats == 0
            || self.servers.is_empty()
            || resident.is_empty()
            || loads.is_empty()
        {
            bail!("nothing to measure is left");
        }
        Ok(Plan {
            against,
            value_bytes: list(&self.value_bytes, full, &[1000, 100], &[1000]),
            resident,
            loads,
        })
    }

    /// Whether Terrace is told to use the kernel's swap.
    fn swaps(&self) -> bool {
        let mut words = self.terrace_flags.split([' ', '=']).skip_while(|word| *word != "--tiers");
        words
            .nth(1)
            .is_some_and(|list| list.split(',').any(|tier| tier == "swap" || tier == "auto"))
    }

    fn items(&self, value_bytes: usize) -> u64 {
        let target = if self.full { 2 << 30 } else { 400 << 20 };
        self.items.unwrap_or(target / (value_bytes as u64 + ITEM_OVERHEAD_BYTES))
    }
}

impl Comparison {
    /// Makes a measurement of this repeat. `resident` and `load` settle the accesses, so that both
    /// sides have the same.
    fn sample(
        &self,
        options: &Options,
        plan: &Plan,
        running: &mut Running,
        swap: Option<&peer::Swap>,
        resident: u32,
        load: Load,
    ) -> anyhow::Result<Sample> {
        let number =
            plan.loads.iter().position(|other| *other == load).expect("it is one of the plan's");
        let order = u64::from(resident) * plan.loads.len() as u64 + number as u64;
        let warm_up = if number == 0 && resident < UNLIMITED {
            Amount::Operations((options.warm_up * self.data.items as f64) as u64)
        } else {
            Amount::Seconds(SAME_LOAD_S)
        };
        measure::sample(
            running,
            self.data,
            swap,
            load,
            Timing { warm_up, seconds: options.seconds, order },
        )
    }

    /// Measures the peer's side of one repeat. Returns the memory it took at each share: T.
    fn peer_side(&mut self, options: &Options, plan: &Plan) -> anyhow::Result<Vec<(u32, u64)>> {
        self.peer_at(options, plan, UNLIMITED)?;
        let mut totals = Vec::new();
        for resident in &plan.resident {
            if *resident < UNLIMITED {
                self.peer_at(options, plan, *resident)
                    .with_context(|| format!("at {resident} %"))?;
            }
            let means: Vec<f64> = plan
                .loads
                .iter()
                .filter_map(|load| Some(self.cell(*resident, *load).peer.last()?.memory_mean))
                .collect();
            totals.push((*resident, (means.iter().sum::<f64>() / means.len() as f64) as u64));
        }
        Ok(totals)
    }

    /// Measures the peer at one resident share, with a newly started server as on Terrace's side.
    /// What one load does to memory must not affect the next share.
    fn peer_at(&mut self, options: &Options, plan: &Plan, resident: u32) -> anyhow::Result<()> {
        // The server is ended before the swap goes: nothing has to come back then.
        let swap = self.against.swap_on(2 * self.data.bytes())?;
        let mut running = Running::start(self.data, None)?;
        measure::fill(&mut running, self.data)?;
        interrupt::sleep(SETTLE)?;
        if resident < UNLIMITED {
            let whole = running.group.meter().usage_bytes()?;
            running.lower_limit(whole / 100 * u64::from(resident))?;
        }
        for load in &plan.loads {
            let sample = self.sample(options, plan, &mut running, Some(&swap), resident, *load)?;
            for cell in self.cells.iter_mut().filter(|cell| cell.load == *load) {
                if resident == UNLIMITED {
                    cell.unlimited.push(sample.clone());
                }
                if cell.resident == resident {
                    cell.peer.push(sample.clone());
                }
            }
        }
        Ok(())
    }

    /// Measures Terrace's side at one share.
    fn terrace_side(
        &mut self,
        options: &Options,
        plan: &Plan,
        resident: u32,
        total: u64,
    ) -> anyhow::Result<()> {
        // As new as the peer's was, and counted as the peer's.
        let make_swap =
            || options.swaps().then(|| self.against.swap_on(2 * self.data.bytes())).transpose();
        let beside = match self.beside {
            Some(beside) => beside,
            None => {
                let mut beside = u64::MAX;
                // The less of two: the group that reads a program's file first is charged for it.
                for _ in 0..2 {
                    let swap = make_swap()?;
                    let mut running = self.start_filled(options, total)?;
                    // Filling takes more of the kernel's memory than what is measured.
                    self.sample(
                        options,
                        plan,
                        &mut running,
                        swap.as_ref(),
                        resident,
                        plan.loads[0],
                    )?;
                    let physical =
                        running.page.as_ref().context("it is under Terrace")?.physical_bytes()?;
                    let swapped = swap.as_ref().map_or(Ok(0), peer::Swap::used_bytes)?;
                    beside = beside.min(
                        (running.group.meter().usage_bytes()? + swapped).saturating_sub(physical),
                    );
                }
                beside
            }
        };
        let swap = make_swap()?;
        self.beside = Some(beside);
        let mut running = self.start_filled(options, total.saturating_sub(beside))?;
        for load in &plan.loads {
            let sample =
                self.sample(options, plan, &mut running, swap.as_ref(), resident, *load)?;
            self.cell(resident, *load).terrace.push(sample);
        }
        Ok(())
    }

    /// Starts the server under Terrace with this budget, and fills it with its data.
    fn start_filled(&self, options: &Options, budget: u64) -> anyhow::Result<Running> {
        let mut flags = vec!["--dram".to_owned(), format!("{}K", budget / 1024)];
        flags.extend(options.terrace_flags.split_whitespace().map(str::to_owned));
        let mut running = Running::start(self.data, Some(&flags))?;
        measure::fill(&mut running, self.data)?;
        interrupt::sleep(SETTLE)?;
        running.page.as_ref().context("it is under Terrace")?.expect_managed()?;
        Ok(running)
    }

    fn cell(&mut self, resident: u32, load: Load) -> &mut Cell {
        self.cells
            .iter_mut()
            .find(|cell| cell.resident == resident && cell.load == load)
            .expect("every combination has one")
    }

    /// Number of repeats that both sides got through: all cells have one sample of each.
    fn repeats(&self) -> usize {
        self.cells.first().map_or(0, |cell| cell.terrace.len())
    }

    fn repeat(&mut self, options: &Options, plan: &Plan) -> anyhow::Result<()> {
        let totals = self.peer_side(options, plan).with_context(|| self.against.to_string())?;
        for (resident, total) in totals {
            self.terrace_side(options, plan, resident, total)
                .with_context(|| format!("Terrace at {resident} %"))?;
        }
        Ok(())
    }

    fn json(&self) -> Value {
        json!({
            "server": self.data.server.name(), "server_version": self.version,
            "items": self.data.items,
            "value_bytes": self.data.value_bytes, "against": self.against.to_string(),
            "compressor": self.compressor,
            "failures": self.failures, "beside_bytes": self.beside,
            "cells": self.cells.iter().map(table::json).collect::<Vec<_>>(),
        })
    }
}

/// Runs the benchmark: measures, prints, writes.
pub fn run(options: &Options) -> anyhow::Result<()> {
    interrupt::watch()?;
    server::pin(CLIENT_CPU)
        .context("two CPUs are needed: one for the server, one for the client")?;
    let plan = options.plan()?;
    let mut comparisons: Vec<Comparison> = Vec::new();
    let mut outcome = Ok(());
    'all: for server in &options.servers {
        let version = server.version()?;
        for value_bytes in &plan.value_bytes {
            for (against, compressor) in &plan.against {
                let data = Data {
                    server: *server,
                    items: options.items(*value_bytes),
                    value_bytes: *value_bytes,
                };
                let cells = plan
                    .resident
                    .iter()
                    .flat_map(|resident| plan.loads.iter().map(|load| Cell::new(*resident, *load)))
                    .collect();
                let mut comparison = Comparison {
                    data,
                    against: *against,
                    compressor,
                    version: version.clone(),
                    cells,
                    failures: Vec::new(),
                    beside: None,
                };
                while comparison.repeats() < options.repeats
                    && comparison.failures.len() <= options.repeats
                {
                    let repeat = comparison.repeats() + 1;
                    // Shows the progress; the figures come on standard output.
                    eprintln!(
                        "{} of {} bytes against {against}: repeat {repeat} of {}",
                        server.name(),
                        value_bytes,
                        options.repeats
                    );
                    let before = comparison.cells.clone();
                    if let Err(error) = comparison.repeat(options, &plan) {
                        let failure = format!("{}, repeat {repeat}: {error:#}", server.name());
                        println!("{failure}");
                        comparison.failures.push(failure);
                        comparison.cells = before;
                    }
                    if interrupt::came() {
                        outcome = Err(anyhow::anyhow!("interrupted"));
                        break;
                    }
                }
                if comparison.cells.iter().any(|cell| !cell.terrace.is_empty()) {
                    table::print(&comparison, options.repeats);
                }
                comparisons.push(comparison);
                if outcome.is_err() {
                    break 'all;
                }
            }
        }
    }
    // What was interrupted early takes nothing earlier's place.
    if comparisons
        .iter()
        .all(|comparison| comparison.cells.iter().all(|cell| cell.terrace.is_empty()))
    {
        return outcome.and(Err(anyhow::anyhow!("nothing could be compared: see above")));
    }
    let figures = json!({
        "repeats": options.repeats, "seconds": options.seconds,
        "warm_up_operations_per_item": options.warm_up, "terrace_flags": options.terrace_flags,
        "comparisons": comparisons.iter().map(Comparison::json).collect::<Vec<_>>(),
    });
    results::write(if options.curve { "servers-curve" } else { "servers" }, figures)?;
    if options.curve {
        for comparison in &comparisons {
            curve::draw(comparison)?;
        }
    }
    outcome?;
    if comparisons.iter().any(|comparison| comparison.repeats() < options.repeats) {
        bail!("not everything could be measured: see above");
    }
    Ok(())
}

impl Cell {
    fn new(resident: u32, load: Load) -> Cell {
        Cell { resident, load, unlimited: Vec::new(), peer: Vec::new(), terrace: Vec::new() }
    }
}
