//! The state machine of a CSE.

use skytether_scheduler::drive::{Answer, Drive, Effect, Meters, Next, Pressure, Totals, admit};
use skytether_scheduler::message::{CloseAfter, Completed, Down, EpochId, Order, PushdownLevel, SliceCost, SliceId, Up, Why};

const EPOCH: EpochId = EpochId(3);

struct Idle;

impl Meters for Idle {
    fn load(&self) -> f64 {
        1.0
    }

    fn cpu(&self, _: EpochId, _: SliceId) -> f64 {
        0.25
    }
}

fn ids(slices: &[u32]) -> Vec<SliceId> {
    slices.iter().map(|slice| SliceId(*slice)).collect()
}

fn tell(drive: &mut Drive, number: u32, order: Order) -> Vec<Effect> {
    drive.order(0.0, Down { epoch: EPOCH, number, order }, 0, &Pressure::NONE)
}

fn open(slices: &[u32], close: CloseAfter) -> Order {
    Order::Open { rung: PushdownLevel::Full, slices: ids(slices), close }
}

fn done(drive: &mut Drive, slice: u32) -> Option<Up> {
    drive.slice_done(1.0, EPOCH, SliceCost { slice: SliceId(slice), cpu: 0.5, rows_out: 0, bytes_out: 0 }, (7, 70), &Idle)
}

#[test]
fn an_epoch_from_its_opening_to_its_end() {
    let mut drive = Drive::new();
    assert_eq!(
        tell(&mut drive, 0, open(&[4, 5], CloseAfter::TOLD)),
        [Effect::Say(Up::Accepted { epoch: EPOCH }), Effect::Begin { epoch: EPOCH, rung: PushdownLevel::Full }]
    );
    assert_eq!(drive.ahead().map(|(_, slice)| slice.0).collect::<Vec<_>>(), [4, 5]);
    assert_eq!((drive.next(0.0, EPOCH), drive.next(0.0, EPOCH), drive.next(0.0, EPOCH)), (Next::Slice(SliceId(4)), Next::Slice(SliceId(5)), Next::Wait));
    let progress = done(&mut drive, 5);
    let Some(Up::Progress { done: costs, running, waits, pending_rows, .. }) = progress else { panic!("{progress:?}") };
    assert_eq!((costs.len(), running, waits, pending_rows), (1, vec![(SliceId(4), 0.25)], false, 7));
    assert_eq!(done(&mut drive, 5), None, "done twice");
    done(&mut drive, 4);
    assert!(matches!(&drive.beat(9.0, 1.0, &Idle)[..], [Up::Progress { waits: true, .. }]), "it has nothing to do and may not end");
    tell(&mut drive, 1, Order::Feed { slices: ids(&[6, 4]) });
    assert_eq!(drive.next(0.0, EPOCH), Next::Slice(SliceId(6)));
    tell(&mut drive, 2, Order::Close { drain: true });
    assert_eq!(drive.next(0.0, EPOCH), Next::End, "a slice that it has had is not done again");
    assert!(!drive.is_over(0.0, EPOCH));
    done(&mut drive, 6);
    assert!(drive.is_over(0.0, EPOCH));
    let end = drive.finished(2.0, EPOCH, Totals { batches: 1, rows: 7, bytes: 70, bytes_read: 9 });
    let wanted =
        Completed { epoch: EPOCH, rung: PushdownLevel::Full, slices: ids(&[5, 4, 6]), batches: 1, rows: 7, bytes: 70, cpu: 1.5, wall: 2.0, bytes_read: 9 };
    assert_eq!(end, Some(Up::EpochDone(wanted)));
    assert_eq!(tell(&mut drive, 0, open(&[4], CloseAfter::TOLD)), [], "an epoch is not opened twice");
}

#[test]
fn orders_are_applied_in_order_and_once() {
    let mut drive = Drive::new();
    assert_eq!(tell(&mut drive, 2, Order::Close { drain: true }), []);
    assert_eq!(tell(&mut drive, 1, Order::Take { slices: ids(&[5]) }), []);
    let effects = tell(&mut drive, 0, open(&[4, 5], CloseAfter::TOLD));
    assert!(effects.contains(&Effect::Say(Up::Taken { epoch: EPOCH, number: 1, slices: ids(&[5]) })), "{effects:?}");
    assert_eq!((drive.next(0.0, EPOCH), drive.next(0.0, EPOCH)), (Next::Slice(SliceId(4)), Next::End));
    assert_eq!(tell(&mut drive, 1, Order::Feed { slices: ids(&[8]) }), [], "a number that was used");
}

