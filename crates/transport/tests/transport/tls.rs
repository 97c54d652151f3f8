//! Certificates: whose are accepted, and when new ones are used.

use std::path::Path;
use std::time::Duration;

use skytether_common::Kind;
use skytether_transport::grpc::{ChannelOptions, connect};
use skytether_transport::{Credentials, Endpoint, Security, ServeContext, ServerTls, TlsFiles};
use tokio::io::AsyncReadExt;
use tokio::net::TcpListener;

use crate::util::{Authority, ask, client, context, echo, files, shown};

const OPTIONS: ChannelOptions = ChannelOptions { connect_timeout: Duration::from_secs(20), keepalive: None, windows: None };

fn trusting(ca: &Path) -> Credentials {
    Credentials { tls_ca: Some(ca.to_owned()), ..Credentials::default() }
}

async fn refusal(at: &Endpoint, credentials: &Credentials) -> String {
    let error = connect(at, credentials, &OPTIONS).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Invalid, "{error}");
    error.message().to_owned()
}

#[tokio::test]
async fn changed_certificate_is_used_without_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let authority = Authority::new(dir.path(), "a");
    let context = context(files(authority.issue("host", -1, 1)));
    let (at, ca) = (echo(&context, Security::Tls).await, dir.path().join("a-ca.pem"));
    let mut before = client(&at, &ca, None).await.unwrap();
    authority.issue("host", -1, 2);
    let mut after = client(&at, &ca, None).await.unwrap();
    assert_ne!(shown(&before), shown(&after));
    ask(&mut after).await.unwrap();
    ask(&mut before).await.unwrap();
}

#[tokio::test]
async fn broken_new_certificate_keeps_the_former_one() {
    let dir = tempfile::tempdir().unwrap();
    let authority = Authority::new(dir.path(), "a");
    let (cert, key) = authority.issue("host", -1, 1);
    let context = context(files((cert.clone(), key.clone())));
    let (at, ca) = (echo(&context, Security::Tls).await, dir.path().join("a-ca.pem"));
    let good = shown(&client(&at, &ca, None).await.unwrap());
    let (other, other_key) = authority.issue("other", -1, 1);
    let whole = std::fs::read(&other).unwrap();
    for bad in [&b""[..], b"no PEM", &whole[..whole.len() / 2], &whole] {
        std::fs::write(&cert, bad).unwrap();
        assert_eq!(shown(&client(&at, &ca, None).await.unwrap()), good);
    }
    std::fs::remove_file(&cert).unwrap();
    assert_eq!(shown(&client(&at, &ca, None).await.unwrap()), good);
    // The certificate of the other key came first; with the key they are a pair.
    std::fs::copy(&other, &cert).unwrap();
    std::fs::copy(&other_key, &key).unwrap();
    assert_ne!(shown(&client(&at, &ca, None).await.unwrap()), good);
}

#[tokio::test]
async fn client_certificate_is_demanded_verified_and_named() {
    let dir = tempfile::tempdir().unwrap();
    let (ours, theirs) = (Authority::new(dir.path(), "a"), Authority::new(dir.path(), "b"));
    let server = TlsFiles { client_ca: Some(dir.path().join("a-ca.pem")), ..files(ours.issue("host", -1, 1)) };
    let at = echo(&context(server.clone()), Security::Tls).await;
    let ca = dir.path().join("a-ca.pem");
    let mut named = client(&at, &ca, Some(ours.issue("friend", -1, 1))).await.unwrap();
    // There is no URI in it, so the first DNS name counts.
    assert_eq!(ask(&mut named).await.unwrap(), "localhost");
    for identity in [None, Some(theirs.issue("stranger", -1, 1)), Some(ours.issue("late", -2, -1)), Some(ours.issue("early", 1, 2))] {
        let what = format!("{identity:?}");
        // With TLS 1.3 the refusal comes after the client's own handshake.
        let refused = match client(&at, &ca, identity).await {
            Ok(mut stream) => ask(&mut stream).await.is_err(),
            Err(_) => true,
        };
        assert!(refused, "{what}");
    }
    // Where it is optional, none is as good as a valid one, and a bad one is refused.
    let at = echo(&context(TlsFiles { client_cert_optional: true, ..server }), Security::Tls).await;
    assert_eq!(ask(&mut client(&at, &ca, None).await.unwrap()).await.unwrap(), "-");
    let mut stranger = client(&at, &ca, Some(theirs.issue("stranger", -1, 1))).await.unwrap();
    assert!(ask(&mut stranger).await.is_err());
}

