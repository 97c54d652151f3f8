//! Data sets that survive the loss of drives: what an ingest stores beside the slices, and who stands for a drive that is lost (docs/internals/erasure-coding.md, docs/internals/degraded-reads.md).
//!
//! | room | subject |
//! |---|---|
//! | `domains` | which drives are on one host, and what follows for where things lie |
//! | `presence` | which drives are here, and on how many of them root records lie |
//! | `stored` | what is stored: parity partitions, the code map beside its drives, copies of metadata |
//! | `coder` | the code groups of a table while it is written |
//! | `rebuilt` | a drive's values, those that it can't give from copies or decoded |
//! | `decoded`, `copied` | a slice from the other shards of its group, and a bounded memory of those; what others have copies of |
//! | `stand_in` | an engine over such values in this process |
//! | `covered` | a drive, and what stands for it |
//! | `held` | rows of a sub-plan that may have to be run again by the stand-in |
//! | `gone` | a drive that is not there at all |
//! | `ahead`, `in_order` | shards read before they are asked for: those that the next slices of a query take, and all that a rebuild takes |
//! | `shared` | slices that a query and decoding both want, read once |
//! | `scrub`, `window` | every value verified where it lies, parities compared with data by sums of digests |
//! | `mend`, `report` | damaged values made anew; what a scrub tells |
//! | `rebuild`, `blank` | a blank drive in the place of a lost one: who it is, and all made anew on it |
//! | `rejoin` | root records on several drives, and drives that come back |
//! | `raised` | root records on more drives than before |

pub(crate) mod ahead;
mod blank;
pub(crate) mod coder;
mod copied;
pub(crate) mod covered;
pub(crate) mod decoded;
pub mod domains;
pub(crate) mod gone;
mod held;
mod in_order;
pub(crate) mod mend;
pub(crate) mod presence;
mod raised;
mod rebuild;
mod rebuilt;
pub(crate) mod rejoin;
pub(crate) mod report;
pub(crate) mod scrub;
mod shared;
mod stand_in;
pub(crate) mod stored;
mod values;
mod window;

pub use gone::Lost;
pub use report::{Finding, Progress, RepairOptions, RepairReport, ScrubOptions, ScrubReport};
