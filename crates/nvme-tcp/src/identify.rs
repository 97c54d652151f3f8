//! What controllers and namespaces say of themselves.

use bytes::Bytes;
use skytether_volume::DeviceInfo;
use skytether_volume::device::{COMPARE_MOST, LOGICAL, PHYSICAL};
use uuid::Uuid;

use crate::command::COMMAND;
use crate::page::Page;
use crate::pdu::IN_CAPSULE;

/// The version of NVM Express that controllers follow: 1.4.
pub const VERSION: u32 = 0x0001_0400;

/// The longest transfer of a command, as a power of two pages of 4 KiB: 1 MiB.
pub const TRANSFER_POWER: u8 = 8;

/// The longest transfer of a command, in bytes.
pub const TRANSFER: u32 = 4096 << TRANSFER_POWER;

/// Event requests that may wait at one controller.
pub const EVENTS: usize = 4;

/// Entries of the error log.
pub const ERRORS: usize = 16;

/// Controllers' descriptions have this length, as all that Identify gives.
pub const IDENTIFY: usize = 4096;

/// The unit of the keep-alive timer, in multiples of 100 ms.
const KEEP_ALIVE_UNIT: u16 = 10;

/// What a controller is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ControllerInfo<'a> {
    /// Its number.
    pub id: u16,
    /// Whether it only tells of subsystems.
    pub is_discovery: bool,
    /// The name of its subsystem.
    pub subsystem: &'a str,
    /// The drive's identity.
    pub serial: Uuid,
    /// The highest number of a namespace.
    pub namespaces: u32,
    /// Entries of a queue.
    pub entries: u16,
    /// Bytes of all namespaces.
    pub capacity: u128,
    /// Whether vendor commands run descriptors.
    pub has_exec: bool,
}

/// Identify, CNS 01h: the controller.
#[must_use]
pub fn controller(info: &ControllerInfo<'_>) -> Bytes {
    let serial = info.serial.simple().to_string();
    let page = Page::new(IDENTIFY)
        .text(4, 20, &serial[..20], b' ')
        .text(24, 40, "Skytether volumes", b' ')
        .text(64, 8, env!("CARGO_PKG_VERSION"), b' ')
        .u8(77, TRANSFER_POWER)
        .u16(78, info.id)
        .u32(80, VERSION)
        // 1 is an I/O controller, 2 one of discovery.
        .u8(111, if info.is_discovery { 2 } else { 1 })
        .u8(258, 3)
        .u8(259, (EVENTS - 1) as u8)
        // Extended data of Get Log Page; commands supported and their effects.
        .u8(261, 0b110)
        .u8(262, (ERRORS - 1) as u8)
        .u16(320, KEEP_ALIVE_UNIT)
        .u16(514, info.entries)
        // SGLs, also with an offset into the capsule.
        .u32(536, 1 << 20 | 1)
        .text(768, 256, info.subsystem, 0)
        .u32(1796, 1)
        .u8(1803, 1);
    if info.is_discovery {
        return page.u32(1792, COMMAND as u32 / 16).finish();
    }
    page
        // Several controllers share the namespaces.
        .u8(76, 0b10)
        // All slots of firmware are one, which can't be changed.
        .u8(260, 0b11)
        // Vendor commands have the usual form.
        .u8(264, 1)
        .u16(266, 343)
        .u16(268, 353)
        .put(280, &info.capacity.to_le_bytes())
        .u8(512, 0x66)
        .u8(513, 0x44)
        .u32(516, info.namespaces)
        // Compare, Dataset Management, Write Zeroes, Verify.
        .u16(520, 1 | 1 << 2 | 1 << 3 | 1 << 7)
        // Compare and write, fused.
        .u16(522, 1)
        // A volatile cache; Flush takes all namespaces at once.
        .u8(525, 0b111)
        .u8(530, if info.has_exec { 1 } else { 0 })
        .u16(526, atomic_blocks())
        .u16(528, atomic_blocks())
        .u16(532, compare_blocks())
        .u32(1792, (COMMAND as u32 + IN_CAPSULE) / 16)
        // Disconnect ends an I/O queue.
        .u16(1804, 1)
        .finish()
}

