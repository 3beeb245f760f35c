//! Tests against the plainest model: a map of live objects, and what they belong to.

use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::Mutex;

fn object(placement: Placement, bytes: usize) -> usize {
    let object = allocate(placement, bytes, 16);
    assert!(object != 0 && object.is_multiple_of(16));
    object
}

fn arena() -> ArenaId {
    let made = create(0, 0);
    assert_ne!(made, 0);
    made
}

fn same_page(a: usize, b: usize) -> bool {
    a / PAGE == b / PAGE
}

/// All tests share the shards' figures.
static ALONE: Mutex<()> = Mutex::new(());

#[test]
fn neighbours_share_a_page_and_arenas_share_pages() {
    let _alone = ALONE.lock();
    let arenas: Vec<ArenaId> = (0..640).map(|_| arena()).collect();
    let mut pages = std::collections::BTreeSet::new();
    for arena in &arenas {
        let first = object(Placement::Arena(*arena), 40);
        let key = object(Placement::NextTo(first), 30);
        let value = object(Placement::NextTo(key), 100);
        assert!(same_page(first, key) && same_page(first, value));
        assert_eq!([first, key, value + 99].map(arena_at), [*arena; 3]);
        pages.insert(first / PAGE);
        assert_eq!(
            query(*arena),
            Some(ArenaFigures { objects: 3, bytes: 48 + 32 + 112, pages: 1 })
        );
    }
    // 192 bytes each: no page for each of them, and yet none is so full that nothing could be
    // added.
    assert!((640 * 192 / PAGE..=64).contains(&pages.len()), "{} pages", pages.len());
    let grown = arenas.iter().filter(|arena| {
        let first = object(Placement::Arena(**arena), 30);
        query(**arena).is_some_and(|figures| figures.pages == 1) && arena_at(first) == **arena
    });
    assert!(grown.count() > 600);
    for arena in arenas {
        assert!(destroy(arena) && !destroy(arena) && query(arena).is_none());
    }
}

#[test]
fn an_arena_that_has_grown_has_pages_of_its_own() {
    let _alone = ALONE.lock();
    let (big, other) = (arena(), arena());
    let mut objects: Vec<usize> = (0..20_000).map(|_| object(Placement::Arena(big), 48)).collect();
    let others: Vec<usize> = (0..10).map(|_| object(Placement::Arena(other), 48)).collect();
    let figures = query(big).expect("it is there");
    assert_eq!((figures.objects, figures.bytes), (20_000, 960_000));
    assert!(figures.pages <= 238, "{figures:?}");
    // The arena's pages are found again when objects go, however many these are.
    for freed in objects.drain(..).rev().skip(100) {
        terrace_placed_free(freed);
    }
    let figures = query(big).expect("it is there");
    assert!(figures.objects == 100 && figures.pages <= 3, "{figures:?}");
    assert!(destroy(big));
    assert!(others.iter().all(|object| arena_at(*object) == other));
    assert!(destroy(other));
}

#[test]
fn what_begins_has_room_beside_it() {
    let _alone = ALONE.lock();
    let mut near = 0;
    for _ in 0..500 {
        let node = object(Placement::NextTo(0), 64);
        near += usize::from(same_page(node, object(Placement::NextTo(node), 64)));
        assert_eq!(arena_at(node), 0);
    }
    assert!(near > 450, "{near} of 500");
}

#[test]
fn hot_and_cold_lie_apart() {
    let _alone = ALONE.lock();
    let region = |object: usize| object / terrace_os::REGION;
    let (hot, cold) = (object(Placement::Hot, 100), object(Placement::Cold, 100));
    let (mild, beside) = (object(Placement::NextTo(0), 100), object(Placement::NextTo(hot), 100));
    assert!(
        region(hot) != region(cold) && region(hot) != region(mild) && region(cold) != region(mild)
    );
    assert_eq!(class_of_page(number_of(beside)), HOT);
    let of_cold = create(3, 0);
    assert_eq!(class_of_page(number_of(object(Placement::Arena(of_cold), 5000))), COLD);
    assert!(destroy(of_cold));
    [hot, cold, mild, beside].into_iter().for_each(|object| terrace_placed_free(object));
}

#[test]
fn sizes_and_alignments() {
    let _alone = ALONE.lock();
    let own = arena();
    for bytes in [0, 1, 15, 16, 17, 1000, 4095, 4096, 4097, 70_000, 3 << 20] {
        for align in [1, 16, 64, 1024, 4096, 8192, 1 << 20] {
            let made = allocate(Placement::Arena(own), bytes, align);
            assert!(made != 0 && made.is_multiple_of(align), "{bytes} at {align}");
            assert!(terrace_placed_usable(made) >= bytes);
            // SAFETY: what was just allocated.
            unsafe { std::slice::from_raw_parts_mut(made as *mut u8, bytes).fill(7) };
            assert_eq!(arena_at(made + bytes / 2), own);
        }
    }
    let figures = query(own).expect("it is there");
    assert_eq!(figures.objects, 77);
    assert!(destroy(own));
    for (bytes, align) in
        [(usize::MAX, 16), (1 << 60, 16), (OBJECT_MAX + 1, 16), (16, 3), (16, 0), (16, 1 << 30)]
    {
        assert_eq!(allocate(Placement::Hot, bytes, align), 0, "{bytes} at {align}");
    }
}

