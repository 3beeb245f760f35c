//! Tests of one thread. Each returns how many operations it made, where a time for one means
//! something.

use super::cfrac;
use super::natural::Natural;
use super::object::{Object, Random};
use super::tests::scaled;
use crate::objects::Tree;
use rand::SeedableRng as _;
use rand::rngs::SmallRng;
use rand::seq::SliceRandom as _;

/// Smallest and largest size of small objects, bytes: the sizes that programs ask for often.
const SMALL_BYTES: (usize, usize) = (16, 512);

/// An object of 64 bytes comes and goes.
pub fn pair(scale: f64) -> u64 {
    let count = scaled(80_000_000, scale);
    for _ in 0..count {
        drop(Object::new(64));
    }
    count
}

/// Objects of 16 to 1,024 bytes come and go, one at a time.
pub fn pair_sizes(scale: f64) -> u64 {
    let mut random = Random::new(1);
    let sizes: Vec<usize> = (0..4096).map(|_| random.between(16, 1024)).collect();
    let rounds = scaled(20_000, scale);
    for _ in 0..rounds {
        for bytes in &sizes {
            drop(Object::new(*bytes));
        }
    }
    rounds * 4096
}

/// Allocates, as a caller of its own for each number. Without the number that they write, the
/// compiler would make one function of all.
#[inline(never)]
fn site<const NUMBER: u8>(bytes: usize) -> Object {
    let mut object = Object::new(bytes);
    object.mark(NUMBER);
    object
}

/// 8,000 objects of eight callers: any one goes, and another comes.
pub fn churn(scale: f64) -> u64 {
    const SITES: [fn(usize) -> Object; 8] =
        [site::<0>, site::<1>, site::<2>, site::<3>, site::<4>, site::<5>, site::<6>, site::<7>];
    let mut random = Random::new(2);
    let some = |random: &mut Random| {
        SITES[random.below(SITES.len())](random.between(SMALL_BYTES.0, SMALL_BYTES.1))
    };
    let mut live: Vec<Object> = (0..8000).map(|_| some(&mut random)).collect();
    let count = scaled(24_000_000, scale);
    for _ in 0..count {
        let at = random.below(live.len());
        live[at] = some(&mut random);
    }
    count
}

/// Factors, by numbers of a few digits that live for a moment.
pub fn cfrac(scale: f64) -> u64 {
    // Products of two primes of 36 and 38 bits.
    const NUMBERS: [u128; 4] = [
        4_599_825_868_123_263_349_613,
        2_857_816_730_781_632_790_517,
        36_852_538_094_199_362_210_491,
        29_396_690_231_811_509_382_437,
    ];
    for at in 0..scaled(48, scale) {
        let number = Natural::new(NUMBERS[at as usize % NUMBERS.len()]);
        let factor = cfrac::factor(&number, 100);
        assert!(number.modulo(&factor).is_zero(), "a wrong factor");
    }
    0
}

/// Arrays that grow as they are filled, by half each time: many small ones at once and some of many
/// MiB. All is written, as the owner would.
pub fn growth(scale: f64) -> u64 {
    let grow = |object: &mut Object, limit: usize| {
        let had = object.bytes();
        (had < limit).then(|| {
            object.resize((had + had / 2).min(limit));
            object.fill(had, 1);
        })
    };
    for round in 0..scaled(40, scale) {
        let mut random = Random::new(round);
        let mut arrays: Vec<(Object, usize)> = (0..4000)
            .map(|_| {
                let mut array = Object::new(16);
                array.fill(0, 1);
                (array, 1 << random.between(5, 13))
            })
            .collect();
        while arrays.iter_mut().filter_map(|(array, limit)| grow(array, *limit)).count() > 0 {}
        let mut large: Vec<Object> = (0..4).map(|_| Object::new(64)).collect();
        large.iter_mut().for_each(|array| array.fill(0, 1));
        while large.iter_mut().filter_map(|array| grow(array, 6 << 20)).count() > 0 {}
        assert!(
            arrays.iter().map(|(array, _)| array).chain(&large).all(|array| array.is_marked(1)),
            "it lost bytes"
        );
    }
    0
}

/// The tree of `objects` is filled with keys in random order: nodes, keys, pointers and records are
/// objects of their own.
pub fn tree(scale: f64) -> u64 {
    let mut order: Vec<u64> = (0..scaled(1_000_000, scale)).collect();
    order.shuffle(&mut SmallRng::seed_from_u64(3));
    let mut tree = Tree::default();
    order.into_iter().for_each(|key| tree.insert(key));
    // A program that loads a table does not take it apart.
    std::mem::forget(tree);
    0
}
