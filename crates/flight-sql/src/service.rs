//! Flight SQL over a host: what ADBC, JDBC and ODBC drivers speak.
//!
//! | asked | answer |
//! |---|---|
//! | statement, Substrait plan | planned for its schema; the ticket has the text or plan; no state is kept |
//! | prepared statement or plan | remembered in [`statements::Prepared`] with the values that were bound last |
//! | catalogs, schemas, tables | [`catalog_metadata`](crate::catalog_metadata); the ticket is the question |
//! | cancellation | stops the streams of the ticket; so does leaving the stream |
//! | writes, transactions | refused |

use crate::forward;
use futures::future::BoxFuture;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Instant;

use arrow::array::{RecordBatch, StringArray};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use arrow::ipc::writer::IpcWriteOptions;
use arrow_flight::encode::{FlightDataEncoder, FlightDataEncoderBuilder};
use arrow_flight::error::FlightError;
use arrow_flight::flight_service_server::FlightService;
use arrow_flight::sql::server::{FlightSqlService, PeekableFlightDataStream};
use arrow_flight::sql::{
    ActionCancelQueryRequest, ActionCancelQueryResult, ActionClosePreparedStatementRequest, ActionCreatePreparedStatementRequest,
    ActionCreatePreparedStatementResult, ActionCreatePreparedSubstraitPlanRequest, Any, Command, CommandGetCatalogs, CommandGetDbSchemas, CommandGetSqlInfo,
    CommandGetTableTypes, CommandGetTables, CommandPreparedStatementQuery, CommandPreparedStatementUpdate, CommandStatementIngest, CommandStatementQuery,
    CommandStatementSubstraitPlan, CommandStatementUpdate, DoPutPreparedStatementResult, ProstMessageExt, SqlInfo, SubstraitPlan, TicketStatementQuery,
};
use arrow_flight::{
    Action, CancelFlightInfoRequest, CancelFlightInfoResult, CancelStatus, FlightData, FlightDescriptor, FlightEndpoint, FlightInfo, HandshakeRequest,
    HandshakeResponse, IpcMessage, SchemaAsIpc, Ticket,
};
use bytes::Bytes;
use futures::{Stream, StreamExt, stream};
use skytether_common::{Error, Result};
use skytether_flight_drive::frames::{decode_message, encode_message};
use skytether_flight_drive::status::to_status;
use tonic::{Request, Response, Status, Streaming};
use uuid::Uuid;

use crate::statements::{self, Limits, Running};
use skytether_api::service::{FleetService, Prepared};
use skytether_api::statement::MAX_REQUEST;
use skytether_api::statement::QueryOptions;
use skytether_api::statement::Statement;
use skytether_api::values::Values;

type Answer<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// The action that prepares a Substrait plan.
pub const PREPARE_PLAN: &str = "CreatePreparedSubstraitPlan";

const CANCEL_FLIGHT_INFO: &str = "CancelFlightInfo";

/// The actions of Flight SQL, with descriptions; others are the host's own.
pub const ACTIONS: [(&str, &str); 9] = [
    ("CreatePreparedStatement", "Flight SQL: prepares a statement"),
    ("ClosePreparedStatement", "Flight SQL: forgets a prepared statement"),
    ("CancelQuery", "Flight SQL: stops a query"),
    (CANCEL_FLIGHT_INFO, "Flight: stops a query"),
    (PREPARE_PLAN, "Flight SQL: prepares a Substrait plan"),
    ("BeginTransaction", "Flight SQL: refused"),
    ("EndTransaction", "Flight SQL: refused"),
    ("BeginSavepoint", "Flight SQL: refused"),
    ("EndSavepoint", "Flight SQL: refused"),
];

/// A host behind Flight SQL.
pub struct FlightSqlHost {
    fleet: Arc<dyn FleetService>,
    prepared: statements::Prepared,
    running: Running,
}

impl fmt::Debug for FlightSqlHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FlightSqlHost").field("fleet", &self.fleet).finish_non_exhaustive()
    }
}

fn status(error: Error) -> Status {
    to_status(&error)
}

fn refused<T>(what: &str) -> Result<T, Status> {
    Err(status(Error::unsupported(format!(
        "{what}: Flight SQL only reads here; ingest with skytether.connect(url).ingest(table, \"domain.dataset\") in Python or with `skytether ingest`"
    ))))
}