/// Misuse has no effect beyond being reported.
#[test]
fn misuse_is_harmless() {
    let _alone = ALONE.lock();
    let on_stack = 0u64;
    let foreign = &raw const on_stack as usize;
    assert_eq!(allocate(Placement::NextTo(foreign), 16, 16), 0);
    let (own, kept) = (arena(), arena());
    let (gone, stays) = (object(Placement::Arena(own), 64), object(Placement::Arena(kept), 64));
    assert!(destroy(own));
    assert_eq!(allocate(Placement::Arena(own), 16, 16), 0);
    assert_eq!(allocate(Placement::Arena(ArenaId::MAX), 16, 16), 0);
    assert_eq!(allocate(Placement::NextTo(gone), 16, 16), 0);
    for wrong in [gone, stays + 16, stays + 1, stays + PAGE * 100_000, START.load(Relaxed)] {
        terrace_placed_free(wrong);
    }
    assert_eq!(terrace_placed_malloc(16, 16, 77, 0), std::ptr::null_mut());
    terrace_placed_free(stays);
    terrace_placed_free(stays);
    assert_eq!(query(kept), Some(ArenaFigures::default()));
    assert!(destroy(kept));
    // A number that is used again means another arena.
    assert!(arena() != own && !destroy(own));
}

/// A cache in an arena, of which entries go at random.
#[test]
fn holes_in_an_arenas_pages_are_filled() {
    let _alone = ALONE.lock();
    let own = arena();
    let mut random = 1u64;
    let mut objects: Vec<usize> = (0..20_000).map(|_| object(Placement::Arena(own), 48)).collect();
    let before = query(own).expect("it is there").pages;
    for _ in 0..400_000 {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let which = (random >> 33) as usize % objects.len();
        terrace_placed_free(objects[which]);
        objects[which] = object(Placement::Arena(own), 48);
    }
    let after = query(own).expect("it is there").pages;
    assert!(after < before * 3 / 2, "{before} pages have become {after}");
    assert!(destroy(own));
}

#[test]
fn what_is_free_is_used_again() {
    let _alone = ALONE.lock();
    let own = arena();
    let mut most = 0;
    for round in 0..50 {
        let objects: Vec<usize> =
            (0..2000).map(|n| object(Placement::Arena(own), 100 + n % 3000)).collect();
        objects.into_iter().for_each(|object| terrace_placed_free(object));
        if round % 5 == 0 {
            tidy();
        }
        if round == 3 {
            most = usage()[0];
        }
    }
    assert!(usage()[0] <= most + (4 << 20), "{} bytes, {most} before", usage()[0]);
    assert!(destroy(own));
}

#[derive(Debug, Clone)]
enum Step {
    Allocate { arena: usize, bytes: usize, align: u32 },
    NextTo { which: usize, bytes: usize },
    Free(usize),
    Resize { which: usize, bytes: usize },
    Destroy(usize),
    Tidy,
}

fn step() -> impl Strategy<Value = Step> {
    let bytes = || prop_oneof![8 => 0usize..300, 2 => 300usize..4200, 1 => 4200usize..40_000];
    prop_oneof![
        6 => (0usize..12, bytes(), 0u32..14).prop_map(
            |(arena, bytes, align)| Step::Allocate { arena, bytes, align }
        ),
        6 => (any::<usize>(), bytes()).prop_map(|(which, bytes)| Step::NextTo { which, bytes }),
        6 => any::<usize>().prop_map(Step::Free),
        2 => (any::<usize>(), bytes()).prop_map(|(which, bytes)| Step::Resize { which, bytes }),
        1 => (0usize..8).prop_map(Step::Destroy),
        1 => Just(Step::Tidy),
    ]
}

/// A live object of the model.
struct Known {
    bytes: usize,
    arena: ArenaId,
    mark: u8,
}

fn fill(at: usize, bytes: usize, mark: u8) {
    // SAFETY: a live object.
    unsafe { std::slice::from_raw_parts_mut(at as *mut u8, bytes) }.fill(mark);
}

