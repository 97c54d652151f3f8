//! Binding, limits, and slow or wrong clients.

use std::sync::Arc;
use std::time::Duration;

use skytether_common::Kind;
use skytether_transport::{Gate, Limits, Listener, Security, ServeContext, TlsFiles};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::util::{Authority, ask, client, context, echo, files, is_closed, until};

#[tokio::test]
async fn plain_listener_beyond_loopback_is_refused_by_name() {
    let context = ServeContext::default();
    for at in ["0.0.0.0:0", "[::]:0", "grpc://0.0.0.0:0", "[::ffff:0.0.0.0]:0", "[::ffff:192.0.2.1]:0", "[fe80::1%1]:0", "192.0.2.1:0"] {
        let error = Listener::bind(&at.parse().unwrap(), Security::Plain, &context).await.unwrap_err();
        let text = error.message();
        assert_eq!(error.kind(), Kind::Invalid);
        assert!(text.contains(at.trim_start_matches("grpc://")) && text.contains("--insecure") && text.contains("--tls-cert"), "{text}");
    }
    // A name counts by its addresses.
    for at in ["127.0.0.1:0", "localhost:0", "127.8.9.1:0", "[::ffff:127.0.0.1]:0"] {
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

/// They connect while the server does not look, so that it finds all of them at once, each with its bytes. Systems may
/// hold no more than 128 such connections.
#[tokio::test]
async fn burst_of_honest_clients_outlives_the_greeting_limit() {
    let dir = tempfile::tempdir().unwrap();
    let authority = Authority::new(dir.path(), "a");
    let mut context = context(files(authority.issue("host", -1, 1)));
    context.limits = Limits { greetings: 8, ..Limits::default() };
    let at = echo(&context, Security::Plain).await;
    let clients: Vec<_> = (0..100)
        .map(|_| {
            let mut stream = std::net::TcpStream::connect(at.authority()).unwrap();
            std::io::Write::write_all(&mut stream, b"?").unwrap();
            stream
        })
        .collect();
    for stream in clients {
        stream.set_nonblocking(true).unwrap();
        let mut answer = [0; 2];
        TcpStream::from_std(stream).unwrap().read_exact(&mut answer).await.unwrap();
        assert_eq!(&answer, b"-\n");
    }
    let at = echo(&context, Security::Tls).await;
    let ca = dir.path().join("a-ca.pem");
    let clients = (0..100).map(|_| async { ask(&mut client(&at, &ca, None).await?).await });
    for answer in futures::future::join_all(clients).await {
        assert_eq!(answer.unwrap(), "-");
    }
    assert_eq!(context.metrics.counts().failed_greetings, 0);
}

#[tokio::test]
async fn plain_port_next_to_demanded_certificates_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let server = TlsFiles { client_ca: Some(dir.path().join("a-ca.pem")), ..files(Authority::new(dir.path(), "a").issue("host", -1, 1)) };
    let mutual = context(server.clone());
    let at = "127.0.0.1:0".parse().unwrap();
    let error = Listener::bind(&at, Security::Plain, &mutual).await.unwrap_err();
    assert!(error.kind() == Kind::Invalid && error.message().contains("--tls-client-ca") && error.message().contains("--require-auth"), "{error}");
    Listener::bind(&at, Security::Tls, &mutual).await.unwrap();
    // Where a token is asked for on each port, or the operator says so, or no certificate is asked for at all.
    let required = Arc::new(Gate { tokens: None, required: true });
    let without = context(TlsFiles { client_ca: None, ..server });
    for context in [ServeContext { auth: required, ..mutual.clone() }, ServeContext { insecure: true, ..mutual }, without] {
        Listener::bind(&at, Security::Plain, &context).await.unwrap();
    }
}

#[tokio::test]
async fn security_text_says_whether_a_certificate_is_demanded() {
    let dir = tempfile::tempdir().unwrap();
    let server = files(Authority::new(dir.path(), "a").issue("host", -1, 1));
    let mutual = TlsFiles { client_ca: Some(dir.path().join("a-ca.pem")), ..server.clone() };
    let optional = TlsFiles { client_cert_optional: true, ..mutual.clone() };
    for (files, text) in [(server, "TLS"), (mutual, "mutual TLS"), (optional, "TLS with optional client certificates")] {
        assert_eq!(context(files.clone()).security_text(true), format!("{text}, no authentication"));
        assert_eq!(context(files).security_text(false), "no TLS, no authentication");
    }
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
