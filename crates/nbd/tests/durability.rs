//! What of durability reaches the device.

use std::sync::Arc;

use skytether_nbd::Options;
use skytether_nbd::wire::{command, flag};
use skytether_volume::memory::{Recorded, RecordingDevice};
use skytether_volume::{BlockDevice, Durability, Zeros};

use crate::support::Server;

#[test]
fn force_unit_access_and_flush_reach_the_device() {
    let device = Arc::new(RecordingDevice::new("first", 1 << 20));
    let server = Server::start(vec![("first".into(), Arc::clone(&device) as Arc<dyn BlockDevice>)], Options::default());
    let (mut client, _) = server.go("first", false);
    for (fua, durability) in [(0, Durability::Cached), (flag::FUA, Durability::Durable)] {
        assert_eq!(client.simple(command::WRITE, fua, 0, 512, &[1; 512]), 0);
        assert_eq!(client.simple(command::TRIM, fua, 0, 4096, &[]), 0);
        assert_eq!(client.simple(command::WRITE_ZEROES, fua, 0, 4096, &[]), 0);
        assert_eq!(client.simple(command::WRITE_ZEROES, fua | flag::NO_HOLE, 0, 4096, &[]), 0);
        let [unmapped, mapped] = [Zeros::Unmapped, Zeros::Mapped].map(|how| Recorded::Zero(how, durability));
        assert_eq!(device.take(), [Recorded::Write(durability), unmapped, unmapped, mapped]);
        // Parts of blocks at both ends.
        assert_eq!(client.simple(command::WRITE, fua, 100, 1024, &[1; 1024]), 0);
        let edge = Recorded::CompareAndWrite(durability);
        assert_eq!(device.take(), [edge, Recorded::Write(durability), edge]);
    }
    assert_eq!(client.simple(command::FLUSH, 0, 0, 0, &[]), 0);
    assert_eq!(device.take(), [Recorded::Flush]);
}
