//! `--placement`: at the end of each window a model says in which tier every region is to be. The
//! mover brings pages there, a slice at a time.
//!
//! The models are those of the simulator ([`terrace_policy::tiering`]). Their data on a region
//! comes from:
//! - samples and faults ([`Heat`]);
//! - the page words (where its pages are, and how many bytes they take there);
//! - a sample of pages that all tiers compress ([`CompressionSample`]).
//!
//! Pages move by the ways that there are: eviction, recompression, and restoring ahead of a fault.
//! What a window has no time for is listed anew by the next plan, from where pages are then.

use crate::evict::compression_sample::CompressionSample;
use crate::evict::{EvictRequest, Evictor, RecompressFilter, accepts, is_refused, note_refusals};
use crate::fault::inline::Cause;
use crate::mover::idle_restore::restore_region;
use crate::pager::Pager;
use crate::pages::table::{Entry, REGION_PAGES};
use crate::pages::word::State;
use std::sync::atomic::Ordering::Relaxed;
use terrace_control::moves::MoveReason;
use terrace_control::settings::{MAX_TIERS, Window};
use terrace_control::windows::{Row, main_tier};
use terrace_os as sys;
use terrace_policy::eviction::victims::{Expectation, PRESSURE_MAX, Pressure, RegionView};
use terrace_policy::placement;
use terrace_policy::tiering::heat::{Counted, Expected, Heat};
use terrace_policy::tiering::{self, Codec, Kind, Model, Region, Resend, Setting, moves};
use terrace_tiers::CodecKind;

/// Pages taken or brought back at a time.
const BATCH: usize = 64;
/// Pressure for a model that demotes idle pages only: recently refaulted ones stay a round longer.
const IDLE_PRESSURE: u32 = 1;
/// The heat of regions that the program calls hot, and cold, as a multiple of the mean, until
/// samples say more.
const HOT: Expected = Expected(4.0);
const COLD: Expected = Expected(0.25);

/// Where the pages of one region are.
#[derive(Clone, Copy, Default)]
struct Places {
    pages: [u16; MAX_TIERS],
    /// The tier with most of the region's evicted pages, their encoded bytes and their number.
    most: Option<(usize, u64, u32)>,
    expected: Option<Expectation>,
}

impl Places {
    fn all(&self) -> u32 {
        self.pages.iter().map(|pages| u32::from(*pages)).sum()
    }
}

/// Plans placement. Owned by the mover.
pub(crate) struct Placer {
    model: Box<dyn Model>,
    /// The knob of the model, from 0, which saves the most memory, to 1, which saves the most time.
    knob: f64,
    heat: Heat,
    /// Faults of this window, by region.
    faults: Vec<u32>,
    /// The tier that each region was assigned to last; `None` before its first plan.
    assigned: Vec<Option<u8>>,
    places: Vec<Places>,
    regions: Vec<Region>,
    stored: Vec<f32>,
    plan: Vec<u8>,
    queue: moves::Queue,
    /// The page of the next move's region to go on with.
    from: usize,
    /// Faults of each tier when the last window ended.
    faults_then: Vec<u64>,
    window: u32,
    ended_ns: u64,
    /// The highest pressure in this window.
    pressure: Pressure,
}

impl Placer {
    /// `None` without a model, or if it has no use for these tiers.
    pub fn new(pager: &Pager, now_ns: u64) -> Option<Placer> {
        let name = pager.settings.placement.model()?;
        let knob = pager.settings.knob.0;
        let tiers = tiers(pager, &CompressionSample::new(&pager.tiers));
        Some(Placer {
            model: tiering::model(name, Setting::of_knob(knob), &tiers)?,
            knob,
            heat: Heat::default(),
            faults: Vec::new(),
            assigned: Vec::new(),
            places: Vec::new(),
            regions: Vec::new(),
            stored: Vec::new(),
            plan: Vec::new(),
            queue: moves::Queue::default(),
            from: 0,
            faults_then: vec![0; pager.tiers.len()],
            window: 0,
            ended_ns: now_ns,
            pressure: 0,
        })
    }

    /// A sample of this weight met page `page` of a region.
    pub fn sampled(&mut self, region: u32, page: usize, weight: f32) {
        self.heat.sampled(region, page, weight);
    }

    /// Takes note of the pressure that there is now.
    pub fn note_pressure(&mut self, pressure: Pressure) {
        self.pressure = self.pressure.max(pressure);
    }

    /// Counts refaulted pages of a region.
    pub fn refaulted(&mut self, region: u32, pages: u32) {
        let index = region as usize;
        if index >= self.faults.len() {
            self.faults.resize(index + 1, 0);
        }
        self.faults[index] += pages;
    }