fn ipc_schema(schema: &Schema) -> Result<Bytes> {
    let message: IpcMessage = SchemaAsIpc::new(schema, &IpcWriteOptions::default())
        .try_into()
        .map_err(|e| Error::internal(format!("the schema {schema:?} can't be written as Arrow IPC")).with_source(e))?;
    Ok(message.0)
}

fn encode(schema: SchemaRef, batches: impl Stream<Item = Result<RecordBatch>> + Send + 'static) -> FlightDataEncoder {
    FlightDataEncoderBuilder::new().with_schema(schema).build(batches.map(|b| b.map_err(|e| FlightError::from(status(e)))))
}

/// The schema as it is sent: the encoder writes out dictionaries.
fn sent(schema: SchemaRef) -> SchemaRef {
    encode(Arc::clone(&schema), stream::empty()).known_schema().unwrap_or(schema)
}

fn messages(encoder: FlightDataEncoder) -> Answer<FlightData> {
    Box::pin(encoder.map(|m| m.map_err(Status::from)))
}

/// An answer that is complete already.
fn ready(batch: RecordBatch) -> Response<Answer<FlightData>> {
    Response::new(messages(encode(batch.schema(), stream::iter([Ok(batch)]))))
}

/// A description with one endpoint: this host.
fn info(schema: &Schema, ticket: Bytes, descriptor: FlightDescriptor) -> Result<Response<FlightInfo>, Status> {
    let endpoint = FlightEndpoint::new().with_ticket(Ticket { ticket });
    let mut info = FlightInfo::new().with_endpoint(endpoint).with_descriptor(descriptor);
    info.schema = ipc_schema(schema).map_err(status)?;
    Ok(Response::new(info))
}

/// A description of metadata, whose ticket is the question itself.
fn asked_again(schema: &Schema, request: Request<FlightDescriptor>) -> Result<Response<FlightInfo>, Status> {
    let descriptor = request.into_inner();
    info(schema, descriptor.cmd.clone(), descriptor)
}

fn table_types() -> Result<RecordBatch> {
    let schema = Schema::new(vec![Field::new("table_type", DataType::Utf8, false)]);
    RecordBatch::try_new(Arc::new(schema), vec![Arc::new(StringArray::from(vec![crate::catalog_metadata::TABLE, crate::catalog_metadata::VIEW]))])
        .map_err(|e| Error::internal("the table types are no table").with_source(e))
}

/// Separates the number of a statement from its text.
const SQL: u8 = b's';
const SUBSTRAIT: u8 = b'p';

/// The ticket of a statement that is asked for the first time.
fn statement(asked: &Statement) -> Bytes {
    let (tag, body) = match asked {
        Statement::Sql(text) => (SQL, text.as_bytes()),
        Statement::Substrait(plan) => (SUBSTRAIT, plan.as_ref()),
    };
    let ticket = TicketStatementQuery { statement_handle: [Uuid::new_v4().as_bytes(), &[tag][..], body].concat().into() };
    encode_message(&ticket.as_any())
}

/// The number of a statement and the statement, from its ticket.
fn split(handle: &Bytes) -> Result<(Uuid, Statement)> {
    let again = "ask for the flight info again";
    let (Some(id), Some(tag)) = (handle.first_chunk::<16>(), handle.get(16)) else {
        return Err(Error::invalid(format!("the ticket's statement handle is cut off: {again}")));
    };
    let body = handle.slice(17..);
    let asked = match *tag {
        SQL => {
            Statement::Sql(std::str::from_utf8(&body).map_err(|e| Error::invalid(format!("the ticket's statement is no text: {again}")).with_source(e))?.into())
        }
        SUBSTRAIT => Statement::Substrait(body),
        _ => return Err(Error::invalid(format!("the ticket's statement is of no known kind: {again}"))),
    };
    Ok((Uuid::from_bytes(*id), asked))
}

/// The plan of a command, outside of transactions.
fn plan_of(plan: Option<SubstraitPlan>, transaction: Option<Bytes>) -> Result<Statement> {
    if transaction.is_some() {
        return Err(Error::unsupported("there are no transactions here: each plan is run by itself"));
    }
    let plan = plan.ok_or_else(|| Error::invalid("the command has no plan"))?;
    Ok(Statement::Substrait(plan.plan))
}

fn cancel_status(any: bool) -> CancelStatus {
    if any { CancelStatus::Cancelled } else { CancelStatus::NotCancellable }
}

