//! Natural numbers of any size, each result in a new small object of `malloc`'s. They do what a
//! program of big numbers does to its allocator.

use super::object::Object;
use std::cmp::Ordering;

/// A natural number: digits of 32 bits, the lowest first; the highest is not 0.
pub struct Natural {
    object: Object,
    len: usize,
}

const DIGIT_BITS: usize = 32;

impl Natural {
    /// A number of `len` digits, all 0: to be written and trimmed.
    fn zeros(len: usize) -> Natural {
        let mut object = Object::new(len.max(1) * size_of::<u32>());
        object.fill(0, 0);
        Natural { object, len }
    }

    /// Makes a natural number from a `u128`.
    pub fn new(number: u128) -> Natural {
        let mut natural = Natural::zeros(4);
        natural
            .digits_mut()
            .iter_mut()
            .enumerate()
            .for_each(|(at, digit)| *digit = (number >> (at * DIGIT_BITS)) as u32);
        natural.trimmed()
    }

    fn digits(&self) -> &[u32] {
        // SAFETY: this many were written when it was made; malloc aligns for them.
        unsafe { std::slice::from_raw_parts(self.object.address().cast(), self.len) }
    }

    fn digits_mut(&mut self) -> &mut [u32] {
        // SAFETY: as above, and the object is this number's alone.
        unsafe { std::slice::from_raw_parts_mut(self.object.address().cast(), self.len) }
    }

    fn trimmed(mut self) -> Natural {
        self.len = self.digits().iter().rposition(|digit| *digit != 0).map_or(0, |top| top + 1);
        self
    }

    fn copy(&self) -> Natural {
        let mut copy = Natural::zeros(self.len);
        copy.digits_mut().copy_from_slice(self.digits());
        copy
    }

    /// Whether it is 0.
    pub fn is_zero(&self) -> bool {
        self.len == 0
    }

    /// Whether it is 1.
    pub fn is_one(&self) -> bool {
        self.digits() == [1]
    }

    /// The lowest 128 bits.
    pub fn low(&self) -> u128 {
        self.digits()
            .iter()
            .take(4)
            .enumerate()
            .map(|(at, digit)| u128::from(*digit) << (at * DIGIT_BITS))
            .sum()
    }

    /// The sum.
    pub fn plus(&self, other: &Natural) -> Natural {
        let mut sum = Natural::zeros(self.len.max(other.len) + 1);
        let mut carry = 0u64;
        for (at, digit) in sum.digits_mut().iter_mut().enumerate() {
            let of = |number: &Natural| number.digits().get(at).copied().map_or(0, u64::from);
            carry += of(self) + of(other);
            *digit = carry as u32;
            carry >>= DIGIT_BITS;
        }
        sum.trimmed()
    }

    /// The difference; `other` is not greater.
    pub fn minus(&self, other: &Natural) -> Natural {
        let mut difference = Natural::zeros(self.len);
        let mut borrow = false;
        for (at, digit) in difference.digits_mut().iter_mut().enumerate() {
            let (less, first) =
                self.digits()[at].overflowing_sub(other.digits().get(at).copied().unwrap_or(0));
            let (least, second) = less.overflowing_sub(u32::from(borrow));
            (*digit, borrow) = (least, first || second);
        }
        assert!(!borrow, "a negative number");
        difference.trimmed()
    }

    /// The product.
    pub fn times(&self, other: &Natural) -> Natural {
        let mut product = Natural::zeros(self.len + other.len);
        for (shift, by) in other.digits().iter().enumerate() {
            let mut carry = 0u64;
            for (at, digit) in self.digits().iter().enumerate() {
                let place = &mut product.digits_mut()[shift + at];
                carry += u64::from(*digit) * u64::from(*by) + u64::from(*place);
                *place = carry as u32;
                carry >>= DIGIT_BITS;
            }
            product.digits_mut()[shift + self.len] = carry as u32;
        }
        product.trimmed()
    }

    /// Quotient and remainder by a digit.
    pub fn over_digit(&self, by: u32) -> (Natural, u32) {
        let mut quotient = Natural::zeros(self.len);
        let mut rest = 0u64;
        for at in (0..self.len).rev() {
            let part = rest << DIGIT_BITS | u64::from(self.digits()[at]);
            quotient.digits_mut()[at] = (part / u64::from(by)) as u32;
            rest = part % u64::from(by);
        }
        (quotient.trimmed(), rest as u32)
    }

    fn shifted(&self, bits: u32) -> Natural {
        let mut shifted = Natural::zeros(self.len + 1);
        let mut carry = 0u64;
        for at in 0..=self.len {
            carry |= self.digits().get(at).copied().map_or(0, u64::from) << bits;
            shifted.digits_mut()[at] = carry as u32;
            carry >>= DIGIT_BITS;
        }
        shifted
    }

