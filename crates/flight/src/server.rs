//! The server of a host: `skytether host serve`.

use futures::future::BoxFuture;
use skytether_flight_sql::forward;
use skytether_flight_sql::service as flight_sql;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use arrow_flight::flight_service_server::{FlightService, FlightServiceServer};
use arrow_flight::{
    Action, ActionType, Criteria, Empty, FlightData, FlightDescriptor, FlightInfo, HandshakeRequest, HandshakeResponse, PollInfo, PutResult, SchemaResult,
    Ticket,
};
use bytes::Bytes;
use futures::{Stream, StreamExt, stream};
use skytether_common::{Context, Error, PartitionName, Result};
use skytether_device::{Cse, ResultMessage};
use skytether_doors::Connectors;
use skytether_flight_drive::deliveries::DeliveryEncoder;
use skytether_flight_drive::frames;
use skytether_flight_drive::status::{tell, to_status};
use skytether_flight_drive::{ConnectOptions, MAX_MESSAGE};
use skytether_store::Op;
use skytether_transport::grpc as transport;
use skytether_transport::{Endpoint, Identity, Listener, Peer, ServeContext, TokenStore};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::service::Routes;
use tonic::{Request, Response, Status, Streaming};

use crate::actions::{Call, HostAction, StorageAction};
use crate::long_call as long_work;
use crate::protocol;
use crate::protocol::{Change, CreatedToken, HostInfo, Kind, Last, PROTOCOL, PreparedAnswer, QueryRequest, ScanRequest, for_another};
use skytether_api::service::FleetService;
use skytether_api::statement::MAX_REQUEST;
use skytether_distributed::coordinator::SpreadOptions;
use skytether_distributed::fleet::SpreadHost;
use skytether_distributed::wire;
use skytether_distributed::worker::Worker;
use skytether_flight_sql::service::FlightSqlHost;
use skytether_host::{Host, Reach};
use skytether_runtime::within;
use skytether_volume::Volumes;

/// Messages of an answer that wait for a slow client.
const BACKLOG: usize = 4;

/// What the Flight faces of a host need in addition to the host.
#[derive(Debug, Clone)]
pub struct Face {
    /// How drives are reached whose addresses come with a request.
    pub connectors: Arc<Connectors>,
    /// What those connections show.
    pub drives: ConnectOptions,
    /// The tokens that the actions for tokens are about; without it a host offers none.
    pub tokens: Option<Arc<TokenStore>>,
    /// The volumes that the host serves by other doors.
    pub volumes: Option<Arc<Volumes>>,
    /// The workers over which queries are spread.
    pub spread: SpreadOptions,
    /// Whether it runs parts of the queries of other hosts. It then connects to workers that a request names.
    pub worker: bool,
}

impl Default for Face {
    fn default() -> Self {
        Self {
            connectors: Arc::new(skytether_flight_drive::connectors()),
            drives: ConnectOptions::default(),
            tokens: None,
            volumes: None,
            spread: SpreadOptions::default(),
            worker: false,
        }
    }
}

/// Serves `host`, made by [`Host::join`], on `listener`, without TLS and for all callers, until `stop` is ready. Calls
/// that run then have a few seconds to end.
///
/// # Errors
/// `Unavailable` if the listener fails.
pub async fn serve(host: Host, listener: TcpListener, stop: impl Future<Output = ()>) -> Result<()> {
    let context = ServeContext::default();
    let shutdown = context.shutdown.clone();
    let stopping = async move {
        stop.await;
        shutdown.cancel();
        std::future::pending::<()>().await;
    };
    tokio::select! {
        ended = serve_on(service(host, Face::default()), Listener::plain(listener)?, context) => ended,
        () = stopping => Ok(()),
    }
}

/// Serves a host on `listener` until the context's shutdown. Calls that run then have a few seconds to end. Ports with
/// the same `service` share prepared statements and running queries.
///
/// # Errors
/// `Unavailable` if the listener fails.
pub fn serve_on(service: Arc<HostService>, listener: Listener, context: ServeContext) -> BoxFuture<'static, Result<()>> {
    let flight = FlightServiceServer::from_arc(service).max_decoding_message_size(MAX_MESSAGE).max_encoding_message_size(MAX_MESSAGE);
    Box::pin(async move { transport::serve(listener, Routes::new(flight), context).await.context(|| "the host's port failed") })
}