fn holds(at: usize, known: &Known) -> bool {
    // SAFETY: a live object.
    unsafe { std::slice::from_raw_parts(at as *const u8, known.bytes) }
        .iter()
        .all(|byte| *byte == known.mark)
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None, ..ProptestConfig::with_cases(200)
    })]

    /// Objects never overlap, keep their contents and their arena, and arenas count them.
    #[test]
    fn behaves_like_a_map(steps in prop::collection::vec(step(), 1..300)) {
        let _alone = ALONE.lock();
        let before = usage();
        let mut arenas: Vec<ArenaId> = (0..8).map(|n| create([0, 2, 3][n % 3], 0)).collect();
        let mut live: BTreeMap<usize, Known> = BTreeMap::new();
        let mut mark = 0u8;
        let pick = |live: &BTreeMap<usize, Known>, which: usize| {
            live.keys().nth(which % live.len().max(1)).copied()
        };
        for step in steps {
            mark = mark.wrapping_add(1);
            let mut added = None;
            match step {
                Step::Allocate { arena, bytes, align } => {
                    let (placement, arena) = match arena {
                        8 => (Placement::Hot, 0),
                        9 => (Placement::Cold, 0),
                        10 | 11 => (Placement::NextTo(0), 0),
                        n => (Placement::Arena(arenas[n]), arenas[n]),
                    };
                    let made = allocate(placement, bytes, 1 << align);
                    prop_assert!(made != 0 && made.is_multiple_of(1 << align));
                    added = Some((made, bytes, arena));
                }
                Step::NextTo { which, bytes } => {
                    if let Some(near) = pick(&live, which) {
                        let made =
                            allocate(Placement::NextTo(near + live[&near].bytes / 2), bytes, 16);
                        prop_assert!(made != 0);
                        added = Some((made, bytes, live[&near].arena));
                    }
                }
                Step::Free(which) => {
                    if let Some(object) = pick(&live, which) {
                        let known = live.remove(&object);
                        prop_assert!(known.is_none_or(|known| holds(object, &known)));
                        terrace_placed_free(object);
                    }
                }
                Step::Resize { which, bytes } => {
                    if let Some(object) = pick(&live, which)
                        && let Some(known) = live.get_mut(&object)
                        && terrace_placed_resize(object, bytes)
                    {
                        let kept = Known { bytes: bytes.min(known.bytes), ..*known };
                        prop_assert!(holds(object, &kept));
                        *known = Known { bytes, ..kept };
                        fill(object, bytes, known.mark);
                    }
                }
                Step::Destroy(which) => {
                    prop_assert!(destroy(arenas[which]));
                    live.retain(|_, known| known.arena != arenas[which]);
                    arenas[which] = arena();
                }
                Step::Tidy => tidy(),
            }
            if let Some((at, bytes, arena)) = added {
                let usable = terrace_placed_usable(at);
                prop_assert!(usable >= bytes);
                let below = live.range(..at + usable).next_back();
                prop_assert!(
                    below.is_none_or(|(other, _)| other + terrace_placed_usable(*other) <= at),
                    "it overlaps",
                );
                fill(at, bytes, mark);
                live.insert(at, Known { bytes, arena, mark });
            }
        }
        for (at, known) in &live {
            prop_assert!(holds(*at, known) && arena_at(*at) == known.arena);
        }
        for arena in arenas {
            let own = live.iter().filter(|(_, known)| known.arena == arena);
            let bytes: usize = own.clone().map(|(at, _)| terrace_placed_usable(*at)).sum();
            let figures = query(arena).expect("it is there");
            prop_assert_eq!((figures.objects, figures.bytes), (own.count(), bytes));
            prop_assert!(destroy(arena));
        }
        for at in live.iter().filter(|(_, known)| known.arena == 0).map(|(at, _)| *at) {
            terrace_placed_free(at);
        }
        let after = usage();
        // A page of what other tests have left may have been filled up.
        prop_assert!(
            after[2] == before[2] && after[1] == before[1], "{:?} are left of {:?}", after, before
        );
    }
}

/// Threads allocate beside each other's objects and free them.
#[test]
fn threads_share_arenas() {
    let _alone = ALONE.lock();
    let arenas: Vec<ArenaId> = (0..100).map(|_| arena()).collect();
    let left: Vec<Mutex<Vec<(usize, u8)>>> = (0..100).map(|_| Mutex::new(Vec::new())).collect();
    std::thread::scope(|scope| {
        for thread in 0..4usize {
            let (arenas, left) = (&arenas, &left);
            scope.spawn(move || {
                let mut random = 0x9e37_79b9u64 * (thread as u64 + 1);
                for n in 0..30_000usize {
                    random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    let which = (random >> 33) as usize % arenas.len();
                    let mut objects = left[which].lock().expect("nobody panicked");
                    if objects.len() > 20 {
                        let (freed, mark) = objects.swap_remove((random >> 50) as usize % 20);
                        assert!(holds(freed, &Known { bytes: 32, arena: 0, mark }));
                        terrace_placed_free(freed);
                    }
                    drop(objects);
                    let made =
                        object(Placement::Arena(arenas[which]), 32 + (random >> 60) as usize);
                    fill(made, 32, n as u8);
                    left[which].lock().expect("nobody panicked").push((made, n as u8));
                }
            });
        }
    });
    for (arena, left) in arenas.into_iter().zip(left) {
        let objects = left.into_inner().expect("nobody panicked");
        assert_eq!(query(arena).map(|figures| figures.objects), Some(objects.len()));
        assert!(destroy(arena));
    }
}
