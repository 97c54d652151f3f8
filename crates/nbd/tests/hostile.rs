//! Clients that send what is no NBD, too much of it, or nothing.

use std::sync::Arc;
use std::time::Duration;

use skytether_nbd::Options;
use skytether_nbd::wire::{self, command};
use skytether_volume::BlockDevice;
use skytether_volume::memory::MemoryDevice;

use crate::support::Server;

fn impatient(requests: usize) -> Server {
    let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::new("first", 64 << 20));
    Server::start(vec![("first".into(), device)], Options { requests, bytes: 1, patience: Duration::from_millis(300) })
}

#[test]
fn bytes_that_are_no_options_end_the_connection() {
    let server = Server::of(&[("first", 1 << 20)]);
    let mut dice = fastrand::Rng::with_seed(3);
    for round in 0..200 {
        let mut client = server.connect();
        let mut bytes: Vec<u8> = (0..100).map(|_| dice.u8(..)).collect();
        if round % 2 == 0 {
            // A payload that is too long to be read.
            bytes.splice(0..16, [&b"IHAVEOPT"[..], &[0, 0, 0, 7, 0xff, 0xff, 0xff, 0xff][..]].concat());
        }
        client.send(&bytes);
        assert!(client.is_closed());
    }
    server.go("first", false).0.write(0, &[1; 512]);
}

#[test]
fn bytes_that_are_no_requests_end_the_connection() {
    let server = Server::of(&[("first", 1 << 20)]);
    let mut dice = fastrand::Rng::with_seed(4);
    for _ in 0..200 {
        let mut client = server.go("first", dice.bool()).0;
        let bytes: Vec<u8> = (0..28).map(|_| dice.u8(..)).collect();
        client.send(&bytes);
        assert!(client.is_closed());
    }
    // A write that claims more than any write may have.
    let mut client = server.go("first", false).0;
    client.request(command::WRITE, 0, 0, wire::PAYLOAD_MOST + 1, &[]);
    assert!(client.is_closed());
}

#[test]
fn half_a_request_does_not_hold_room_for_ever() {
    let server = impatient(4);
    let mut slow = server.go("first", false).0;
    // All of the door's bytes, and none of them comes.
    slow.request(command::WRITE, 0, 0, wire::PAYLOAD_MOST, &[]);
    let mut other = server.go("first", false).0;
    other.write(0, &[1; 512]);
    assert!(slow.is_closed());
    let mut slow = server.go("first", false).0;
    slow.send(&[0x25]);
    assert!(slow.is_closed());
}

#[test]
fn client_that_does_not_read_is_ended() {
    let server = impatient(4);
    let mut deaf = server.go("first", false).0;
    for _ in 0..4 {
        deaf.request(command::READ, 0, 0, wire::PAYLOAD_MOST, &[]);
    }
    // Its answers hold all bytes of the door until the server loses patience.
    let mut other = server.go("first", false).0;
    assert_eq!(other.read(0, 512), [0; 512]);
    assert!(deaf.is_closed());
}

#[test]
fn many_small_requests_wait_in_the_socket() {
    let server = impatient(2);
    let mut client = server.go("first", false).0;
    for n in 0..500_u64 {
        client.request(command::READ, 0, n * 512, 512, &[]);
    }
    for _ in 0..500 {
        assert_eq!(client.take_many(16 + 512)[..8], [&wire::SIMPLE_REPLY_MAGIC.to_be_bytes()[..], &[0; 4]].concat());
    }
}
