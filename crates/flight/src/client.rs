//! The client of a host elsewhere: `skytether.connect`.

use futures::future::BoxFuture;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow::datatypes::SchemaRef;
use arrow_flight::flight_service_client::FlightServiceClient;
use arrow_flight::{Action, FlightData, Ticket};
use bytes::Bytes;
use futures::{StreamExt, stream};
use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use skytether_common::{DatasetName, Error, Key, Kind, Result};
use skytether_device::{CseInfo, ResultMessage, Storage};
use skytether_flight_drive::MAX_MESSAGE;
use skytether_flight_drive::deliveries::{DeliveryDecoder, Incoming};
use skytether_flight_drive::frames;
use skytether_flight_drive::status::{from_status, is_ours, of_connection};
use skytether_slice::SliceOptions;
use skytether_store::{Entry, Op, Usage, Version};
use skytether_transport::endpoint::{DEFAULT_SCHEME, TLS_SCHEME};
use skytether_transport::grpc::{self as transport, Channel, ChannelOptions};
use skytether_transport::{Credentials, Endpoint, Secret, TokenInfo};
use tonic::Streaming;
use uuid::Uuid;

use crate::actions::{Call, HostAction, StorageAction};
use crate::long_call::Said;
use crate::protocol::{
    Change, CreateToken, CreatedToken, HostInfo, Last, NameRequest, PROTOCOL, PreparedAnswer, QueryRequest, RevokeToken, ScanRequest, SnapshotRequest,
    TableRequest, decode_schema,
};
use skytether_api::explanation::Explanation;
use skytether_api::receipt::Receipt;
use skytether_api::receipt::ReceiptHandle;
use skytether_api::receipt::ReceiptSource;
use skytether_api::resize_report::{ResizeOptions, ResizeReport};
use skytether_api::scrub_report::{RepairOptions, RepairReport, ScrubOptions, ScrubReport};
use skytether_api::service::{FleetService, OnProgress, Prepared, ViewParts, WriterParts};
use skytether_api::statement::Query;
use skytether_api::statement::QueryOptions;
use skytether_api::statement::Statement;
use skytether_api::statement::TableScan;
use skytether_api::status::DriveStatus;
use skytether_api::values::Values;
use skytether_catalog::indexes::{IndexInfo, ListIndexes, NewIndex, OldIndex};
use skytether_catalog::listing::{DatasetInfo, Listing};
use skytether_catalog::record_source::RecordSource;
use skytether_catalog::records::root::RootRecord;
use skytether_catalog::root_store::Catalog;
use skytether_runtime::Ids;
use skytether_volume::VolumeStatus;

/// How long a connection may take to come about.
const CONNECT: Duration = Duration::from_secs(10);

/// How often a silent connection is tried, and how long the host's system may take to react. A host that was switched
/// off is noticed after both.
const KEEPALIVE: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(20));

/// How long one storage operation through the host may take.
const STORAGE: Duration = Duration::from_secs(120);

/// A connection to a host. Cheap to clone.
#[derive(Debug, Clone)]
pub struct RemoteHost {
    connection: Connection,
    /// As it was when the connection was made.
    info: Arc<HostInfo>,
}

#[derive(Debug, Clone)]
struct Connection {
    url: Arc<str>,
    client: FlightServiceClient<Channel>,
}