/// The Flight service of `host`.
#[must_use]
pub fn service(host: Host, face: Face) -> Arc<HostService> {
    let host = host.reaching(Arc::new(face.clone()));
    let fleet: Arc<dyn FleetService> =
        if face.spread.workers.is_empty() { Arc::new(host.clone()) } else { Arc::new(SpreadHost::new(host.clone(), face.spread.clone())) };
    let worker = face.worker.then(|| Worker::new(host.clone(), face.drives.credentials.clone()));
    Arc::new(HostService { flight_sql: FlightSqlHost::new(Arc::clone(&fleet)), fleet, host, worker, face })
}

/// A host behind Flight.
#[derive(Debug)]
pub struct HostService {
    /// What queries and maintenance are asked of.
    fleet: Arc<dyn FleetService>,
    /// Whose drives' storage is reached through it.
    host: Host,
    /// Runs parts of the queries of other hosts.
    worker: Option<Arc<Worker>>,
    /// Takes calls outside of our own protocol.
    flight_sql: FlightSqlHost,
    face: Face,
}

type Answer<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

impl Face {
    fn tokens(&self) -> Result<&TokenStore> {
        self.tokens.as_deref().ok_or_else(|| Error::unsupported("this host keeps no tokens; start it with --tokens FILE, or over an embedded fleet"))
    }

    fn volumes(&self) -> Result<Arc<Volumes>> {
        let none =
            || Error::unsupported("this host serves no volumes: ask the one that does, or call `skytether volume` with the drives while no host serves them");
        self.volumes.clone().ok_or_else(none)
    }

    /// The tokens, for a caller who may change them.
    ///
    /// An anonymous caller from another machine is refused: a token that it makes would remain valid after
    /// authentication becomes required.
    fn tokens_for(&self, caller: &Caller) -> Result<&TokenStore> {
        let tokens = self.tokens()?;
        if !caller.identity.is_known() && !caller.is_local {
            return Err(Error::invalid("tokens are made by known callers: give a token (--token), or run the command on the host's machine"));
        }
        Ok(tokens)
    }
}

impl Reach for Face {
    fn reach<'a>(&'a self, address: &'a str) -> BoxFuture<'a, Result<Arc<dyn Cse>>> {
        Box::pin(async move {
            let at: Endpoint = address.parse()?;
            if !self.drives.credentials.may_go_to(&at) {
                return Err(Error::invalid(format!(
                    "{at}: this host shows its drives a token, so drives that a request names need TLS; write grpc+tls://, and start the host with --tls-ca FILE"
                )));
            }
            self.connectors.get(&at)?.connect(&at, &self.drives).await
        })
    }
}

/// The caller of a request.
struct Caller {
    identity: Identity,
    is_local: bool,
}

impl Caller {
    fn of<T>(request: &Request<T>) -> Self {
        let is_local = request.extensions().get::<Peer>().is_some_and(Peer::is_local);
        Self { identity: transport::caller(request), is_local }
    }
}

/// The answer to an action.
enum Reply {
    Once(Bytes),
    /// Messages that report progress, and last the report.
    Progress(mpsc::Receiver<Result<arrow_flight::Result, Status>>),
}

impl HostService {
    async fn act(&self, call: Call, caller: &Caller) -> Result<Reply> {
        match call {
            Call::Drive(n, action) => self.storage(n, action).await.map(Reply::Once),
            Call::Host(action) => self.act_on_fleet(action, caller).await,
        }
    }