    /// Whether the window is over.
    pub fn is_due(&self, pager: &Pager, now_ns: u64) -> bool {
        let told = pager.stats().map_or(0, |page| page.window_told_ms.load(Relaxed));
        let window = Window::of_ms(told).unwrap_or(pager.settings.window);
        now_ns.saturating_sub(self.ended_ns) >= window.0 * 1_000_000
    }

    /// The tier that a region was assigned to, if that is one of those below DRAM.
    pub fn tier_of(&self, region: u32) -> Option<usize> {
        let assigned = self.assigned.get(region as usize).copied().flatten()?;
        (assigned > 0).then_some(usize::from(assigned))
    }

    /// Ends the window: counts pages per tier, asks the model, queues the moves. `views` come from
    /// a scan just made, whose faults have been reported.
    pub fn end_window(
        &mut self,
        pager: &Pager,
        evictor: &mut Evictor,
        views: &[RegionView],
        now_ns: u64,
    ) {
        let begun_ns = sys::thread_cpu_ns();
        self.window += 1;
        self.ended_ns = now_ns;
        self.update_knob(pager);
        let Evictor { compression_sample, tools, .. } = evictor;
        let Some(compression_sample) = compression_sample else { return };
        compression_sample.measure(&pager.tiers, &mut tools.scratch);
        self.locate_pages(pager, views);
        self.inform_model(compression_sample, pager.tiers.len());
        let tiers = tiers(pager, compression_sample);
        let left = self.queue.pages();
        let window = tiering::Window {
            tiers: &tiers,
            regions: &self.regions,
            stored: &self.stored,
            limits: &[],
        };
        let recommended: Vec<u8> = self.regions.iter().map(|region| region.tier).collect();
        self.model.place(&window, &mut self.plan);
        // Models do not know which tiers are disabled.
        for tier in &mut self.plan {
            *tier = pager.enabled_tier(usize::from(*tier)) as u8;
        }
        let model = &self.model;
        let mut list = moves::list(
            &window,
            &self.plan,
            |region| model.resend(region).by_mover(),
            |region, to| gain(&window, region, to),
        );
        let room = pager.account.budget_bytes.load(Relaxed).saturating_sub(pager.physical_bytes());
        let mut room = vec![(room / sys::PAGE as u64) as f64, f64::INFINITY];
        let full: Vec<bool> =
            (0..tiers.len()).map(|tier| tier > 0 && !accepts(&pager.tiers[tier])).collect();
        let wanted = list.clone();
        moves::filter(&mut list, &window, &mut room, &full, f32::NEG_INFINITY);
        self.assigned.clear();
        self.assigned.extend(self.plan.iter().map(|tier| Some(*tier)));
        // A region that is not moved stays assigned to the tier it was in.
        let mut kept = list.iter().peekable();
        for step in &wanted {
            if kept.peek().is_some_and(|next| next.region == step.region) {
                kept.next();
            } else {
                self.assigned[step.region as usize] = Some(step.from);
            }
        }
        self.queue.replace(list);
        self.from = 0;
        let spent_ns = sys::thread_cpu_ns() - begun_ns;
        self.publish_window(pager, &tiers, &recommended, left, spent_ns);
    }

    fn update_knob(&mut self, pager: &Pager) {
        let told = pager.stats().map_or(0, |page| page.knob_told.load(Relaxed));
        let knob = match told {
            1..=1_000_001 => (told - 1) as f64 / 1e6,
            _ => pager.settings.knob.0,
        };
        if knob != self.knob {
            self.knob = knob;
            self.model.set(Setting::of_knob(knob));
        }
    }

    /// Finds where all pages are.
    fn locate_pages(&mut self, pager: &Pager, views: &[RegionView]) {
        let regions = pager.table.len() as usize;
        self.places.clear();
        self.places.resize(regions, Places::default());
        for view in views {
            let place = &mut self.places[view.region as usize];
            // Two mappings may share a region.
            place.pages[0] = (place.pages[0] + view.resident_pages as u16).min(512);
            place.expected = view.expected.or(place.expected);
        }
        for number in 0..pager.table.len() {
            let entry = pager.table.by_number(number);
            if entry.region.evicted.load(Relaxed) > 0 {
                count_stored(pager, &entry, &mut self.places[number as usize]);
            }
        }
        self.assigned.resize(regions, None);
        self.faults.resize(regions, 0);
    }

