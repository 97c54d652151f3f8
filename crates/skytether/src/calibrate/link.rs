//! Measures a link, in process or over Flight, with a source of rows at its other end that costs almost nothing.

use futures::future::BoxFuture;
use std::sync::Arc;
use std::time::Instant;

use arrow::array::{ArrayRef, Float64Array};
use arrow::record_batch::RecordBatch;
use bytes::Bytes;
use futures::{StreamExt, stream};
use skytether_common::{DatasetName, Detail, Error, Key, Result};
use skytether_device::{Annotation, Capabilities, CseInfo, DeliveryStream, Program, ProgramKind, PushdownLevel, ResultMessage, SubPlan};
use skytether_drive::{Cse, Device, Storage, linked};
use skytether_flight_drive::{ConnectOptions, FlightCse};
use skytether_store::{Entry, Op, Usage, Version};
use tokio::net::TcpListener;
use tokio_util::task::AbortOnDropHandle;
use uuid::Uuid;

/// The bytes of a batch are what the link moves in this part of a second, within bounds.
const BATCH_SECONDS: f64 = 0.01;
const BATCH: std::ops::Range<f64> = 4096.0..1048576.0;

/// The number of batches.
const BATCHES: usize = 50;

/// The number of round trips; their median counts.
const TRIPS: usize = 41;

/// Ends when dropped.
type Server = AbortOnDropHandle<Result<()>>;

/// Two sources of rows, one behind the device's link and one without it. Both are reached in the same way.
pub(super) struct Ends {
    device: Arc<dyn Cse>,
    plain: Arc<dyn Cse>,
    _servers: Vec<Server>,
}

impl Ends {
    pub(super) async fn connect(device: Option<&Device>, served: bool) -> Result<Self> {
        let source = |profile| {
            let capabilities = Capabilities { programs: vec![ProgramKind::Substrait], ..Capabilities::storage_only() };
            let info = CseInfo { id: Uuid::new_v4(), name: "source".into(), format: 1, memory_limit: 0, profile, device: None, capabilities };
            Arc::new(RowSource { info }) as Arc<dyn Cse>
        };
        let (device, plain) = (source(device.map(|device| device.profile)), source(None));
        if !served {
            return Ok(Self { device: linked(device), plain: linked(plain), _servers: Vec::new() });
        }
        let ((device, first), (plain, second)) = (serve(device).await?, serve(plain).await?);
        Ok(Self { device, plain, _servers: vec![first, second] })
    }

    /// Bytes per second from the first batch to the last; `expected` is the approximate result.
    pub(super) async fn bytes_per_s(&self, expected: f64) -> Result<f64> {
        let values = (expected * BATCH_SECONDS).clamp(BATCH.start, BATCH.end) as usize / 8;
        let plan = SubPlan {
            query: Uuid::new_v4(),
            dataset: DatasetName::new("calibration", "link")?,
            partitions: std::collections::BTreeMap::new(),
            with: std::collections::BTreeMap::new(),
            rung: PushdownLevel::Full,
            program: Program::Substrait(Bytes::from(vec![0])),
            filters: std::collections::BTreeMap::new(),
            tables: std::collections::BTreeMap::new(),
            batch_rows: u32::try_from(values).unwrap_or(u32::MAX),
            keep: false,
        };
        let mut answer = self.device.execute(plan).await?;
        let (mut first, mut bytes, mut seconds) = (None, 0, 0.0);
        while let Some(message) = answer.messages.next().await {
            let ResultMessage::Batch { batch, .. } = message? else { continue };
            match first {
                None => first = Some(Instant::now()),
                Some(first) => {
                    bytes += 8 * batch.num_rows();
                    seconds = Instant::now().duration_since(first).as_secs_f64();
                }
            }
        }
        Ok(bytes as f64 / seconds)
    }

    /// Half of the difference between round trips with and without the device's link.
    pub(super) async fn latency_s(&self) -> Result<f64> {
        let (with, without) = (round_trip(self.device.as_ref()).await?, round_trip(self.plain.as_ref()).await?);
        Ok(((with - without) / 2.0).max(0.0))
    }
}

async fn serve(cse: Arc<dyn Cse>) -> Result<(Arc<dyn Cse>, Server)> {
    let on = |e: std::io::Error| Error::unavailable("cannot listen on loopback").with_source(e);
    let listener = TcpListener::bind("127.0.0.1:0").await.map_err(on)?;
    let address = listener.local_addr().map_err(on)?.to_string();
    let server = AbortOnDropHandle::new(tokio::spawn(skytether_flight_drive::serve(cse, listener, std::future::pending())));
    Ok((FlightCse::connect(&address, ConnectOptions::default()).await?, server))
}

/// Seconds of one round trip.
async fn round_trip(cse: &dyn Cse) -> Result<f64> {
    let key = Key::new("calibration")?;
    let mut took = Vec::with_capacity(TRIPS);
    for _ in 0..TRIPS {
        let start = Instant::now();
        cse.stat(&key).await?;
        took.push(start.elapsed().as_secs_f64());
    }
    took.sort_by(f64::total_cmp);
    Ok(took[TRIPS / 2])
}

/// A CSE without storage that answers every sub-plan with the same rows.
#[derive(Debug)]
struct RowSource {
    info: CseInfo,
}

impl Storage for RowSource {
    fn info(&self) -> &CseInfo {
        &self.info
    }

    fn apply(&self, _: Vec<Op>) -> BoxFuture<'_, Result<Vec<Version>>> {
        Box::pin(async move { Err(Error::unsupported("a source of rows stores nothing")) })
    }

    fn get<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Result<Bytes>> {
        Box::pin(async move { Err(Error::not_found(format!("a source of rows has no {key}")).with_detail(Detail::missing_key(key))) })
    }

    fn stat<'a>(&'a self, _: &'a Key) -> BoxFuture<'a, Result<Option<Entry>>> {
        Box::pin(async move { Ok(None) })
    }

    fn list<'a>(&'a self, _: &'a str, _: Option<&'a Key>, _: usize) -> BoxFuture<'a, Result<Vec<Entry>>> {
        Box::pin(async move { Ok(Vec::new()) })
    }

    fn usage(&self) -> BoxFuture<'_, Result<Usage>> {
        Box::pin(async move { Ok(Usage::default()) })
    }
}

impl Cse for RowSource {
    /// [`BATCHES`] batches with the requested number of rows, 8 bytes each.
    fn execute(&self, plan: SubPlan) -> BoxFuture<'_, Result<DeliveryStream>> {
        Box::pin(async move {
            let values: ArrayRef = Arc::new(Float64Array::from(vec![1.0; plan.batch_rows as usize]));
            let batch = RecordBatch::try_from_iter([("value", values)]).map_err(|e| Error::internal("cannot make a batch").with_source(e))?;
            let schema = batch.schema();
            let batches = stream::iter((0..BATCHES).map(move |_| Ok(ResultMessage::Batch { epoch: 0, batch: batch.clone() })));
            let end = stream::iter([Ok(ResultMessage::EpochComplete { epoch: 0 }), Ok(ResultMessage::Done(Annotation::default()))]);
            Ok(DeliveryStream { schema, messages: Box::pin(batches.chain(end)) })
        })
    }
}
