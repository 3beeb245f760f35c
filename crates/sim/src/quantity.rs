//! Numbers as people write them.

/// A count: `120000`, `120K`, `2M`, `1.5G`; powers of 1000.
pub fn count(text: &str) -> Option<u64> {
    let (digits, factor) = match text.as_bytes().last()? {
        b'k' | b'K' => (&text[..text.len() - 1], 1e3),
        b'm' | b'M' => (&text[..text.len() - 1], 1e6),
        b'g' | b'G' => (&text[..text.len() - 1], 1e9),
        _ => return text.parse().ok(),
    };
    let number: f64 = digits.parse().ok()?;
    let product = number * factor;
    ((0.0..1e18).contains(&product) && product.fract() == 0.0).then_some(product as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_have_decimal_suffixes() {
        assert_eq!(
            ["0", "120K", "2M", "1.5g", "0.5k"].map(count),
            [Some(0), Some(120_000), Some(2_000_000), Some(1_500_000_000), Some(500)]
        );
        assert_eq!(
            ["", "K", "-1", "1.5", "1.2345K", "1e9G", "nanK", "2 M", "12T"].map(count),
            [None; 9]
        );
    }
}