/// Blocks that are written whole or not at all, less one.
const fn atomic_blocks() -> u16 {
    (PHYSICAL / LOGICAL - 1) as u16
}

/// Blocks that Compare and Write takes, less one.
const fn compare_blocks() -> u16 {
    let most = if COMPARE_MOST < TRANSFER { COMPARE_MOST } else { TRANSFER };
    (most / LOGICAL - 1) as u16
}

/// Identify, CNS 00h: a namespace. What is mapped costs a walk over all extents, so that all counts as used.
#[must_use]
pub fn namespace(info: &DeviceInfo) -> Bytes {
    let (unit, blocks) = (u64::from(LOGICAL), info.size / u64::from(LOGICAL));
    let extent = (info.extent / unit).clamp(1, 1 << 16) - 1;
    Page::new(IDENTIFY)
        .u64(0, blocks)
        .u64(8, blocks)
        .u64(16, blocks)
        // Thin; its own atomic units; deallocated blocks are read as zeros; preferred sizes.
        .u8(24, 1 | 1 << 1 | 1 << 4)
        // Several controllers share it.
        .u8(30, 1)
        // Deallocated blocks are read as zeros; Write Zeroes may deallocate.
        .u8(33, 0b1001)
        .u16(34, atomic_blocks())
        .u16(36, atomic_blocks())
        .u16(38, compare_blocks())
        // What is atomic begins at multiples of a physical block.
        .u16(40, atomic_blocks())
        .u16(44, atomic_blocks())
        .put(48, &u128::from(info.size).to_le_bytes())
        .u16(64, atomic_blocks())
        .u16(66, atomic_blocks())
        .u16(68, extent as u16)
        .u16(70, extent as u16)
        .u16(72, atomic_blocks())
        // Write protected.
        .u8(99, u8::from(info.read_only))
        .put(104, info.id.as_bytes())
        // The one format: no metadata, blocks of 2^9 bytes.
        .u32(128, LOGICAL.trailing_zeros() << 16)
        .finish()
}

/// Identify, CNS 00h: a namespace that is no volume's.
#[must_use]
pub fn inactive() -> Bytes {
    Page::new(IDENTIFY).finish()
}

/// Identify, CNS 02h: of the active namespaces, whose numbers ascend, those after `after`.
#[must_use]
pub fn active(namespaces: impl Iterator<Item = u32>, after: u32) -> Bytes {
    let numbers = namespaces.filter(|number| *number > after).take(IDENTIFY / 4);
    numbers.enumerate().fold(Page::new(IDENTIFY), |page, (place, number)| page.u32(4 * place, number)).finish()
}

/// Identify, CNS 03h: by which names hosts recognise a namespace.
#[must_use]
pub fn descriptors(id: &Uuid) -> Bytes {
    // Types 2 (NGUID), 3 (UUID) and 4 (the command set: NVM, 0).
    Page::new(IDENTIFY).put(0, &[2, 16, 0, 0]).put(4, id.as_bytes()).put(20, &[3, 16, 0, 0]).put(24, id.as_bytes()).put(40, &[4, 1, 0, 0, 0]).finish()
}

/// Identify, CNS 06h: bounds of the NVM command set's commands. Zeros and ranges have no length that is too long.
#[must_use]
pub fn command_set() -> Bytes {
    Page::new(IDENTIFY).u8(0, TRANSFER_POWER).finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn active_namespaces_follow_the_number() {
        assert_eq!(active([1, 2, 5].into_iter(), 1)[..12], [2, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(active([1, 2, 5].into_iter(), u32::MAX)[..4], [0; 4]);
        assert_eq!(active(1..=u32::MAX, 0).len(), IDENTIFY);
    }
}