    /// Quotient and remainder: Knuth's algorithm D (The Art of Computer Programming, volume 2,
    /// §4.3.1).
    pub fn over(&self, by: &Natural) -> (Natural, Natural) {
        if self.compare(by) == Ordering::Less {
            return (Natural::zeros(0), self.copy());
        }
        if by.len == 1 {
            let (quotient, rest) = self.over_digit(by.digits()[0]);
            return (quotient, Natural::new(rest.into()));
        }
        let shift = by.digits()[by.len - 1].leading_zeros();
        let (mut rest, by) = (self.shifted(shift), by.shifted(shift).trimmed());
        let (divisor, len) = (by.digits(), by.len);
        let [top, next] = [divisor[len - 1], divisor[len - 2]].map(u64::from);
        let mut quotient = Natural::zeros(rest.len - len);
        for at in (0..rest.len - len).rev() {
            let part = &mut rest.digits_mut()[at..=at + len];
            let head = u64::from(part[len]) << DIGIT_BITS | u64::from(part[len - 1]);
            let (mut guess, mut left) = (head / top, head % top);
            while guess >> DIGIT_BITS != 0
                || guess * next > (left << DIGIT_BITS | u64::from(part[len - 2]))
            {
                guess -= 1;
                left += top;
                if left >> DIGIT_BITS != 0 {
                    break;
                }
            }
            let (mut carry, mut borrow) = (0u64, false);
            for (place, digit) in part.iter_mut().zip(divisor.iter().chain(&[0])) {
                carry += guess * u64::from(*digit);
                let (less, first) = place.overflowing_sub(carry as u32);
                let (least, second) = less.overflowing_sub(u32::from(borrow));
                (*place, borrow) = (least, first || second);
                carry >>= DIGIT_BITS;
            }
            if borrow {
                guess -= 1;
                let mut carry = 0u64;
                for (place, digit) in part.iter_mut().zip(divisor.iter().chain(&[0])) {
                    carry += u64::from(*place) + u64::from(*digit);
                    *place = carry as u32;
                    carry >>= DIGIT_BITS;
                }
            }
            quotient.digits_mut()[at] = guess as u32;
        }
        let mut carry = 0u64;
        for digit in rest.digits_mut().iter_mut().rev() {
            carry = carry << DIGIT_BITS | u64::from(*digit);
            *digit = (carry >> shift) as u32;
        }
        (quotient.trimmed(), rest.trimmed())
    }

    /// The remainder.
    pub fn modulo(&self, by: &Natural) -> Natural {
        self.over(by).1
    }

    /// The root, rounded down: Newton's method from above.
    pub fn root(&self) -> Natural {
        if self.is_zero() {
            return Natural::zeros(0);
        }
        let mut root = Natural::new(1).shifted_digits(self.len / 2 + 1);
        loop {
            let (next, _) = self.over(&root).0.plus(&root).over_digit(2);
            if next.compare(&root) != Ordering::Less {
                return root;
            }
            root = next;
        }
    }

    fn shifted_digits(&self, digits: usize) -> Natural {
        let mut shifted = Natural::zeros(self.len + digits);
        shifted.digits_mut()[digits..].copy_from_slice(self.digits());
        shifted
    }

    /// The greatest common divisor.
    pub fn common(&self, other: &Natural) -> Natural {
        let (mut one, mut two) = (self.copy(), other.copy());
        while !two.is_zero() {
            (one, two) = (two.copy(), one.modulo(&two));
        }
        one
    }

    /// Compares two numbers.
    pub fn compare(&self, other: &Natural) -> Ordering {
        self.len
            .cmp(&other.len)
            .then_with(|| self.digits().iter().rev().cmp(other.digits().iter().rev()))
    }
}

#[cfg(test)]
mod tests {
    use super::super::object::Random;
    use super::*;

    /// Draws a number of up to 128 bits, short ones too. Extreme digits bring about the rare cases
    /// of a division.
    fn some(random: &mut Random) -> u128 {
        const EDGES: [u32; 6] = [0, 1, 0x7fff_ffff, 0x8000_0000, 0xffff_fffe, 0xffff_ffff];
        let mut number = 0;
        for _ in 0..4 {
            let digit = if random.below(2) == 0 {
                EDGES[random.below(EDGES.len())]
            } else {
                random.draw() as u32
            };
            number = number << DIGIT_BITS | u128::from(digit);
        }
        number >> (random.below(4) * DIGIT_BITS + random.below(2) * random.below(DIGIT_BITS))
    }

    #[test]
    fn arithmetic_is_that_of_128_bits() {
        let mut random = Random::new(1);
        for _ in 0..100_000 {
            let (a, b) = (some(&mut random), some(&mut random).max(1));
            let [one, two] = [a, b].map(Natural::new);
            let (half, other) = (Natural::new(a >> 64), Natural::new(b >> 64));
            assert_eq!(one.compare(&two), a.cmp(&b));
            assert_eq!(one.minus(&Natural::new(a / 3)).low(), a - a / 3);
            assert_eq!(half.times(&other).low(), (a >> 64) * (b >> 64));
            assert_eq!(Natural::new(a >> 1).plus(&Natural::new(b >> 1)).low(), (a >> 1) + (b >> 1));
            let (quotient, rest) = one.over(&two);
            assert_eq!((quotient.low(), rest.low()), (a / b, a % b));
            let digit = b as u32 | 1;
            let (quotient, rest) = one.over_digit(digit);
            assert_eq!(
                (quotient.low(), u128::from(rest)),
                (a / u128::from(digit), a % u128::from(digit))
            );
            assert_eq!(one.root().low(), a.isqrt());
        }
    }

    #[test]
    fn beyond_128_bits_a_product_divides_by_its_factors() {
        let mut random = Random::new(2);
        for _ in 0..20_000 {
            let [a, b, c] = [0; 3].map(|_| Natural::new(some(&mut random) | 1));
            let product = a.times(&b).times(&c);
            let (quotient, rest) = product.plus(&Natural::new(a.low() - 1)).over(&a);
            assert_eq!(quotient.compare(&b.times(&c)), Ordering::Equal);
            assert_eq!(rest.low(), a.low() - 1);
            assert!(product.times(&product).root().compare(&product) == Ordering::Equal);
            assert!(product.common(&b).compare(&b) == Ordering::Equal);
        }
    }
}