impl FlightSqlHost {
    /// Flight SQL over `fleet`: a host in this process, or a connection to one.
    #[must_use]
    pub fn new(fleet: Arc<dyn FleetService>) -> Self {
        Self { fleet, prepared: statements::Prepared::new(Limits::default()), running: Running::default() }
    }

    async fn schema(&self, asked: &Statement, values: &Values) -> Result<SchemaRef> {
        Ok(sent(self.fleet.schema_with(asked, values).await?))
    }

    async fn run(&self, id: Uuid, asked: &Statement, values: &Values) -> Result<Response<Answer<FlightData>>, Status> {
        let mut run = self.running.begin(id);
        let work = async { self.fleet.ask_with(asked, values, &QueryOptions::default()).await.map_err(status) };
        let query = run.unless_cancelled(work).await?;
        Ok(Response::new(Box::pin(run.over(messages(encode(query.schema, query.stream))))))
    }

    /// What a statement gives, and the ticket with which it is fetched.
    async fn described(&self, asked: &Statement, descriptor: FlightDescriptor) -> Result<Response<FlightInfo>, Status> {
        let schema = self.schema(asked, &Values::default()).await.map_err(status)?;
        info(&schema, statement(asked), descriptor)
    }

    async fn prepare(&self, asked: Statement) -> Result<ActionCreatePreparedStatementResult> {
        let Prepared { schema, parameters } = self.fleet.prepare(&asked).await?;
        let dataset_schema = ipc_schema(&sent(schema))?;
        let parameter_schema = if parameters.is_empty() { Bytes::new() } else { ipc_schema(&Schema::new(parameters))? };
        let handle = self.prepared.add(asked, Instant::now())?;
        Ok(ActionCreatePreparedStatementResult { prepared_statement_handle: handle.as_bytes().to_vec().into(), dataset_schema, parameter_schema })
    }

    /// Prepares a Substrait plan: the body of the action and of its answer. (arrow-flight would answer with nothing.)
    pub async fn prepare_plan(&self, body: &[u8]) -> Result<Bytes> {
        let message: Any = decode_message("the plan to prepare", body)?;
        let request: Option<ActionCreatePreparedSubstraitPlanRequest> =
            message.unpack().map_err(|e| Error::invalid("the plan to prepare is no request of Flight SQL").with_source(e))?;
        let request = request.ok_or_else(|| Error::invalid("the plan to prepare is no request for a prepared plan"))?;
        let prepared = self.prepare(plan_of(request.plan, request.transaction_id)?).await?;
        Ok(encode_message(&prepared.as_any()))
    }

    /// Stops the queries that the tickets of `info` began; whether there was one.
    fn cancel(&self, info: &FlightInfo) -> Result<bool> {
        let mut any = false;
        for ticket in info.endpoint.iter().filter_map(|e| e.ticket.as_ref()) {
            let message: Any = decode_message("the ticket of the query to cancel", &ticket.ticket)?;
            let command = Command::try_from(message).map_err(|e| Error::invalid("the ticket of the query to cancel is none of Flight SQL's").with_source(e))?;
            let id = match &command {
                Command::TicketStatementQuery(t) => split(&t.statement_handle)?.0,
                Command::CommandPreparedStatementQuery(p) => Uuid::from_slice(&p.prepared_statement_handle)
                    .map_err(|e| Error::invalid("the query to cancel has no handle of this host").with_source(e))?,
                _ => continue,
            };
            any |= self.running.cancel(id);
        }
        Ok(any)
    }
}

impl FlightSqlService for FlightSqlHost {
    type FlightService = Self;

    fn register_sql_info<'life0, 'life1, 'async_trait>(&'life0 self, _: i32, _: &'life1 SqlInfo) -> BoxFuture<'async_trait, ()>
    where
        'life0: 'async_trait,
        'life1: 'async_trait,
        Self: 'async_trait,
    {
        Box::pin(std::future::ready(()))
    }

