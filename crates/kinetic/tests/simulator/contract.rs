//! The contract of all stores, over a drive.

use skytether_common::{Key, Kind};
use skytether_device::Storage;
use skytether_store::{Op, contract};
use tokio::runtime::Handle;

use super::blocking::Blocking;
use super::{drive, empty, with_simulator};

#[test]
fn store_on_the_simulator_keeps_the_contract() {
    with_simulator("simulator::contract::store_on_the_simulator_keeps_the_contract", |simulator| async move {
        let connection = simulator.ready().await;
        let runtime = Handle::current();
        let checked = tokio::task::spawn_blocking(move || {
            contract::check(|| {
                runtime.block_on(empty(&connection));
                Box::new(Blocking { drive: runtime.block_on(drive()), runtime: runtime.clone() })
            });
        });
        checked.await.unwrap();
        drop(simulator);
    });
}

/// What this crate's drive says of itself, and refuses.
#[test]
fn drive_says_what_it_can_not_do() {
    with_simulator("simulator::contract::drive_says_what_it_can_not_do", |simulator| async move {
        simulator.ready().await;
        let drive = drive().await;
        let capabilities = drive.capabilities();
        assert!(capabilities.remote && !capabilities.link && capabilities.heartbeats && capabilities.programs.is_empty());
        let (key, from) = (Key::new("a").unwrap(), Key::new("b").unwrap());
        let link = Op::Link { key, from, len: 0, crc32c: 0, expect: skytether_store::Expect::Any };
        assert_eq!(drive.apply(vec![link]).await.unwrap_err().kind(), Kind::Unsupported);
        assert_eq!(drive.identify().await.unwrap(), *drive.info());
    });
}