impl Connection {
    /// Sends an action; its name, and the messages of its answer.
    async fn send(&self, call: impl Into<Call>) -> Result<(String, Streaming<arrow_flight::Result>)> {
        let call = call.into();
        let (name, body) = (call.name(), call.encode()?);
        // Its values are in the body now.
        drop(call);
        let request = Action { r#type: name.clone(), body };
        let answer = self.client.clone().do_action(request).await.map_err(|s| self.failed(&s))?.into_inner();
        Ok((name, answer))
    }

    async fn answer(&self, call: impl Into<Call>) -> Result<(String, Bytes)> {
        let (name, mut answer) = self.send(call).await?;
        match answer.message().await.map_err(|s| self.failed(&s))? {
            Some(result) => Ok((name, result.body)),
            None => Err(Error::unavailable(format!("the host at {} gave no answer to {name}", self.url))),
        }
    }

    async fn act(&self, call: impl Into<Call>) -> Result<Bytes> {
        Ok(self.answer(call).await?.1)
    }

    async fn ask<T: DeserializeOwned>(&self, call: impl Into<Call>) -> Result<T> {
        let (name, answer) = self.answer(call).await?;
        frames::decode_json(&format!("the answer of the host at {} to {name}", self.url), &answer)
    }

    /// What the host says is passed on as it is; where the connection itself fails, the host is named.
    fn failed(&self, status: &tonic::Status) -> Error {
        if of_connection(status) {
            if let Some(refused) = transport::explain_status(status) {
                return Error::new(refused.kind(), format!("cannot connect to the host at {}: {}", self.url, refused.message()));
            }
            tracing::debug!(%status, "{}", self.url);
            return Error::unavailable(format!(
                "the host at {} does not answer, or was lost in the middle of its answer: is `skytether host serve` running there?",
                self.url
            ));
        }
        let error = from_status(status);
        if is_ours(status) { error } else { error.context(format!("the host at {}", self.url)) }
    }
}

/// The error of the first call at `url`. A host that refuses the caller's token is a host nevertheless. A port with TLS
/// accepts the connection and ends it at the first plain byte.
fn first_call_failed(endpoint: &Endpoint, url: &str, error: Error) -> Error {
    match error.kind() {
        Kind::Invalid => error,
        Kind::Unavailable if endpoint.scheme() == DEFAULT_SCHEME => {
            Error::unavailable(format!("{}; if it uses TLS, write {TLS_SCHEME}://{}", error.report(), endpoint.authority()))
        }
        Kind::Unavailable => error,
        _ => error.context(format!("what listens at {url} is no Skytether host")),
    }
}

impl RemoteHost {
    /// Connects to the host at `url`, without credentials: see [`RemoteHost::connect_with`].
    ///
    /// # Errors
    /// As there.
    pub fn connect<'a>(url: &'a str) -> BoxFuture<'a, Result<Self>> {
        Box::pin(async move { Self::connect_with(url, &Credentials::default()).await })
    }

    /// Connects to the host at `url`: `grpc://host:port` or `grpc+tls://host:port`. The connection shows `credentials`,
    /// also when it is made again after it broke.
    ///
    /// # Errors
    /// Invalid for a URL of another form, and where one side refuses the other's certificate or token; `Unavailable`
    /// where nothing answers, `Unsupported` where the host speaks another protocol.
    pub fn connect_with<'a>(url: &'a str, credentials: &'a Credentials) -> BoxFuture<'a, Result<Self>> {
        Box::pin(async move {
            let endpoint = url.parse::<Endpoint>().and_then(|endpoint| endpoint.socket().map(drop).map(|()| endpoint));
            let endpoint = endpoint.map_err(|_| {
                Error::invalid(format!("{url:?} is no address of a host: write grpc://host:port, for example grpc://127.0.0.1:5300, or grpc+tls://host:port"))
            })?;
            let options = ChannelOptions { connect_timeout: CONNECT, keepalive: Some(KEEPALIVE), windows: None };
            let channel = transport::connect(&endpoint, credentials, &options).await.map_err(|e| match e.kind() {
                Kind::Unavailable => Error::unavailable(format!("no host answers at {url} ({}): is `skytether host serve` running there?", e.message())),
                kind => Error::new(kind, format!("cannot connect to the host at {url}: {}", e.message())),
            })?;
            let client = FlightServiceClient::new(channel).max_decoding_message_size(MAX_MESSAGE).max_encoding_message_size(MAX_MESSAGE);
            let connection = Connection { url: url.into(), client };
            let answer = tokio::time::timeout(CONNECT, connection.act(HostAction::Info))
                .await
                .map_err(|_| Error::unavailable(format!("what listens at {url} does not answer")))?
                .map_err(|e| first_call_failed(&endpoint, url, e))?;
            // The cause, a place in a text that is no JSON, says nothing to people.
            let said: serde_json::Value = serde_json::from_slice(&answer).map_err(|_| {
                Error::invalid(format!(
                    "what listens at {url} is no Skytether host; if it is a drive, put a host before it (skytether host serve --drives ...) and connect there"
                ))
            })?;
            let protocol = said.get("protocol").and_then(serde_json::Value::as_u64);
            if protocol != Some(u64::from(PROTOCOL)) {
                return Err(Error::unsupported(format!(
                    "the host at {url} speaks protocol {}, this program {PROTOCOL}: run the same version on both sides",
                    protocol.map_or("?".into(), |p| p.to_string())
                )));
            }
            let info = frames::decode_json(&format!("the answer of {url}"), &answer)?;
            Ok(Self { connection, info: Arc::new(info) })
        })
    }

    /// The address.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.connection.url
    }

    /// The host's drives.
    pub fn drives(&self) -> impl Iterator<Item = &CseInfo> {
        self.info.drives.iter()
    }

    /// What a ticket gives.
    async fn query(&self, ticket: Bytes) -> Result<Query> {
        let started = Instant::now();
        let mut messages = self.connection.client.clone().do_get(Ticket { ticket }).await.map_err(|s| self.connection.failed(&s))?.into_inner();
        let mut decoder = DeliveryDecoder::default();
        let first = messages.message().await.map_err(|s| self.connection.failed(&s))?.ok_or_else(|| self.cut_off())?;
        let Incoming::Schema(schema) = decoder.decode(first)? else { return Err(self.cut_off()) };
        let receipt = Arc::new(Mutex::new(Receipt::default()));
        let reading = QueryStream { messages, decoder, host: self.clone(), receipt: Arc::clone(&receipt), started, over: false };
        let stream = stream::unfold(reading, |mut reading| async move {
            if reading.over {
                return None;
            }
            match reading.next().await {
                Ok(Some(batch)) => Some((Ok(batch), reading)),
                Ok(None) => None,
                Err(e) => {
                    reading.over = true;
                    Some((Err(e), reading))
                }
            }
        })
        .boxed();
        Ok(Query { schema, stream, receipt: ReceiptHandle::new(Arc::new(RemoteReceipt(receipt))) })
    }

    fn cut_off(&self) -> Error {
        Error::unavailable(format!("the host at {} ended its answer in the middle: try again", self.connection.url))
    }

    /// Makes a token in the host's file of tokens; the text is nowhere but in the answer.
    ///
    /// # Errors
    /// As [`TokenStore::create`](skytether_transport::TokenStore::create); `Unsupported` where the host keeps no
    /// tokens; `Invalid` where it does not let this caller; `Unavailable`.
    pub fn create_token<'a>(&'a self, name: &'a str, grants: &'a [String], lifetime: Option<Duration>) -> BoxFuture<'a, Result<Secret>> {
        Box::pin(async move {
            let asked = CreateToken { name: name.to_owned(), grants: grants.to_vec(), lifetime: lifetime.map(|lifetime| lifetime.as_secs()) };
            let made: CreatedToken = self.connection.ask(HostAction::CreateToken(asked)).await?;
            Ok(Secret::from(made.token))
        })
    }

    /// The host's tokens.
    ///
    /// # Errors
    /// As [`RemoteHost::create_token`].
    pub fn tokens(&self) -> BoxFuture<'_, Result<Vec<TokenInfo>>> {
        Box::pin(async move { self.connection.ask(HostAction::ListTokens).await })
    }

    /// Takes a token back.
    ///
    /// # Errors
    /// As [`RemoteHost::create_token`], and `NotFound`.
    pub fn revoke_token<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move { self.connection.act(HostAction::RevokeToken(RevokeToken { name: name.to_owned() })).await.map(drop) })
    }

    /// The volumes that the host serves, with their snapshots.
    ///
    /// # Errors
    /// `Unsupported` where it serves none; those of its drives; `Unavailable`.
    pub fn volumes(&self) -> BoxFuture<'_, Result<Vec<VolumeStatus>>> {
        Box::pin(async move { self.connection.ask(HostAction::ListVolumes).await })
    }

    /// Keeps the present content of a volume that the host serves: all that was acknowledged when it is asked.
    ///
    /// # Errors
    /// As [`Self::volumes`]; `NotFound`; `Conflict` where there is a snapshot of this name.
    pub fn snapshot_volume<'a>(&'a self, volume: &'a str, snapshot: &'a str) -> BoxFuture<'a, Result<()>> {
        let asked = SnapshotRequest { volume: volume.to_owned(), snapshot: snapshot.to_owned() };
        Box::pin(async move { self.connection.act(HostAction::SnapshotVolume(asked)).await.map(drop) })
    }

    /// Removes a snapshot of a volume that the host serves.
    ///
    /// # Errors
    /// As [`Self::volumes`]; `NotFound`.
    pub fn remove_snapshot<'a>(&'a self, volume: &'a str, snapshot: &'a str) -> BoxFuture<'a, Result<()>> {
        let asked = SnapshotRequest { volume: volume.to_owned(), snapshot: snapshot.to_owned() };
        Box::pin(async move { self.connection.act(HostAction::RemoveSnapshot(asked)).await.map(drop) })
    }

    /// A long action that reports its progress.
    async fn long<R: DeserializeOwned>(&self, action: HostAction, tell: OnProgress<'_>) -> Result<R> {
        let (name, mut answers) = self.connection.send(action).await?;
        let failed = |status| self.connection.failed(&status);
        while let Some(answer) = answers.message().await.map_err(failed)? {
            match frames::decode_json(&format!("the answer of the host at {} to {name}", self.connection.url), &answer.body)? {
                Said::Progress(progress) => tell(&progress),
                Said::Done(report) => return Ok(report),
            }
        }
        Err(self.cut_off())
    }

    /// The drives as they can be reached through the host now: it may have been started again since the connection was
    /// made, even with its drives in another order.
    async fn behind(&self) -> Result<(HostInfo, Catalog)> {
        let info: HostInfo = self.connection.ask(HostAction::Info).await?;
        let behind = |(n, drive): (usize, &CseInfo)| {
            Arc::new(DriveBehind { n, info: drive.clone(), instance: info.instance, connection: self.connection.clone() }) as Arc<dyn Storage>
        };
        let catalog = Catalog::new(info.drives.iter().enumerate().map(behind).collect(), STORAGE)?;
        info.outside.iter().for_each(|at| catalog.health().leave(*at));
        info.leaving.iter().for_each(|at| catalog.health().set_leaving(*at, true));
        Ok((info, catalog))
    }
}

