//! The one checksum of Skytether: CRC-32C (Castagnoli), as in iSCSI and ext4.

/// CRC-32C of `bytes`. Finds any single flipped bit and any burst of up to 32 bits.
#[must_use]
pub fn crc32c(bytes: &[u8]) -> u32 {
    ::crc32c::crc32c(bytes)
}

/// CRC-32C of the concatenation of what gave `so_far` and `bytes`.
#[must_use]
pub fn crc32c_append(so_far: u32, bytes: &[u8]) -> u32 {
    ::crc32c::crc32c_append(so_far, bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_vector_of_rfc_3720() {
        assert_eq!(crc32c(&[0u8; 32]), 0x8a91_36aa);
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
    }

    #[test]
    fn appending_equals_the_whole() {
        assert_eq!(crc32c_append(crc32c(b"1234"), b"56789"), crc32c(b"123456789"));
    }
}
