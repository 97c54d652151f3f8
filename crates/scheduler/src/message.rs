//! Messages between a parent and a CSE while a query runs.
//!
//! The parent names epochs and never reuses a name within a query. Messages *down* carry a number per epoch: the CSE
//! applies each once and in order, whatever the transport does. Only `Cancel` applies at once. Messages *up* may come
//! late, twice or out of order: all of them are idempotent.

use serde::{Deserialize, Serialize};

/// Seconds since the query began, or a duration; the caller's clock.
pub type Seconds = f64;

/// How much of a sub-plan runs below. Each level has its residual above, which gives the same schema.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PushdownLevel {
    /// Slices as they are stored; everything else above.
    Raw,
    /// Scan, filter and projection below.
    Filter,
    /// The whole sub-plan.
    Full,
}

impl PushdownLevel {
    /// The word that receipts and options use: `full`, `filter` or `raw`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            PushdownLevel::Raw => "raw",
            PushdownLevel::Filter => "filter",
            PushdownLevel::Full => "full",
        }
    }
}

/// A CSE by its place in the list that its parent keeps for the query.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct CseId(pub u32);

/// A slice (a stripe, where a table has many columns) by its number in the query. The parent numbers the slices of each
/// CSE in storage order, and knows the partition and slice behind each number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct SliceId(pub u32);

/// An epoch by its number in the query.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct EpochId(pub u32);

/// A slice that the query needs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Slice {
    /// Its number.
    pub id: SliceId,
    /// Rows in it.
    pub rows: u32,
    /// Bytes as stored.
    pub bytes: u64,
    /// The CSEs that can read it, the preferred one first.
    pub readers: Vec<CseId>,
}

/// When an epoch closes, apart from [`Order::Close`].
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct CloseAfter {
    /// When its queue is empty. Otherwise an empty queue waits for more slices.
    pub drained: bool,
    /// Once this number of slices has begun.
    pub slices: Option<u32>,
    /// Once these seconds have passed since its first slice was begun.
    pub seconds: Option<Seconds>,
}

impl CloseAfter {
    /// Closes when all its slices are done.
    pub const DRAINED: Self = Self { drained: true, slices: None, seconds: None };
    /// Closes only by order.
    pub const TOLD: Self = Self { drained: false, slices: None, seconds: None };
}

/// A message to a CSE about one epoch.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Down {
    /// The epoch.
    pub epoch: EpochId,
    /// 0 for the `Open` of an epoch, then one more each. The CSE applies them in this order, each once; it applies a
    /// `Cancel` at once, even if earlier orders are missing.
    pub number: u32,
    /// What to do.
    pub order: Order,
}

/// A parent's order about an epoch.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// Begin it: run the sub-plan at `rung` over `slices` (and those fed later), in this order.
    Open {
        /// How much of the sub-plan.
        rung: PushdownLevel,
        /// The first slices.
        slices: Vec<SliceId>,
        /// When to close it.
        close: CloseAfter,
    },
    /// More slices for its queue.
    Feed {
        /// The slices.
        slices: Vec<SliceId>,
    },
    /// Take those of `slices` out of its queue that were not begun; the answer is [`Up::Taken`].
    Take {
        /// The slices.
        slices: Vec<SliceId>,
    },
    /// No more slices will be fed: finish and deliver.
    Close {
        /// Whether to process the queue first. Otherwise slices that were not begun are dropped.
        drain: bool,
    },
    /// Forget it and all its results. It does not wait for its turn: what comes before it, or was lost,
    /// does not matter any more.
    Cancel,
}

/// Why a CSE does less than it was ordered to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Why {
    /// Too many sub-plans run or wait.
    Queue,
    /// Not enough memory.
    Memory,
    /// Its processor is too slow for it, or too busy.
    Speed,
    /// It does not know an operator of the sub-plan.
    Unsupported,
    /// It is shutting down.
    Leaving,
}

/// What a slice did cost where it ran.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct SliceCost {
    /// The slice.
    pub slice: SliceId,
    /// Processor time, seconds on one core.
    pub cpu: Seconds,
    /// Rows that came out; 0 where they come at the end of the epoch.
    pub rows_out: u64,
    /// Bytes that came out; 0 where they come at the end of the epoch.
    pub bytes_out: u64,
}

fn is_zero(slack: &Seconds) -> bool {
    *slack == 0.0
}