    async fn act_on_fleet(&self, action: HostAction, caller: &Caller) -> Result<Reply> {
        let fleet = Arc::clone(&self.fleet);
        let body = match action {
            HostAction::Info => frames::encode_json(&self.info()),
            HostAction::List => frames::encode_json(&fleet.list().await?),
            HostAction::Listing => frames::encode_json(&fleet.listing().await?),
            HostAction::Status => frames::encode_json(&fleet.status().await?),
            HostAction::Describe(asked) => frames::encode_json(&fleet.describe(&asked.name).await?),
            HostAction::Schema(asked) => protocol::encode_schema(&*fleet.schema_of(&asked.table).await?),
            HostAction::Drop(asked) => fleet.drop_dataset(&asked.name).await.map(|()| Bytes::new()),
            HostAction::CreateIndex(asked) => frames::encode_json(&fleet.create_index(&asked).await?),
            HostAction::ListIndexes(asked) => frames::encode_json(&fleet.indexes(&asked).await?),
            HostAction::DropIndex(asked) => frames::encode_json(&fleet.drop_index(&asked).await?),
            HostAction::Explain(asked) => fleet.explain(&asked.asked_without_values()?, asked.analyze, &asked.options).await.map(Bytes::from),
            HostAction::Explanation(asked) => frames::encode_json(&fleet.explanation(&asked.asked_without_values()?, asked.analyze, &asked.options).await?),
            HostAction::Prepare(asked) => frames::encode_json(&PreparedAnswer::new(&fleet.prepare(&asked.asked_without_values()?).await?)?),
            HostAction::QuerySchema(asked) => protocol::encode_schema(&*fleet.schema_with(&asked.asked()?, &asked.values()?).await?),
            HostAction::CreateToken(asked) => {
                let token = self.face.tokens_for(caller)?.create(&asked.name, &asked.grants, asked.lifetime.map(Duration::from_secs))?;
                tracing::info!(caller = %caller.identity, token = asked.name, "made a token");
                frames::encode_json(&CreatedToken { token: token.expose().to_owned() })
            }
            HostAction::ListTokens => frames::encode_json(&self.face.tokens_for(caller)?.list()?),
            HostAction::RevokeToken(asked) => {
                self.face.tokens_for(caller)?.revoke(&asked.name)?;
                tracing::info!(caller = %caller.identity, token = asked.name, "revoked a token");
                Ok(Bytes::new())
            }
            HostAction::ListVolumes => frames::encode_json(&self.face.volumes()?.list().await?),
            HostAction::SnapshotVolume(asked) => {
                let (volumes, volume, snapshot) = (self.face.volumes()?, asked.volume.parse()?, asked.snapshot.parse()?);
                tracing::info!(caller = %caller.identity, volume = asked.volume, snapshot = asked.snapshot, "makes a snapshot");
                to_the_end(async move { volumes.snapshot(&volume, &snapshot).await }).await
            }
            HostAction::RemoveSnapshot(asked) => {
                let (volumes, volume, snapshot) = (self.face.volumes()?, asked.volume.parse()?, asked.snapshot.parse()?);
                tracing::info!(caller = %caller.identity, volume = asked.volume, snapshot = asked.snapshot, "removes a snapshot");
                to_the_end(async move { volumes.remove_snapshot(&volume, &snapshot).await }).await
            }
            HostAction::Scrub(options) => {
                return Ok(Reply::Progress(long_work::begin(|tell| async move { fleet.scrub(&options, tell.as_ref()).await })));
            }
            HostAction::Repair(options) => {
                return Ok(Reply::Progress(long_work::begin(|tell| async move { fleet.repair(&options, tell.as_ref()).await })));
            }
            HostAction::Resize(options) => {
                return Ok(Reply::Progress(long_work::begin(|tell| async move { fleet.resize(&options, tell.as_ref()).await })));
            }
        };
        body.map(Reply::Once)
    }

    fn worker(&self) -> Result<&Arc<Worker>> {
        let refused = || Error::unsupported("this host is no worker: start one with `skytether host worker`, and name that among --workers");
        self.worker.as_ref().ok_or_else(refused)
    }