/// A drive that was away for a moment may have missed an order in between. It must end unwanted work all the same.
#[test]
fn cancel_ends_an_epoch_despite_lost_orders() {
    let mut drive = Drive::new();
    tell(&mut drive, 0, open(&[4, 5], CloseAfter::TOLD));
    assert_eq!(drive.next(0.0, EPOCH), Next::Slice(SliceId(4)));
    // Number 1 never comes.
    assert_eq!(tell(&mut drive, 2, Order::Feed { slices: ids(&[6]) }), []);
    assert_eq!(tell(&mut drive, 3, Order::Cancel), [Effect::Forget { epoch: EPOCH }]);
    assert_eq!((drive.next(0.0, EPOCH), drive.unfinished(), done(&mut drive, 4)), (Next::End, 0, None));
    assert_eq!(tell(&mut drive, 0, open(&[4, 5], CloseAfter::TOLD)), [], "it came twice, and late");

    let mut drive = Drive::new();
    assert_eq!(tell(&mut drive, 1, Order::Cancel), [], "there is nothing to forget yet");
    assert_eq!(tell(&mut drive, 0, open(&[4], CloseAfter::TOLD)), [], "nobody wants what is opened after it was cancelled");
}

#[test]
fn begun_slices_are_not_returned() {
    let mut drive = Drive::new();
    tell(&mut drive, 0, open(&[4, 5, 6], CloseAfter::TOLD));
    drive.next(0.0, EPOCH);
    let effects = tell(&mut drive, 1, Order::Take { slices: ids(&[4, 6, 9]) });
    assert!(effects.contains(&Effect::Say(Up::Taken { epoch: EPOCH, number: 1, slices: ids(&[6]) })), "{effects:?}");
    tell(&mut drive, 2, Order::Close { drain: false });
    assert_eq!(drive.next(0.0, EPOCH), Next::End, "closed at once: slice 5 is not done");
}

#[test]
fn epochs_close_by_slices_and_by_time() {
    let mut drive = Drive::new();
    tell(&mut drive, 0, open(&[1, 2, 3], CloseAfter { drained: true, slices: Some(2), seconds: None }));
    assert_eq!((drive.next(0.0, EPOCH), drive.next(0.0, EPOCH), drive.next(0.0, EPOCH)), (Next::Slice(SliceId(1)), Next::Slice(SliceId(2)), Next::End));
    let mut drive = Drive::new();
    tell(&mut drive, 0, open(&[1, 2], CloseAfter { drained: false, slices: None, seconds: Some(0.5) }));
    assert_eq!(drive.next(7.0, EPOCH), Next::Slice(SliceId(1)));
    done(&mut drive, 1);
    assert!(!drive.is_over(7.4, EPOCH));
    assert!(drive.is_over(7.6, EPOCH));
    assert_eq!(drive.next(7.6, EPOCH), Next::End);
}

#[test]
fn refusal_under_pressure_names_the_possible_level() {
    let calm = Pressure { max_epochs: 2, memory_limit: 1000, max_load: 4.0, ..Pressure::NONE };
    let refuse = |accepts, why| Answer::Refuse { accepts, again: 0.1, why };
    assert_eq!(admit(PushdownLevel::Full, 800, &calm), Answer::Accept);
    assert_eq!(admit(PushdownLevel::Full, 950, &calm), refuse(Some(PushdownLevel::Filter), Why::Memory));
    assert_eq!(admit(PushdownLevel::Filter, 950, &calm), Answer::Accept, "what it names it takes");
    assert_eq!(admit(PushdownLevel::Full, 8000, &calm), refuse(Some(PushdownLevel::Raw), Why::Memory), "rows need some room as well");
    assert_eq!(admit(PushdownLevel::Filter, 8000, &calm), refuse(Some(PushdownLevel::Raw), Why::Memory));
    assert_eq!(admit(PushdownLevel::Full, 0, &Pressure { epochs: 2, ..calm }), refuse(Some(PushdownLevel::Raw), Why::Queue));
    assert_eq!(admit(PushdownLevel::Full, 0, &Pressure { load: 8.0, ..calm }), refuse(Some(PushdownLevel::Raw), Why::Speed));
    assert_eq!(admit(PushdownLevel::Raw, 950, &Pressure { load: 8.0, epochs: 9, ..calm }), Answer::Accept, "handing out is always possible");
    assert_eq!(admit(PushdownLevel::Raw, 0, &Pressure { memory_used: 1000, ..calm }), refuse(None, Why::Memory), "except without any memory");
}

#[test]
fn epoch_under_pressure_stops_and_returns_the_rest() {
    let mut drive = Drive::new();
    tell(&mut drive, 0, open(&[1, 2, 3], CloseAfter::TOLD));
    drive.next(0.0, EPOCH);
    assert_eq!(drive.reconsider(&Pressure { epochs: 1, max_epochs: 1, ..Pressure::NONE }), [], "its own place is no reason");
    let said = drive.reconsider(&Pressure { memory_used: 95, memory_limit: 100, ..Pressure::NONE });
    assert_eq!(said, [Up::Stopped { epoch: EPOCH, remaining: ids(&[2, 3]), accepts: Some(PushdownLevel::Raw), again: 0.1, why: Why::Memory }]);
    assert_eq!(drive.next(0.0, EPOCH), Next::End);
    done(&mut drive, 1);
    assert!(drive.is_over(0.0, EPOCH), "what was begun is delivered");
}
