//! Allocation sites: which zone each calling context's objects go to, which frames it has, and, where that is watched, how much it holds and how hot that is.
//!
//! At first a context's zone follows from its number; once samples say how hot its objects are, from that
//! ([`terrace_policy::grouping`]). Looking a zone up reads one word of a table that all threads share.

use crate::slabs;
use crate::zone::{self, ZoneId};
use std::fmt::Write as _;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering::*};
use terrace_context::{Caller, ContextId, DEPTH_MAX, Stack, unwind};
use terrace_pager::lock::Lock;
use terrace_pager::stats::MAX_TIERS;
use terrace_pager::{Pager, sys};
use terrace_policy::grouping;

/// Places of the table; contexts beyond half of that keep the zone of their number, and are not told apart in reports.
const PLACES: usize = 1 << 15;
const SITES_MAX: usize = PLACES / 2;
/// Places looked at for one context.
const PROBES: usize = 16;

/// Number of an allocation site; 0 for those that found no place.
pub type Site = u16;

/// A word of the table: the context's upper 40 bits, its zone in 8, its site in 16. A used word is never 0, as no site in it is.
static TABLE: [AtomicU64; PLACES] = [const { AtomicU64::new(0) }; PLACES];
const ZONE_SHIFT: u32 = 16;
const TAG_MASK: u64 = !((1 << 24) - 1);

static ZONES: AtomicU32 = AtomicU32::new(1);

/// A site in the table.
struct Known {
    /// Its place there.
    place: u32,
    /// Where its frames begin.
    frames: u32,
}

/// A return address, and the object that it lies in: by number in the list, or none.
#[derive(Clone, Copy)]
struct Frame {
    address: usize,
    object: Option<u16>,
}

/// A loaded file.
struct Object {
    base: usize,
    name: String,
}

/// All sites in the table, by number less one, and their frames one after the other, innermost first. Objects are looked up when a site is found, by
/// its own thread, as its code cannot be unloaded then; and what the loader has of them may lie in managed memory.
struct Sites {
    known: Vec<Known>,
    frames: Vec<Frame>,
    objects: Vec<Object>,
}

static SITES: Lock<Sites> = Lock::new(Sites { known: Vec::new(), frames: Vec::new(), objects: Vec::new() });

impl Sites {
    fn object(&mut self, base: usize, name: String) -> Option<u16> {
        let known = self.objects.iter().position(|object| object.base == base && object.name == name);
        let index = known.unwrap_or_else(|| {
            self.objects.push(Object { base, name });
            self.objects.len() - 1
        });
        u16::try_from(index).ok()
    }
}

/// Sets how many zones there are.
pub fn set_zones(count: usize) {
    ZONES.store(count as u32, Relaxed);
}

fn zone_by_number(id: ContextId) -> ZoneId {
    1 + (((id & 0xffff_ffff) * u64::from(ZONES.load(Relaxed))) >> 32) as ZoneId
}

#[inline]
fn first_place(id: ContextId) -> usize {
    id as usize % PLACES
}

/// Zone and site of a call.
#[inline]
pub fn of(stack: &Stack, caller: Caller) -> (ZoneId, Site) {
    let id = terrace_context::id(stack, caller);
    let word = TABLE[first_place(id)].load(Relaxed);
    if word & TAG_MASK == id & TAG_MASK && word != 0 { parts(word) } else { search(id, stack, caller) }
}

#[inline]
fn parts(word: u64) -> (ZoneId, Site) {
    (ZoneId::from((word >> ZONE_SHIFT) as u8), word as Site)
}

#[inline(never)]
fn search(id: ContextId, stack: &Stack, caller: Caller) -> (ZoneId, Site) {
    let find = || {
        for offset in 0..PROBES {
            let place = (first_place(id) + offset) % PLACES;
            let word = TABLE[place].load(Acquire);
            if word == 0 {
                return Err(Some(place));
            }
            if word & TAG_MASK == id & TAG_MASK {
                return Ok(word);
            }
        }
        Err(None)
    };
    match find() {
        Ok(word) => return parts(word),
        Err(None) => return (zone_by_number(id), 0),
        Err(Some(_)) => {}
    }
    let mut frames = [0; DEPTH_MAX];
    let len = terrace_context::frames(stack, caller, &mut frames);
    // Where sites are watched, and before the lock: the loader's memory may be out.
    let mut objects: [Option<(usize, String)>; DEPTH_MAX] = Default::default();
    if slabs::are_tagged() {
        objects.iter_mut().zip(&frames[..len]).for_each(|(object, address)| *object = unwind::object_of(*address));
    }
    let mut sites = SITES.lock();
    // Another thread may have been first.
    match find() {
        Ok(word) => parts(word),
        Err(Some(place)) if sites.known.len() < SITES_MAX => {
            let begin = sites.frames.len() as u32;
            sites.known.push(Known { place: place as u32, frames: begin });
            for (address, object) in frames[..len].iter().zip(objects) {
                let object = object.and_then(|(base, name)| sites.object(base, name));
                sites.frames.push(Frame { address: *address, object });
            }
            let (zone, site) = (zone_by_number(id), sites.known.len() as Site);
            TABLE[place].store(id & TAG_MASK | u64::from(zone) << ZONE_SHIFT | u64::from(site), Release);
            (zone, site)
        }
        Err(_) => (zone_by_number(id), 0),
    }
}

