//! Connections to a worker that was started again.

use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::time::Duration;

use arrow_flight::flight_service_server::{FlightService, FlightServiceServer};
use arrow_flight::{
    Action, ActionType, Criteria, Empty, FlightData, FlightDescriptor, FlightInfo, HandshakeRequest, HandshakeResponse, PollInfo, PutResult, SchemaResult,
    Ticket,
};
use futures::{Stream, StreamExt, poll, stream};
use skytether_distributed::peer::Peers;
use skytether_distributed::wire::{BEAT, Named, Progress};
use skytether_flight_drive::frames;
use skytether_transport::grpc::serve;
use skytether_transport::{Credentials, Listener, ServeContext};
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};
use tonic::service::Routes;
use tonic::{Request, Response, Status, Streaming};
use uuid::Uuid;

/// Answers each action as a worker without a part.
struct Idle;

type Answer<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

fn no<T>() -> Result<T, Status> {
    Err(Status::unimplemented("only actions"))
}

#[tonic::async_trait]
impl FlightService for Idle {
    type HandshakeStream = Answer<HandshakeResponse>;
    type ListFlightsStream = Answer<FlightInfo>;
    type DoGetStream = Answer<FlightData>;
    type DoPutStream = Answer<PutResult>;
    type DoExchangeStream = Answer<FlightData>;
    type DoActionStream = Answer<arrow_flight::Result>;
    type ListActionsStream = Answer<ActionType>;

    async fn handshake(&self, _: Request<Streaming<HandshakeRequest>>) -> Result<Response<Self::HandshakeStream>, Status> {
        no()
    }

    async fn list_flights(&self, _: Request<Criteria>) -> Result<Response<Self::ListFlightsStream>, Status> {
        no()
    }

    async fn get_flight_info(&self, _: Request<FlightDescriptor>) -> Result<Response<FlightInfo>, Status> {
        no()
    }

    async fn poll_flight_info(&self, _: Request<FlightDescriptor>) -> Result<Response<PollInfo>, Status> {
        no()
    }

    async fn get_schema(&self, _: Request<FlightDescriptor>) -> Result<Response<SchemaResult>, Status> {
        no()
    }

    async fn do_get(&self, _: Request<Ticket>) -> Result<Response<Self::DoGetStream>, Status> {
        no()
    }

    async fn do_put(&self, _: Request<Streaming<FlightData>>) -> Result<Response<Self::DoPutStream>, Status> {
        no()
    }

    async fn do_exchange(&self, _: Request<Streaming<FlightData>>) -> Result<Response<Self::DoExchangeStream>, Status> {
        no()
    }

    async fn do_action(&self, _: Request<Action>) -> Result<Response<Self::DoActionStream>, Status> {
        let body = frames::encode_json(&Progress { known: false, done: 7 }).unwrap();
        let answer = arrow_flight::Result { body };
        Ok(Response::new(stream::once(async { Ok(answer) }).boxed()))
    }

    async fn list_actions(&self, _: Request<Empty>) -> Result<Response<Self::ListActionsStream>, Status> {
        no()
    }
}

/// A server in a runtime of its own, with which all of its connections end.
fn started(at: SocketAddr) -> (Runtime, SocketAddr) {
    let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let listener = runtime.block_on(TcpListener::bind(at)).unwrap();
    let at = listener.local_addr().unwrap();
    let routes = Routes::new(FlightServiceServer::new(Idle));
    runtime.spawn(async move { serve(Listener::plain(listener).unwrap(), routes, ServeContext::default()).await });
    (runtime, at)
}

#[test]
fn a_worker_that_was_started_again_answers_at_once() {
    let own = Builder::new_current_thread().enable_all().build().unwrap();
    // At each step of connecting to the worker that is gone, the call is given up.
    for steps in 0..12 {
        let (server, at) = started("127.0.0.1:0".parse().unwrap());
        let peers = Peers::new(Credentials::default());
        let peer = peers.get(&format!("grpc://{at}"));
        let named = Named { query: Uuid::nil() };
        assert_eq!(own.block_on(peer.act::<Progress>(BEAT, &named)).unwrap().done, 7);
        server.shutdown_timeout(Duration::from_secs(5));
        own.block_on(async {
            tokio::time::sleep(Duration::from_millis(20)).await;
            let mut call = pin!(peer.act::<Progress>(BEAT, &named));
            for _ in 0..steps {
                if let std::task::Poll::Ready(answer) = poll!(&mut call) {
                    assert!(answer.is_err(), "nothing listens there");
                    break;
                }
                tokio::task::yield_now().await;
            }
        });
        let (server, _) = started(at);
        let answer = own.block_on(peer.act::<Progress>(BEAT, &named));
        assert_eq!(answer.unwrap_or_else(|e| panic!("given up after {steps} steps: {}", e.report())).done, 7);
        server.shutdown_timeout(Duration::from_secs(5));
    }
}

#[test]
fn connections_without_use_are_not_kept_for_ever() {
    let peers = Peers::new(Credentials::default());
    let used = peers.get("grpc://127.0.0.1:1");
    for port in 2..2000 {
        peers.get(&format!("grpc://127.0.0.1:{port}"));
    }
    assert!(peers.count() <= 256, "{}", peers.count());
    assert!(std::sync::Arc::ptr_eq(&used, &peers.get("grpc://127.0.0.1:1")), "a worker in use has one connection");
}