#[tokio::test]
async fn channel_says_why_a_certificate_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (ours, _theirs) = (Authority::new(dir.path(), "a"), Authority::new(dir.path(), "b"));
    let (a, b) = (trusting(&dir.path().join("a-ca.pem")), trusting(&dir.path().join("b-ca.pem")));
    let at = echo(&context(files(ours.issue("host", -1, 1))), Security::Tls).await;
    connect(&at, &a, &OPTIONS).await.unwrap();
    assert!(refusal(&at, &b).await.contains("not trusted"));
    // The system's authorities, if there are any, have not made it.
    assert!(refusal(&at, &Credentials::default()).await.contains("--tls-ca"));
    let at = echo(&context(files(ours.issue("late", -2, -1))), Security::Tls).await;
    assert!(refusal(&at, &a).await.contains("expired"));
    let at = echo(&context(files(ours.issue("early", 1, 2))), Security::Tls).await;
    assert!(refusal(&at, &a).await.contains("not valid yet"));
    let missing = Credentials { tls_ca: Some(dir.path().join("absent.pem")), ..Credentials::default() };
    assert_eq!(connect(&at, &missing, &OPTIONS).await.unwrap_err().kind(), Kind::NotFound);
}

#[tokio::test]
async fn certificate_for_other_names_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let context = ServeContext { insecure: true, ..context(files(Authority::new(dir.path(), "a").issue("host", -1, 1))) };
    let listener = skytether_transport::Listener::bind(&"grpc+tls://127.0.0.2:0".parse().unwrap(), Security::Tls, &context).await.unwrap();
    let at = listener.endpoint().clone();
    let mut incoming = listener.incoming(skytether_transport::Alpn::Http2, &context);
    tokio::spawn(async move { while incoming.next_connection().await.is_some() {} });
    assert!(refusal(&at, &trusting(&dir.path().join("a-ca.pem"))).await.contains("--name"));
}

#[tokio::test]
async fn tls_channel_to_a_plain_port_says_so() {
    let dir = tempfile::tempdir().unwrap();
    Authority::new(dir.path(), "a");
    let plain = echo(&ServeContext::default(), Security::Plain).await;
    let error = connect(&plain, &trusting(&dir.path().join("a-ca.pem")), &OPTIONS).await.unwrap_err();
    assert!(error.kind() == Kind::Unavailable && error.message().contains("grpc://"), "{error}");
}

/// What accepts and closes is as dead as what does not accept: a proxy without its server, a server over its limit.
#[tokio::test]
async fn end_of_a_handshake_without_an_alert_is_unavailable() {
    let dir = tempfile::tempdir().unwrap();
    Authority::new(dir.path(), "a");
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = Endpoint::new("grpc+tls", listener.local_addr().unwrap().to_string());
    tokio::spawn(async move {
        for n in 0.. {
            let (mut stream, _) = listener.accept().await.unwrap();
            if n % 2 == 0 {
                // With the client's hello read, the end is no reset.
                assert!(stream.read(&mut [0; 4096]).await.unwrap() > 0);
            }
        }
    });
    for _ in 0..4 {
        let error = connect(&at, &trusting(&dir.path().join("a-ca.pem")), &OPTIONS).await.unwrap_err();
        assert!(error.kind() == Kind::Unavailable && error.message().contains("handshake"), "{error}");
    }
}

#[tokio::test]
async fn channel_to_a_dead_port_is_unavailable() {
    let port = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let error = connect(&port.to_string().parse().unwrap(), &Credentials::default(), &OPTIONS).await.unwrap_err();
    assert!(error.kind() == Kind::Unavailable && error.message().contains("refused"), "{error}");
}

#[test]
fn files_that_do_not_fit_are_refused_at_the_start() {
    let dir = tempfile::tempdir().unwrap();
    let authority = Authority::new(dir.path(), "a");
    let ((cert, key), (_, other)) = (authority.issue("one", -1, 1), authority.issue("two", -1, 1));
    let load = |cert: &Path, key: &Path| ServerTls::load(files((cert.to_owned(), key.to_owned()))).unwrap_err();
    assert_eq!(load(&cert, &other).kind(), Kind::Invalid);
    assert_eq!(load(&key, &key).kind(), Kind::Invalid);
    assert_eq!(load(&cert, &cert).kind(), Kind::Invalid);
    assert_eq!(load(&dir.path().join("absent"), &key).kind(), Kind::NotFound);
}
