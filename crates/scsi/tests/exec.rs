//! EXEC OUT and EXEC IN.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use skytether_common::{Error, Result};
use skytether_scsi::{Command, Management, ManagementReply, Nexus, Options, Target, Transfer, Unit};
use skytether_volume::{BlockDevice, Durability, Exec, ExecLimits};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use crate::bench::{alone, bad, cdb10, command, connect, good, options, run, sense, unit};

/// Writes in a task of its own, which it waits for, also where it is cancelled.
#[derive(Debug)]
struct Writes {
    gate: Arc<Semaphore>,
    begun: Arc<Semaphore>,
}

impl Exec for Writes {
    fn limits(&self) -> ExecLimits {
        ExecLimits { descriptor: 16, result: 16 }
    }

    fn capabilities(&self) -> Bytes {
        Bytes::new()
    }

    fn run(&self, device: Arc<dyn BlockDevice>, descriptor: Bytes, cancel: CancellationToken) -> BoxFuture<'_, Result<Bytes>> {
        let (gate, begun) = (self.gate.clone(), self.begun.clone());
        async move {
            let write = tokio::spawn(async move {
                begun.add_permits(1);
                gate.acquire().await.unwrap().forget();
                device.write(0, descriptor[..1].repeat(512).into(), Durability::Cached).await
            });
            cancel.cancelled().await;
            write.await.unwrap().map(|()| Bytes::new())
        }
        .boxed()
    }
}

/// Repeats its descriptor's first byte as often as the second says, in hundreds; other descriptors do other things.
#[derive(Debug, Default)]
struct Repeat {
    running: AtomicU32,
}

impl Exec for Repeat {
    fn limits(&self) -> ExecLimits {
        ExecLimits { descriptor: 16, result: 5_000 }
    }

    fn capabilities(&self) -> Bytes {
        Bytes::from_static(b"repeat")
    }

    fn run(&self, device: Arc<dyn BlockDevice>, descriptor: Bytes, cancel: CancellationToken) -> BoxFuture<'_, Result<Bytes>> {
        async move {
            match descriptor[0] {
                b'i' => Err(Error::invalid("no descriptor")),
                b'u' => Err(Error::unsupported("a newer one")),
                b'e' => Err(Error::exhausted("too much")),
                b'c' => Err(Error::corrupt("damaged")),
                b'w' => device.write(0, vec![b'w'; 512].into(), Durability::Cached).await.map(|()| Bytes::new()),
                b'h' => {
                    self.running.fetch_add(1, Ordering::SeqCst);
                    cancel.cancelled().await;
                    Err(Error::unavailable("cancelled"))
                }
                byte => Ok(vec![byte; 100 * usize::from(descriptor[1]) + usize::from(descriptor[2])].into()),
            }
        }
        .boxed()
    }
}

fn target(options: Options) -> (Arc<Target>, Arc<Repeat>) {
    let exec = Arc::new(Repeat::default());
    let unit = Unit { exec: Some(exec.clone()), ..unit(0) };
    (Target::new(vec![unit], options), exec)
}

fn exec_out(flags: u8, list: u32, len: u32) -> [u8; 16] {
    let mut cdb = [0; 16];
    (cdb[0], cdb[1]) = (0xC0, flags);
    cdb[2..6].copy_from_slice(&list.to_be_bytes());
    cdb[10..14].copy_from_slice(&len.to_be_bytes());
    cdb
}

fn exec_in(flags: u8, list: u32, offset: u32, allocation: u32) -> [u8; 16] {
    let mut cdb = exec_out(flags, list, allocation);
    cdb[0] = 0xC1;
    cdb[6..10].copy_from_slice(&offset.to_be_bytes());
    cdb
}

async fn compute(nexus: &Nexus, list: u32, descriptor: &[u8; 3]) {
    good(nexus, &exec_out(0, list, 3), descriptor).await;
}

