use super::*;

fn store(mebibytes: usize, evictions: bool) -> (Store, Stats) {
    store_with(mebibytes, evictions, false)
}

fn store_with(mebibytes: usize, evictions: bool, consolidate: bool) -> (Store, Stats) {
    let config = Config {
        memory_limit: mebibytes << 20,
        item_size_max: 1 << 20,
        evictions,
        cas: true,
        used_from_start: 0,
        items: None,
        tiering: None,
        consolidate,
        // Rules for working as fast as possible.
        rules: Rules {
            bytes_per_s: u64::MAX,
            cpu_share: 1.0,
            pause: Duration::ZERO,
            longest_pause: Duration::ZERO,
            ..Rules::default()
        },
    };
    (Store::new(config).expect("there is address space"), Stats::new(false))
}

fn set(store: &Store, stats: &Stats, key: &str, value: &[u8], expires: u32) -> bool {
    set_at(store, stats, key, value, expires, 100)
}

fn set_at(store: &Store, stats: &Stats, key: &str, value: &[u8], expires: u32, now: u32) -> bool {
    let new = NewItem { key: key.as_bytes(), value: [value, b""], flags: 0, expires, state: 0 };
    store.put(new, now, stats, |_| Ok::<(), ()>(())).is_ok()
}

/// Stores items with the keys `name-0`, `name-1` and so on until there is no room. Returns how many
/// there are.
fn fill(store: &Store, stats: &Stats, name: &str, value: &[u8], expires: u32, now: u32) -> usize {
    let mut stored = 0;
    while set_at(store, stats, &format!("{name}-{stored}"), value, expires, now) {
        stored += 1;
        assert!(stored < 10_000, "the limit holds");
    }
    stored
}

fn count(stats: &Stats, count: Count) -> u64 {
    stats.all().nth(count as usize).expect("every count has a value")
}

fn assert_counters_agree(store: &Store, stats: &Stats) {
    let mut items = 0;
    let mut lister = store.lister();
    for chain in 0..store.chains() {
        store.list(chain, &mut lister, |_, _| items += 1);
    }
    let counted: u64 = stats.classes.iter().map(|class| class.items.load(Relaxed)).sum();
    assert_eq!(items, counted, "the counters agree with the index");
}

fn get(store: &Store, stats: &Stats, key: &str, now: u32) -> Found<Vec<u8>> {
    store.with(key.as_bytes(), now, stats, true, |item| (item.value.to_vec(), Decision::Keep))
}

#[test]
fn an_item_is_found_until_it_expires() {
    let (store, stats) = store(8, true);
    assert_eq!(get(&store, &stats, "a", 100), Found::Miss);
    assert!(set(&store, &stats, "a", b"one", 110));
    assert_eq!(get(&store, &stats, "a", 109), Found::Hit(b"one".to_vec()));
    assert_eq!(get(&store, &stats, "a", 110), Found::Expired);
    assert_eq!(get(&store, &stats, "a", 110), Found::Miss);
}

#[test]
fn a_flush_takes_what_was_there_and_not_what_follows() {
    let (store, stats) = store(8, true);
    assert!(set(&store, &stats, "a", b"one", 0));
    store.flush(100, 100);
    assert!(set(&store, &stats, "b", b"two", 0));
    assert_eq!(get(&store, &stats, "a", 100), Found::Flushed);
    assert_eq!(get(&store, &stats, "b", 100), Found::Hit(b"two".to_vec()));
}

/// Two flushes at once: the one that drew its identifier first may write it last.
#[test]
fn flushes_at_once_take_what_was_there() {
    let (store, stats) = store(8, true);
    let ended = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !ended.load(Relaxed) {
                store.flush(100, 100);
            }
        });
        for _ in 0..200_000 {
            assert!(set(&store, &stats, "a", b"one", 0));
            store.flush(100, 100);
            if let Found::Hit(_) = get(&store, &stats, "a", 100) {
                ended.store(true, Relaxed);
                panic!("an item was there after a flush that had been answered");
            }
        }
        ended.store(true, Relaxed);
    });
}

#[test]
fn a_flush_leaves_what_is_stored_after_it_by_a_slow_clock() {
    let (store, stats) = store(8, true);
    store.flush(100, 100);
    assert!(set_at(&store, &stats, "a", b"one", 0, 99));
    assert_eq!(get(&store, &stats, "a", 100), Found::Hit(b"one".to_vec()));
}

