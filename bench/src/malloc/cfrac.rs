//! Factors by continued fractions (Morrison and Brillhart, 1975), as the program `cfrac` of the
//! known suites: millions of numbers that live for one step each.
//!
//! The convergents A/B of the root of N have A² ≡ ±Q modulo N, with Q below twice the root. Where Q
//! falls into small primes it is kept. From enough such relations a product can be made that is a
//! square on both sides: X² ≡ Y². Then X − Y has a factor in common with N in one of two cases.

use super::natural::Natural;
use std::cmp::Ordering;

/// A relation: a convergent whose Q falls into the primes. It has A, and how often each prime
/// divides Q. The first "prime" is −1.
struct Relation {
    a: Natural,
    powers: Vec<u8>,
}

/// A factor of an odd number that is no square and no prime. `primes`: how many primes a Q may fall
/// into.
pub fn factor(number: &Natural, primes: usize) -> Natural {
    let base = base(number, primes);
    let relations = relations(number, &base);
    for product in squares(&relations, base.len() + 1) {
        let (mut x, mut powers) = (Natural::new(1), vec![0u32; base.len() + 1]);
        for at in product {
            x = x.times(&relations[at].a).modulo(number);
            powers
                .iter_mut()
                .zip(&relations[at].powers)
                .for_each(|(sum, power)| *sum += u32::from(*power));
        }
        let mut y = Natural::new(1);
        for (prime, power) in base.iter().zip(&powers[1..]) {
            for _ in 0..power / 2 {
                y = y.times(&Natural::new((*prime).into())).modulo(number);
            }
        }
        let difference = if x.compare(&y) == Ordering::Less { y.minus(&x) } else { x.minus(&y) };
        let common = difference.common(number);
        if !common.is_one() && common.compare(number) == Ordering::Less {
            return common;
        }
    }
    panic!("no factor of {}", number.low());
}

/// The first primes that can divide a Q: N is a square modulo them.
fn base(number: &Natural, count: usize) -> Vec<u32> {
    let is_prime = |n: u32| (2..).take_while(|d| d * d <= n).all(|d| !n.is_multiple_of(d));
    let is_square = |p: u32| {
        let rest = u64::from(number.over_digit(p).1);
        (0..u64::from(p)).any(|root| root * root % u64::from(p) == rest)
    };
    (2..).filter(|n| is_prime(*n) && is_square(*n)).take(count).collect()
}

/// Relations, more of them than there are primes.
fn relations(number: &Natural, base: &[u32]) -> Vec<Relation> {
    let root = number.root();
    let (mut p, mut q, mut a) = (Natural::new(0), Natural::new(1), root.modulo(number));
    let (mut quotient, mut before) = (root.plus(&Natural::new(0)), Natural::new(1));
    let mut found = Vec::new();
    let mut is_negative = false;
    while found.len() < base.len() + 20 {
        p = quotient.times(&q).minus(&p);
        q = number.minus(&p.times(&p)).over(&q).0;
        is_negative = !is_negative;
        if let Some(mut powers) = powers(&q, base) {
            powers[0] = is_negative.into();
            found.push(Relation { a: a.plus(&Natural::new(0)), powers });
        }
        quotient = root.plus(&p).over(&q).0;
        let next = quotient.times(&a).plus(&before).modulo(number);
        before = std::mem::replace(&mut a, next);
        assert!(!q.is_one(), "the fraction begins again too early");
    }
    found
}

/// How often each prime divides a number, if nothing else is left then.
fn powers(number: &Natural, base: &[u32]) -> Option<Vec<u8>> {
    let mut powers = vec![0u8; base.len() + 1];
    let mut left = number.plus(&Natural::new(0));
    for (prime, power) in base.iter().zip(&mut powers[1..]) {
        loop {
            let (quotient, rest) = left.over_digit(*prime);
            if rest != 0 {
                break;
            }
            left = quotient;
            *power += 1;
        }
    }
    left.is_one().then_some(powers)
}

/// Sets of relations whose product has even powers only: Gauss's elimination modulo 2.
fn squares(relations: &[Relation], primes: usize) -> Vec<Vec<usize>> {
    // Row by row the parities, and which relations are in it.
    let mut rows: Vec<(Vec<bool>, Vec<bool>)> = relations
        .iter()
        .enumerate()
        .map(|(at, relation)| {
            (
                relation.powers.iter().map(|power| power % 2 == 1).collect(),
                (0..relations.len()).map(|n| n == at).collect(),
            )
        })
        .collect();
    for prime in 0..primes {
        let Some(pivot) = rows.iter().position(|(parities, _)| parities[prime]) else { continue };
        let (parities, members) = rows.swap_remove(pivot);
        for (other, others) in rows.iter_mut().filter(|(other, _)| other[prime]) {
            other.iter_mut().zip(&parities).for_each(|(one, two)| *one ^= two);
            others.iter_mut().zip(&members).for_each(|(one, two)| *one ^= two);
        }
    }
    rows.into_iter()
        .map(|(_, members)| (0..members.len()).filter(|at| members[*at]).collect())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_of_two_primes() {
        for (one, two, primes) in [
            (10_007, 10_039, 12),
            (1_000_003, 1_000_033, 30),
            (209_707_342_417, 175_733_179_723, 90),
        ] {
            let found = factor(&Natural::new(one * two), primes).low();
            assert!(found == one || found == two, "{found} of {one} × {two}");
        }
    }
}