    fn info(&self) -> HostInfo {
        let slices = &self.host.options().slices;
        HostInfo {
            protocol: PROTOCOL,
            instance: self.host.instance(),
            drives: self.host.drives().iter().map(|d| d.info().clone()).collect(),
            outside: self.host.catalog().health().outside(),
            leaving: self.host.catalog().health().leaving(),
            slice_bytes: slices.target_bytes,
            slice_rows: slices.max_rows,
            zstd_level: slices.zstd_level,
        }
    }

    async fn storage(&self, n: usize, action: StorageAction) -> Result<Bytes> {
        let drives = self.host.drives();
        let drive = drives.get(n).ok_or_else(|| Error::invalid(format!("there is no drive {n}: this host has {}", drives.len())))?;
        let (name, what) = (&drive.info().name, action.name());
        within(self.host.options().storage_deadline, name, what, self.storage_of(drive.as_ref(), action)).await
    }

    async fn storage_of(&self, drive: &dyn Cse, action: StorageAction) -> Result<Bytes> {
        match action {
            StorageAction::Apply(Change { instance, batch }) => {
                // What an ingest has written that a drive left in the middle of, it may take away again.
                let removes = |op: &Op| matches!(op, Op::Delete { .. }) && PartitionName::parse(op.key()).is_some();
                if instance != self.host.instance() && !(self.host.cluster().was(instance) && batch.iter().all(removes)) {
                    return Err(for_another());
                }
                frames::encode_json(&drive.apply(batch).await?)
            }
            StorageAction::Get(asked) => Ok(frames::encode_value(&drive.get(&asked.key).await?)),
            StorageAction::GetRanges(asked) => {
                frames::check_ranges(&asked.ranges)?;
                Ok(frames::encode_ranges(&drive.get_ranges_unverified(&asked.key, &asked.ranges).await?))
            }
            StorageAction::Stat(asked) => frames::encode_json(&drive.stat(&asked.key).await?),
            StorageAction::List(asked) => frames::encode_json(&drive.list(&asked.prefix, asked.after.as_ref(), asked.limit.min(frames::LIST_PAGE)).await?),
            StorageAction::Usage => frames::encode_json(&drive.usage().await?),
        }
    }

    async fn query(&self, ticket: &Bytes) -> Result<mpsc::Receiver<Result<FlightData, Status>>> {
        if ticket.len() > MAX_REQUEST {
            return Err(Error::invalid(format!("a ticket of {} bytes is too long: at most {MAX_REQUEST}", ticket.len())));
        }
        let kind = frames::decode_json::<Kind>("a ticket", ticket)?;
        if kind.stage.is_some() {
            return self.worker()?.read(ticket);
        }
        let mut query = if kind.scan.is_some() {
            let asked: ScanRequest = frames::decode_json("a ticket", ticket)?;
            self.fleet.scan(&asked.scan, &asked.options).await?
        } else {
            let asked: QueryRequest = frames::decode_json("a ticket", ticket)?;
            self.fleet.ask_with(&asked.asked()?, &asked.values()?, &asked.options).await?
        };
        let (send, receive) = mpsc::channel(BACKLOG);
        tokio::spawn(async move {
            let (mut encoder, first) = DeliveryEncoder::new(&query.schema);
            let work = async {
                if send.send(Ok(first)).await.is_err() {
                    return Ok(());
                }
                while let Some(batch) = query.stream.next().await {
                    for message in encoder.encode(ResultMessage::Batch { epoch: 0, batch: batch? })? {
                        // The client has left: dropping the query stops it.
                        if send.send(Ok(message)).await.is_err() {
                            return Ok(());
                        }
                    }
                }
                let last = frames::encode_json(&Last { receipt: query.receipt.receipt() })?;
                let _ = send.send(Ok(FlightData::new().with_app_metadata(last))).await;
                Ok(())
            };
            tell(&send, work).await;
        });
        Ok(receive)
    }
}

/// Does `work` also where the caller leaves: what is left of half of it stays until the volumes are opened again.
async fn to_the_end(work: impl Future<Output = Result<()>> + Send + 'static) -> Result<Bytes> {
    let done = tokio::spawn(work).await.map_err(|e| Error::internal("work on a volume ended early").with_source(e))?;
    done.map(|()| Bytes::new())
}

