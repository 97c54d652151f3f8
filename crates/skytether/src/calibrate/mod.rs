//! Calibration: does a drive with a device profile work as that device would?
//!
//! Each part is measured alone, through the objects that drives use: a query over an embedded fleet for the processor,
//! reads of a drive's store for its disk, and its memory pool. For the link a source of rows sends messages, in process
//! or over Flight on loopback. `asked` is the profile's figure, and `got` is measured on the clock. So a machine that
//! is slower than the device, or busy, shows.

mod disk;
mod link;
mod processor;

use std::path::Path;
use std::sync::Arc;

use datafusion::execution::memory_pool::{MemoryConsumer, MemoryPool};
use futures::future::BoxFuture;
use serde::Serialize;
use skytether_common::units::{human_bytes, human_seconds};
use skytether_common::{Error, Result};
use skytether_drive::{Device, Drive, DriveOptions};
use skytether_scheduler::profile::Profile;
use skytether_store::disk::DriveIdentity;
use uuid::Uuid;

/// Largest relative difference between a measured figure and the profile's.
pub const TOLERANCE: f64 = 0.2;

/// The unit of a figure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// Speed of a core of this machine.
    OfThisMachine,
    /// Cores.
    Cores,
    /// Bytes.
    Bytes,
    /// Bytes per second.
    BytesPerS,
    /// Bits per second.
    BitsPerS,
    /// Seconds.
    S,
}

impl Unit {
    /// `value` with its unit, for people.
    #[must_use]
    pub fn show(self, value: f64) -> String {
        match self {
            Self::OfThisMachine => format!("{value:.4}"),
            Self::Cores => format!("{value:.2}"),
            Self::Bytes => human_bytes(value as u64),
            Self::BytesPerS => format!("{:.1} MB/s", value / 1e6),
            Self::BitsPerS => format!("{:.3} Gb/s", value / 1e9),
            Self::S => human_seconds(value),
        }
    }
}

/// One figure of a profile.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Measured {
    /// Its key in the profile.
    pub key: &'static str,
    /// The unit of both figures.
    pub unit: Unit,
    /// The profile's figure; `None` where it has no bound.
    pub asked: Option<f64>,
    /// What was measured.
    pub got: f64,
    /// `got` divided by `asked`; `None` where nothing, or 0, was asked.
    pub ratio: Option<f64>,
    /// Whether the ratio is within the tolerance of 1, or there is none.
    pub within: bool,
}

impl Measured {
    fn new(key: &'static str, unit: Unit, asked: Option<f64>, got: f64) -> Self {
        let ratio = asked.filter(|asked| *asked > 0.0).map(|asked| got / asked);
        Self { key, unit, asked, got, ratio, within: ratio.is_none_or(|ratio| (ratio - 1.0).abs() <= TOLERANCE) }
    }
}

/// The figures of a profile and of a drive under it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Calibration {
    /// The profile's name.
    pub profile: String,
    /// Whether the link was Flight on loopback.
    pub served: bool,
    /// Largest difference of a ratio from 1.
    pub tolerance: f64,
    /// Whether all ratios are within the tolerance.
    pub within: bool,
    /// The figures, in the profile's order.
    pub measured: Vec<Measured>,
}

/// The number of parts that are measured one after the other, for progress displays.
pub const STEPS: u64 = 5;

/// Measures a drive under the device profile `given` ([`Device::given`]). It works in a new directory below `dir` (by
/// default the system's for temporary files) and removes it afterwards. With `served` the link is a drive's on
/// loopback. `step` is called with the name of each of the [`STEPS`] as it begins. Takes some seconds, and longer for
/// slow devices.
///
/// # Errors
/// As [`Device::given`]; errors of opening and using a fleet there.
pub fn calibrate<'a>(given: &'a str, dir: Option<&'a Path>, served: bool, step: impl FnMut(&'static str) + Send + 'a) -> BoxFuture<'a, Result<Calibration>> {
    measure(given, dir, served, Box::new(step))
}