    forward! {
    fn do_handshake(request: Request<Streaming<HandshakeRequest>>) -> Result<Response<Answer<HandshakeResponse>>, Status>;
    fn get_flight_info_statement(query: CommandStatementQuery, request: Request<FlightDescriptor>) -> Result<Response<FlightInfo>, Status>;
    fn get_flight_info_substrait_plan(query: CommandStatementSubstraitPlan, request: Request<FlightDescriptor>) -> Result<Response<FlightInfo>, Status>;
    fn do_get_statement(ticket: TicketStatementQuery, request: Request<Ticket>) -> Result<Response<Answer<FlightData>>, Status>;
    fn do_action_create_prepared_statement(asked: ActionCreatePreparedStatementRequest, request: Request<Action>) -> Result<ActionCreatePreparedStatementResult, Status>;
    fn do_action_close_prepared_statement(asked: ActionClosePreparedStatementRequest, request: Request<Action>) -> Result<(), Status>;
    fn do_put_prepared_statement_query(query: CommandPreparedStatementQuery, request: Request<PeekableFlightDataStream>) -> Result<DoPutPreparedStatementResult, Status>;
    fn get_flight_info_prepared_statement(query: CommandPreparedStatementQuery, request: Request<FlightDescriptor>) -> Result<Response<FlightInfo>, Status>;
    fn do_get_prepared_statement(query: CommandPreparedStatementQuery, request: Request<Ticket>) -> Result<Response<Answer<FlightData>>, Status>;
    fn do_action_cancel_query(asked: ActionCancelQueryRequest, request: Request<Action>) -> Result<ActionCancelQueryResult, Status>;
    fn do_action_fallback(request: Request<Action>) -> Result<Response<<Self as FlightService>::DoActionStream>, Status>;
    fn get_flight_info_catalogs(asked: CommandGetCatalogs, request: Request<FlightDescriptor>) -> Result<Response<FlightInfo>, Status>;
    fn do_get_catalogs(asked: CommandGetCatalogs, request: Request<Ticket>) -> Result<Response<Answer<FlightData>>, Status>;
    fn get_flight_info_schemas(asked: CommandGetDbSchemas, request: Request<FlightDescriptor>) -> Result<Response<FlightInfo>, Status>;
    fn do_get_schemas(asked: CommandGetDbSchemas, request: Request<Ticket>) -> Result<Response<Answer<FlightData>>, Status>;
    fn get_flight_info_tables(asked: CommandGetTables, request: Request<FlightDescriptor>) -> Result<Response<FlightInfo>, Status>;
    fn do_get_tables(asked: CommandGetTables, request: Request<Ticket>) -> Result<Response<Answer<FlightData>>, Status>;
    fn get_flight_info_table_types(command: CommandGetTableTypes, request: Request<FlightDescriptor>) -> Result<Response<FlightInfo>, Status>;
    fn do_get_table_types(command: CommandGetTableTypes, request: Request<Ticket>) -> Result<Response<Answer<FlightData>>, Status>;
    fn get_flight_info_sql_info(asked: CommandGetSqlInfo, request: Request<FlightDescriptor>) -> Result<Response<FlightInfo>, Status>;
    fn do_get_sql_info(asked: CommandGetSqlInfo, request: Request<Ticket>) -> Result<Response<Answer<FlightData>>, Status>;
    fn do_put_statement_update(command: CommandStatementUpdate, request: Request<PeekableFlightDataStream>) -> Result<i64, Status>;
    fn do_put_prepared_statement_update(command: CommandPreparedStatementUpdate, request: Request<PeekableFlightDataStream>) -> Result<i64, Status>;
    fn do_put_statement_ingest(command: CommandStatementIngest, request: Request<PeekableFlightDataStream>) -> Result<i64, Status>;
    fn do_put_substrait_plan(command: CommandStatementSubstraitPlan, request: Request<PeekableFlightDataStream>) -> Result<i64, Status>;
    }
}

