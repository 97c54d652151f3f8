//! Fields of a command descriptor block.

/// Sixteen bytes; shorter commands leave the rest unused.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cdb(pub(crate) [u8; 16]);

impl Cdb {
    pub(crate) fn u8(&self, at: usize) -> u8 {
        self.0[at]
    }

    pub(crate) fn bit(&self, at: usize, bit: u8) -> bool {
        self.0[at] >> bit & 1 != 0
    }

    pub(crate) fn u16(&self, at: usize) -> u16 {
        u16::from_be_bytes([self.0[at], self.0[at + 1]])
    }

    pub(crate) fn u24(&self, at: usize) -> u32 {
        u32::from_be_bytes([0, self.0[at], self.0[at + 1], self.0[at + 2]])
    }

    pub(crate) fn u32(&self, at: usize) -> u32 {
        u32::from(self.u16(at)) << 16 | u32::from(self.u16(at + 2))
    }

    pub(crate) fn u64(&self, at: usize) -> u64 {
        u64::from(self.u32(at)) << 32 | u64::from(self.u32(at + 4))
    }

    pub(crate) fn code(&self) -> u8 {
        self.0[0]
    }

    /// Where the operation has one.
    pub(crate) fn action(&self) -> u8 {
        self.0[1] & 0x1F
    }

    /// The CDB's length, by its group code (SPC-4, table 22). Groups 3, 6 and 7 are not by rule: ours there have 16.
    pub(crate) fn len(&self) -> usize {
        match self.0[0] >> 5 {
            0 => 6,
            1 | 2 => 10,
            5 => 12,
            _ => 16,
        }
    }

    /// Places of the logical blocks and their number, as all commands of the group with such fields have them.
    pub(crate) fn blocks(&self) -> (u64, u64) {
        match self.len() {
            6 => (u64::from(self.u24(1) & 0x1F_FFFF), if self.u8(4) == 0 { 256 } else { self.u8(4).into() }),
            10 => (self.u32(2).into(), self.u16(7).into()),
            12 => (self.u32(2).into(), self.u32(6).into()),
            _ => (self.u64(2), self.u32(10).into()),
        }
    }
}

/// The 16 bits at `at` of `data`, or zero beyond its end.
pub(crate) fn be16(data: &[u8], at: usize) -> u16 {
    data.get(at..at + 2).map_or(0, |field| u16::from_be_bytes([field[0], field[1]]))
}

/// The 32 bits at `at` of `data`, or zero beyond its end.
pub(crate) fn be32(data: &[u8], at: usize) -> u32 {
    u32::from(be16(data, at)) << 16 | u32::from(be16(data, at + 2))
}

/// The 64 bits at `at` of `data`, or zero beyond its end.
pub(crate) fn be64(data: &[u8], at: usize) -> u64 {
    u64::from(be32(data, at)) << 32 | u64::from(be32(data, at + 4))
}