#[tokio::test]
async fn a_result_is_fetched_by_its_identifier() {
    let nexus = connect(&target(options()).0, "a").await;
    compute(&nexus, 7, b"x\x03\x00").await;
    compute(&nexus, 0xFFFF_FFFF, b"y\x00\x02").await;
    let whole = good(&nexus, &exec_in(0, 7, 0, 1_000), b"").await;
    assert_eq!((&whole[..8], &whole[8..]), (&[0, 0, 1, 44, 0, 0, 0, 0][..], &[b'x'; 300][..]));
    assert_eq!(good(&nexus, &exec_in(0, 7, 290, 1_000), b"").await[..], *b"\0\0\x01\x2C\0\0\0\0xxxxxxxxxx");
    assert_eq!(good(&nexus, &exec_in(0, 7, 300, 1_000), b"").await.len(), 8);
    assert_eq!(good(&nexus, &exec_in(0, 7, 0, 4), b"").await[..], [0, 0, 1, 44]);
    let wrong = run(&nexus, 0, &exec_in(0, 7, 301, 1_000), b"").await;
    assert_eq!((sense(&wrong), &wrong.sense[15..18]), ((5, 0x2400), &[0xC0, 0, 6][..]));
    assert_eq!(good(&nexus, &exec_in(0x01, 0xFFFF_FFFF, 0, 100), b"").await[..], *b"\0\0\0\x02\0\0\0\0yy");
    // FORGET did.
    assert_eq!(bad(&nexus, &exec_in(0, 0xFFFF_FFFF, 0, 100), b"").await, (5, 0x2400));
    // A newer result replaces the old one.
    compute(&nexus, 7, b"z\x00\x01").await;
    assert_eq!(good(&nexus, &exec_in(0, 7, 0, 100), b"").await[..], *b"\0\0\0\x01\0\0\0\0z");
    assert_eq!(nexus.transfer(0, &exec_out(0, 1, 70_000)), Transfer::Out(70_000));
    assert_eq!(nexus.transfer(0, &exec_in(0, 1, 5, 70_000)), Transfer::In(70_000));
}

#[tokio::test]
async fn a_short_result_comes_in_sense_data() {
    let nexus = connect(&target(options()).0, "a").await;
    let reply = run(&nexus, 0, &exec_out(1, 7, 3), b"x\x00\x54").await;
    assert_eq!((reply.status, reply.sense.len()), (2, 96));
    assert_eq!(reply.sense[..12], [0x72, 0x0F, 0, 0, 0, 0, 0, 88, 0x80, 86, 1, 0]);
    assert_eq!(reply.sense[12..], [b'x'; 84]);
    // It is not kept; one byte more is.
    assert_eq!(bad(&nexus, &exec_in(0, 7, 0, 100), b"").await, (5, 0x2400));
    good(&nexus, &exec_out(1, 7, 3), b"x\x00\x55").await;
    assert_eq!(good(&nexus, &exec_in(0, 7, 0, 100), b"").await.len(), 93);
}

#[tokio::test]
async fn failures_have_their_own_sense() {
    let nexus = connect(&target(options()).0, "a").await;
    let table: [(&[u8; 3], (u8, u16)); 5] =
        [(b"i  ", (5, 0x2600)), (b"u  ", (5, 0x2601)), (b"e  ", (5, 0x5503)), (b"c  ", (3, 0x1100)), (b"x\x33\x00", (5, 0x5503))];
    for (descriptor, expected) in table {
        assert_eq!(bad(&nexus, &exec_out(0, 1, 3), descriptor).await, expected, "{descriptor:?}");
    }
    assert_eq!(bad(&nexus, &exec_out(0, 1, 17), &[0; 17]).await, (5, 0x1A00));
    assert_eq!(bad(&nexus, &exec_out(0, 1, 4), b"x  ").await, (5, 0x1A00));
    good(&nexus, &exec_out(0, 1, 0), b"").await;
    // Software write protection holds for outputs as well.
    let page = [0, 0, 0, 0, 0x0A, 0x0A, 0, 0x10, 8, 0, 0, 0, 0xFF, 0xFF, 0, 0];
    good(&nexus, &exec_out(0, 1, 3), b"w  ").await;
    good(&nexus, &[0x15, 0x10, 0, 0, 16, 0], &page).await;
    assert_eq!(bad(&nexus, &exec_out(0, 1, 3), b"w  ").await, (7, 0x2700));
    compute(&nexus, 1, b"x\x01\x00").await;
}

#[tokio::test]
async fn results_are_bounded_in_number_bytes_and_time() {
    let few = Options { exec_results: 3, exec_bytes: 1_000, exec_kept: Duration::from_secs(5), ..options() };
    let nexus = connect(&target(few).0, "a").await;
    let kept = async |list| run(&nexus, 0, &exec_in(0, list, 0, 8), b"").await.status == 0;
    for list in 1..=4 {
        compute(&nexus, list, b"x\x01\x00").await;
    }
    assert_eq!((kept(1).await, kept(2).await, kept(4).await), (false, true, true));
    compute(&nexus, 5, b"x\x09\x00").await;
    assert_eq!((kept(3).await, kept(4).await, kept(5).await), (false, true, true));
    assert_eq!(bad(&nexus, &exec_out(0, 6, 3), b"x\x0A\x01").await, (5, 0x5503));
    tokio::time::sleep(Duration::from_millis(5_200)).await;
    assert!(!kept(5).await);
}