#[test]
fn an_index_without_room_drops_what_it_holds() {
    let (store, stats) = store(1, true);
    assert!(store.set_memory_limit(64 << 20));
    for number in 0..100_000 {
        let text = number.to_string();
        assert!(set(&store, &stats, &text, b"", 0), "item {number}");
        assert_eq!(get(&store, &stats, &text, 100), Found::Hit(Vec::new()));
    }
    assert!(count(&stats, Count::Evictions) > 0, "the index has fewer slots");
    assert_counters_agree(&store, &stats);
}

#[test]
fn more_items_than_the_buckets_hold_are_all_found() {
    let (store, stats) = store(8, true);
    for number in 0..60_000 {
        let text = number.to_string();
        assert!(set(&store, &stats, &text, text.as_bytes(), 0));
    }
    for number in 0..60_000 {
        let text = number.to_string();
        assert_eq!(get(&store, &stats, &text, 100), Found::Hit(text.into_bytes()));
    }
}

#[test]
fn what_is_used_outlives_what_is_not() {
    let (store, stats) = store(4, true);
    let value = [7; 1000];
    for number in 0..100 {
        assert!(set(&store, &stats, &format!("used-{number}"), &value, 0));
    }
    for number in 0..20_000 {
        assert!(set(&store, &stats, &format!("cold-{number}"), &value, 0));
        let used = format!("used-{}", number % 100);
        get(&store, &stats, &used, 100);
    }
    let kept = (0..100)
        .filter(|number| {
            matches!(get(&store, &stats, &format!("used-{number}"), 100), Found::Hit(_))
        })
        .count();
    assert!(kept >= 90, "{kept} of 100 used items are left");
    assert!(store.used_bytes() <= 4 << 20);
}

#[test]
fn small_items_in_use_outlive_others_where_large_ones_are_between() {
    let (store, stats) = store(4, true);
    for number in 0..100 {
        assert!(set(&store, &stats, &format!("used-{number}"), &[7; 1000], 0));
    }
    for number in 0..20_000 {
        let len = if number % 10 == 0 { 50_000 } else { 1000 };
        assert!(set(&store, &stats, &format!("cold-{number}"), &vec![8; len], 0));
        get(&store, &stats, &format!("used-{}", number % 100), 100);
    }
    let kept = (0..100)
        .filter(|number| {
            matches!(get(&store, &stats, &format!("used-{number}"), 100), Found::Hit(_))
        })
        .count();
    assert!(kept >= 90, "{kept} of 100 used items are left");
}

#[test]
fn garbage_makes_room_before_anything_is_evicted() {
    let (store, stats) = store(4, true);
    for number in 0..1500 {
        assert!(set(&store, &stats, &format!("cold-{number}"), &[7; 1000], 0));
    }
    for _ in 0..20_000 {
        assert!(set(&store, &stats, "hot", &[8; 1000], 0));
        let new = NewItem { key: b"hot", value: [&[9; 1000], b""], flags: 0, expires: 0, state: 0 };
        assert_eq!(store.put(new, 100, &stats, |_| Err(())), Err(PutError::Refused(())));
    }
    assert_eq!(count(&stats, Count::Evictions), 0);
    for number in 0..1500 {
        let found = get(&store, &stats, &format!("cold-{number}"), 100);
        assert_eq!(found, Found::Hit(vec![7; 1000]));
    }
}

#[test]
fn large_items_are_freed_for_others() {
    let (store, stats) = store(4, true);
    for number in 0..500_usize {
        let value = vec![number as u8; 50_000 + number];
        assert!(set(&store, &stats, &format!("large-{}", number % 90), &value, 0));
        assert!(store.used_bytes() <= 4 << 20);
        let found = get(&store, &stats, &format!("large-{}", number % 90), 100);
        assert_eq!(found, Found::Hit(value));
    }
}

/// The limit is nearly as large as the address space, and items of other sizes come in phases.
#[test]
fn large_items_of_any_size_find_pages() {
    let (store, stats) = store(4, true);
    assert!(store.set_memory_limit(79 << 20));
    for round in 0..8 {
        let (len, count) = if round % 2 == 0 { (12_000, 8000) } else { (800_000, 130) };
        for number in 0..count {
            let (key, value) = (format!("{round}-{number}"), vec![number as u8; len + number]);
            assert!(set(&store, &stats, &key, &value, 0), "item {number} of round {round}");
            // A few are used all the time.
            get(&store, &stats, &format!("{round}-{}", number / 30), 100);
            assert_eq!(get(&store, &stats, &key, 100), Found::Hit(value));
        }
    }
}

