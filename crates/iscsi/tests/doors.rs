//! The door itself: what it refuses to serve, and what it says of itself.

use std::sync::Arc;

use skytether_common::Kind;
use skytether_device::{Cse, StorageOnly};
use skytether_doors::DriveDoor;
use skytether_iscsi::pdu::flag;
use skytether_iscsi::{Iscsi, Options};
use skytether_transport::{Gate, Limits, Listener, ServeContext};
use skytether_volume::BlockDevice;
use skytether_volume::memory::MemoryDevice;
use tokio::net::TcpListener;
use uuid::Uuid;

use crate::initiator::Initiator;
use crate::serving::{NAME, SIZE, serve, serve_volumes};

fn volumes(count: usize) -> Vec<(String, Arc<dyn BlockDevice>)> {
    (0..count).map(|i| (format!("v{i}"), Arc::new(MemoryDevice::new("v", SIZE)) as Arc<dyn BlockDevice>)).collect()
}

#[tokio::test]
async fn authentication_without_secrets_is_refused() {
    let door = Iscsi::new(volumes(1), None, Options::default()).unwrap();
    let context = ServeContext { auth: Arc::new(Gate { tokens: None, required: true }), ..ServeContext::default() };
    let listener = Listener::plain(TcpListener::bind("127.0.0.1:0").await.unwrap()).unwrap();
    let drive: Arc<dyn Cse> = Arc::new(StorageOnly::in_memory(Uuid::from_u128(1), "drive-0"));
    let error = door.serve(drive, listener, context).await.unwrap_err();
    assert!(error.kind() == Kind::Invalid && error.message().contains("CHAP"), "{error}");
}

#[test]
fn volumes_are_numbered_from_one() {
    let door = Iscsi::new(volumes(255), None, Options::default()).unwrap();
    assert_eq!((door.luns()[0].clone(), door.luns()[254].clone()), ((1, "v0".to_owned()), (255, "v254".to_owned())));
    assert_eq!((door.scheme(), door.target_name("drive-0").as_str()), ("iscsi", NAME));
    assert_eq!(Iscsi::new(volumes(256), None, Options::default()).unwrap_err().kind(), Kind::Invalid);
    let named = Options { name: Some("iqn.2024-01.com.example:Disks".to_owned()), ..Options::default() };
    assert_eq!(Iscsi::new(volumes(1), None, named).unwrap_err().kind(), Kind::Invalid);
}

#[test]
fn volumes_keep_their_numbers_over_gaps() {
    let volume = |lun: u8| (lun, format!("v{lun}"), Arc::new(MemoryDevice::new("v", SIZE)) as Arc<dyn BlockDevice>);
    let door = Iscsi::numbered(vec![volume(9), volume(2)], None, Options::default()).unwrap();
    assert_eq!(door.luns(), [(2, "v2".to_owned()), (9, "v9".to_owned())]);
    for wrong in [vec![volume(0)], vec![volume(3), volume(3)]] {
        assert_eq!(Iscsi::numbered(wrong, None, Options::default()).unwrap_err().kind(), Kind::Invalid);
    }
}

/// Unit 0 is no device, but tells which there are.
#[tokio::test]
async fn unit_zero_lists_the_units() {
    let serving = serve(Options::default()).await;
    let mut initiator = Initiator::log_in(serving.address, &[]).await;
    let mut cdb = [0; 12];
    (cdb[0], cdb[9]) = (0xa0, 64);
    let header = initiator.command(0, &cdb, 0xc0, 64);
    initiator.send(header, &[]).await;
    let (list, last) = initiator.collect(header.tag()).await;
    assert_eq!((list[3], list[9], list[17], last.header.u32(44)), (16, 1, 2, 64 - 24));
    let header = initiator.command(0, &[0; 6], 0x80, 0);
    initiator.send(header, &[]).await;
    let reply = initiator.receive().await.unwrap();
    assert_eq!((reply.header.0[3], reply.sense()), (2, (5, 0x25, 0)));
}

/// A reservation that APTPL keeps is there at the next start of the target, for the initiator that has it.
#[tokio::test]
async fn kept_reservations_are_there_at_the_next_start() {
    let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::new("v", SIZE));
    let start = async || serve_volumes(vec![("v".to_owned(), device.clone())], Options::default(), Limits::default()).await;
    for turn in 0..2 {
        let serving = start().await;
        let (mut a, _) = Initiator::log_in_as(serving.address, [0x80, 0, 0, 0, 0, 1], &[]).await;
        let (mut b, _) = Initiator::log_in_as(serving.address, [0x80, 0, 0, 0, 0, 2], &[]).await;
        a.attend(1).await;
        b.attend(1).await;
        if turn == 0 {
            let mut list = [0; 24];
            (list[15], list[20]) = (7, 1);
            let register = a.command(1, &[0x5F, 0, 0, 0, 0, 0, 0, 0, 24, 0], flag::FINAL | flag::WRITE, 24);
            a.send(register, &list).await;
            assert_eq!(a.receive().await.unwrap().header.0[3], 0);
            (list[7], list[15], list[20]) = (7, 0, 0);
            let reserve = a.command(1, &[0x5F, 1, 3, 0, 0, 0, 0, 0, 24, 0], flag::FINAL | flag::WRITE, 24);
            a.send(reserve, &list).await;
            assert_eq!(a.receive().await.unwrap().header.0[3], 0);
        }
        assert_eq!((a.read(1, 0, 1).await.1.header.0[3], b.read(1, 0, 1).await.1.header.0[3]), (0, 0x18), "turn {turn}");
    }
}