fn not_offered<T>(what: &str) -> Result<T, Status> {
    Err(to_status(&Error::unsupported(format!("a Skytether host does not offer {what}"))))
}

impl FlightService for HostService {
    type HandshakeStream = Answer<HandshakeResponse>;
    type ListFlightsStream = Answer<FlightInfo>;
    type DoGetStream = Answer<FlightData>;
    type DoPutStream = Answer<PutResult>;
    type DoExchangeStream = Answer<FlightData>;
    type DoActionStream = Answer<arrow_flight::Result>;
    type ListActionsStream = Answer<ActionType>;

    forward! {
    fn do_get(request: Request<Ticket>) -> Result<Response<Self::DoGetStream>, Status>;
    fn do_action(request: Request<Action>) -> Result<Response<Self::DoActionStream>, Status>;
    fn list_actions(request: Request<Empty>) -> Result<Response<Self::ListActionsStream>, Status>;
    fn handshake(request: Request<Streaming<HandshakeRequest>>) -> Result<Response<Self::HandshakeStream>, Status>;
    fn list_flights(request: Request<Criteria>) -> Result<Response<Self::ListFlightsStream>, Status>;
    fn get_flight_info(request: Request<FlightDescriptor>) -> Result<Response<FlightInfo>, Status>;
    fn poll_flight_info(request: Request<FlightDescriptor>) -> Result<Response<PollInfo>, Status>;
    fn get_schema(request: Request<FlightDescriptor>) -> Result<Response<SchemaResult>, Status>;
    fn do_put(request: Request<Streaming<FlightData>>) -> Result<Response<Self::DoPutStream>, Status>;
    fn do_exchange(request: Request<Streaming<FlightData>>) -> Result<Response<Self::DoExchangeStream>, Status>;
    }
}

