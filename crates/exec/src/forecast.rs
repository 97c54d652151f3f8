//! The forecast of a scan whose work may move between drives and host.

use skytether_scheduler::message::{CseId, Slice, SliceId};
use skytether_scheduler::query::{Forecast, Setup, forecast};

use skytether_api::estimate::{DriveShare, WorkSplit};

/// The expectation of a scan that starts from `setup`, at drives of these names with these slices.
pub(crate) fn expected(setup: Setup, names: &[&str], slices: Vec<Vec<Slice>>) -> WorkSplit {
    let Forecast { end, cses } = forecast(setup, slices);
    let drives = names.iter().zip(cses).map(|(name, share)| DriveShare {
        name: (*name).to_owned(),
        rung: share.rung,
        slices: u64::from(share.below),
        slices_filtered: 0,
        handed_out: u64::from(share.handed_out),
        seconds_per_slice: share.slice,
    });
    WorkSplit { seconds: end, drives: drives.collect() }
}

/// Slices above which nothing is foretold: it takes a plan over all of them.
pub(crate) const MOST: usize = 1 << 16;

/// `slices` slices of equal size for drive `at`, numbered from `first` on.
pub(crate) fn equal_slices(at: u32, first: u32, slices: u32, rows: u64, bytes: u64) -> Vec<Slice> {
    let each = |sum: u64| sum / u64::from(slices.max(1));
    let (rows, bytes) = (u32::try_from(each(rows)).unwrap_or(u32::MAX), each(bytes));
    (first..first.saturating_add(slices)).map(|id| Slice { id: SliceId(id), rows, bytes, readers: vec![CseId(at)] }).collect()
}
