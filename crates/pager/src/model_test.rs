//! The pager against the plainest model of memory: an array of page contents. Real mappings, real
//! userfaultfds, real evictions; run as root or with another right to userfaultfd.

use crate::evict::{EvictRequest, Evictor};
use crate::fault::buffers::Tools;
use crate::pager::Pager;
use crate::pages::mm::{Host, Mode};
use crate::pages::table::REGION;
use crate::pages::word::State;
use proptest::prelude::*;
use std::sync::atomic::{AtomicU32, Ordering::*};
use std::sync::{OnceLock, PoisonError, RwLock, RwLockReadGuard};
use terrace_control::settings::{Dram, Settings};
use terrace_os::{self as sys, PAGE};
use terrace_policy::eviction::victims::PRESSURE_MAX;

/// Written to while a child lives that shares this process's pages.
static FORKS: RwLock<()> = RwLock::new(());

/// Lock for a test that counts evicted pages: the kernel moves no page that a child shares.
pub(crate) fn without_forks() -> RwLockReadGuard<'static, ()> {
    FORKS.read().unwrap_or_else(PoisonError::into_inner)
}

/// No library around the pager.
pub(crate) const HOST: Host = Host {
    enter_internal: || (),
    leave_internal: || (),
    start_soon: || (),
    purge_soon: || (),
    unmanaged_range: || (0, 0),
    map_bytes: || 0,
    sampled: |_, _| (),
    scan_sites: |_| (),
};

/// Says that pages cannot be moved here; fails where they must.
pub(crate) fn cannot_run() {
    let strict = std::env::var_os("CI").is_some() || std::env::var_os("TERRACE_NO_SKIP").is_some();
    assert!(!strict, "no userfaultfd on a machine that must have it");
    eprintln!(
        "skipped: no right to userfaultfd, or a kernel before 6.8 (terrace doctor tells which)"
    );
}

/// Gives this thread the descriptors that our threads have, under the same numbers. An evictor
/// otherwise runs on the mover's thread, and without them it evicts nothing.
pub(crate) fn adopt_descriptors(pager: &Pager) {
    let table = &pager.descriptors;
    // SAFETY: only this thread's view of the descriptors changes, and then only at numbers that no
    // file of the test has in it.
    unsafe {
        assert_eq!(libc::unshare(libc::CLONE_FILES), 0);
        for slot in table.uffds.iter().chain([&table.staging, &table.pagemap, &table.statm]) {
            let number = slot.load(Relaxed);
            if number >= 0 {
                let fd = sys::descriptor_of(pager.companion.pid(), number)
                    .expect("a descriptor of the companion can be had");
                assert!(libc::dup3(fd, number, libc::O_CLOEXEC) >= 0 || fd == number);
                if fd != number {
                    sys::close(fd);
                }
            }
        }
    }
}

/// A started pager with an idle mover: its budget is never reached.
fn pager() -> Option<&'static Pager> {
    static PAGER: OnceLock<Option<&'static Pager>> = OnceLock::new();
    *PAGER.get_or_init(|| {
        let settings = Settings { dram: Dram::Bytes(1 << 40), ..Settings::default() };
        let pager = Pager::create(settings, HOST).unwrap();
        pager.start();
        let works = pager.mode() == Mode::Active;
        if !works {
            cannot_run();
        }
        works.then_some(pager)
    })
}

#[derive(Clone, Debug)]
enum Op {
    Write { from: usize, pages: usize, kind: u8, seed: u8 },
    Read { page: usize },
    Evict { from: usize, pages: usize, tier: usize },
    Probe { region: usize, seed: u64 },
    EndProbes,
    Densify { region: usize },
    Discard { from: usize, pages: usize },
    Restore { from: usize, pages: usize },
    Replace { from: usize, pages: usize },
    Fork { from: usize, touched: usize, withheld: (usize, usize) },
}

/// Pages evicted in all cases: a test of nothing would pass too.
static EVICTED: AtomicU32 = AtomicU32::new(0);

const REGIONS: usize = 2;
const PAGES: usize = REGIONS * REGION / PAGE;

fn op() -> impl Strategy<Value = Op> {
    let page = 0..PAGES;
    prop_oneof![
        6 => (page.clone(), 1usize..60, 0u8..4, any::<u8>()).prop_map(
            |(from, pages, kind, seed)| Op::Write { from, pages, kind, seed }
        ),
        4 => page.clone().prop_map(|page| Op::Read { page }),
        6 => (page.clone(), 1usize..300, 1usize..3).prop_map(
            |(from, pages, tier)| Op::Evict { from, pages, tier }
        ),
        2 => (0..REGIONS, any::<u64>()).prop_map(|(region, seed)| Op::Probe { region, seed }),
        2 => Just(Op::EndProbes),
        1 => (0..REGIONS).prop_map(|region| Op::Densify { region }),
        1 => (page.clone(), 1usize..100).prop_map(|(from, pages)| Op::Discard { from, pages }),
        1 => (page.clone(), 1usize..100).prop_map(|(from, pages)| Op::Restore { from, pages }),
        1 => (page.clone(), 1usize..100).prop_map(|(from, pages)| Op::Replace { from, pages }),
        1 => (page.clone(), 0usize..50, (page, 0usize..300))
            .prop_map(|(from, touched, withheld)| Op::Fork { from, touched, withheld }),
    ]
}

