//! Policies on accesses, at a smaller scale than the papers'.
//!
//! With a scale of s there are s times as many units and s times as many accesses. Ticks are s
//! times as long, and policies' samples and times are s times theirs. A unit stays what it is: it
//! is moved for what moving 2 MiB costs. So per unit, per tick and per cooling period everything
//! happens as often as at full size. Only sums over all units are smaller. Where objects are small,
//! a page of 4 KiB plays a unit, as otherwise there would be too many of them.

use anyhow::{Context, Result};
use terrace_policy::registry::simulated::{self, Parameters};
use terrace_sim::machine::{Machine, REGION, Slow};
use terrace_sim::pass;
use terrace_sim::simulation::{Outcome, Settings, Simulation};
use terrace_sim::source::{Access, Source, SourceError};

/// Real accesses from one sample to the next: HeMem's, and near what Memtis comes to within its 3 %
/// of a core.
pub const SAMPLE_PERIOD: f64 = 5003.0;
/// Time in ns between the rounds in which a policy moves pages, at full size.
pub const TICK_NS: f64 = 50e6;
const UNITS_A_GB: f64 = (1 << 30) as f64 / REGION as f64;

/// What is simulated, without the policy.
#[derive(Clone, Debug)]
pub struct Memory {
    pub machine: Machine,
    /// Scale of the simulation: units for each unit at full size.
    pub scale: f64,
    pub units: u32,
    /// Real accesses that each access of the stream stands for.
    pub stands_for: f64,
    /// Accesses of the stream.
    pub accesses: u64,
    pub seed: u64,
}

/// A run of one policy.
#[derive(Clone, Debug, PartialEq)]
pub struct Run {
    pub policy: &'static str,
    /// Parameters, as `published` has them.
    pub set: Vec<String>,
    /// Size of the fast tier in GB, at full size.
    pub fast_gb: f64,
    /// Real accesses from one sample to the next.
    pub sample_period: f64,
    /// Cost of a move, as a multiple of what it costs on the machine.
    pub move_cost: f64,
}

impl Run {
    /// A run with the policy's own parameters.
    pub fn of(policy: &'static str, fast_gb: f64) -> Run {
        Run { policy, set: Vec::new(), fast_gb, sample_period: SAMPLE_PERIOD, move_cost: 1.0 }
    }

    /// This run with one parameter of the policy set.
    pub fn with(self, set: String) -> Run {
        Run { set: vec![set], ..self }
    }
}

/// What came of a run.
#[derive(Clone, Debug)]
pub struct Done {
    pub run: Run,
    pub outcome: Outcome,
    /// Time until the program's end, s, at full size.
    pub seconds: f64,
    pub hit_rate: f64,
    /// Moves up and down, at full size.
    pub migrations: f64,
    scale: f64,
    stands_for: f64,
}

/// Parts into which a run is divided, where it is shown over time.
pub const WINDOWS: u64 = 60;

impl Memory {
    /// Units of a tier of `gb` GB at full size.
    pub fn units_of(&self, gb: f64) -> u32 {
        (gb * UNITS_A_GB * self.scale).round() as u32
    }

    /// Accesses of the stream in 50 ms at full size, if all of them were hits.
    pub fn accesses_a_tick(&self) -> f64 {
        TICK_NS * self.scale * f64::from(self.machine.in_flight)
            / self.machine.fast.latency_ns
            / self.stands_for
    }

    fn parameters(&self, run: &Run) -> Result<Parameters> {
        let slow_ns = match self.machine.slow {
            Slow::Memory(slow) => slow.latency_ns,
            Slow::Compressed(compressed) => compressed.fault_ns,
        };
        let sample_ns =
            run.sample_period * self.machine.fast.latency_ns / f64::from(self.machine.in_flight);
        let mut parameters = Parameters {
            unit_bytes: REGION as f64 / self.scale,
            samples: self.scale,
            time: self.scale,
            slowness: slow_ns / self.machine.fast.latency_ns,
            move_samples: self.machine.promotion.ns(REGION as f64) * run.move_cost / sample_ns,
            ..Parameters::default()
        };
        for text in &run.set {
            parameters.set(text)?;
        }
        Ok(parameters)
    }

