//! What a client left waiting, once its connection has ended.

use std::sync::Arc;
use std::time::{Duration, Instant};

use skytether_nbd::Options;
use skytether_nbd::wire::command;
use skytether_volume::memory::{Recorded, RecordingDevice};
use skytether_volume::{BlockDevice, Durability};

use crate::support::Server;

const MIB: u64 = 1 << 20;

/// Waits until `count` changes wait at the device.
fn until_waiting(device: &RecordingDevice, count: usize) {
    let begun = Instant::now();
    while device.waiting() != count {
        assert!(begun.elapsed() < Duration::from_secs(10), "{} changes wait", device.waiting());
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A client goes with `writes` of `len` bytes under way. The server takes `taken` of them.
fn client_goes(requests: usize, writes: usize, len: usize, taken: usize) {
    let device = Arc::new(RecordingDevice::new("first", MIB));
    let server = Server::start(vec![("first".into(), Arc::clone(&device) as Arc<dyn BlockDevice>)], Options { requests, ..Options::default() });
    let (mut client, _) = server.go("first", false);
    device.hold(true);
    for _ in 0..writes {
        client.request(command::WRITE, 0, 0, len as u32, &vec![1; len]);
    }
    until_waiting(&device, taken);
    drop(client);
    until_waiting(&device, 0);
    device.hold(false);
    let (mut client, _) = server.go("first", false);
    client.write(0, &[2; 512]);
    assert_eq!(client.read(0, 512), [2; 512]);
    assert_eq!(device.take(), [Recorded::Write(Durability::Cached)]);
}

#[test]
fn writes_end_with_their_connection() {
    client_goes(64, 3, 512, 3);
}

/// The server reads no further requests then, but sees the end.
#[test]
fn writes_end_also_where_more_wait_for_their_turn() {
    client_goes(2, 5, 4096, 2);
}
