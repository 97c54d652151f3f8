//! Certificates of every kind, and a door that echoes.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa, KeyPair, KeyUsagePurpose};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use skytether_transport::{Alpn, Endpoint, Listener, Security, ServeContext, ServerTls, TlsFiles};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// An authority of tests, and the files that it issues.
pub(crate) struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    dir: PathBuf,
}

impl Authority {
    /// An authority whose certificate is `NAME-ca.pem` in `dir`.
    pub(crate) fn new(dir: &Path, name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        std::fs::write(dir.join(format!("{name}-ca.pem")), issuer.pem()).unwrap();
        Self { issuer, dir: dir.to_owned() }
    }

    /// Writes a certificate for localhost, valid between two days, counted from now.
    pub(crate) fn issue(&self, name: &str, from: i64, to: i64) -> (PathBuf, PathBuf) {
        let day = |days: i64| {
            let distance = Duration::from_secs(days.unsigned_abs() * 86_400);
            if days < 0 { SystemTime::now() - distance } else { SystemTime::now() + distance }
        };
        let mut params = CertificateParams::new(vec!["localhost".into(), "127.0.0.1".into(), format!("{name}.example")]).unwrap();
        (params.not_before, params.not_after) = (day(from).into(), day(to).into());
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let (cert, keys) = (self.dir.join(format!("{name}.pem")), self.dir.join(format!("{name}.key")));
        std::fs::write(&keys, key.serialize_pem()).unwrap();
        std::fs::write(&cert, certificate.pem()).unwrap();
        (cert, keys)
    }
}

/// Files for a server without client certificates.
pub(crate) fn files((cert, key): (PathBuf, PathBuf)) -> TlsFiles {
    TlsFiles { cert, key, client_ca: None, client_cert_optional: false }
}

/// A context with TLS by `files`.
pub(crate) fn context(files: TlsFiles) -> ServeContext {
    ServeContext { tls: Some(Arc::new(ServerTls::load(files).unwrap())), ..ServeContext::default() }
}

/// Serves one byte and the caller's name to each connection; the port.
pub(crate) async fn echo(context: &ServeContext, security: Security) -> Endpoint {
    let listener = Listener::bind(&"grpc+tls://127.0.0.1:0".parse().unwrap(), security, context).await.unwrap();
    let endpoint = listener.endpoint().clone();
    let context = context.clone();
    tokio::spawn(async move {
        let mut incoming = listener.incoming(Alpn::Absent, &context);
        while let Some(mut connection) = incoming.next_connection().await {
            tokio::spawn(async move {
                let name = connection.peer().certificate.as_ref().map_or("-".to_owned(), |identity| identity.name.clone());
                let mut byte = [0];
                while connection.read(&mut byte).await.is_ok_and(|n| n > 0) {
                    connection.write_all(name.as_bytes()).await.unwrap();
                    connection.write_all(b"\n").await.unwrap();
                    connection.flush().await.unwrap();
                }
            });
        }
    });
    endpoint
}

/// A TLS client that trusts `ca`.
pub(crate) async fn client(at: &Endpoint, ca: &Path, identity: Option<(PathBuf, PathBuf)>) -> std::io::Result<TlsStream<TcpStream>> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(ca).unwrap()).unwrap();
    let builder = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots);
    let config = match identity {
        None => builder.with_no_client_auth(),
        Some((cert, key)) => {
            builder.with_client_auth_cert(vec![CertificateDer::from_pem_file(cert).unwrap()], PrivateKeyDer::from_pem_file(key).unwrap()).unwrap()
        }
    };
    let stream = TcpStream::connect(at.authority()).await?;
    TlsConnector::from(Arc::new(config)).connect(ServerName::try_from("localhost").unwrap(), stream).await
}

/// A line from the echo.
pub(crate) async fn ask(stream: &mut (impl AsyncReadExt + AsyncWriteExt + Unpin)) -> std::io::Result<String> {
    stream.write_all(b"?").await?;
    stream.flush().await?;
    let mut line = Vec::new();
    loop {
        let byte = stream.read_u8().await?;
        if byte == b'\n' {
            return Ok(String::from_utf8(line).unwrap());
        }
        line.push(byte);
    }
}

/// The certificate that the server shows.
pub(crate) fn shown(stream: &TlsStream<TcpStream>) -> Vec<u8> {
    stream.get_ref().1.peer_certificates().unwrap()[0].to_vec()
}

/// Waits until `is` holds. A counter may move only after the client has seen the connection close.
pub(crate) async fn until(is: impl Fn() -> bool) {
    let waiting = async {
        while !is() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), waiting).await.expect("it holds in time");
}

/// That the other side closes the connection.
pub(crate) async fn is_closed(stream: &mut (impl AsyncReadExt + Unpin)) -> bool {
    let mut rest = Vec::new();
    tokio::time::timeout(Duration::from_secs(20), stream.read_to_end(&mut rest)).await.is_ok()
}