    /// Makes what the model is told.
    fn inform_model(&mut self, compression_sample: &CompressionSample, tiers: usize) {
        self.regions.clear();
        self.stored.clear();
        let mean = self.heat.mean(self.places.iter().filter(|place| place.all() > 0).count());
        for (number, place) in self.places.iter().enumerate() {
            let expected = place.expected.map(|expected| match expected {
                Expectation::Hot => HOT,
                Expectation::Cold => COLD,
            });
            let counted = Counted {
                pages: place.all().min(REGION_PAGES as u32),
                tier: self.assigned[number].unwrap_or_else(|| main_tier(&place.pages)),
                resident: u32::from(place.pages[0]),
                faults: std::mem::take(&mut self.faults[number]),
                expected,
            };
            self.regions.push(self.heat.end_window(number as u32, counted, mean));
            self.stored.push(1.0);
            self.stored
                .extend((1..tiers).map(|tier| compression_sample.stored(tier, place.most) as f32));
        }
    }

    /// Moves pages until `deadline`. `room` says whether more may come back to DRAM. Returns
    /// whether there is more to move.
    pub fn run_moves(
        &mut self,
        pager: &Pager,
        evictor: &mut Evictor,
        deadline: u64,
        room: &mut impl FnMut() -> bool,
        mut evicted: impl FnMut(u32, u32),
    ) -> bool {
        while let Some(step) = self.queue.pop() {
            if pager.pause_asked() || pager.is_frozen() || sys::now_ns() > deadline {
                self.queue.put_back(step);
                return true;
            }
            pager.yield_if_due();
            let entry = pager.table.by_number(step.region);
            let moved = if step.to == 0 {
                let restored = restore_region(pager, &entry, BATCH, Cause::Planned, room);
                (restored, restored < BATCH)
            } else {
                let out = self.demote(pager, evictor, entry, step);
                evicted(step.region, out.0 as u32);
                out
            };
            let (pages, done) = moved;
            let from = (step.from != step.to).then_some(usize::from(step.from));
            let hundredths = (step.gain * 100.0).clamp(0.0, 1e9) as u32;
            let why = MoveReason::Placed(placement::Reason::Pays { hundredths });
            pager.list_move(entry.region.address(), pages as u64, from, step.to.into(), why);
            if done {
                self.from = 0;
            } else {
                let pages = step.pages.saturating_sub(pages as u32).max(1);
                self.queue.put_back(moves::Move { pages, ..step });
            }
        }
        false
    }

    /// Moves some pages of a region into a compressed tier: what is stored elsewhere first, then
    /// what is in DRAM. Returns how many went, and whether the region is done.
    fn demote(
        &mut self,
        pager: &Pager,
        evictor: &mut Evictor,
        entry: Entry,
        step: moves::Move,
    ) -> (usize, bool) {
        let to = pager.enabled_tier(usize::from(step.to));
        let mut went = 0;
        if self.from == 0 && entry.region.evicted.load(Relaxed) > 0 {
            went += evictor.recompress(pager, entry, to, RecompressFilter::All).pages as usize;
        }
        if is_refused(&entry, sys::now_ns() / 1_000_000) {
            return (went, true);
        }
        let pressure = match self.model.resend(step.region as usize) {
            Resend::Idle => IDLE_PRESSURE,
            Resend::All | Resend::Never => PRESSURE_MAX,
        };
        let request =
            EvictRequest { pages: BATCH, pressure, force: false, tier: to, from: self.from };
        let outcome = evictor.evict(pager, entry, request);
        note_refusals(&entry, &outcome);
        self.from = outcome.next;
        (went + outcome.evicted as usize, outcome.next >= REGION_PAGES)
    }

    /// Publishes the window that has ended to `terrace run`. `recommended` is the plan that it
    /// began with.
    fn publish_window(
        &mut self,
        pager: &Pager,
        tiers: &[tiering::Tier],
        recommended: &[u8],
        left: u64,
        spent_ns: u64,
    ) {
        let pressure = std::mem::take(&mut self.pressure);
        let Some(ring) = pager.window_ring() else { return };
        let number = self.window;
        let there = |place: &Places| place.all() > 0;
        ring.write(
            &Row::Window {
                number,
                at_ns: self.ended_ns,
                knob: self.knob as f32,
                regions: self.places.iter().filter(|place| there(place)).count() as u32,
                left: left.min(u32::MAX.into()) as u32,
                bound: self.model.bound().unwrap_or(0.0) as f32,
                spent_us: (spent_ns / 1000) as u32,
                pressure: pressure as u8,
            }
            .to_words(),
        );
        for (tier, of) in tiers.iter().enumerate() {
            ring.write(&self.tier_row(pager, tier, of, recommended).to_words());
        }
        for (index, place) in self.places.iter().enumerate().filter(|(_, place)| there(place)) {
            let region = &self.regions[index];
            ring.write(
                &Row::Region {
                    number,
                    address: pager.table.by_number(index as u32).region.address(),
                    recommended: recommended[index],
                    pages: place.pages,
                    touched: region.touched as u16,
                    accesses: region.accesses,
                }
                .to_words(),
            );
        }
    }