impl FleetService for RemoteHost {
    fn ask_with<'a>(&'a self, asked: &'a Statement, values: &'a Values, options: &'a QueryOptions) -> BoxFuture<'a, Result<Query>> {
        Box::pin(async move { self.query(frames::encode_json(&QueryRequest::new(asked, values, options, false)?)?).await })
    }

    fn prepare<'a>(&'a self, asked: &'a Statement) -> BoxFuture<'a, Result<Prepared>> {
        Box::pin(async move {
            let request = QueryRequest::new(asked, &Values::default(), &QueryOptions::default(), false)?;
            self.connection.ask::<PreparedAnswer>(HostAction::Prepare(request)).await?.prepared()
        })
    }

    fn schema_with<'a>(&'a self, asked: &'a Statement, values: &'a Values) -> BoxFuture<'a, Result<SchemaRef>> {
        Box::pin(async move {
            let request = QueryRequest::new(asked, values, &QueryOptions::default(), false)?;
            decode_schema(self.connection.act(HostAction::QuerySchema(request)).await?)
        })
    }

    fn scan<'a>(&'a self, scan: &'a TableScan, options: &'a QueryOptions) -> BoxFuture<'a, Result<Query>> {
        Box::pin(async move { self.query(frames::encode_json(&ScanRequest { scan: scan.clone(), options: options.clone() })?).await })
    }

    fn schema_of<'a>(&'a self, table: &'a str) -> BoxFuture<'a, Result<SchemaRef>> {
        Box::pin(async move { decode_schema(self.connection.act(HostAction::Schema(TableRequest { table: table.to_owned() })).await?) })
    }

    fn explanation<'a>(&'a self, asked: &'a Statement, analyze: bool, options: &'a QueryOptions) -> BoxFuture<'a, Result<Explanation>> {
        Box::pin(async move {
            let request = QueryRequest::new(asked, &Values::default(), options, analyze)?;
            self.connection.ask(HostAction::Explanation(request)).await
        })
    }

    fn list(&self) -> BoxFuture<'_, Result<Vec<DatasetInfo>>> {
        Box::pin(self.connection.ask(HostAction::List))
    }

    fn listing(&self) -> BoxFuture<'_, Result<Listing>> {
        Box::pin(self.connection.ask(HostAction::Listing))
    }

    fn describe<'a>(&'a self, name: &'a DatasetName) -> BoxFuture<'a, Result<RootRecord>> {
        Box::pin(self.connection.ask(HostAction::Describe(NameRequest { name: name.clone() })))
    }

    fn drop_dataset<'a>(&'a self, name: &'a DatasetName) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move { self.connection.act(HostAction::Drop(NameRequest { name: name.clone() })).await.map(drop) })
    }

    fn create_index<'a>(&'a self, asked: &'a NewIndex) -> BoxFuture<'a, Result<String>> {
        Box::pin(self.connection.ask(HostAction::CreateIndex(asked.clone())))
    }

    fn indexes<'a>(&'a self, asked: &'a ListIndexes) -> BoxFuture<'a, Result<Vec<IndexInfo>>> {
        Box::pin(self.connection.ask(HostAction::ListIndexes(asked.clone())))
    }

    fn drop_index<'a>(&'a self, old: &'a OldIndex) -> BoxFuture<'a, Result<()>> {
        Box::pin(self.connection.ask(HostAction::DropIndex(old.clone())))
    }

    fn status(&self) -> BoxFuture<'_, Result<Vec<DriveStatus>>> {
        Box::pin(self.connection.ask(HostAction::Status))
    }

    fn scrub<'a>(&'a self, options: &'a ScrubOptions, tell: OnProgress<'a>) -> BoxFuture<'a, Result<ScrubReport>> {
        Box::pin(self.long(HostAction::Scrub(options.clone()), tell))
    }

    fn repair<'a>(&'a self, options: &'a RepairOptions, tell: OnProgress<'a>) -> BoxFuture<'a, Result<RepairReport>> {
        Box::pin(self.long(HostAction::Repair(options.clone()), tell))
    }

    fn resize<'a>(&'a self, options: &'a ResizeOptions, tell: OnProgress<'a>) -> BoxFuture<'a, Result<ResizeReport>> {
        Box::pin(self.long(HostAction::Resize(options.clone()), tell))
    }

    /// Slices are encoded here, and go to the drives through the host.
    fn writer_parts(&self) -> BoxFuture<'_, Result<WriterParts>> {
        Box::pin(async move {
            // Only a start of the host that falls into this ingest may have lost slices of it.
            let (info, catalog) = self.behind().await?;
            let slices = SliceOptions { target_bytes: info.slice_bytes, max_rows: info.slice_rows, zstd_level: info.zstd_level };
            Ok(WriterParts { catalog, slices, generation: Ids::random().generation() })
        })
    }

    /// Reads go through the host.
    fn view_parts(&self) -> BoxFuture<'_, Result<ViewParts>> {
        Box::pin(async move { Ok(ViewParts { catalog: self.behind().await?.1, records: Arc::new(self.clone()) }) })
    }
}

