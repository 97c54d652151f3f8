//! A fleet through its north door: host, connection and proxy answer alike, with parameters as well.

use std::sync::Arc;
use std::time::Duration;

use arrow::array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use arrow_flight::flight_service_server::FlightServiceServer;
use arrow_flight::sql::CommandGetTables;
use arrow_flight::sql::client::FlightSqlServiceClient;
use bytes::Bytes;
use futures::TryStreamExt;
use skytether::{Credentials, Fleet, FleetService, QueryOptions, ResizeOptions, Statement};
use skytether_common::Kind;
use skytether_flight_sql::service::FlightSqlHost;
use skytether_host::Values;
use skytether_transport::grpc::{self, Channel, ChannelOptions};
use skytether_transport::{Listener, ServeContext};
use tonic::service::Routes;

use crate::served::{Server, serve};
use crate::util::{batches, ingest, lines, open};

const SQL: &str = "SELECT grp, count(*) AS n FROM lab.t WHERE id < ? AND grp <> ? GROUP BY grp ORDER BY grp";

fn row(id: i64, group: &str) -> RecordBatch {
    let id: ArrayRef = Arc::new(Int64Array::from(vec![id]));
    let group: ArrayRef = Arc::new(StringArray::from(vec![group]));
    RecordBatch::try_from_iter([("1", id), ("2", group)]).unwrap()
}

async fn rows(fleet: &dyn FleetService, values: &Values) -> Vec<String> {
    lines(&fleet.ask_with(&Statement::from(SQL), values, &QueryOptions::default()).await.unwrap().collect().await.unwrap())
}

/// What the rows of [`SQL`] are, with its values written into it.
async fn expected(fleet: &Fleet, id: i64, group: &str) -> Vec<String> {
    let sql = SQL.replacen('?', &id.to_string(), 1).replacen('?', &format!("'{group}'"), 1);
    lines(&fleet.sql(&sql, &QueryOptions::default()).await.unwrap().collect().await.unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn host_and_connection_bind_parameters_alike() {
    let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let embedded = open(one.path(), 2).await.unwrap();
    let (_drives, _host, served) = serve(two.path()).await;
    for fleet in [&embedded, &served] {
        ingest(fleet, "lab.t", &batches(4, 300), false).await.unwrap();
    }
    let asked = Statement::from(SQL);
    let prepared = embedded.service().prepare(&asked).await.unwrap();
    assert_eq!(prepared.parameters.iter().map(|p| p.name().as_str()).collect::<Vec<_>>(), ["$1", "$2"]);
    assert_eq!(served.service().prepare(&asked).await.unwrap(), prepared);

    let values = Values::new(row(700, "beta")).unwrap();
    let own = rows(embedded.service().as_ref(), &values).await;
    assert_eq!((own.len(), &own), (3, &expected(&embedded, 700, "beta").await));
    assert_eq!(rows(served.service().as_ref(), &values).await, own);
    assert_eq!(served.service().schema_with(&asked, &values).await.unwrap(), embedded.service().schema_with(&asked, &values).await.unwrap());
    assert_ne!(rows(served.service().as_ref(), &Values::new(row(5, "beta")).unwrap()).await, own);

    // What a host refuses, a connection refuses by the same words.
    let one = Values::new(row(1, "beta").project(&[0]).unwrap()).unwrap();
    for values in [Values::default(), one] {
        let refused = |fleet: &Fleet| {
            let (service, values, asked) = (Arc::clone(fleet.service()), values.clone(), asked.clone());
            async move { service.ask_with(&asked, &values, &QueryOptions::default()).await.unwrap_err() }
        };
        let (by_host, by_connection) = (refused(&embedded).await, refused(&served).await);
        assert_eq!((by_host.kind(), by_connection.kind()), (Kind::Invalid, Kind::Invalid), "{by_host} {by_connection}");
        assert_eq!(by_host.report(), by_connection.report());
    }
    // New drives come to each in its own way, and neither takes the other's.
    let host: &dyn FleetService = embedded.host().unwrap();
    let (count, addresses) =
        (ResizeOptions { count: 1, ..ResizeOptions::default() }, ResizeOptions { addresses: vec!["[::1]:1".into()], ..ResizeOptions::default() });
    for (fleet, options) in [(host, &count), (host, &addresses), (embedded.service().as_ref(), &addresses), (served.service().as_ref(), &count)] {
        assert_eq!(fleet.resize(options, &|_| {}).await.unwrap_err().kind(), Kind::Invalid, "{options:?}");
    }
}

/// Flight SQL at `address`.
async fn client(address: &str) -> FlightSqlServiceClient<Channel> {
    let options = ChannelOptions { connect_timeout: Duration::from_secs(10), keepalive: None, windows: None };
    let endpoint = format!("grpc://{address}").parse().unwrap();
    FlightSqlServiceClient::new(grpc::connect(&endpoint, &Credentials::default(), &options).await.unwrap())
}

async fn fetched(client: &mut FlightSqlServiceClient<Channel>, info: arrow_flight::FlightInfo) -> Vec<RecordBatch> {
    let ticket = info.endpoint[0].ticket.clone().unwrap();
    client.do_get(ticket).await.unwrap().try_collect().await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn flight_sql_over_a_connection_answers_as_its_host() {
    let dir = tempfile::tempdir().unwrap();
    let (_drives, _host, fleet) = serve(dir.path()).await;
    ingest(&fleet, "lab.t", &batches(4, 300), false).await.unwrap();
    let service = Arc::clone(fleet.service());
    let proxy = Server::start(move |listener| async move {
        let routes = Routes::new(FlightServiceServer::new(FlightSqlHost::new(service)));
        grpc::serve(Listener::plain(listener).unwrap(), routes, ServeContext::default()).await.unwrap();
    });
    let mut client = client(&proxy.address).await;

    let mut prepared = client.prepare(SQL.to_owned(), None).await.unwrap();
    assert_eq!(prepared.parameter_schema().unwrap().fields().len(), 2);
    for (id, group) in [(700, "beta"), (20, "alpha")] {
        prepared.set_parameters(row(id, group)).unwrap();
        let info = prepared.execute().await.unwrap();
        assert_eq!(lines(&fetched(&mut client, info).await), expected(&fleet, id, group).await);
    }
    prepared.set_parameters(row(1, "beta").project(&[0]).unwrap()).unwrap();
    assert!(prepared.execute().await.is_err(), "one value for two parameters");
    prepared.close().await.unwrap();

    let info = client.execute("SELECT count(*) FROM lab.t".to_owned(), None).await.unwrap();
    assert_eq!(lines(&fetched(&mut client, info).await), ["1200"]);
    let info = client.get_tables(CommandGetTables { include_schema: true, ..CommandGetTables::default() }).await.unwrap();
    let tables = fetched(&mut client, info).await;
    let told = tables[0].project(&[0, 1, 2]).unwrap();
    assert_eq!(lines(&[told]), ["lab | t | data"]);
    let schema = tables[0].column_by_name("table_schema").unwrap().as_any().downcast_ref::<arrow::array::BinaryArray>().unwrap();
    let schema = arrow::datatypes::Schema::try_from(arrow_flight::IpcMessage(Bytes::copy_from_slice(schema.value(0)))).unwrap();
    assert_eq!(schema.fields(), fleet.schema_of("lab.t").await.unwrap().fields());
}