/// [`calibrate`] with a function of one type.
fn measure<'a>(given: &'a str, dir: Option<&'a Path>, served: bool, mut step: Box<dyn FnMut(&'static str) + Send + 'a>) -> BoxFuture<'a, Result<Calibration>> {
    Box::pin(async move {
        let device = Device::given(given)?;
        let below = dir.map_or_else(std::env::temp_dir, Path::to_path_buf);
        let scratch = tempfile::Builder::new().prefix("skytether-calibrate-").tempdir_in(&below).map_err(|e| Error::io("make a directory below", &below, e))?;
        let profile = match &device {
            Some(device) => device.profile,
            None => Profile::shipped("unlimited").map_err(|e| Error::internal("the shipped device profiles can't be read").with_source(e))?,
        };
        let asked = |value: f64| device.is_some().then_some(value);
        let mut measured = Vec::new();

        step("processor");
        let work = processor::Workload::prepare(scratch.path(), device.as_ref()).await?;
        let alone = work.one().await?;
        measured.push(Measured::new("speed_per_core", Unit::OfThisMachine, asked(profile.speed_per_core), work.unbounded() / alone));
        step("cores");
        measured.push(Measured::new("cores", Unit::Cores, asked(f64::from(profile.cores)), work.cores(alone, profile.cores).await?));
        drop(work);

        let place = scratch.path().join("drive");
        let options = DriveOptions::like(device.clone(), None);
        let drive = tokio::task::spawn_blocking(move || Drive::open(&place, Some(DriveIdentity { id: Uuid::new_v4(), name: "drive-0".into() }), options))
            .await
            .map_err(|e| Error::internal("opening the drive stopped").with_source(e))??;
        measured.push(Measured::new("memory_bytes", Unit::Bytes, asked(profile.memory_bytes as f64), memory(drive.memory()) as f64));

        step("disk");
        let store = Arc::clone(drive.store());
        let disk = tokio::task::spawn_blocking(move || disk::measure(store.as_ref(), &profile))
            .await
            .map_err(|e| Error::internal("reading stopped").with_source(e))??;
        measured.push(Measured::new("disk_bytes_per_s", Unit::BytesPerS, asked(profile.disk_bytes_per_s), disk.bytes_per_s));
        measured.push(Measured::new("disk_seek_s", Unit::S, asked(profile.disk_seek_s), disk.seek_s));

        step("link: rate");
        let link = link::Ends::connect(device.as_ref(), served).await?;
        measured.push(Measured::new(
            "link_bits_per_s",
            Unit::BitsPerS,
            asked(profile.link_bits_per_s),
            8.0 * link.bytes_per_s(profile.link_bytes_per_s()).await?,
        ));
        step("link: latency");
        measured.push(Measured::new("link_latency_s", Unit::S, asked(profile.link_latency_s), link.latency_s().await?));

        let within = measured.iter().all(|m| m.within);
        Ok(Calibration { profile: device.map_or_else(|| "unlimited".to_owned(), |device| device.name), served, tolerance: TOLERANCE, within, measured })
    })
}

/// The most bytes that `pool` grants at once.
fn memory(pool: &Arc<dyn MemoryPool>) -> u64 {
    let (mut had, mut refused) = (0usize, usize::MAX);
    while refused - had > 1 {
        let half = had + (refused - had) / 2;
        let reservation = MemoryConsumer::new("calibration").register(pool);
        match reservation.try_grow(half) {
            Ok(()) => had = half,
            Err(_) => refused = half,
        }
    }
    had as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use datafusion::execution::memory_pool::GreedyMemoryPool;

    #[test]
    fn a_pool_shows_its_limit() {
        for limit in [1, 1000, 1 << 30, 12_345_678_901] {
            let pool: Arc<dyn MemoryPool> = Arc::new(GreedyMemoryPool::new(limit));
            assert_eq!(memory(&pool), limit as u64);
            assert_eq!(pool.reserved(), 0);
        }
    }

    #[test]
    fn a_figure_is_off_beyond_the_tolerance_on_both_sides() {
        let figure = |asked, got| Measured::new("cores", Unit::Cores, asked, got);
        assert!(figure(Some(10.0), 12.0).within && figure(Some(10.0), 8.0).within);
        assert!(!figure(Some(10.0), 12.1).within && !figure(Some(10.0), 7.9).within);
        assert_eq!((figure(Some(0.0), 3.0).ratio, figure(None, 3.0).ratio), (None, None));
        assert!(figure(Some(0.0), 3.0).within && figure(None, 3.0).within);
        assert!(!figure(Some(1.0), f64::NAN).within);
    }
}
