//! How much each allocation site holds, where that is, and how hot. The sources are samples, and
//! scans of all objects, a slice at a time.

use crate::grouped::large::{self, Large};
use crate::grouped::sites::{self, Site};
use crate::grouped::slabs;
use crate::placement::{self, PLACEMENT_CLASSES};
use crate::zone::{self, ZoneId};
use std::cell::Cell;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::*};
use terrace_control::settings::MAX_TIERS;
use terrace_os as sys;
use terrace_os::PAGE;
use terrace_pager::Pager;
use terrace_pager::lock::Lock;

/// What is tracked of a site, or of a zone of placed objects.
#[derive(Clone, Copy, Default)]
struct Watched {
    /// Number of samples that hit objects of the site.
    samples: f64,
    /// Decayed number of samples that hit grouped objects. The next field has the bytes of live
    /// ones at the last scan. Only grouped objects are sorted into zones.
    hotness: f32,
    bytes: f64,
    /// Sums over all scans: live objects, and (next field) their bytes by tier.
    objects_sum: f64,
    tier_bytes_sum: [f64; MAX_TIERS],
}

impl Watched {
    fn add_found(&mut self, found: &Found) {
        self.bytes = found.grouped_bytes;
        self.objects_sum += found.objects;
        self.tier_bytes_sum.iter_mut().zip(found.tier_bytes).for_each(|(sum, bytes)| *sum += bytes);
    }
}

/// What a scan has found of one site so far.
#[derive(Clone, Copy, Default)]
struct Found {
    objects: f64,
    grouped_bytes: f64,
    tier_bytes: [f64; MAX_TIERS],
}

/// Where a scan of all objects goes on.
#[derive(Clone, Copy)]
enum Stage {
    /// The scan goes on at grouped objects, from this address.
    Grouped(usize),
    /// The scan goes on at large objects, from this place.
    Large(large::At),
    /// The scan goes on at placed objects, from this page.
    Placed(u32),
    Done,
}

/// A scan of all objects.
struct Scan {
    stage: Stage,
    sites: Vec<Found>,
    placed: [Found; PLACEMENT_CLASSES],
}

impl Scan {
    const BEGIN: Scan = Scan {
        stage: Stage::Grouped(0),
        sites: Vec::new(),
        placed: [Found { objects: 0.0, grouped_bytes: 0.0, tier_bytes: [0.0; MAX_TIERS] };
            PLACEMENT_CLASSES],
    };

    fn of(&mut self, site: Site) -> &mut Found {
        at(&mut self.sites, site as usize)
    }

    /// Continues the scan for a slice, or less if a thread waits.
    fn go_on(&mut self, pager: &Pager) {
        let left = Cell::new(OBJECTS_A_SLICE);
        let count = |objects: usize| left.set(left.get().saturating_sub(objects));
        // Called for each page or so: pages without objects count too.
        let more = || {
            count(1);
            left.get() > 0 && !FORK_WAITS.load(Relaxed)
        };
        let tier = |address: usize| pager.tier_of(address).min(MAX_TIERS - 1);
        while more() {
            self.stage = match self.stage {
                Stage::Grouped(from) => {
                    // Objects of a page come one after the other.
                    let mut last = (usize::MAX, 0);
                    let each = |seen: slabs::Seen| {
                        count(1);
                        if last.0 != seen.address / PAGE {
                            last = (seen.address / PAGE, tier(seen.address));
                        }
                        let found = self.of(seen.tag);
                        found.objects += f64::from(seen.objects);
                        found.grouped_bytes += f64::from(seen.bytes);
                        found.tier_bytes[last.1] += f64::from(seen.bytes);
                    };
                    slabs::walk(from, each, more)
                        .map_or(Stage::Large(large::At::default()), Stage::Grouped)
                }
                Stage::Large(from) => {
                    let each = |address: usize, Large { bytes, site }: Large| {
                        // Some pages of a very large object, evenly spaced, stand for all.
                        let probes = bytes.div_ceil(PAGE).min(PAGES_OF_AN_OBJECT);
                        count(probes);
                        self.of(site).objects += 1.0;
                        for probe in 0..probes {
                            self.of(site).tier_bytes[tier(address + bytes / probes * probe)] +=
                                bytes as f64 / probes as f64;
                        }
                    };
                    large::walk(from, each, more).map_or(Stage::Placed(0), Stage::Large)
                }
                Stage::Placed(from) => {
                    let each = |page: placement::Seen| {
                        count(1);
                        let found = &mut self.placed[page.class];
                        found.objects += page.objects as f64;
                        found.tier_bytes[tier(page.address)] += page.bytes as f64;
                    };
                    placement::walk(from, each, more).map_or(Stage::Done, Stage::Placed)
                }
                Stage::Done => return,
            }
        }
    }
}

fn at<T: Clone + Default>(all: &mut Vec<T>, index: usize) -> &mut T {
    if all.len() <= index {
        all.resize(index + 1, T::default());
    }
    &mut all[index]
}

