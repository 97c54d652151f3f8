//! What a CSE writes on a plan that it ran, or did not run.

use serde::{Deserialize, Serialize};

/// How much of a sub-plan runs below. Each rung has its residual above, which gives the same schema.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Rung {
    /// Slices as they are; everything else above.
    Raw,
    /// Filter and projection below.
    Filter,
    /// The whole sub-plan.
    Full,
}

impl Rung {
    /// The word that receipts and options use: `full`, `filter` or `raw`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Rung::Raw => "raw",
            Rung::Filter => "filter",
            Rung::Full => "full",
        }
    }
}

/// One operator of a sub-plan as it ran.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OperatorNote {
    /// The physical operator, for example `AggregateExec`.
    pub name: String,
    /// Depth below the root of the sub-plan, 0 for the root.
    pub depth: u32,
    /// Rows that it gave.
    pub rows_out: u64,
    /// Seconds of processor time that it took, without its inputs.
    pub seconds: f64,
}

/// What happened to a sub-plan at one CSE.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Annotation {
    /// The CSE's name, for example `drive-2`.
    pub cse: String,
    /// The rung that ran; `None` where nothing ran.
    pub rung: Option<Rung>,
    /// Slices that were read.
    pub slices: u64,
    /// Slices that statistics showed to hold nothing of interest.
    pub slices_pruned: u64,
    /// Rows that left the CSE.
    pub rows_out: u64,
    /// Bytes read from the store.
    pub bytes_read: u64,
    /// Bytes of the sub-plan that came in.
    pub bytes_received: u64,
    /// Bytes of results that went out: Arrow buffers when in process, IPC frames when over a wire.
    pub bytes_sent: u64,
    /// Seconds from the sub-plan's arrival to the last batch.
    pub seconds: f64,
    /// Highest number of bytes that the engine's memory pool had handed out.
    pub peak_memory: u64,
    /// The operators, from the root down.
    pub operators: Vec<OperatorNote>,
    /// Why less than the whole sub-plan ran here; `None` where all of it did.
    pub reason: Option<String>,
}