/// Contents of four kinds: one byte repeated, compressible, barely compressible, random.
fn contents(kind: u8, seed: u8) -> [u8; PAGE] {
    let mut state = u64::from(seed) * 0x9E37_79B9 + 1;
    let mut random = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let mut page = [seed; PAGE];
    let noise = [0, PAGE / 4, PAGE * 7 / 8, PAGE][kind as usize];
    page[..noise].iter_mut().for_each(|byte| *byte = random() as u8);
    page
}

struct World {
    pager: &'static Pager,
    base: usize,
    evictor: Evictor,
    tools: Tools,
    model: Vec<[u8; PAGE]>,
}

impl World {
    fn new(pager: &'static Pager) -> World {
        adopt_descriptors(pager);
        let reserved = sys::reserve((REGIONS + 1) * REGION).unwrap();
        let base = reserved.next_multiple_of(REGION);
        pager.manage(base, REGIONS * REGION, true);
        World {
            pager,
            base,
            evictor: Evictor::new(pager),
            tools: Tools::new(),
            model: vec![[0; PAGE]; PAGES],
        }
    }

    fn page(&self, page: usize) -> *mut [u8; PAGE] {
        (self.base + page * PAGE) as *mut [u8; PAGE]
    }

    fn span(&self, from: usize, pages: usize) -> (usize, usize, std::ops::Range<usize>) {
        let end = (from + pages).min(PAGES);
        (self.base + from * PAGE, (end - from) * PAGE, from..end)
    }

    fn apply(&mut self, op: &Op) {
        match *op {
            Op::Write { from, pages, kind, seed } => {
                for page in self.span(from, pages).2 {
                    self.model[page] = contents(kind, seed.wrapping_add(page as u8));
                    unsafe_write(self.page(page), &self.model[page]);
                }
            }
            Op::Read { page } => {
                assert!(same(self.page(page), &self.model[page]), "page {page} differs")
            }
            Op::Evict { from, pages, tier } => {
                let entry = self.pager.table.get_or_create(self.base + from * PAGE).unwrap();
                let from = from % (REGION / PAGE);
                let outcome = self.evictor.evict(
                    self.pager,
                    entry,
                    EvictRequest { pages, pressure: PRESSURE_MAX, force: true, tier, from },
                );
                EVICTED.fetch_add(outcome.evicted, Relaxed);
            }
            Op::Probe { region, seed } => {
                let entry = self.pager.table.get_or_create(self.base + region * REGION).unwrap();
                self.evictor.probe(self.pager, entry, seed);
            }
            Op::EndProbes => self.evictor.end_probes(self.pager, u64::MAX / 2, |_, _, _, _| ()),
            Op::Densify { region } => {
                let entry = self.pager.table.get_or_create(self.base + region * REGION).unwrap();
                self.evictor.recompress_densest(self.pager, entry);
            }
            Op::Discard { from, pages } => {
                let (start, len, which) = self.span(from, pages);
                // SAFETY: the test's own mapping.
                self.pager
                    .discard(start, len, |start, len| unsafe {
                        sys::advise(start, len, libc::MADV_DONTNEED)
                    })
                    .unwrap();
                self.model[which].fill([0; PAGE]);
            }
            Op::Restore { from, pages } => {
                let (start, len, _) = self.span(from, pages);
                for address in (start..start + len).step_by(PAGE) {
                    self.pager.restore_now(address, &mut self.tools);
                }
            }
            Op::Replace { from, pages } => {
                let (start, len, which) = self.span(from, pages);
                let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
                let args = [
                    start,
                    len,
                    (libc::PROT_READ | libc::PROT_WRITE) as usize,
                    flags as usize,
                    usize::MAX,
                    0,
                ];
                // SAFETY: replaces a part of the test's own mapping.
                self.pager
                    .unmap(start, len, || unsafe { sys::forward(libc::SYS_mmap, args) })
                    .unwrap();
                self.pager.manage(start, len, true);
                self.model[which].fill([0; PAGE]);
            }
            Op::Fork { from, touched, withheld } => self.fork(from, touched, withheld),
        }
    }

    /// Tells kernel and pager whether children are to have a span.
    fn inherit(&self, start: usize, len: usize, inherited: bool) {
        let advice = if inherited { libc::MADV_DOFORK } else { libc::MADV_DONTFORK };
        // SAFETY: the test's own mapping, of which nothing changes in this process.
        self.pager
            .inherit(start, len, inherited, || unsafe { sys::advise(start, len, advice) })
            .unwrap();
    }