/// A message from a CSE.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Up {
    /// It takes the epoch on.
    Accepted {
        /// The epoch.
        epoch: EpochId,
    },
    /// It does not take the epoch on; nothing was begun.
    Refused {
        /// The epoch.
        epoch: EpochId,
        /// The highest pushdown level that it accepts now; `None` for none.
        accepts: Option<PushdownLevel>,
        /// Seconds after which the parent may order more.
        again: Seconds,
        /// Why.
        why: Why,
    },
    /// A sign of life and what was measured since the last one. Sent after each slice, and every
    /// [`crate::query::Limits::heartbeat`] seconds while slices run.
    Progress {
        /// The epoch.
        epoch: EpochId,
        /// Slices done.
        done: Vec<SliceCost>,
        /// Slices that are being processed, and the processor seconds that they have had.
        running: Vec<(SliceId, Seconds)>,
        /// How busy the CSE is with other things: core seconds that its own threads wanted (at most as many as there
        /// are cores) by those that they got, since the last message. 1 on an idle CSE.
        load: f64,
        /// Whether it waits for orders: its queue is empty, nothing runs, and it may not end yet.
        waits: bool,
        /// Rows that would come out at the end, if the epoch ended now (groups of a hash aggregate, for example).
        pending_rows: u64,
        /// Their bytes.
        pending_bytes: u64,
        /// Seconds for which it may show no progress, in addition to the time of its slices. An aggregator needs them
        /// to give its own drives time before it fails over.
        #[serde(default, skip_serializing_if = "is_zero")]
        slack: Seconds,
    },
    /// The answer to [`Order::Take`].
    Taken {
        /// The epoch.
        epoch: EpochId,
        /// The number of the order.
        number: u32,
        /// Those that it gave up.
        slices: Vec<SliceId>,
    },
    /// The epoch is complete.
    EpochDone(Completed),
    /// The CSE closes the epoch by itself: it delivers what was begun (an `EpochDone` follows) and returns the rest.
    Stopped {
        /// The epoch.
        epoch: EpochId,
        /// Slices not begun.
        remaining: Vec<SliceId>,
        /// The highest pushdown level that it accepts from now on; `None` for none.
        accepts: Option<PushdownLevel>,
        /// Seconds after which the parent may order more.
        again: Seconds,
        /// Why.
        why: Why,
    },
    /// The epoch, or (without one) the CSE with all its epochs, is lost.
    Failed {
        /// The epoch.
        epoch: Option<EpochId>,
        /// Whether a retry may succeed (a connection that broke), or not (a damaged slice).
        again: bool,
    },
}

/// What a complete epoch covers and did cost.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Completed {
    /// The epoch.
    pub epoch: EpochId,
    /// The pushdown level that ran.
    pub rung: PushdownLevel,
    /// Exactly the slices that are in its results.
    pub slices: Vec<SliceId>,
    /// Batches that were sent, numbered from 0.
    pub batches: u32,
    /// Rows of them.
    pub rows: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// Processor seconds.
    pub cpu: Seconds,
    /// Seconds from its beginning to its end.
    pub wall: Seconds,
    /// Bytes read from the disk.
    pub bytes_read: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_travel_as_json() {
        let epoch = EpochId(7);
        for order in [
            Order::Open { rung: PushdownLevel::Filter, slices: vec![SliceId(1)], close: CloseAfter { drained: true, slices: Some(3), seconds: Some(0.5) } },
            Order::Feed { slices: vec![SliceId(2)] },
            Order::Take { slices: vec![] },
            Order::Close { drain: true },
            Order::Cancel,
        ] {
            let down = Down { epoch, number: 2, order };
            assert_eq!(serde_json::from_str::<Down>(&serde_json::to_string(&down).unwrap()).unwrap(), down);
        }
        let cost = SliceCost { slice: SliceId(1), cpu: 0.25, rows_out: 1, bytes_out: 2 };
        for up in [
            Up::Accepted { epoch },
            Up::Refused { epoch, accepts: Some(PushdownLevel::Raw), again: 0.5, why: Why::Memory },
            Up::Progress { epoch, done: vec![cost], running: vec![(SliceId(2), 0.5)], load: 1.5, waits: false, pending_rows: 3, pending_bytes: 4, slack: 0.0 },
            Up::Progress { epoch, done: vec![], running: vec![], load: 1.0, waits: true, pending_rows: 0, pending_bytes: 0, slack: 2.5 },
            Up::Failed { epoch: None, again: true },
        ] {
            assert_eq!(serde_json::from_str::<Up>(&serde_json::to_string(&up).unwrap()).unwrap(), up);
        }
        let older = r#"{"progress":{"epoch":7,"done":[],"running":[],"load":1.0,"waits":false,"pending_rows":0,"pending_bytes":0}}"#;
        let said = serde_json::from_str::<Up>(older).unwrap();
        assert!(matches!(said, Up::Progress { slack: 0.0, .. }), "drives that say nothing of it have none: {said:?}");
        assert_eq!(serde_json::to_string(&said).unwrap(), older, "nor do they hear of it");
        assert_eq!(serde_json::to_string(&PushdownLevel::Full).unwrap(), "\"full\"");
        assert!(PushdownLevel::Raw < PushdownLevel::Filter && PushdownLevel::Filter < PushdownLevel::Full);
    }
}
