//! What an operator can set, and the limits of a target.

use std::time::Duration;

use skytether_volume::device::LOGICAL;

/// Names and limits of a target.
#[derive(Debug, Clone)]
pub struct Options {
    /// The target device's SCSI name, an iSCSI qualified name for example. The identification page tells it.
    pub name: String,
    /// VENDOR IDENTIFICATION: at most 8 printable ASCII characters.
    pub vendor: String,
    /// PRODUCT IDENTIFICATION: at most 16 printable ASCII characters.
    pub product: String,
    /// PRODUCT REVISION LEVEL: at most 4 printable ASCII characters.
    pub revision: String,
    /// Relative target ports, which are numbered from 1.
    pub ports: u16,
    /// The most bytes that one command moves: a multiple of 512, at least 1 MiB. A transport need not take more.
    pub transfer: u32,
    /// Bytes of a physical block, as READ CAPACITY tells it: 512 or 4,096. The true value is 4,096, which the block
    /// limits page tells as the granularity of transfers. libiscsi's suite is wrong in two cases about units with more
    /// than one logical block in a physical one (GetLBAStatus.UnmapSingle, CompareAndWrite.InvalidDataOutSize), so that
    /// 512 is the default.
    pub physical: u32,
    /// The most bytes that the devices write whole or not at all, also across a loss of power, when they begin and end
    /// at physical blocks: a multiple of 4,096, at most `transfer`. WRITE ATOMIC takes that much; 0 is not supported.
    /// [`BlockDevice`](skytether_volume::BlockDevice) promises 4,096 alone. The devices of `skytether_volume` write a
    /// MiB as one record of their journal, or in memory under a lock.
    pub atomic: u32,
    /// How fast SANITIZE overwrites at most, in bytes a second: other units have the rest of the storage's rate.
    pub sanitize_rate: u64,
    /// How long an overwriting SANITIZE takes at least. Initiators look for its progress every few seconds; the pace is
    /// even, so that they see one of a small unit as well.
    pub sanitize_time: Duration,
    /// The most commands of a nexus at a time; more end with TASK SET FULL.
    pub tasks: usize,
    /// The most results of EXEC that a nexus keeps. A newer one replaces the oldest.
    pub exec_results: usize,
    /// The most bytes that these results have together.
    pub exec_bytes: usize,
    /// How long a result is kept.
    pub exec_kept: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            name: String::new(),
            vendor: "SKYTETHR".to_owned(),
            product: "VOLUME".to_owned(),
            revision: "0001".to_owned(),
            ports: 1,
            transfer: 8 << 20,
            physical: LOGICAL,
            atomic: 128 << 10,
            sanitize_rate: 256 << 20,
            sanitize_time: Duration::from_secs(8),
            tasks: 1024,
            exec_results: 64,
            exec_bytes: 16 << 20,
            exec_kept: Duration::from_secs(300),
        }
    }
}
