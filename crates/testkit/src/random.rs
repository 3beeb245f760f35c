//! Generators of pseudorandom numbers. Each gives the same sequence for the same seed.

/// Marsaglia's xorshift with the shifts 13, 7 and 17.
#[derive(Clone, Debug)]
pub struct Xorshift(u64);

impl Xorshift {
    /// Begins the sequence of this state.
    ///
    /// # Panics
    /// If it is 0, as all numbers would be.
    #[inline]
    pub fn new(state: u64) -> Xorshift {
        assert_ne!(state, 0, "from 0 only zeros follow");
        Xorshift(state)
    }

    /// The next number.
    #[inline(always)]
    pub fn draw(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// A number below `end`, from the high bits of the next one.
    #[inline]
    pub fn below(&mut self, end: u64) -> u64 {
        (self.draw() >> 11) % end
    }
}

/// A linear congruential generator with Knuth's multiplier. Its high bits are the good ones.
#[derive(Clone, Debug)]
pub struct Congruential {
    state: u64,
    increment: u64,
}

impl Congruential {
    /// Begins the sequence of this state, with the increment 1.
    #[inline]
    pub const fn new(state: u64) -> Congruential {
        Congruential { state, increment: 1 }
    }

    /// Begins the sequence of this state and increment, which is odd.
    #[inline]
    pub const fn with_increment(state: u64, increment: u64) -> Congruential {
        Congruential { state, increment }
    }

    /// The next number: all of the state.
    #[inline(always)]
    pub fn draw(&mut self) -> u64 {
        self.state =
            self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(self.increment);
        self.state
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequences_stay_as_they_are() {
        let mut xorshift = Xorshift::new(1);
        let drawn = [xorshift.draw(), xorshift.draw()];
        assert_eq!(drawn, [1_082_269_761, 1_152_992_998_833_853_505]);
        let mut congruential = Congruential::with_increment(1, 3);
        assert_eq!(congruential.draw(), 6_364_136_223_846_793_008);
    }
}