struct QueryStream {
    messages: Streaming<FlightData>,
    decoder: DeliveryDecoder,
    host: RemoteHost,
    receipt: Arc<Mutex<Receipt>>,
    started: Instant,
    over: bool,
}

impl QueryStream {
    async fn next(&mut self) -> Result<Option<arrow::record_batch::RecordBatch>> {
        loop {
            let message: FlightData = self.messages.message().await.map_err(|s| self.host.connection.failed(&s))?.ok_or_else(|| self.host.cut_off())?;
            if message.data_header.is_empty()
                && let Ok(last) = serde_json::from_slice::<Last>(&message.app_metadata)
            {
                *self.receipt.lock() = last.receipt;
                self.over = true;
                return Ok(None);
            }
            let bytes = message.data_header.len() + message.data_body.len() + message.app_metadata.len();
            let decoded = self.decoder.decode(message)?;
            // The host sends the query's costs with the last row; until then this is what is known.
            let mut so_far = self.receipt.lock();
            so_far.bytes_moved += bytes as u64;
            so_far.seconds = self.started.elapsed().as_secs_f64();
            if let Incoming::Message(ResultMessage::Batch { batch, .. }) = decoded {
                so_far.rows += batch.num_rows() as u64;
                return Ok(Some(batch));
            }
        }
    }
}

