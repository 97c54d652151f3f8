//! Measures a drive's cores: the same query with and without emulation, alone and several at once.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use arrow::array::{ArrayRef, Int64Array};
use arrow::record_batch::RecordBatch;
use futures::StreamExt;
use futures::future::try_join_all;
use skytether_common::{DatasetName, Error, Result};
use skytether_drive::Device;
use skytether_host::{Pushdown, QueryOptions};
use skytether_scheduler::profile::Profile;

use crate::embedded::OpenOptions;
use crate::fleet::Fleet;
use crate::profiles::Profiles;

/// Rows of the table. This machine decodes and aggregates them in a few milliseconds, so some runs are not interrupted
/// even on a busy machine. They compress well, so that reading takes no time.
const ROWS: i64 = 600_000;
const BATCH: i64 = 100_000;

const QUERY: &str = "SELECT k, sum(a) AS a, sum(b) AS b, max(a) AS most, count(*) AS n FROM calibration.work GROUP BY k";

/// The least and the greatest number of runs. The quickest run counts, since other work of the machine only adds time.
/// After `SECONDS` the least number is enough.
const RUNS: (usize, usize) = (3, 100);
const SECONDS: f64 = 1.5;

/// Limit of queries at once.
const AT_ONCE: u32 = 16;

/// A fleet of one drive with the device's processor, but without its disk and link, and a table to query.
pub(super) struct Workload {
    fleet: Fleet,
    unbounded: f64,
}

impl Workload {
    pub(super) async fn prepare(below: &Path, device: Option<&Device>) -> Result<Self> {
        let path = below.join("fleet");
        let name: DatasetName = "calibration.work".parse()?;
        let fleet = open(&path, Profiles::default()).await?;
        let batch = |first: i64| {
            let column = |of: fn(i64) -> i64| Arc::new(Int64Array::from_iter_values((first..first + BATCH).map(of))) as ArrayRef;
            RecordBatch::try_from_iter([("k", column(|i| i % 64)), ("a", column(|i| i % 100)), ("b", column(|i| i % 3))])
                .map_err(|e| Error::internal("cannot make a table").with_source(e))
        };
        let schema = batch(0)?.schema();
        fleet.ingest_table(&name, schema, (0..ROWS / BATCH).map(|n| batch(n * BATCH)), false).await?;
        let plain = Self { fleet, unbounded: 0.0 };
        let unbounded = plain.one().await?;
        // A fleet is closed before it is opened again.
        drop(plain);
        let profile = match device {
            None => Profiles::default(),
            Some(device) => {
                let unlimited = |e| Error::internal("the shipped device profiles can't be read").with_source(e);
                let all = Profile::shipped("unlimited").map_err(unlimited)?;
                // A drive is never faster than the machine. If the profile asks for more, the measured figure shows it.
                let speed_per_core = device.profile.speed_per_core.min(1.0);
                let own = Profile { speed_per_core, cores: device.profile.cores, memory_bytes: device.profile.memory_bytes, ..all };
                Profiles::Every(own.print().map_err(unlimited)?)
            }
        };
        Ok(Self { fleet: open(&path, profile).await?, unbounded })
    }

    /// Seconds that this machine takes for the query.
    pub(super) fn unbounded(&self) -> f64 {
        self.unbounded
    }

    /// Seconds that the drive works on the query.
    pub(super) async fn one(&self) -> Result<f64> {
        // The first run also pays for metadata and planning.
        self.run().await?;
        quickest(|| self.run()).await
    }

    /// The number of cores, if one query takes one core `alone` seconds: from the time that twice `expected` queries
    /// take together.
    pub(super) async fn cores(&self, alone: f64, expected: u32) -> Result<f64> {
        let queries = expected.saturating_mul(2).clamp(2, AT_ONCE);
        let best = quickest(|| async {
            let start = Instant::now();
            try_join_all((0..queries).map(|_| self.run())).await?;
            Ok(start.elapsed().as_secs_f64())
        });
        Ok(f64::from(queries) * alone / best.await?)
    }

    async fn run(&self) -> Result<f64> {
        let mut query = self.fleet.sql(QUERY, &QueryOptions { cut: Pushdown::Full, ..QueryOptions::default() }).await?;
        while let Some(batch) = query.stream.next().await {
            batch?;
        }
        Ok(query.receipt.receipt().drives.iter().map(|d| d.seconds).sum())
    }
}

/// The least seconds of some runs.
async fn quickest<F: Future<Output = Result<f64>>>(run: impl Fn() -> F) -> Result<f64> {
    let (start, mut best) = (Instant::now(), f64::INFINITY);
    for n in 0..RUNS.1 {
        if n >= RUNS.0 && start.elapsed().as_secs_f64() > SECONDS {
            break;
        }
        best = best.min(run().await?);
    }
    Ok(best)
}

async fn open(path: &Path, profile: Profiles) -> Result<Fleet> {
    Fleet::open(path, &OpenOptions { drives: Some(1), profile, ..OpenOptions::default() }).await
}
