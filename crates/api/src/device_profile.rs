//! The assumed device of a drive that does not report its profile.

use skytether_device::CseInfo;
use skytether_scheduler::profile::Profile;

/// The device for a drive without any figures: as fast as this machine, behind a link that does not slow it down.
pub const UNKNOWN: Profile =
    Profile { speed_per_core: 1.0, cores: 1, memory_bytes: 512 << 20, disk_bytes_per_s: 2e9, disk_seek_s: 0.0, link_bits_per_s: 1e11, link_latency_s: 0.0 };

/// The assumed device of a drive.
pub fn profile_of(info: &CseInfo) -> Profile {
    info.profile.unwrap_or(Profile { memory_bytes: info.memory_limit, ..UNKNOWN })
}
