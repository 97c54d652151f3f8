//! Whole numbers in JSON that no integer type holds.

use std::borrow::Cow;

/// Whole numbers of fewer digits fit 64 bits.
const DIGITS: usize = 19;

/// `line`, a line of JSON, with whole numbers beyond 64 bits as texts, and `-0` as `0`: a parser would make doubles of
/// them.
pub(super) fn as_texts(line: &str) -> Cow<'_, str> {
    let bytes = line.as_bytes();
    let mut out: Option<String> = None;
    let (mut at, mut copied, mut quoted) = (0, 0, false);
    while at < bytes.len() {
        match bytes[at] {
            b'\\' if quoted => at += 2,
            b'"' => {
                quoted = !quoted;
                at += 1;
            }
            b'-' | b'0'..=b'9' if !quoted => {
                let rest = &line[at..];
                let number = &rest[..rest.find(|c: char| !matches!(c, '-' | '+' | '.' | 'e' | 'E' | '0'..='9')).unwrap_or(rest.len())];
                let instead = if number == "-0" { Some(["", "0", ""]) } else { is_beyond(number).then_some(["\"", number, "\""]) };
                if let Some(instead) = instead {
                    let out = out.get_or_insert_default();
                    out.push_str(&line[copied..at]);
                    out.extend(instead);
                    copied = at + number.len();
                }
                at += number.len();
            }
            _ => at += 1,
        }
    }
    match out {
        None => Cow::Borrowed(line),
        Some(mut out) => {
            out.push_str(&line[copied..]);
            Cow::Owned(out)
        }
    }
}

fn is_beyond(number: &str) -> bool {
    let digits = number.strip_prefix('-').unwrap_or(number);
    digits.len() >= DIGITS && digits.bytes().all(|b| b.is_ascii_digit()) && number.parse::<i64>().is_err() && number.parse::<u64>().is_err()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_zero_with_a_sign_is_a_whole_number() {
        assert_eq!(as_texts("{\"-0\": [-0,1], \"b\": -0}"), "{\"-0\": [0,1], \"b\": 0}");
        assert_eq!(as_texts("[-0.0, -0e1, \"-0\", -01]"), "[-0.0, -0e1, \"-0\", -01]");
    }

    #[test]
    fn only_whole_numbers_beyond_64_bits_become_texts() {
        for same in [
            "{\"a\": 1, \"b\": -9223372036854775808, \"c\": 18446744073709551615, \"d\": 1e300}",
            "{\"99999999999999999999\": \"-99999999999999999999\", \"b\": \"\\\" 99999999999999999999\"}",
            "{\"a\": 99999999999999999999.5, \"b\": 99999999999999999999e3, \"c\": \"ä\"}",
            "",
            "\"\\",
        ] {
            assert!(matches!(as_texts(same), Cow::Borrowed(text) if text == same), "{same}");
        }
        assert_eq!(
            as_texts("{\"ä\": 99999999999999999999, \"b\": [-9223372036854775809,18446744073709551616], \"c\": 1}"),
            "{\"ä\": \"99999999999999999999\", \"b\": [\"-9223372036854775809\",\"18446744073709551616\"], \"c\": 1}"
        );
    }
}