/// The futures of [`FlightSqlService`]'s methods. They are made here because the methods of an async trait carry
/// lifetime clauses, under which rustc does not cache its proofs that a future is `Send`
/// (docs/decisions/0001-build-and-test-time.md).
impl FlightSqlHost {
    /// Accepts every caller: a handshake carries no credentials here.
    fn do_handshake(&self, _: Request<Streaming<HandshakeRequest>>) -> BoxFuture<'_, Result<Response<Answer<HandshakeResponse>>, Status>> {
        Box::pin(async move { Ok(Response::new(Box::pin(stream::iter([Ok(HandshakeResponse::default())])) as Answer<_>)) })
    }

    fn get_flight_info_statement(
        &self,
        query: CommandStatementQuery,
        request: Request<FlightDescriptor>,
    ) -> BoxFuture<'_, Result<Response<FlightInfo>, Status>> {
        Box::pin(async move { self.described(&Statement::Sql(query.query.into()), request.into_inner()).await })
    }

    fn get_flight_info_substrait_plan(
        &self,
        query: CommandStatementSubstraitPlan,
        request: Request<FlightDescriptor>,
    ) -> BoxFuture<'_, Result<Response<FlightInfo>, Status>> {
        Box::pin(async move {
            let asked = plan_of(query.plan, query.transaction_id).map_err(status)?;
            self.described(&asked, request.into_inner()).await
        })
    }

    fn do_get_statement(&self, ticket: TicketStatementQuery, _: Request<Ticket>) -> BoxFuture<'_, Result<Response<Answer<FlightData>>, Status>> {
        Box::pin(async move {
            let (id, asked) = split(&ticket.statement_handle).map_err(status)?;
            self.run(id, &asked, &Values::default()).await
        })
    }

    fn do_action_create_prepared_statement(
        &self,
        asked: ActionCreatePreparedStatementRequest,
        _: Request<Action>,
    ) -> BoxFuture<'_, Result<ActionCreatePreparedStatementResult, Status>> {
        Box::pin(async move { self.prepare(Statement::Sql(asked.query.into())).await.map_err(status) })
    }

    fn do_action_close_prepared_statement(&self, asked: ActionClosePreparedStatementRequest, _: Request<Action>) -> BoxFuture<'_, Result<(), Status>> {
        Box::pin(async move {
            self.prepared.close(&asked.prepared_statement_handle, Instant::now());
            Ok(())
        })
    }

    fn do_put_prepared_statement_query(
        &self,
        query: CommandPreparedStatementQuery,
        request: Request<PeekableFlightDataStream>,
    ) -> BoxFuture<'_, Result<DoPutPreparedStatementResult, Status>> {
        Box::pin(async move {
            // Checked before the values are read: a client must not send megabytes for a statement that does not exist.
            self.prepared.get(&query.prepared_statement_handle, Instant::now()).map_err(status)?;
            let (values, bytes) = crate::bind_values::read(request.into_inner()).await.map_err(status)?;
            self.prepared.bind(&query.prepared_statement_handle, values, bytes, Instant::now()).map_err(status)?;
            Ok(DoPutPreparedStatementResult { prepared_statement_handle: Some(query.prepared_statement_handle) })
        })
    }

    fn get_flight_info_prepared_statement(
        &self,
        query: CommandPreparedStatementQuery,
        request: Request<FlightDescriptor>,
    ) -> BoxFuture<'_, Result<Response<FlightInfo>, Status>> {
        Box::pin(async move {
            let (asked, values) = self.prepared.get(&query.prepared_statement_handle, Instant::now()).map_err(status)?;
            let schema = self.schema(&asked, &values).await.map_err(status)?;
            asked_again(&schema, request)
        })
    }

    fn do_get_prepared_statement(
        &self,
        query: CommandPreparedStatementQuery,
        _: Request<Ticket>,
    ) -> BoxFuture<'_, Result<Response<Answer<FlightData>>, Status>> {
        Box::pin(async move {
            let handle = &query.prepared_statement_handle;
            let (asked, values) = self.prepared.get(handle, Instant::now()).map_err(status)?;
            let id = Uuid::from_slice(handle).map_err(|e| status(Error::invalid("the handle is none of this host").with_source(e)))?;
            self.run(id, &asked, &values).await
        })
    }

    fn do_action_cancel_query(&self, asked: ActionCancelQueryRequest, _: Request<Action>) -> BoxFuture<'_, Result<ActionCancelQueryResult, Status>> {
        Box::pin(async move {
            let info = decode_message("the query to cancel", &asked.info).map_err(status)?;
            let any = self.cancel(&info).map_err(status)?;
            // arrow-flight does not export the enumeration of this field, which has the numbers of this one.
            Ok(ActionCancelQueryResult { result: cancel_status(any).into() })
        })
    }

    fn do_action_fallback(&self, request: Request<Action>) -> BoxFuture<'_, Result<Response<<Self as FlightService>::DoActionStream>, Status>> {
        Box::pin(async move {
            let action = request.into_inner();
            if action.r#type != CANCEL_FLIGHT_INFO {
                return refused("this action");
            }
            let asked: CancelFlightInfoRequest = decode_message("the query to cancel", &action.body).map_err(status)?;
            let any = self.cancel(&asked.info.unwrap_or_default()).map_err(status)?;
            let body = encode_message(&CancelFlightInfoResult { status: cancel_status(any).into() });
            Ok(Response::new(Box::pin(stream::iter([Ok(arrow_flight::Result { body })])) as Answer<_>))
        })
    }

    fn get_flight_info_catalogs(&self, asked: CommandGetCatalogs, request: Request<FlightDescriptor>) -> BoxFuture<'_, Result<Response<FlightInfo>, Status>> {
        Box::pin(async move { asked_again(&asked.into_builder().schema(), request) })
    }

    fn do_get_catalogs(&self, asked: CommandGetCatalogs, _: Request<Ticket>) -> BoxFuture<'_, Result<Response<Answer<FlightData>>, Status>> {
        Box::pin(async move { crate::catalog_metadata::catalogs(self.fleet.as_ref(), asked).await.map(ready).map_err(status) })
    }

    fn get_flight_info_schemas(&self, asked: CommandGetDbSchemas, request: Request<FlightDescriptor>) -> BoxFuture<'_, Result<Response<FlightInfo>, Status>> {
        Box::pin(async move { asked_again(&asked.into_builder().schema(), request) })
    }

    fn do_get_schemas(&self, asked: CommandGetDbSchemas, _: Request<Ticket>) -> BoxFuture<'_, Result<Response<Answer<FlightData>>, Status>> {
        Box::pin(async move { crate::catalog_metadata::schemas(self.fleet.as_ref(), asked).await.map(ready).map_err(status) })
    }

    fn get_flight_info_tables(&self, asked: CommandGetTables, request: Request<FlightDescriptor>) -> BoxFuture<'_, Result<Response<FlightInfo>, Status>> {
        Box::pin(async move { asked_again(&asked.into_builder().schema(), request) })
    }

    fn do_get_tables(&self, asked: CommandGetTables, _: Request<Ticket>) -> BoxFuture<'_, Result<Response<Answer<FlightData>>, Status>> {
        Box::pin(async move { crate::catalog_metadata::tables(self.fleet.as_ref(), asked).await.map(ready).map_err(status) })
    }

    fn get_flight_info_table_types(&self, _: CommandGetTableTypes, request: Request<FlightDescriptor>) -> BoxFuture<'_, Result<Response<FlightInfo>, Status>> {
        Box::pin(async move { asked_again(&table_types().map_err(status)?.schema(), request) })
    }

    fn do_get_table_types(&self, _: CommandGetTableTypes, _: Request<Ticket>) -> BoxFuture<'_, Result<Response<Answer<FlightData>>, Status>> {
        Box::pin(async move { table_types().map(ready).map_err(status) })
    }

    fn get_flight_info_sql_info(&self, asked: CommandGetSqlInfo, request: Request<FlightDescriptor>) -> BoxFuture<'_, Result<Response<FlightInfo>, Status>> {
        Box::pin(async move { asked_again(&asked.into_builder(crate::catalog_metadata::sql_info().map_err(status)?).schema(), request) })
    }

    fn do_get_sql_info(&self, asked: CommandGetSqlInfo, _: Request<Ticket>) -> BoxFuture<'_, Result<Response<Answer<FlightData>>, Status>> {
        Box::pin(async move {
            let known = crate::catalog_metadata::sql_info().map_err(status)?;
            let batch = asked.into_builder(known).build().map_err(|e| status(Error::invalid("what this server can do can't be told").with_source(e)))?;
            Ok(ready(batch))
        })
    }

    fn do_put_statement_update(&self, _: CommandStatementUpdate, _: Request<PeekableFlightDataStream>) -> BoxFuture<'_, Result<i64, Status>> {
        Box::pin(async move { refused("an update is refused") })
    }

    fn do_put_prepared_statement_update(&self, _: CommandPreparedStatementUpdate, _: Request<PeekableFlightDataStream>) -> BoxFuture<'_, Result<i64, Status>> {
        Box::pin(async move { refused("an update is refused") })
    }

    fn do_put_statement_ingest(&self, _: CommandStatementIngest, _: Request<PeekableFlightDataStream>) -> BoxFuture<'_, Result<i64, Status>> {
        Box::pin(async move { refused("an ingestion is refused") })
    }

    fn do_put_substrait_plan(&self, _: CommandStatementSubstraitPlan, _: Request<PeekableFlightDataStream>) -> BoxFuture<'_, Result<i64, Status>> {
        Box::pin(async move { refused("an update is refused") })
    }
}

/// Refuses a statement that is too long, before it is parsed.
pub fn check_length(bytes: usize) -> Result<(), Status> {
    if bytes > MAX_REQUEST {
        return Err(status(Error::invalid(format!("a request of {bytes} bytes is too long: at most {MAX_REQUEST}"))));
    }
    Ok(())
}