#[test]
fn without_evictions_a_full_store_refuses_and_keeps_what_it_has() {
    let (store, stats) = store(4, false);
    let value = [1; 2000];
    let mut stored = 0;
    while set(&store, &stats, &format!("key-{stored}"), &value, 0) {
        stored += 1;
        assert!(stored < 10_000, "the limit holds");
    }
    for number in 0..stored {
        let found = get(&store, &stats, &format!("key-{number}"), 100);
        assert_eq!(found, Found::Hit(value.to_vec()));
    }
}

#[test]
fn without_evictions_the_space_of_replaced_items_is_used_again() {
    let (store, stats) = store(4, false);
    for number in 0..20_000 {
        let key = format!("key-{}", number % 100);
        assert!(set(&store, &stats, &key, &[2; 1000], 0), "replacement {number}");
    }
}

#[test]
fn without_evictions_the_space_of_dead_items_is_used_again() {
    for len in [1000, 50_000] {
        let (store, stats) = store(4, false);
        let value = vec![3; len];
        let first = fill(&store, &stats, "first", &value, 110, 100);
        assert!(first > 50);
        let second = fill(&store, &stats, "second", &value, 0, 110);
        assert!(second * 10 >= first * 9, "{second} of {first} after all have expired");
        store.flush(110, 110);
        let third = fill(&store, &stats, "third", &value, 0, 110);
        assert!(third * 10 >= first * 9, "{third} of {first} after a flush");
        assert_counters_agree(&store, &stats);
    }
}

#[test]
fn without_evictions_scattered_space_is_used_again() {
    let (store, stats) = store(4, false);
    let first = fill(&store, &stats, "first", &[4; 1000], 0, 100);
    for number in (0..first).filter(|number| number % 5 < 2) {
        let key = format!("first-{number}");
        store.with(key.as_bytes(), 100, &stats, false, |_| ((), Decision::Remove));
    }
    let second = fill(&store, &stats, "second", &[5; 1000], 0, 100);
    assert!(second * 10 >= first * 3, "{second} of {first} fit where 40 % were removed");
    for number in (0..first).filter(|number| number % 5 >= 2) {
        let found = get(&store, &stats, &format!("first-{number}"), 100);
        assert_eq!(found, Found::Hit(vec![4; 1000]));
    }
}

#[test]
fn threads_see_only_whole_items() {
    let (store, stats) = store(4, true);
    std::thread::scope(|scope| {
        for thread in 0..4_u8 {
            let (store, stats) = (&store, &stats);
            scope.spawn(move || {
                for number in 0..20_000_usize {
                    let key = (number * 7 + usize::from(thread)) % 6000;
                    let value = vec![thread; 200 + key % 20 * 600];
                    assert!(set(store, stats, &key.to_string(), &value, 0));
                    if number % 5 == 0 {
                        let gone = ((number * 11) % 6000).to_string();
                        store.with(gone.as_bytes(), 100, stats, false, |_| ((), Decision::Remove));
                    }
                    let other = (number * 13) % 6000;
                    if let Found::Hit(value) = get(store, stats, &other.to_string(), 100) {
                        assert_eq!(value.len(), 200 + other % 20 * 600);
                        assert!(value.iter().all(|&byte| byte == value[0]));
                    }
                }
            });
        }
    });
    assert!(store.used_bytes() <= 4 << 20);
    assert_counters_agree(&store, &stats);
}

const STEP: Duration = Duration::from_micros(300);

fn figure(store: &Store, name: &str) -> u64 {
    let figures = store.consolidation();
    figures.iter().find(|(one, _)| *one == name).expect("it is told").1
}

/// Uses some items over and over, and brings hot items together meanwhile. Ends when `percent`
/// percent of the pages with hot items are these, and enough items have moved.
fn heat_until(store: &Store, stats: &Stats, hot: &[String], percent: u64, moved: u64) {
    let begun = std::time::Instant::now();
    while figure(store, "consolidate:utilisation_percent") < percent
        || figure(store, "consolidate:moved_items") < moved
    {
        assert!(begun.elapsed().as_secs() < 60, "{:?}", store.consolidation());
        for key in hot {
            assert!(matches!(get(store, stats, key, 100), Found::Hit(_)));
        }
        store.consolidate(100, stats, STEP);
    }
}