/// The futures of [`FlightService`]'s methods. They are made here because the methods of an async trait carry lifetime
/// clauses, under which rustc does not cache its proofs that a future is `Send`
/// (docs/decisions/0001-build-and-test-time.md).
impl HostService {
    fn do_get(&self, request: Request<Ticket>) -> BoxFuture<'_, Result<Response<<Self as FlightService>::DoGetStream>, Status>> {
        Box::pin(async move {
            // Our own tickets are JSON objects, which no protobuf message of Flight SQL begins like.
            if !matches!(request.get_ref().ticket.first(), None | Some(b'{')) {
                flight_sql::check_length(request.get_ref().ticket.len())?;
                return self.flight_sql.do_get(request).await;
            }
            let messages = self.query(&request.into_inner().ticket).await.map_err(|e| to_status(&e))?;
            Ok(Response::new(Box::pin(ReceiverStream::new(messages)) as Answer<_>))
        })
    }

    fn do_action(&self, request: Request<Action>) -> BoxFuture<'_, Result<Response<<Self as FlightService>::DoActionStream>, Status>> {
        Box::pin(async move {
            if flight_sql::ACTIONS.iter().any(|(kind, _)| *kind == request.get_ref().r#type) {
                flight_sql::check_length(request.get_ref().body.len())?;
                if request.get_ref().r#type == flight_sql::PREPARE_PLAN {
                    let body = self.flight_sql.prepare_plan(&request.get_ref().body).await.map_err(|e| to_status(&e))?;
                    return Ok(Response::new(Box::pin(stream::iter([Ok(arrow_flight::Result { body })])) as Answer<_>));
                }
                return self.flight_sql.do_action(request).await;
            }
            if wire::ACTIONS.iter().any(|(kind, _)| *kind == request.get_ref().r#type) {
                let Action { r#type: name, body } = request.into_inner();
                let worker = self.worker().map_err(|e| to_status(&e))?;
                let body = worker.act(&name, &body).await.map_err(|e| to_status(&e))?;
                return Ok(Response::new(Box::pin(stream::iter([Ok(arrow_flight::Result { body })])) as Answer<_>));
            }
            let caller = Caller::of(&request);
            tracing::debug!(target: "skytether::calls", caller = %caller.identity, action = request.get_ref().r#type.chars().take(80).collect::<String>());
            let Action { r#type: name, body } = request.into_inner();
            let call = Call::parse(&name, &body).map_err(|e| to_status(&e))?;
            // An action's values are slices of it, or read already.
            drop(body);
            Ok(Response::new(match self.act(call, &caller).await.map_err(|e| to_status(&e))? {
                Reply::Once(body) => Box::pin(stream::iter([Ok(arrow_flight::Result { body })])) as Answer<_>,
                Reply::Progress(messages) => Box::pin(ReceiverStream::new(messages)),
            }))
        })
    }

    fn list_actions(&self, _: Request<Empty>) -> BoxFuture<'_, Result<Response<<Self as FlightService>::ListActionsStream>, Status>> {
        Box::pin(async move {
            let is_worker = self.worker.is_some();
            let of_workers = wire::ACTIONS.into_iter().filter(move |_| is_worker);
            let others = flight_sql::ACTIONS.into_iter().chain(of_workers);
            let others = others.map(|(t, d)| ActionType { r#type: t.to_owned(), description: d.to_owned() });
            Ok(Response::new(Box::pin(stream::iter(Call::list().chain(others).map(Ok))) as Answer<_>))
        })
    }

    fn handshake(&self, request: Request<Streaming<HandshakeRequest>>) -> BoxFuture<'_, Result<Response<<Self as FlightService>::HandshakeStream>, Status>> {
        Box::pin(async move { self.flight_sql.handshake(request).await })
    }

    fn list_flights(&self, _: Request<Criteria>) -> BoxFuture<'_, Result<Response<<Self as FlightService>::ListFlightsStream>, Status>> {
        Box::pin(async move { not_offered("a list of flights: use the action `list`") })
    }

    fn get_flight_info(&self, request: Request<FlightDescriptor>) -> BoxFuture<'_, Result<Response<FlightInfo>, Status>> {
        Box::pin(async move {
            flight_sql::check_length(request.get_ref().cmd.len())?;
            self.flight_sql.get_flight_info(request).await
        })
    }

    fn poll_flight_info(&self, _: Request<FlightDescriptor>) -> BoxFuture<'_, Result<Response<PollInfo>, Status>> {
        Box::pin(async move { not_offered("polling for flight infos: GetFlightInfo answers at once") })
    }

    fn get_schema(&self, request: Request<FlightDescriptor>) -> BoxFuture<'_, Result<Response<SchemaResult>, Status>> {
        Box::pin(async move {
            let info = self.get_flight_info(request).await?.into_inner();
            Ok(Response::new(SchemaResult { schema: info.schema }))
        })
    }

    fn do_put(&self, request: Request<Streaming<FlightData>>) -> BoxFuture<'_, Result<Response<<Self as FlightService>::DoPutStream>, Status>> {
        Box::pin(async move { self.flight_sql.do_put(request).await })
    }

    fn do_exchange(&self, _: Request<Streaming<FlightData>>) -> BoxFuture<'_, Result<Response<<Self as FlightService>::DoExchangeStream>, Status>> {
        Box::pin(async move { not_offered("DoExchange") })
    }
}

#[cfg(test)]
mod tests {
    use skytether_common::Kind;
    use skytether_transport::{Credentials, Secret};

    use super::*;

    #[tokio::test]
    async fn drives_token_goes_to_no_named_address_without_tls() {
        let credentials = Credentials { token: Some(Secret::new("sky_of_drives")), ..Credentials::default() };
        let face = Face { drives: ConnectOptions { credentials, ..ConnectOptions::default() }, ..Face::default() };
        // Nothing listens there: a connection would be `Unavailable`.
        for address in ["127.0.0.1:1", "grpc+tls://127.0.0.1:1"] {
            let refused = face.reach(address).await.unwrap_err();
            assert!(refused.kind() == Kind::Invalid && refused.to_string().contains("--tls-ca"), "{refused}");
        }
        assert_eq!(Face::default().reach("127.0.0.1:1").await.unwrap_err().kind(), Kind::Unavailable);
    }
}