/// What is tracked of all sites, by number, and of placed objects. Used by the mover, and at the
/// end by the program.
struct Watch {
    sites: Vec<Watched>,
    placed: [Watched; PLACEMENT_CLASSES],
    /// Number of samples that hit no tracked object.
    elsewhere: f64,
    decayed_ns: u64,
    /// State of the scans:
    /// - the scan under way, the number of scans done, and when the last one was;
    /// - since when time is counted for them, and the CPU time that they took.
    scan: Scan,
    scans: u64,
    scan_ended_ns: u64,
    began_ns: u64,
    spent_ns: u64,
}

impl Watch {
    const NEW: Watch = Watch {
        sites: Vec::new(),
        placed: [Watched {
            samples: 0.0,
            hotness: 0.0,
            bytes: 0.0,
            objects_sum: 0.0,
            tier_bytes_sum: [0.0; MAX_TIERS],
        }; PLACEMENT_CLASSES],
        elsewhere: 0.0,
        decayed_ns: 0,
        scan: Scan::BEGIN,
        scans: 0,
        scan_ended_ns: 0,
        began_ns: 0,
        spent_ns: 0,
    };
}

static WATCH: Lock<Watch> = Lock::new(Watch::NEW);
/// Whether a fork waits for [`WATCH`].
static FORK_WAITS: AtomicBool = AtomicBool::new(false);

/// Time in which hotness halves, s.
const HALF_LIFE_S: f64 = 10.0;
/// Shortest time between scans of all objects, ns. The next two limit their share (1/n) of a CPU,
/// except for a first allowance of time.
const POLL_INTERVAL_NS: u64 = 500_000_000;
const POLL_SHARE: u64 = 200;
const FIRST_NS: u64 = 100_000_000;
/// Number of objects in a slice of a scan: some milliseconds, in which the mover does nothing else.
const OBJECTS_A_SLICE: usize = 1 << 17;
/// Time for a scan at the program's end, ns, if none has ended before.
const AT_THE_END_NS: u64 = 100_000_000;
/// Maximum number of pages of one object that a scan visits.
const PAGES_OF_AN_OBJECT: usize = 64;

/// Records a sample at this address. The mover calls this, like [`scan`], and waits for nothing
/// that a fork holds.
pub fn sampled(address: usize, weight: f32) {
    if !slabs::are_tagged() {
        return;
    }
    let Ok(mut site) = slabs::tag_at(address) else { return };
    let is_grouped = site != 0;
    let placed = placement::class_at(address);
    if !is_grouped && placed.is_none() {
        let Ok(found) = large::site_at(address) else { return };
        site = found.unwrap_or(0);
    }
    // A fork holds the lock while it waits for the mover, which calls this.
    let Some(mut watch) = WATCH.try_lock() else { return };
    match placed {
        _ if site != 0 => {
            let watched = at(&mut watch.sites, site as usize);
            watched.samples += f64::from(weight);
            watched.hotness += if is_grouped { weight } else { 0.0 };
        }
        Some(class) => watch.placed[class].samples += f64::from(weight),
        None => watch.elsewhere += f64::from(weight),
    }
}

impl Watch {
    fn sampled_sites(&mut self) -> impl Iterator<Item = &mut Watched> {
        self.sites.iter_mut().chain(&mut self.placed)
    }

    /// Continues the scan of all objects; returns true when it has ended.
    fn go_on(&mut self, pager: &Pager) -> bool {
        self.scan.go_on(pager);
        let is_done = matches!(self.scan.stage, Stage::Done);
        if is_done {
            self.end_scan();
        }
        is_done
    }

    fn end_scan(&mut self) {
        let scan = std::mem::replace(&mut self.scan, Scan::BEGIN);
        self.scans += 1;
        self.sampled_sites().for_each(|watched| watched.bytes = 0.0);
        for (site, found) in scan.sites.iter().enumerate().filter(|(_, found)| found.objects > 0.0)
        {
            at(&mut self.sites, site).add_found(found);
        }
        self.placed
            .iter_mut()
            .zip(&scan.placed)
            .for_each(|(watched, found)| watched.add_found(found));
    }