fn scattered(name: &str, first: usize, every: usize, count: usize) -> Vec<String> {
    (0..count).map(|number| format!("{name}-{}", first + number * every)).collect()
}

/// Stores items of which each has its number as its value, more than once.
fn fill_numbered(store: &Store, stats: &Stats, count: usize) {
    for number in 0..count {
        let (key, value) = (format!("item-{number}"), format!("{number:>8}").repeat(60));
        let new = NewItem {
            key: key.as_bytes(),
            value: [value.as_bytes(), b""],
            flags: number as u32,
            expires: 1000 + number as u32,
            state: 0,
        };
        store.put(new, 100, stats, |_| Ok::<(), ()>(())).expect("there is room");
    }
}

fn assert_numbered(store: &Store, stats: &Stats, count: usize) {
    for number in 0..count {
        let found = get(store, stats, &format!("item-{number}"), 100);
        assert_eq!(found, Found::Hit(format!("{number:>8}").repeat(60).into_bytes()));
    }
}

#[test]
fn hot_items_share_pages_and_the_hot_set_may_jump() {
    let (store, stats) = store_with(32, true, true);
    fill_numbered(&store, &stats, 20_000);
    heat_until(&store, &stats, &scattered("item", 3, 8, 2500), 80, 0);
    assert!(figure(&store, "consolidate:utilisation_percent_before") < 30);
    let moved = figure(&store, "consolidate:moved_items");
    assert!((2000..4000).contains(&moved), "{moved}");
    // Together they are more than may be hot, so that the first ones cool down.
    heat_until(&store, &stats, &scattered("item", 5, 8, 2500), 70, moved + 2300);
    assert_numbered(&store, &stats, 20_000);
    assert_counters_agree(&store, &stats);
}

#[test]
fn nothing_moves_once_hot_items_lie_together() {
    let (store, stats) = store_with(32, true, true);
    fill_numbered(&store, &stats, 10_000);
    let hot = scattered("item", 0, 10, 1000);
    // All but what lies in the segment for new items.
    heat_until(&store, &stats, &hot, 80, 980);
    let settle = |rounds: u64| {
        let end = figure(&store, "consolidate:rounds") + rounds;
        while figure(&store, "consolidate:rounds") < end {
            hot.iter().for_each(|key| drop(get(&store, &stats, key, 100)));
            store.consolidate(100, &stats, STEP);
        }
        figure(&store, "consolidate:moved_items")
    };
    // What is young moves when it has aged a little.
    let mut moved = settle(1);
    let is_settled = (0..50).any(|_| {
        let before = std::mem::replace(&mut moved, settle(5));
        moved == before
    });
    assert!(is_settled && moved <= 1100, "{moved} have moved, and more do");
}

#[test]
fn all_that_is_known_of_an_item_survives_a_move() {
    let (store, stats) = store_with(32, true, true);
    fill_numbered(&store, &stats, 10_000);
    let known = |key: &String| {
        let found = store.with(key.as_bytes(), 100, &stats, false, |item| {
            let Header { hash, cas, size, flags, expires, created, key_len, state, .. } =
                *item.header;
            ((hash, cas, size, flags, expires, created, key_len, state), Decision::Keep)
        });
        match found {
            Found::Hit(known) => known,
            other => panic!("{key}: {other:?}"),
        }
    };
    let hot = scattered("item", 1, 10, 1000);
    hot.iter().for_each(|key| drop(get(&store, &stats, key, 100)));
    let before: Vec<_> = hot.iter().map(known).collect();
    heat_until(&store, &stats, &hot, 80, 0);
    assert_eq!(hot.iter().map(known).collect::<Vec<_>>(), before);
    assert_eq!(before[7].3, 71, "flags are there");
}

