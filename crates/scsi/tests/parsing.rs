//! Random commands.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use proptest::collection::vec;
use proptest::prelude::*;
use skytether_common::Result;
use skytether_scsi::{Command, InitiatorPort, Options, Reply, Target, TaskAttribute, Transfer, Unit};
use skytether_volume::memory::MemoryDevice;
use skytether_volume::{BlockDevice, Exec, ExecLimits};
use tokio_util::sync::CancellationToken;

use crate::bench::options;

#[derive(Debug)]
struct Echo;

impl Exec for Echo {
    fn limits(&self) -> ExecLimits {
        ExecLimits { descriptor: 4096, result: 4096 }
    }

    fn capabilities(&self) -> Bytes {
        Bytes::new()
    }

    fn run(&self, _: Arc<dyn BlockDevice>, descriptor: Bytes, _: CancellationToken) -> BoxFuture<'_, Result<Bytes>> {
        async move { Ok(descriptor) }.boxed()
    }
}

const CODES: &[u8] = &[
    0x00, 0x03, 0x08, 0x0A, 0x12, 0x15, 0x16, 0x17, 0x1A, 0x1B, 0x1E, 0x25, 0x28, 0x2A, 0x2E, 0x2F, 0x34, 0x35, 0x37, 0x41, 0x42, 0x48, 0x4D, 0x55, 0x5A, 0x5E,
    0x5F, 0x83, 0x84, 0x88, 0x89, 0x8A, 0x8B, 0x8E, 0x8F, 0x90, 0x91, 0x93, 0x9C, 0x9E, 0xA0, 0xA3, 0xA8, 0xAA, 0xAE, 0xAF, 0xB7, 0xC0, 0xC1,
];

/// Mostly an operation that exists, with fields that are small, or anything.
fn cdb() -> impl Strategy<Value = [u8; 16]> {
    let code = prop_oneof![9 => proptest::sample::select(CODES), 1 => any::<u8>()];
    let byte = prop_oneof![5 => Just(0), 2 => 0_u8..4, 1 => any::<u8>()];
    (code, prop_oneof![2 => Just(0), 1 => any::<u8>()], proptest::array::uniform14(byte)).prop_map(|(code, second, rest)| {
        let mut cdb = [0; 16];
        (cdb[0], cdb[1]) = (code, second);
        cdb[2..].copy_from_slice(&rest);
        cdb
    })
}

fn data() -> impl Strategy<Value = Vec<u8>> {
    let byte = prop_oneof![4 => Just(0), 2 => 0_u8..34, 1 => any::<u8>(), 1 => Just(0xE4)];
    prop_oneof![3 => vec(byte, 0..200), 1 => any::<u8>().prop_map(|byte| vec![byte; 1024])]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Any commands with any data end, with a status of the standard, sense data where it belongs, and no more data
    /// than they ask for.
    #[test]
    fn any_commands_end_within_their_bounds(commands in vec((cdb(), data(), 0_u64..3), 1..40)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            let unit = |lun: u8| Unit { lun, device: Arc::new(MemoryDevice::new("v", (1 << 20) + u64::from(lun) * 4096)), exec: Some(Arc::new(Echo)) };
            let target = Target::new(vec![unit(0), unit(1)], Options { transfer: 1 << 20, ..options() });
            let nexus = target.connect(InitiatorPort { name: "a".into(), target_port: 1 });
            let mut aborted = 0;
            for (cdb, data, lun) in commands {
                let asked = nexus.transfer(lun << 48, &cdb);
                let command = Command { lun: lun << 48, tag: 1, cdb, attribute: TaskAttribute::Simple, data: data.into() };
                let Ok(reply) = tokio::time::timeout(Duration::from_secs(60), nexus.execute(command)).await else {
                    panic!("{cdb:02x?} hangs");
                };
                aborted += u32::from(reply.is_aborted());
                assert!(matches!(reply.status, 0 | 2 | 0x18), "{cdb:02x?}: {reply:?}");
                assert_eq!(reply.status == Reply::CHECK_CONDITION, !reply.sense.is_empty());
                assert!(reply.sense.len() <= 96);
                let most = if let Transfer::In(most) = asked { most } else { 0 };
                assert!(reply.data.len() as u64 <= most, "{cdb:02x?}: {} bytes, {asked:?}", reply.data.len());
            }
            assert_eq!(aborted, 0);
        });
    }
}