    /// Whether nothing is stored and nothing is managed in a span that a child did not inherit.
    fn is_forgotten(&self, start: usize, len: usize) -> bool {
        let nothing_is_stored = (start..start + len).step_by(PAGE).all(|address| {
            self.pager.table.get(address).is_none_or(|entry| {
                let word = entry.word(address).load();
                word.is(State::Resident) && word.stored().is_none()
            })
        });
        nothing_is_stored && !self.pager.manages(start, len)
    }

    /// A forked child compares everything; `touched` pages are touched before the kernel's part, as
    /// many after it. It does not get a span of `withheld`: from where, how many pages. The child
    /// has no threads of the test harness, so it must not allocate or panic.
    fn fork(&mut self, from: usize, touched: usize, withheld: (usize, usize)) {
        let (hidden_start, hidden_len, hidden) = self.span(withheld.0, withheld.1);
        if hidden_len > 0 {
            self.inherit(hidden_start, hidden_len, false);
        }
        // This pager's own probes are not its mover's: bring them back as the mover would.
        self.evictor.cancel_probes(self.pager);
        self.pager.fork_prepare(|| ());
        let (before, after) =
            (self.span(from, touched).2, self.span(from.saturating_sub(touched), touched).2);
        let reads_right = |pages: std::ops::Range<usize>| {
            pages.into_iter().all(|page| same(self.page(page), &self.model[page]))
        };
        assert!(reads_right(before));
        let alone = FORKS.write().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the child calls nothing but the pager, memory reads and _exit.
        let child = unsafe { libc::fork() };
        if child == 0 {
            self.pager.fork_child();
            let forgotten = hidden_len == 0 || self.is_forgotten(hidden_start, hidden_len);
            let right = forgotten
                && reads_right(0..hidden.start)
                && reads_right(hidden.end..PAGES)
                && self.stored() == 0;
            // SAFETY: ends the child without running the harness's exit handlers.
            unsafe { libc::_exit(if right { 0 } else { 1 }) };
        }
        assert!(reads_right(after));
        self.pager.fork_parent();
        if hidden_len > 0 {
            self.inherit(hidden_start, hidden_len, true);
        }
        let mut status = 0;
        // SAFETY: waits for our own child.
        unsafe { libc::waitpid(child, &mut status, 0) };
        drop(alone);
        assert_eq!(
            status, 0,
            "the child saw other data than its parent, or kept stored what it had read"
        );
    }

    /// Pages that are stored, once no handler is at work.
    fn stored(&self) -> usize {
        let entries = self.pager.table.overlapping(self.base, self.base + REGIONS * REGION);
        let words = entries.flat_map(|entry| entry.words);
        let settled = words.inspect(|word| {
            // A page is there before its handler is done with it.
            while word.load().is(State::Restoring) {
                sys::yield_now();
            }
        });
        settled.filter(|word| word.load().is(State::Evicted)).count()
    }

    fn check_everything(&mut self) {
        for page in 0..PAGES {
            assert!(same(self.page(page), &self.model[page]), "page {page} differs in the end");
        }
        assert!(!self.pager.is_frozen(), "an internal check failed");
        assert_eq!(self.stored(), 0, "everything was just read");
        for entry in self.pager.table.overlapping(self.base, self.base + REGIONS * REGION) {
            assert_eq!(entry.region.evicted.load(Relaxed), 0);
            let base = entry.region.address();
            (base..base + REGION)
                .step_by(PAGE)
                .for_each(|address| self.pager.end_probation(&entry, address));
            assert!(
                entry.region.store.lock().is_empty(),
                "a store keeps bytes of pages that came back"
            );
        }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.evictor.cancel_probes(self.pager);
        let (start, len) = (self.base, REGIONS * REGION);
        // SAFETY: the test's own mapping, which no thread uses any more.
        let _ = self.pager.unmap(start, len, || unsafe {
            sys::forward(libc::SYS_munmap, [start, len, 0, 0, 0, 0])
        });
    }
}

fn unsafe_write(page: *mut [u8; PAGE], contents: &[u8; PAGE]) {
    // SAFETY: a page of the test's mapping; volatile, so that it is really touched.
    unsafe { page.write_volatile(*contents) }
}

fn same(page: *const [u8; PAGE], contents: &[u8; PAGE]) -> bool {
    // SAFETY: as above.
    unsafe { page.read_volatile() == *contents }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 48, failure_persistence: None, ..ProptestConfig::default()
    })]
    fn any_program(ops in prop::collection::vec(op(), 1..120)) {
        if let Some(pager) = pager() {
            let mut world = World::new(pager);
            for op in &ops {
                world.apply(op);
            }
            world.check_everything();
        }
    }
}

#[test]
fn memory_under_the_pager_is_memory() {
    any_program();
    assert!(
        pager().is_none() || EVICTED.load(Relaxed) > 1000,
        "only {} pages were evicted",
        EVICTED.load(Relaxed)
    );
}
