//! The order of commands, and task management.

use std::sync::Arc;

use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use skytether_common::Result;
use skytether_scsi::{Command, Management, ManagementReply, Nexus, Options, Reply, Target, TaskAttribute, Unit};
use skytether_volume::memory::MemoryDevice;
use skytether_volume::{BlockDevice, DeviceInfo, Durability, Extent, Zeros};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

use crate::bench::{cdb10, command, connect, options, run, sense};

/// Reads wait for a permit.
#[derive(Debug)]
struct Slow {
    device: MemoryDevice,
    permits: Semaphore,
}

impl BlockDevice for Slow {
    fn info(&self) -> DeviceInfo {
        self.device.info()
    }

    fn read(&self, at: u64, len: u32) -> BoxFuture<'_, Result<Bytes>> {
        async move {
            if let Ok(permit) = self.permits.acquire().await {
                permit.forget();
            }
            self.device.read(at, len).await
        }
        .boxed()
    }

    fn write(&self, at: u64, data: Bytes, durability: Durability) -> BoxFuture<'_, Result<()>> {
        self.device.write(at, data, durability)
    }

    fn compare_and_write(&self, at: u64, expected: Bytes, data: Bytes, durability: Durability) -> BoxFuture<'_, Result<Option<u32>>> {
        self.device.compare_and_write(at, expected, data, durability)
    }

    fn zero(&self, at: u64, len: u64, how: Zeros, durability: Durability) -> BoxFuture<'_, Result<()>> {
        self.device.zero(at, len, how, durability)
    }

    fn flush(&self) -> BoxFuture<'_, Result<()>> {
        self.device.flush()
    }

    fn extents(&self, at: u64, len: u64) -> BoxFuture<'_, Result<Vec<Extent>>> {
        self.device.extents(at, len)
    }
}

fn slow(options: Options) -> (Arc<Target>, Arc<Slow>) {
    let device = Arc::new(Slow { device: MemoryDevice::new("slow", 1 << 20), permits: Semaphore::new(0) });
    (Target::new(vec![Unit { lun: 0, device: device.clone(), exec: None }], options), device)
}

/// Starts a READ, or a WRITE, of one block.
async fn start(nexus: &Arc<Nexus>, code: u8, tag: u64, attribute: TaskAttribute) -> JoinHandle<Reply> {
    let data = if code == 0x2A { vec![1; 512] } else { Vec::new() };
    let (of, command) = (nexus.clone(), Command { tag, attribute, ..command(0, &cdb10(code, 0, 0, 1), &data) });
    let task = tokio::spawn(async move { of.execute(command).await });
    for _ in 0..10 {
        tokio::task::yield_now().await;
    }
    task
}

#[tokio::test]
async fn ordered_commands_keep_their_place() {
    let (target, device) = slow(options());
    let nexus = connect(&target, "a").await;
    let first = start(&nexus, 0x28, 10, TaskAttribute::Simple).await;
    let ordered = start(&nexus, 0x2A, 11, TaskAttribute::Ordered).await;
    let later = start(&nexus, 0x2A, 12, TaskAttribute::Simple).await;
    let ahead = start(&nexus, 0x2A, 13, TaskAttribute::HeadOfQueue).await;
    assert_eq!(ahead.await.unwrap().status, 0);
    assert_eq!((first.is_finished(), ordered.is_finished(), later.is_finished()), (false, false, false));
    device.permits.add_permits(1);
    for task in [first, ordered, later] {
        assert_eq!(task.await.unwrap().status, 0);
    }
    let aca = start(&nexus, 0x2A, 14, TaskAttribute::Aca).await.await.unwrap();
    assert_eq!(sense(&aca), (0xB, 0x4900));
}