    fn simulation(&self, run: &Run) -> Result<Simulation> {
        let mut machine = self.machine;
        for cost in [&mut machine.promotion, &mut machine.demotion] {
            (cost.unit_ns, cost.page_ns) =
                (cost.unit_ns * run.move_cost, cost.page_ns * run.move_cost);
        }
        let settings = Settings {
            capacity: self.units_of(run.fast_gb),
            tick_ns: TICK_NS * self.scale,
            stands_for: self.stands_for,
            // At most one an access.
            sample_period: run.sample_period.max(self.stands_for),
            window: (self.accesses / WINDOWS).max(1),
            seed: self.seed,
            ..Settings::new(machine, self.units)
        };
        let policy = simulated::policy(run.policy, &self.parameters(run)?)
            .with_context(|| format!("no policy {}", run.policy))?;
        Ok(Simulation::new(settings, policy))
    }

    /// Runs all policies over one stream.
    pub fn run(&self, source: &mut dyn Source, runs: &[Run]) -> Result<Vec<Done>> {
        let mut simulations =
            runs.iter().map(|run| self.simulation(run)).collect::<Result<Vec<_>>>()?;
        pass::run(source, &mut simulations, &mut |_| ())?;
        let done = |(simulation, run): (Simulation, &Run)| {
            let outcome = simulation.finish();
            Done {
                run: run.clone(),
                seconds: outcome.total.time_ns / 1e9 / self.scale,
                hit_rate: outcome.total.hit_rate(),
                migrations: (outcome.total.promoted + outcome.total.demoted) as f64 / self.scale,
                scale: self.scale,
                stands_for: self.stands_for,
                outcome,
            }
        };
        Ok(simulations.into_iter().zip(runs).map(done).collect())
    }
}

impl Done {
    /// Through the run: seconds at full size at each window's middle, and millions of real accesses
    /// a second in it.
    pub fn rates(&self) -> Vec<(f64, f64)> {
        let mut now = 0.0;
        let windows = self.outcome.windows.iter().take(WINDOWS as usize);
        windows
            .map(|window| {
                let seconds = window.time_ns / 1e9 / self.scale;
                now += seconds;
                (now - seconds / 2.0, window.per_s(self.stands_for) / 1e6)
            })
            .collect()
    }
}

/// Several streams that are wanted again: in memory.
#[derive(Debug)]
pub struct Kept<'a> {
    units: u32,
    rest: &'a [Access],
}

impl<'a> Kept<'a> {
    /// A stream of the accesses `all` to units below `units`.
    pub fn new(units: u32, all: &'a [Access]) -> Kept<'a> {
        Kept { units, rest: all }
    }
}

impl Source for Kept<'_> {
    fn units(&self) -> u32 {
        self.units
    }

    fn accesses(&self) -> Option<u64> {
        Some(self.rest.len() as u64)
    }

    fn next_block(&mut self, block: &mut Vec<Access>) -> Result<(), SourceError> {
        let (now, later) = self.rest.split_at(self.rest.len().min(terrace_sim::source::BLOCK));
        self.rest = later;
        block.clear();
        block.extend_from_slice(now);
        Ok(())
    }
}

/// All of a stream.
pub fn kept(source: &mut dyn Source) -> Result<Vec<Access>> {
    let (mut all, mut block) = (Vec::new(), Vec::new());
    loop {
        source.next_block(&mut block)?;
        if block.is_empty() {
            return Ok(all);
        }
        all.extend_from_slice(&block);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrace_sim::generators::Generator;

    /// Twice the scale is the same at full size: seconds, hits and moves of a policy that learns by
    /// samples.
    #[test]
    fn the_scale_changes_little() {
        let at = |scale: f64| {
            let units = (20.0 * UNITS_A_GB * scale) as u32;
            let accesses = (40e6 * scale) as u64;
            let memory = Memory {
                machine: Machine::preset("optane").unwrap(),
                scale,
                units,
                stands_for: 100.0,
                accesses,
                seed: 1,
            };
            let mut stream = Generator::parse("jump", units, accesses).unwrap().stream(1);
            memory.run(&mut stream, &[Run::of("jenga", 4.0)]).unwrap().remove(0)
        };
        let (small, large) = (at(0.02), at(0.04));
        assert!(
            (small.seconds / large.seconds - 1.0).abs() < 0.1,
            "{} and {} s",
            small.seconds,
            large.seconds
        );
        assert!(
            (small.hit_rate - large.hit_rate).abs() < 0.06,
            "{} and {}",
            small.hit_rate,
            large.hit_rate
        );
        assert!(
            (small.migrations / large.migrations - 1.0).abs() < 0.35,
            "{} and {}",
            small.migrations,
            large.migrations
        );
        assert!(small.migrations > 1000.0);
        assert_eq!(small.rates().len(), WINDOWS as usize);
    }
}