#[test]
fn where_memory_is_short_what_moves_leaves_no_garbage() {
    for evictions in [true, false] {
        let (store, stats) = store_with(4, evictions, true);
        let value = [7; 520];
        let mut stored = 0;
        while store.used_bytes() + (2 << 16) < 4 << 20 && stored < 6000 {
            assert!(set(&store, &stats, &format!("item-{stored}"), &value, 0));
            stored += 1;
        }
        let evicted = count(&stats, Count::Evictions);
        for _ in 0..400 {
            for number in (0..stored).step_by(8) {
                get(&store, &stats, &format!("item-{number}"), 100);
            }
            store.consolidate(100, &stats, STEP);
        }
        assert!(figure(&store, "consolidate:moved_items") > 0);
        assert!(store.used_bytes() <= 4 << 20);
        assert_eq!(count(&stats, Count::Evictions), evicted, "nothing is lost by moving");
        for number in 0..stored {
            let found = get(&store, &stats, &format!("item-{number}"), 100);
            assert!(evicted > 0 || found == Found::Hit(value.to_vec()), "{number} of {stored}");
        }
        assert_counters_agree(&store, &stats);
    }
}

#[test]
fn what_has_expired_or_was_flushed_does_not_move() {
    let (store, stats) = store_with(32, true, true);
    fill_numbered(&store, &stats, 10_000);
    let hot = scattered("item", 1, 10, 1000);
    for _ in 0..100 {
        hot.iter().for_each(|key| drop(get(&store, &stats, key, 100)));
    }
    store.flush(100, 100);
    for _ in 0..2000 {
        store.consolidate(100, &stats, STEP);
    }
    assert_eq!(figure(&store, "consolidate:moved_items"), 0);
    assert!(figure(&store, "consolidate:dead_items") > 900, "{:?}", store.consolidation());
    assert_counters_agree(&store, &stats);
}

#[test]
fn switched_off_nothing_moves_and_what_was_open_is_sealed() {
    let (store, stats) = store_with(32, true, true);
    fill_numbered(&store, &stats, 10_000);
    let hot = scattered("item", 1, 10, 1000);
    heat_until(&store, &stats, &hot, 50, 0);
    store.switch_consolidation(false);
    assert_eq!(store.consolidate(100, &stats, STEP), Progress::Resting);
    let moved = figure(&store, "consolidate:moved_items");
    assert!(moved > 0);
    let others = scattered("item", 2, 10, 1000);
    for _ in 0..50 {
        others.iter().for_each(|key| drop(get(&store, &stats, key, 100)));
        assert_eq!(store.consolidate(100, &stats, STEP), Progress::Resting);
    }
    assert_eq!(figure(&store, "consolidate:moved_items"), moved);
    assert_eq!(figure(&store, "consolidate"), 0);
    store.switch_consolidation(true);
    heat_until(&store, &stats, &others, 50, moved + 900);
    assert_numbered(&store, &stats, 10_000);
}

#[test]
fn threads_see_only_whole_items_while_items_move_and_are_evicted() {
    let (store, stats) = store_with(4, true, true);
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..3_u8)
            .map(|thread| {
                let (store, stats) = (&store, &stats);
                scope.spawn(move || {
                    for number in 0..40_000_usize {
                        let key = (number * 7 + usize::from(thread)) % 6000;
                        let value = vec![thread; 200 + key % 20 * 60];
                        if number % 3 == 0 {
                            assert!(set(store, stats, &key.to_string(), &value, 0));
                        }
                        if number % 50 == 0 {
                            let gone = ((number * 11) % 6000).to_string();
                            let remove = |_: &mut Item<'_>| ((), Decision::Remove);
                            store.with(gone.as_bytes(), 100, stats, false, remove);
                        }
                        let other = (number * 13) % if number % 4 == 0 { 6000 } else { 600 };
                        if let Found::Hit(value) = get(store, stats, &other.to_string(), 100) {
                            assert_eq!(value.len(), 200 + other % 20 * 60);
                            assert!(value.iter().all(|&byte| byte == value[0]));
                        }
                    }
                })
            })
            .collect();
        let (store, stats, stop) = (&store, &stats, &stop);
        scope.spawn(move || {
            for step in 0.. {
                if stop.load(Relaxed) {
                    break;
                }
                store.consolidate(100, stats, STEP);
                if step % 500 == 499 {
                    store.switch_consolidation(step % 1000 == 999);
                }
            }
        });
        for worker in workers {
            worker.join().expect("no value is wrong");
        }
        stop.store(true, Relaxed);
    });
    assert!(figure(&store, "consolidate:moved_items") > 0);
    assert!(store.used_bytes() <= 4 << 20);
    assert_counters_agree(&store, &stats);
}
