//! Numbers for people: sizes in powers of 1024 with one decimal, short times, shares.

/// `812B`, `1.1G`, `512.0M`.
pub fn bytes(count: u64) -> String {
    let mut value = count as f64;
    if value < 1024.0 {
        return format!("{count}B");
    }
    for unit in ["K", "M", "G", "T", "P"] {
        value /= 1024.0;
        // 1023.95 would be written as 1024.0.
        if value < 1023.95 {
            return format!("{value:.1}{unit}");
        }
    }
    format!("{:.1}E", value / 1024.0)
}

/// A time of nanoseconds to seconds: `0.8us`, `31us`, `4.2ms`, `1.9s`.
pub fn short_time(ns: u64) -> String {
    let us = ns as f64 / 1e3;
    match us {
        us if us < 9.95 => format!("{us:.1}us"),
        us if us < 999.5 => format!("{us:.0}us"),
        us if us < 999_950.0 => format!("{:.1}ms", us / 1e3),
        us => format!("{:.1}s", us / 1e6),
    }
}

/// `45%`, `3.1%`, `0.04%`: two significant digits below ten.
pub fn share(fraction: f64) -> String {
    let percent = fraction * 100.0;
    match percent.abs() {
        p if p >= 9.95 => format!("{percent:.0}%"),
        p if p >= 0.995 || p == 0.0 => format!("{percent:.1}%"),
        _ => format!("{percent:.2}%"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_change_where_they_should() {
        assert_eq!(
            [0, 1023, 1024, (1 << 20) - 1, 1 << 20, 3 << 29].map(bytes),
            ["0B", "1023B", "1.0K", "1.0M", "1.0M", "1.5G"]
        );
        assert_eq!(bytes(u64::MAX), "16.0E");
        assert_eq!(
            [800, 9_949, 31_000, 999_600, 1_900_000_000].map(short_time),
            ["0.8us", "9.9us", "31us", "1.0ms", "1.9s"]
        );
        assert_eq!(
            [0.0, 0.0004, 0.031, 0.45, -0.02].map(share),
            ["0.0%", "0.04%", "3.1%", "45%", "-2.0%"]
        );
    }
}