/// What is watched of a site.
#[derive(Clone, Copy, Default)]
struct Watched {
    /// Samples that met its objects: all, and decayed.
    samples: f64,
    hotness: f32,
    /// Bytes of live objects at the last walk.
    bytes: f64,
    /// Sums over all walks: live objects, and their bytes by tier.
    objects_sum: f64,
    tier_bytes_sum: [f64; MAX_TIERS],
}

/// What is watched of all, by number. The mover's, and at the end the program's.
struct Watch {
    sites: Vec<Watched>,
    /// Samples that met no grouped object.
    elsewhere: f64,
    decayed_ns: u64,
    walks: u64,
    walked_ns: u64,
    walk_ns: u64,
}

impl Watch {
    const NEW: Watch = Watch { sites: Vec::new(), elsewhere: 0.0, decayed_ns: 0, walks: 0, walked_ns: 0, walk_ns: 0 };
}

static WATCH: Lock<Watch> = Lock::new(Watch::NEW);
/// A fork wants [`WATCH`].
static FORK_WAITS: AtomicBool = AtomicBool::new(false);

/// Hotness halves in so long.
const HALF_LIFE_S: f64 = 10.0;
/// All objects are looked at so often at most, and for this share (1/n) of a CPU.
const WALK_EVERY_NS: u64 = 500_000_000;
const WALK_SHARE: u64 = 200;

/// A sample met this address. Like [`look`] it is the mover's, and waits for nothing that a fork holds.
pub fn sampled(address: usize, weight: f32) {
    if !slabs::are_tagged() {
        return;
    }
    let Ok(site) = slabs::tag_at(address) else { return };
    // A fork holds the lock while it waits for the mover, which calls this.
    let Some(mut watch) = WATCH.try_lock() else { return };
    if site == 0 {
        watch.elsewhere += f64::from(weight);
        return;
    }
    let watched = watch.of(site);
    watched.samples += f64::from(weight);
    watched.hotness += weight;
}

impl Watch {
    fn of(&mut self, site: Site) -> &mut Watched {
        let needed = site as usize + 1;
        if self.sites.len() < needed {
            self.sites.resize(needed, Watched::default());
        }
        &mut self.sites[site as usize]
    }

    /// Looks at all objects; false if it was given up, for a fork.
    fn walk(&mut self, pager: &Pager) -> bool {
        #[derive(Clone, Copy, Default)]
        struct Found {
            objects: f64,
            tier_bytes: [f64; MAX_TIERS],
        }
        let mut all: Vec<Found> = Vec::new();
        // Objects of a page come one after the other.
        let mut last = (usize::MAX, 0);
        let done = slabs::walk(|seen| {
            let page = seen.address / 4096;
            if last.0 != page {
                last = (page, pager.tier_of(seen.address).min(MAX_TIERS - 1));
            }
            let site = seen.tag as usize;
            if all.len() <= site {
                all.resize(site + 1, Found::default());
            }
            all[site].objects += f64::from(seen.objects);
            all[site].tier_bytes[last.1] += f64::from(seen.bytes);
            !FORK_WAITS.load(Relaxed)
        });
        if !done {
            return false;
        }
        self.walks += 1;
        self.sites.iter_mut().for_each(|watched| watched.bytes = 0.0);
        for (site, found) in all.iter().enumerate().filter(|(_, found)| found.objects > 0.0) {
            let watched = self.of(site as Site);
            watched.bytes = found.tier_bytes.iter().sum();
            watched.objects_sum += found.objects;
            watched.tier_bytes_sum.iter_mut().zip(found.tier_bytes).for_each(|(sum, bytes)| *sum += bytes);
        }
        true
    }

    /// Sorts sites into zones by their hotness.
    fn regroup(&self) {
        let sites = SITES.lock();
        let figures: Vec<grouping::Site> = sites
            .known
            .iter()
            .enumerate()
            .map(|(index, known)| {
                let watched = self.sites.get(index + 1).copied().unwrap_or_default();
                let (zone, _) = parts(TABLE[known.place as usize].load(Relaxed));
                grouping::Site { bytes: watched.bytes as u64, samples: watched.hotness, zone: zone - 1 }
            })
            .collect();
        for (known, zone) in sites.known.iter().zip(grouping::zones(&figures, ZONES.load(Relaxed))) {
            let word = &TABLE[known.place as usize];
            let old = word.load(Relaxed);
            word.store(old & !(0xff << ZONE_SHIFT) | u64::from(zone + 1) << ZONE_SHIFT, Relaxed);
        }
    }

