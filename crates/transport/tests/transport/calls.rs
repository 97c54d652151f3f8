//! Servers and channels of gRPC: connections without calls, and why calls fail.

use std::sync::Arc;
use std::time::Duration;

use skytether_common::{Error, Kind};
use skytether_transport::grpc::{Channel, ChannelOptions, connect, explain_status, serve};
use skytether_transport::{Credentials, Endpoint, Gate, Limits, Listener, Security, ServeContext, TlsFiles, TokenStore};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tonic::Status;
use tonic::body::Body;
use tonic::service::Routes;
use tower::ServiceExt;

use crate::util::{Authority, client, context, files, is_closed, until};

const OPTIONS: ChannelOptions = ChannelOptions { connect_timeout: Duration::from_secs(20), keepalive: None, windows: None };

/// How HTTP/2 begins (RFC 9113, 3.4), and the client's empty settings.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const SETTINGS: &[u8] = &[0, 0, 0, 4, 0, 0, 0, 0, 0];

/// A server that knows no call, and answers each.
async fn server(context: &ServeContext, security: Security) -> (Endpoint, JoinHandle<()>) {
    let listener = Listener::bind(&"127.0.0.1:0".parse().unwrap(), security, context).await.unwrap();
    let scheme = if security == Security::Tls { "grpc+tls" } else { "grpc" };
    let at = Endpoint::new(scheme, listener.endpoint().authority());
    let serving = serve(listener, Routes::default(), context.clone());
    (at, tokio::spawn(async move { serving.await.unwrap() }))
}

/// The status of an answer to a call.
async fn call(channel: &Channel) -> Result<Status, Status> {
    let request = http::Request::post("http://server/any.Service/Call").body(Body::empty()).unwrap();
    let answer = channel.clone().oneshot(request).await.map_err(Status::from_error)?;
    Ok(Status::from_header_map(answer.headers()).unwrap())
}

fn brief(first_call_time: Duration) -> Limits {
    Limits { first_call_time, ..Limits::default() }
}

#[tokio::test]
async fn connection_without_a_call_ends_after_its_time() {
    let dir = tempfile::tempdir().unwrap();
    let authority = Authority::new(dir.path(), "a");
    let context = ServeContext { limits: brief(Duration::from_millis(100)), ..context(files(authority.issue("host", -1, 1))) };
    let (plain, _serving) = server(&context, Security::Plain).await;
    let whole = [PREFACE, SETTINGS].concat();
    for said in [&b"P"[..], PREFACE, &whole] {
        let mut stream = TcpStream::connect(plain.authority()).await.unwrap();
        stream.write_all(said).await.unwrap();
        assert!(is_closed(&mut stream).await, "{said:?}");
    }
    let (tls, _serving) = server(&context, Security::Tls).await;
    // Not even the first byte comes after the handshake.
    let mut stream = client(&tls, &dir.path().join("a-ca.pem"), None).await.unwrap();
    assert!(is_closed(&mut stream).await);
    until(|| context.metrics.counts().failed_greetings == 4 && context.metrics.counts().open == 0).await;
}

/// A client may rest for any time between its calls.
#[tokio::test]
async fn connection_with_a_call_may_be_idle_for_longer() {
    let time = Duration::from_secs(1);
    let context = ServeContext { limits: brief(time), ..ServeContext::default() };
    let (at, _serving) = server(&context, Security::Plain).await;
    let channel = connect(&at, &Credentials::default(), &OPTIONS).await.unwrap();
    assert_eq!(call(&channel).await.unwrap().code(), tonic::Code::Unimplemented);
    tokio::time::sleep(time * 2).await;
    assert_eq!(call(&channel).await.unwrap().code(), tonic::Code::Unimplemented);
    let counts = context.metrics.counts();
    assert_eq!((counts.accepted, counts.open, counts.failed_greetings), (1, 1, 0));
}

#[tokio::test]
async fn refused_calls_hold_no_connection() {
    let dir = tempfile::tempdir().unwrap();
    let tokens = Arc::new(TokenStore::new(dir.path().join("tokens.json")));
    let auth = Arc::new(Gate { tokens: Some(Arc::clone(&tokens)), required: true });
    let context = ServeContext { auth, limits: brief(Duration::from_millis(500)), ..ServeContext::default() };
    let (at, _serving) = server(&context, Security::Plain).await;
    let stranger = connect(&at, &Credentials::default(), &OPTIONS).await.unwrap();
    assert_eq!(call(&stranger).await.unwrap().code(), tonic::Code::Unauthenticated);
    let token = Some(tokens.create("one", &[], None).unwrap());
    let friend = connect(&at, &Credentials { token, ..Credentials::default() }, &OPTIONS).await.unwrap();
    assert_eq!(call(&friend).await.unwrap().code(), tonic::Code::Unimplemented);
    until(|| context.metrics.counts().failed_greetings == 1 && context.metrics.counts().open == 1).await;
    assert_eq!(call(&friend).await.unwrap().code(), tonic::Code::Unimplemented);
}

/// First the server refuses this client; then it is gone, and that is what counts.
#[tokio::test]
async fn refused_certificate_does_not_explain_a_dead_server() {
    let dir = tempfile::tempdir().unwrap();
    let authority = Authority::new(dir.path(), "a");
    let ca = dir.path().join("a-ca.pem");
    let context = context(TlsFiles { client_ca: Some(ca.clone()), ..files(authority.issue("host", -1, 1)) });
    let (at, serving) = server(&context, Security::Tls).await;
    let channel = connect(&at, &Credentials { tls_ca: Some(ca), ..Credentials::default() }, &OPTIONS).await.unwrap();
    let refused = explain_status(&call(&channel).await.unwrap_err()).unwrap();
    assert!(refused.kind() == Kind::Invalid && refused.message().contains("client certificate"), "{refused}");
    context.shutdown.cancel();
    serving.await.unwrap();
    let gone = call(&channel).await.unwrap_err();
    assert!(explain_status(&gone).is_none(), "{gone:?}");
    assert_eq!(Error::find(&gone).unwrap().kind(), Kind::Unavailable, "{gone:?}");
}

#[tokio::test]
async fn token_is_not_sent_to_another_machine_in_plain() {
    let credentials = Credentials { token: Some(skytether_transport::Secret::new("sky_x")), ..Credentials::default() };
    // An address of documents (RFC 5737): no machine has it, so that any attempt to connect would take its time.
    let started = std::time::Instant::now();
    let error = connect(&"192.0.2.1:5300".parse().unwrap(), &credentials, &OPTIONS).await.unwrap_err();
    assert!(error.kind() == Kind::Invalid && started.elapsed() < OPTIONS.connect_timeout, "{error}");
    assert!(error.message().contains("grpc+tls://192.0.2.1:5300") && error.message().contains("SKYTETHER_ALLOW_PLAIN_TOKEN=1"), "{error}");
    let context = ServeContext::default();
    let (at, _serving) = server(&context, Security::Plain).await;
    for host in ["127.0.0.1", "localhost"] {
        let at = Endpoint::new("grpc", format!("{host}:{}", at.socket().unwrap().1));
        call(&connect(&at, &credentials, &OPTIONS).await.unwrap()).await.unwrap();
    }
}
