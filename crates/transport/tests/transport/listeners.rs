//! Binding, limits, and slow or wrong clients.

use std::time::Duration;

use skytether_common::Kind;
use skytether_transport::{Limits, Listener, Security, ServeContext};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::util::{Authority, ask, client, context, echo, files};

/// Waits until `is` holds. A counter may move only after the client has seen the connection close.
async fn until(is: impl Fn() -> bool) {
    while !is() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// That the other side closes the connection.
async fn is_closed(stream: &mut TcpStream) -> bool {
    let mut rest = Vec::new();
    tokio::time::timeout(Duration::from_secs(20), stream.read_to_end(&mut rest)).await.is_ok()
}

#[tokio::test]
async fn plain_listener_beyond_loopback_is_refused_by_name() {
    let context = ServeContext::default();
    for at in ["0.0.0.0:0", "[::]:0", "grpc://0.0.0.0:0"] {
        let error = Listener::bind(&at.parse().unwrap(), Security::Plain, &context).await.unwrap_err();
        let text = error.message();
        assert_eq!(error.kind(), Kind::Invalid);
        assert!(text.contains(at.trim_start_matches("grpc://")) && text.contains("--insecure") && text.contains("--tls-cert"), "{text}");
    }
    for at in ["127.0.0.1:0", "localhost:0", "127.8.9.1:0"] {
        Listener::bind(&at.parse().unwrap(), Security::Plain, &context).await.unwrap();
    }
    let insecure = ServeContext { insecure: true, ..ServeContext::default() };
    Listener::bind(&"0.0.0.0:0".parse().unwrap(), Security::Plain, &insecure).await.unwrap();
}

#[tokio::test]
async fn tls_listener_may_be_anywhere_and_needs_a_certificate() {
    let dir = tempfile::tempdir().unwrap();
    let at = "grpc+tls://0.0.0.0:0".parse().unwrap();
    let error = Listener::bind(&at, Security::Tls, &ServeContext::default()).await.unwrap_err();
    assert!(error.message().contains("--tls-cert"), "{error}");
    let context = context(files(Authority::new(dir.path(), "a").issue("host", -1, 1)));
    Listener::bind(&at, Security::Tls, &context).await.unwrap();
}

#[tokio::test]
async fn taken_port_is_named() {
    let context = ServeContext::default();
    let one = Listener::bind(&"127.0.0.1:0".parse().unwrap(), Security::Plain, &context).await.unwrap();
    let error = Listener::bind(one.endpoint(), Security::Plain, &context).await.unwrap_err();
    assert!(error.kind() == Kind::Unavailable && error.message().contains(one.endpoint().authority()), "{error}");
}

#[tokio::test]
async fn connection_over_the_limit_is_closed_until_a_place_is_free() {
    let context = ServeContext { limits: Limits { connections: 1, ..Limits::default() }, ..ServeContext::default() };
    let at = echo(&context, Security::Plain).await;
    let mut one = TcpStream::connect(at.authority()).await.unwrap();
    ask(&mut one).await.unwrap();
    let mut two = TcpStream::connect(at.authority()).await.unwrap();
    assert!(is_closed(&mut two).await);
    assert_eq!(context.metrics.counts().over_limit, 1);
    drop(one);
    until(|| context.metrics.counts().open == 0).await;
    ask(&mut TcpStream::connect(at.authority()).await.unwrap()).await.unwrap();
}

#[tokio::test]
async fn silent_connection_is_closed_after_the_greeting_time() {
    let limits = Limits { greeting_time: Duration::from_millis(50), ..Limits::default() };
    let context = ServeContext { limits, ..ServeContext::default() };
    let at = echo(&context, Security::Plain).await;
    let mut silent = TcpStream::connect(at.authority()).await.unwrap();
    assert!(is_closed(&mut silent).await);
    until(|| context.metrics.counts().failed_greetings == 1).await;
}

#[tokio::test]
async fn slow_handshakes_are_bounded_and_block_no_other_client() {
    let dir = tempfile::tempdir().unwrap();
    let authority = Authority::new(dir.path(), "a");
    let mut context = context(files(authority.issue("host", -1, 1)));
    context.limits = Limits { greetings: 4, greeting_time: Duration::from_secs(60), ..Limits::default() };
    let at = echo(&context, Security::Tls).await;
    let mut slow = Vec::new();
    for _ in 0..10 {
        let mut stream = TcpStream::connect(at.authority()).await.unwrap();
        // The head of a TLS record, and no more of it.
        stream.write_all(&[22, 3, 1, 1, 0]).await.unwrap();
        slow.push(stream);
    }
    // An honest client gets in all the same, and the oldest of the slow ones are gone long before their time.
    ask(&mut client(&at, &dir.path().join("a-ca.pem"), None).await.unwrap()).await.unwrap();
    for stream in &mut slow[..6] {
        assert!(is_closed(stream).await);
    }
    until(|| context.metrics.counts().failed_greetings >= 6).await;
}

#[tokio::test]
async fn plain_client_at_a_tls_port_is_closed() {
    let dir = tempfile::tempdir().unwrap();
    let context = context(files(Authority::new(dir.path(), "a").issue("host", -1, 1)));
    let at = echo(&context, Security::Tls).await;
    let mut plain = TcpStream::connect(at.authority()).await.unwrap();
    plain.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.unwrap();
    assert!(is_closed(&mut plain).await);
    assert_eq!(context.metrics.counts().accepted, 0);
}

#[tokio::test]
async fn tls_client_at_a_plain_port_is_closed() {
    let dir = tempfile::tempdir().unwrap();
    Authority::new(dir.path(), "a");
    let context = ServeContext::default();
    let at = echo(&context, Security::Plain).await;
    assert!(client(&at, &dir.path().join("a-ca.pem"), None).await.is_err());
    until(|| context.metrics.counts().failed_greetings == 1).await;
    assert_eq!(context.metrics.counts().accepted, 0);
}