    /// The whole list as text: a line of what concerns all, then one for each site with objects or samples.
    fn text(&self, pager: &Pager) -> String {
        let names: Vec<&str> = pager.tier_names().collect();
        let mut text = format!("terrace-sites 1 elsewhere {:.1} tiers {}\n", self.elsewhere, names.join(","));
        let program = std::fs::read_link("/proc/self/exe").map_or_else(|_| String::new(), |path| path.to_string_lossy().into_owned());
        let sites = SITES.lock();
        for (index, known) in sites.known.iter().enumerate() {
            let Some(watched) = self.sites.get(index + 1).filter(|watched| watched.objects_sum > 0.0 || watched.samples > 0.0) else {
                continue;
            };
            let mean = |sum: f64| (sum / self.walks.max(1) as f64).round() as u64;
            let (zone, _) = parts(TABLE[known.place as usize].load(Relaxed));
            let tiers = &watched.tier_bytes_sum[..names.len().min(MAX_TIERS)];
            let bytes: u64 = tiers.iter().map(|sum| mean(*sum)).sum();
            let _ = write!(text, "{bytes} {} {:.1} {zone}", mean(watched.objects_sum), watched.samples);
            for sum in tiers {
                let _ = write!(text, " {}", mean(*sum));
            }
            let end = sites.known.get(index + 1).map_or(sites.frames.len(), |next| next.frames as usize);
            for Frame { address, object } in &sites.frames[known.frames as usize..end] {
                let _ = match object.map(|index| &sites.objects[index as usize]) {
                    Some(Object { base, name }) => {
                        let name = if name.is_empty() { &program } else { name };
                        write!(text, "\t{:x}\t{}", address.wrapping_sub(*base), name.replace(char::is_control, "?"))
                    }
                    None => write!(text, "\t{address:x}\t"),
                };
            }
            text.push('\n');
        }
        text
    }
}

/// Called a few times a second by the mover where sites are watched: decays, and now and then looks at all objects, regroups, and tells of it.
pub fn look(now_ns: u64) {
    let Some(pager) = zone::pager().filter(|_| slabs::are_tagged()) else { return };
    let Some(mut watch) = WATCH.try_lock() else { return };
    if watch.decayed_ns == 0 {
        (watch.decayed_ns, watch.walked_ns) = (now_ns, now_ns);
    }
    let seconds = (now_ns - watch.decayed_ns) as f64 / 1e9;
    if seconds >= 1.0 {
        watch.decayed_ns = now_ns;
        let factor = 0.5f64.powf(seconds / HALF_LIFE_S) as f32;
        watch.sites.iter_mut().for_each(|watched| watched.hotness *= factor);
    }
    if now_ns - watch.walked_ns < WALK_EVERY_NS.max(watch.walk_ns * WALK_SHARE) {
        return;
    }
    let begun_ns = sys::thread_cpu_ns();
    if watch.walk(pager) {
        watch.regroup();
        publish(pager, &watch.text(pager));
    }
    watch.walked_ns = now_ns;
    watch.walk_ns = sys::thread_cpu_ns() - begun_ns;
}

/// Tells of all at the end. By then the program may have freed everything: so not how it is now, unless nobody has looked before.
pub fn tell(pager: &Pager) {
    if !slabs::are_tagged() {
        return;
    }
    if let Some(mut watch) = WATCH.try_lock() {
        if watch.walks == 0 {
            watch.walk(pager);
        }
        publish(pager, &watch.text(pager));
    }
}

/// Writes the list beside the statistics page, as a whole or not at all.
fn publish(pager: &Pager, text: &str) {
    static NUMBER: AtomicUsize = AtomicUsize::new(0);
    let Some(path) = pager.sites_path() else { return };
    let new = format!("{path}.{}\0", NUMBER.fetch_add(1, Relaxed));
    let Ok(file) = sys::open(&new, libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL, 0o600) else { return };
    let written = sys::write_all(file, text.as_bytes());
    sys::close(file);
    let done = written.and_then(|()| sys::rename(&new, &format!("{path}\0")));
    if done.is_err() {
        sys::unlink(&new);
    }
}

/// In a fork's child, when the lock is open again: what was sampled were the parent's accesses.
pub fn forget_samples() {
    // What it holds is the unmanaged allocator's, as always.
    *WATCH.lock() = Watch::NEW;
}

/// Takes the lock of what is watched, for any kind of fork: no thread of the program's has it but at the program's end.
pub fn lock_watch_for_fork() {
    FORK_WAITS.store(true, Relaxed);
    std::mem::forget(WATCH.lock());
    FORK_WAITS.store(false, Relaxed);
}

/// Opens it again, in parent and child.
///
/// # Safety
/// The calling thread (in the child: its parent's) called [`lock_watch_for_fork`].
pub unsafe fn unlock_watch_after_fork() {
    // SAFETY: the caller's promise.
    drop(unsafe { WATCH.held() });
}

/// Takes the lock of the sites, after the other. The mover takes it under that only, so that it never waits for a fork that waits for it.
pub fn lock_for_fork() {
    std::mem::forget(SITES.lock());
}

/// Opens them again, in parent and child.
///
/// # Safety
/// The calling thread (in the child: its parent's) called [`lock_for_fork`].
pub unsafe fn unlock_after_fork() {
    // SAFETY: the caller's promise.
    drop(unsafe { SITES.held() });
}