    fn tier_row(
        &mut self,
        pager: &Pager,
        tier: usize,
        of: &tiering::Tier,
        recommended: &[u8],
    ) -> Row {
        let (mut wanted, mut actual, mut leaked) = (0u64, 0u64, 0u64);
        for (place, recommended) in self.places.iter().zip(recommended) {
            actual += u64::from(place.pages[tier]);
            if usize::from(*recommended) == tier {
                wanted += u64::from(place.all());
                leaked += if tier == 0 { 0 } else { u64::from(place.pages[0]) };
            }
        }
        let faults = pager.tiers[tier].stats.faults();
        let since = faults.saturating_sub(std::mem::replace(&mut self.faults_then[tier], faults));
        let physical = pager.tiers[tier].stats.physical_bytes() as f64 / sys::PAGE as f64;
        let (cost, stored) = match tier {
            0 => (actual as f64, 1.0),
            _ => (physical * of.price, physical / (actual.max(1) as f64)),
        };
        let most = |pages: u64| pages.min(u32::MAX.into()) as u32;
        Row::Tier {
            number: self.window,
            tier: tier as u8,
            recommended: most(wanted),
            actual: most(actual),
            leaked: most(leaked),
            faults: most(since),
            cost: cost as f32,
            stored: stored as f32,
        }
    }
}

/// Counts a region's evicted pages by tier.
fn count_stored(pager: &Pager, entry: &Entry, place: &mut Places) {
    // No fork meanwhile.
    let _inside = pager.gate.worker();
    let store = entry.region.store.lock();
    let mut bytes = [0u64; MAX_TIERS];
    for word in entry.words {
        let found = word.load();
        if let Some(at) = found.stored().filter(|_| found.is(State::Evicted))
            && let Some(tier) = store.tier_of(at).map(usize::from).filter(|tier| *tier < MAX_TIERS)
        {
            place.pages[tier] += 1;
            bytes[tier] += u64::from(at.len);
        }
    }
    drop(store);
    let most = (1..MAX_TIERS).max_by_key(|tier| place.pages[*tier]);
    place.most = most
        .filter(|tier| place.pages[*tier] > 0)
        .map(|tier| (tier, bytes[tier], u32::from(place.pages[tier])));
}

/// Gain of moving a region to a tier. Going up: the faults that are avoided, ns. Going down: the
/// pages of DRAM saved for each expected fault.
fn gain(window: &tiering::Window<'_>, region: usize, to: usize) -> f64 {
    let of = &window.regions[region];
    let from = usize::from(of.tier);
    if to < from {
        return f64::from(of.touched) * window.tiers[from].access_ns();
    }
    let leaked = f64::from(of.leaked) / f64::from(of.pages.max(1));
    let now = match from == to {
        true => leaked * window.cost(region, 0),
        false => window.cost(region, from),
    };
    (now - window.cost(region, to)).max(0.0) / (1.0 + f64::from(of.fresh))
}

/// The tiers as a model sees them, with what they were measured to take.
fn tiers(pager: &Pager, compression_sample: &CompressionSample) -> Vec<tiering::Tier> {
    let described = |(index, tier): (usize, &terrace_tiers::Tier)| {
        let known = &compression_sample.known[index];
        // A directory in memory (tmpfs) is DRAM, and so, to the model, is another node.
        let in_files = tier.leaves_dram() && tier.files().is_some();
        let restore_ns = (tier.stats.restore_quantile_ns(0.5) as f64).max(known.decode_ns);
        let kind = match index {
            0 => Kind::Bytes { extra_ns: 0.0 },
            _ => Kind::Compressed {
                codec: codec(tier.spec.codec()),
                store_ns: known.encode_ns,
                fault_ns: pager.faults.cost.waiting_ns(restore_ns as u64) as f64
                    + pager.faults.cost.overhead_ns() as f64,
            },
        };
        tiering::Tier {
            name: tier.spec.name.clone(),
            kind,
            medium: usize::from(in_files),
            price: if in_files { pager.settings.file_price.0 } else { 1.0 },
        }
    };
    pager.tiers.iter().enumerate().map(described).collect()
}

/// The most similar codec that the published models know.
fn codec(kind: Option<CodecKind>) -> Codec {
    match kind {
        Some(CodecKind::Lzo) => Codec::Lzo,
        Some(CodecKind::Zstd { .. }) => Codec::Zstd,
        Some(CodecKind::Deflate { .. }) => Codec::Deflate,
        _ => Codec::Lz4,
    }
}
