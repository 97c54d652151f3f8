//! Text of login and text requests: `key=value` pairs, each ended by a zero byte (RFC 7143, section 6). Pure.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

/// Pairs of one negotiation step. A standard login has some 20.
pub const MAX_PAIRS: usize = 128;

/// The longest key in bytes.
const MAX_KEY: usize = 63;

/// The longest binary value in bytes.
const MAX_BINARY: usize = 1024;

/// The text is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Malformed;

/// The pairs of `text`, in their order.
///
/// # Errors
/// A pair without `=`, with an invalid key, a key that came twice, or too many pairs.
pub fn pairs(text: &[u8]) -> Result<Vec<(&str, &str)>, Malformed> {
    let mut found: Vec<(&str, &str)> = Vec::new();
    for pair in text.split(|&byte| byte == 0).filter(|pair| !pair.is_empty()) {
        let pair = std::str::from_utf8(pair).map_err(|_| Malformed)?;
        let (key, value) = pair.split_once('=').ok_or(Malformed)?;
        let valid = key.starts_with(|c: char| c.is_ascii_alphabetic())
            && key.len() <= MAX_KEY
            && key.bytes().all(|c| c.is_ascii_alphanumeric() || b".-+@_#".contains(&c));
        if !valid || found.len() == MAX_PAIRS || found.iter().any(|(other, _)| *other == key) {
            return Err(Malformed);
        }
        found.push((key, value));
    }
    Ok(found)
}

/// Appends a pair to `text`.
pub fn put(text: &mut Vec<u8>, key: &str, value: &str) {
    text.extend(key.bytes().chain([b'=']).chain(value.bytes()).chain([0]));
}

/// The number that `value` is: decimal, or hexadecimal after `0x`.
#[must_use]
pub fn number(value: &str) -> Option<u32> {
    match value.strip_prefix("0x").or_else(|| value.strip_prefix("0X")) {
        Some(hex) if !hex.starts_with('+') => u32::from_str_radix(hex, 16).ok(),
        None if !value.starts_with('+') => value.parse().ok(),
        _ => None,
    }
}

/// The bytes that `value` is: hexadecimal after `0x`, base 64 after `0b`.
#[must_use]
pub fn binary(value: &str) -> Option<Vec<u8>> {
    let (prefix, digits) = (value.get(..2)?, value.get(2..)?);
    if digits.len() > 2 * MAX_BINARY {
        return None;
    }
    match prefix {
        "0x" | "0X" => {
            let nibbles: Option<Vec<u8>> = digits.chars().map(|c| c.to_digit(16).map(|digit| digit as u8)).collect();
            let mut nibbles = nibbles?;
            if !nibbles.len().is_multiple_of(2) {
                nibbles.insert(0, 0);
            }
            Some(nibbles.chunks(2).map(|pair| pair.iter().fold(0, |byte, nibble| byte << 4 | nibble)).collect())
        }
        "0b" | "0B" => STANDARD.decode(digits).ok(),
        _ => None,
    }
}

/// `bytes` as a hexadecimal value.
#[must_use]
pub fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().fold("0x".to_owned(), |text, byte| text + &format!("{byte:02x}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_keep_their_order_and_values() {
        assert_eq!(pairs(b"A=1\0B=x=y\0\0\0C=\0"), Ok(vec![("A", "1"), ("B", "x=y"), ("C", "")]));
        for wrong in [&b"A"[..], b"=1", b"A=1\0A=2", b"9=1", b"A\xff=1", b"A =1"] {
            assert_eq!(pairs(wrong), Err(Malformed), "{wrong:?}");
        }
        let many: Vec<u8> = (0..=MAX_PAIRS).flat_map(|i| format!("K{i}=1\0").into_bytes()).collect();
        assert_eq!(pairs(&many), Err(Malformed));
    }

    #[test]
    fn numbers_and_bytes_have_two_forms() {
        assert_eq!([number("16"), number("0x1F"), number("+1"), number("0x+1"), number("x")], [Some(16), Some(31), None, None, None]);
        assert_eq!(binary("0x0aFF"), Some(vec![10, 255]));
        assert_eq!(binary("0xaff"), Some(vec![10, 255]));
        assert_eq!(binary("0bCv8="), Some(vec![10, 255]));
        assert_eq!([binary("0xg0"), binary("12"), binary("ä0")], [None, None, None]);
        assert_eq!(binary(&hexadecimal(&[0, 1, 254])), Some(vec![0, 1, 254]));
    }
}