/// Storage of a drive, reached through its host.
#[derive(Debug)]
struct DriveBehind {
    n: usize,
    info: CseInfo,
    /// The start of the host that changes are meant for.
    instance: Uuid,
    connection: Connection,
}

impl DriveBehind {
    fn call(&self, action: StorageAction) -> Call {
        Call::Drive(self.n, action)
    }
}

impl Storage for DriveBehind {
    fn info(&self) -> &CseInfo {
        &self.info
    }

    fn apply(&self, batch: Vec<Op>) -> BoxFuture<'_, Result<Vec<Version>>> {
        Box::pin(async move {
            let change = Change { instance: self.instance, batch };
            self.connection.ask(self.call(StorageAction::Apply(change))).await
        })
    }

    fn get<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Result<Bytes>> {
        Box::pin(async move {
            let request = frames::KeyRequest { key: key.clone() };
            frames::decode_value(&self.connection.act(self.call(StorageAction::Get(request))).await?)
        })
    }

    fn get_ranges_unverified<'a>(&'a self, key: &'a Key, ranges: &'a [Range<u64>]) -> BoxFuture<'a, Result<Vec<Bytes>>> {
        Box::pin(async move {
            let request = frames::RangesRequest { key: key.clone(), ranges: ranges.to_vec() };
            frames::decode_ranges(&self.connection.act(self.call(StorageAction::GetRanges(request))).await?, ranges)
        })
    }

    fn stat<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Result<Option<Entry>>> {
        Box::pin(self.connection.ask(self.call(StorageAction::Stat(frames::KeyRequest { key: key.clone() }))))
    }

    fn list<'a>(&'a self, prefix: &'a str, after: Option<&'a Key>, limit: usize) -> BoxFuture<'a, Result<Vec<Entry>>> {
        let request = frames::ListRequest { prefix: prefix.to_owned(), after: after.cloned(), limit };
        Box::pin(self.connection.ask(self.call(StorageAction::List(request))))
    }

    fn usage(&self) -> BoxFuture<'_, Result<Usage>> {
        Box::pin(self.connection.ask(self.call(StorageAction::Usage)))
    }
}

/// The receipt of a query on another host, which sends it with the last row. Until then it holds the rows, bytes and
/// seconds that this client saw.
#[derive(Debug)]
struct RemoteReceipt(Arc<Mutex<Receipt>>);

impl ReceiptSource for RemoteReceipt {
    fn receipt(&self) -> Receipt {
        self.0.lock().clone()
    }
}

impl RecordSource for RemoteHost {
    fn record<'a>(&'a self, name: &'a DatasetName) -> BoxFuture<'a, Result<RootRecord>> {
        Box::pin(async move { self.describe(name).await })
    }
}
