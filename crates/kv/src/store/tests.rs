use super::*;

fn store(mebibytes: usize, evictions: bool) -> (Store, Stats) {
    let config = Config {
        memory_limit: mebibytes << 20,
        item_size_max: 1 << 20,
        evictions,
        cas: true,
        used_from_start: 0,
        tiering: None,
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

/// Stores items with the keys `name-0`, `name-1` and so on until there is no room, and gives how
/// many there are.
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
    store.for_each(|_| {
        items += 1;
        true
    });
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
