//! Logical unit numbers (SAM-5, 4.7): eight bytes on the wire.

/// The well known logical unit REPORT LUNS (SAM-5, 4.7.5.5).
pub(crate) const REPORT_LUNS: u64 = 0xC101_0000_0000_0000;

/// The number in the eight bytes of a LUN: by peripheral device or flat space addressing, on the first level.
pub(crate) fn number(lun: u64) -> Option<u16> {
    let first = (lun >> 48) as u16;
    if lun << 16 != 0 {
        return None;
    }
    match first >> 14 {
        // Bus identifier zero: this target's own logical units.
        0 if first >> 8 == 0 => Some(first),
        1 => Some(first & 0x3FFF),
        _ => None,
    }
}

/// The eight bytes of a LUN, by peripheral device addressing.
pub(crate) fn bytes(number: u8) -> [u8; 8] {
    [0, number, 0, 0, 0, 0, 0, 0]
}