#[tokio::test]
async fn results_belong_to_a_nexus() {
    let (target, _) = target(options());
    let (a, b) = (connect(&target, "a").await, connect(&target, "b").await);
    compute(&a, 1, b"x\x01\x00").await;
    assert_eq!(bad(&b, &exec_in(0, 1, 0, 100), b"").await, (5, 0x2400));
    a.lost();
    let again = connect(&target, "a").await;
    assert_eq!(bad(&again, &exec_in(0, 1, 0, 100), b"").await, (5, 0x2400));
}

/// A computation that hangs hinders no other command, and ends with ABORT TASK.
#[tokio::test]
async fn an_aborted_computation_ends() {
    let (target, exec) = target(options());
    let nexus = connect(&target, "a").await;
    let (of, out) = (nexus.clone(), command(0, &exec_out(0, 1, 3), b"h  "));
    let running = tokio::spawn(async move { of.execute(Command { tag: 9, ..out }).await });
    while exec.running.load(Ordering::SeqCst) == 0 {
        tokio::task::yield_now().await;
    }
    let ordered = Command { attribute: skytether_scsi::TaskAttribute::Ordered, ..command(0, &cdb10(0x2A, 0, 0, 1), &[1; 512]) };
    assert_eq!(nexus.execute(ordered).await.status, 0);
    good(&nexus, &cdb10(0x28, 0, 0, 1), b"").await;
    assert_eq!(nexus.manage(Management::AbortTask { lun: 0, tag: 9 }).await, ManagementReply::Complete);
    assert!(running.await.unwrap().is_aborted());
    assert_eq!(nexus.manage(Management::AbortTask { lun: 0, tag: 9 }).await, ManagementReply::TaskDoesNotExist);
}

/// ABORT TASK is answered when the computation writes no longer: what is written afterwards stays.
#[tokio::test]
async fn an_abort_waits_for_writes_of_a_computation() {
    let exec = Arc::new(Writes { gate: Arc::new(Semaphore::new(0)), begun: Arc::new(Semaphore::new(0)) });
    let nexus = connect(&Target::new(vec![Unit { exec: Some(exec.clone()), ..unit(0) }], options()), "a").await;
    let (of, out) = (nexus.clone(), command(0, &exec_out(0, 1, 1), b"x"));
    let running = tokio::spawn(async move { of.execute(Command { tag: 9, ..out }).await });
    exec.begun.acquire().await.unwrap().forget();
    let of = nexus.clone();
    let mut abort = tokio::spawn(async move { of.manage(Management::AbortTask { lun: 0, tag: 9 }).await });
    assert!(tokio::time::timeout(Duration::from_millis(100), &mut abort).await.is_err());
    exec.gate.add_permits(1);
    assert_eq!(abort.await.unwrap(), ManagementReply::Complete);
    good(&nexus, &cdb10(0x2A, 0, 0, 1), &[b'y'; 512]).await;
    assert_eq!(good(&nexus, &cdb10(0x28, 0, 0, 1), b"").await[..], [b'y'; 512]);
    assert!(running.await.unwrap().is_aborted());
}

#[tokio::test]
async fn exec_is_reported_where_it_exists() {
    let nexus = connect(&target(options()).0, "a").await;
    assert_eq!(good(&nexus, &[0x12, 1, 0xC0, 1, 0, 0], b"").await[..], *b"\0\xC0\0\x06repeat");
    assert_eq!(good(&nexus, &[0x12, 1, 0, 1, 0, 0], b"").await.last(), Some(&0xC0));
    let reported = good(&nexus, &[0xA3, 0x0C, 1, 0xC0, 0, 0, 0, 0, 1, 0, 0, 0], b"").await;
    assert_eq!(reported[..], [0, 5, 0, 16, 0xC0, 1, 255, 255, 255, 255, 0, 0, 0, 0, 255, 255, 255, 255, 0, 4]);
    let without = alone().await;
    assert_eq!(bad(&without, &exec_out(0, 1, 3), b"x  ").await, (5, 0x2000));
    assert_eq!(bad(&without, &exec_in(0, 1, 0, 8), b"").await, (5, 0x2000));
    assert_eq!(without.transfer(0, &exec_out(0, 1, 3)), Transfer::None);
    assert_eq!(bad(&without, &[0x12, 1, 0xC0, 1, 0, 0], b"").await, (5, 0x2400));
    assert_eq!(good(&without, &[0xA3, 0x0C, 1, 0xC0, 0, 0, 0, 0, 1, 0, 0, 0], b"").await[..], [0, 1, 0, 0]);
}