#[tokio::test]
async fn two_commands_cannot_have_one_tag() {
    let (target, device) = slow(Options { tasks: 2, ..options() });
    let nexus = connect(&target, "a").await;
    let first = start(&nexus, 0x28, 10, TaskAttribute::Simple).await;
    assert_eq!(sense(&start(&nexus, 0x28, 10, TaskAttribute::Simple).await.await.unwrap()), (0xB, 0x4E00));
    let second = start(&nexus, 0x28, 11, TaskAttribute::Simple).await;
    assert_eq!(start(&nexus, 0x28, 12, TaskAttribute::Simple).await.await.unwrap().status, Reply::TASK_SET_FULL);
    device.permits.add_permits(2);
    assert_eq!((first.await.unwrap().status, second.await.unwrap().status), (0, 0));
}

#[tokio::test]
async fn functions_end_what_they_name() {
    let (target, _) = slow(options());
    let (a, b) = (connect(&target, "a").await, connect(&target, "b").await);
    let begin = async || [start(&a, 0x28, 10, TaskAttribute::Simple).await, start(&a, 0x28, 11, TaskAttribute::Simple).await];
    let [one, two] = begin().await;
    assert_eq!(b.manage(Management::AbortTask { lun: 0, tag: 10 }).await, ManagementReply::TaskDoesNotExist);
    assert_eq!(a.manage(Management::AbortTask { lun: 0, tag: 10 }).await, ManagementReply::Complete);
    assert!(one.await.unwrap().is_aborted() && !two.is_finished());
    let of_b = start(&b, 0x28, 10, TaskAttribute::Simple).await;
    assert_eq!(a.manage(Management::AbortTaskSet { lun: 0 }).await, ManagementReply::Complete);
    assert!(two.await.unwrap().is_aborted() && !of_b.is_finished());
    let [one, two] = begin().await;
    assert_eq!(a.manage(Management::ClearTaskSet { lun: 0 }).await, ManagementReply::Complete);
    assert!(one.await.unwrap().is_aborted() && two.await.unwrap().is_aborted() && of_b.await.unwrap().is_aborted());
    // COMMANDS CLEARED BY ANOTHER INITIATOR, for the other one alone.
    assert_eq!(run(&a, 0, &[0; 6], b"").await.status, 0);
    assert_eq!(sense(&run(&b, 0, &[0; 6], b"").await), (6, 0x2F00));
    for (function, attention) in [(Management::LunReset { lun: 0 }, 0x2903), (Management::TargetWarmReset, 0x2902), (Management::TargetColdReset, 0x2902)] {
        let [one, two] = begin().await;
        assert_eq!(b.manage(function).await, ManagementReply::Complete);
        assert!(one.await.unwrap().is_aborted() && two.await.unwrap().is_aborted());
        for nexus in [&a, &b] {
            assert_eq!(sense(&run(nexus, 0, &[0; 6], b"").await), (6, attention));
        }
    }
    assert_eq!(a.manage(Management::LunReset { lun: 5 << 48 }).await, ManagementReply::LunDoesNotExist);
    let [one, two] = begin().await;
    a.lost();
    assert!(one.await.unwrap().is_aborted() && two.await.unwrap().is_aborted());
}

#[tokio::test]
async fn a_preempt_and_abort_ends_commands() {
    let (target, _) = slow(options());
    let (a, b) = (connect(&target, "a").await, connect(&target, "b").await);
    for (nexus, key) in [(&a, 1), (&b, 2)] {
        let list = [&[0; 15][..], &[key], &[0; 8]].concat();
        assert_eq!(run(nexus, 0, &[0x5F, 6, 0, 0, 0, 0, 0, 0, 24, 0], &list).await.status, 0);
    }
    let running = start(&a, 0x28, 10, TaskAttribute::Simple).await;
    let list = [&[0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 1][..], &[0; 8]].concat();
    assert_eq!(run(&b, 0, &[0x5F, 5, 3, 0, 0, 0, 0, 0, 24, 0], &list).await.status, 0);
    assert!(running.await.unwrap().is_aborted());
    assert_eq!(sense(&run(&a, 0, &[0; 6], b"").await), (6, 0x2F00));
    assert_eq!(sense(&run(&a, 0, &[0; 6], b"").await), (6, 0x2A05));
}