    /// The whole list as text. A line has what concerns all; then each site, and each zone of
    /// placed objects, with objects or samples has a line. `None` while another thread holds the
    /// sites' lock.
    fn text(&self, pager: &Pager) -> Option<String> {
        let names: Vec<&str> = pager.tier_names().collect();
        let mut text =
            format!("terrace-sites 1 elsewhere {:.1} tiers {}\n", self.elsewhere, names.join(","));
        let mean = |sum: f64| (sum / self.scans.max(1) as f64).round() as u64;
        let mut line = |watched: &Watched, zone: ZoneId, frames: &dyn Fn(&mut String)| {
            if watched.objects_sum == 0.0 && watched.samples == 0.0 {
                return;
            }
            let tiers = &watched.tier_bytes_sum[..names.len().min(MAX_TIERS)];
            let bytes: u64 = tiers.iter().map(|sum| mean(*sum)).sum();
            let _ =
                write!(text, "{bytes} {} {:.1} {zone}", mean(watched.objects_sum), watched.samples);
            for sum in tiers {
                let _ = write!(text, " {}", mean(*sum));
            }
            frames(&mut text);
            text.push('\n');
        };
        let is_free = sites::each(|site, zone, frames| {
            if let Some(watched) = self.sites.get(site as usize) {
                // Large objects are in no zone.
                line(
                    watched,
                    if watched.bytes > 0.0 || watched.hotness > 0.0 { zone } else { 0 },
                    frames,
                );
            }
        });
        if !is_free {
            return None;
        }
        for (watched, name) in self.placed.iter().zip(placement::NAMES) {
            line(watched, 0, &|text| {
                let _ = write!(text, "\t-\t{name}");
            });
        }
        Some(text)
    }
}

/// Called by the mover a few times a second where sites are tracked. Decays hotness, and continues
/// the scan of all objects. When that ends, regroups the sites and publishes the list.
pub fn scan(now_ns: u64) {
    let Some(pager) = zone::pager().filter(|_| slabs::are_tagged()) else { return };
    let Some(mut watch) = WATCH.try_lock() else { return };
    if watch.decayed_ns == 0 {
        (watch.decayed_ns, watch.scan_ended_ns, watch.began_ns) = (now_ns, now_ns, now_ns);
    }
    let seconds = (now_ns - watch.decayed_ns) as f64 / 1e9;
    if seconds >= 1.0 {
        watch.decayed_ns = now_ns;
        let factor = 0.5f64.powf(seconds / HALF_LIFE_S) as f32;
        watch.sampled_sites().for_each(|watched| watched.hotness *= factor);
    }
    let is_new = matches!(watch.scan.stage, Stage::Grouped(0));
    let is_spent = watch.spent_ns > FIRST_NS + (now_ns - watch.began_ns) / POLL_SHARE;
    if is_spent || is_new && now_ns - watch.scan_ended_ns < POLL_INTERVAL_NS {
        return;
    }
    let begun_ns = sys::thread_cpu_ns();
    if watch.go_on(pager) {
        watch.scan_ended_ns = now_ns;
        sites::regroup(|site| {
            watch
                .sites
                .get(site as usize)
                .map_or((0, 0.0), |watched| (watched.bytes as u64, watched.hotness))
        });
        watch.text(pager).inspect(|text| publish(pager, text));
    }
    watch.spent_ns += sys::thread_cpu_ns() - begun_ns;
}

/// Publishes the list at the program's end. By then the program may have freed everything. So the
/// last complete scan is published, and a new one is made only if there was none.
pub fn tell(pager: &Pager) {
    if !slabs::are_tagged() {
        return;
    }
    if let Some(mut watch) = WATCH.try_lock() {
        // Briefly, and without waiting: the code that called `exit` may hold a lock.
        let until_ns = sys::now_ns() + AT_THE_END_NS;
        while watch.scans == 0 && !FORK_WAITS.load(Relaxed) {
            if !watch.go_on(pager) && sys::now_ns() > until_ns {
                // What was seen so far.
                watch.end_scan();
            }
        }
        watch.text(pager).inspect(|text| publish(pager, text));
    }
}

/// Writes the list beside the statistics page, as a whole or not at all.
fn publish(pager: &Pager, text: &str) {
    static NUMBER: AtomicUsize = AtomicUsize::new(0);
    let Some(path) = pager.sites_path() else { return };
    let new = format!("{path}.{}\0", NUMBER.fetch_add(1, Relaxed));
    let Ok(file) = sys::open(&new, libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL, 0o600) else {
        return;
    };
    let written = sys::without_write_signals(|| {
        let written = sys::write_all(file, text.as_bytes());
        (written, written.err())
    });
    sys::close(file);
    let done = written.and_then(|()| sys::rename(&new, &format!("{path}\0")));
    if done.is_err() {
        sys::unlink(&new);
    }
}

/// Forgets the samples in a fork's child, when the lock is open again: they were the parent's
/// accesses.
pub fn forget_samples() {
    // What it holds is the unmanaged allocator's, as always.
    *WATCH.lock() = Watch::NEW;
}

/// Takes the lock of what is tracked, for any kind of fork. A thread of the program takes it only
/// at the program's end.
pub fn lock_watch_for_fork() {
    FORK_WAITS.store(true, Relaxed);
    std::mem::forget(WATCH.lock());
    FORK_WAITS.store(false, Relaxed);
}

/// Opens the lock again after a fork, in parent and child.
///
/// # Safety
/// The calling thread (in the child: its parent's) called [`lock_watch_for_fork`].
pub unsafe fn unlock_watch_after_fork() {
    // SAFETY: the caller's promise.
    drop(unsafe { WATCH.held() });
}
