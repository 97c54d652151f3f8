//! Numbers and sizes as text, in the units that people read.

/// `bytes` in binary units with three significant digits: `512 B`, `1.50 KiB`, `80.6 MiB`.
#[must_use]
pub fn human_bytes(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    match (unit, value) {
        (0, _) => format!("{bytes} B"),
        (_, v) if v < 10.0 => format!("{v:.2} {}", UNITS[unit]),
        (_, v) if v < 100.0 => format!("{v:.1} {}", UNITS[unit]),
        (_, v) => format!("{v:.0} {}", UNITS[unit]),
    }
}

/// `n` with its digits in groups: `32,738`.
#[must_use]
pub fn human_count(n: u64) -> String {
    let digits = n.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// `n` of `what`, a word whose plural ends in s: `1 slice`, `32,738 rows`.
#[must_use]
pub fn counted(n: u64, what: &str) -> String {
    format!("{} {what}{}", human_count(n), if n == 1 { "" } else { "s" })
}

/// `seconds` as people read them: `340 µs`, `12.5 ms`, `1.26 s`.
#[must_use]
pub fn human_seconds(seconds: f64) -> String {
    if seconds < 1e-3 {
        format!("{:.0} µs", seconds * 1e6)
    } else if seconds < 1.0 {
        format!("{:.1} ms", seconds * 1e3)
    } else {
        format!("{seconds:.2} s")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_carry_their_unit() {
        assert_eq!(human_bytes(0), "0 B");
        assert_eq!(human_bytes(1023), "1023 B");
        assert_eq!(human_bytes(1536), "1.50 KiB");
        assert_eq!(human_bytes(84_515_225), "80.6 MiB");
    }

    #[test]
    fn counts_are_read_at_a_glance() {
        for (n, text) in [(0, "0 rows"), (1, "1 row"), (999, "999 rows"), (1000, "1,000 rows"), (32_738, "32,738 rows"), (1_234_567, "1,234,567 rows")] {
            assert_eq!(counted(n, "row"), text);
        }
    }

    #[test]
    fn times_carry_their_unit() {
        assert_eq!(human_seconds(0.00034), "340 µs");
        assert_eq!(human_seconds(0.0125), "12.5 ms");
        assert_eq!(human_seconds(1.257), "1.26 s");
    }
}
