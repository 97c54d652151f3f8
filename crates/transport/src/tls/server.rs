//! TLS on the server's side: certificates are read again when their files change.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use rustls::ServerConfig;
use rustls::pki_types::CertificateDer;
use rustls::server::WebPkiClientVerifier;
use skytether_common::{Context, Error, Result};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use crate::files::Stamp;
use crate::identity::Identity;
use crate::tls::pem::{authorities, certificates, private_key, provider};

/// The protocol that a TLS handshake agrees on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Alpn {
    /// None.
    Absent,
    /// HTTP/2. gRPC clients insist on it.
    Http2,
}

/// The files of a server's TLS, all PEM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsFiles {
    /// Its certificate, followed by those between it and the authority, if any.
    pub cert: PathBuf,
    /// The private key of that.
    pub key: PathBuf,
    /// The authorities whose client certificates are accepted. Without it none is asked for.
    pub client_ca: Option<PathBuf>,
    /// Whether a client without a certificate is accepted, because it may show a token instead. A certificate that it
    /// shows must be valid.
    pub client_cert_optional: bool,
}

impl TlsFiles {
    fn paths(&self) -> impl Iterator<Item = &Path> {
        [Some(&self.cert), Some(&self.key), self.client_ca.as_ref()].into_iter().flatten().map(PathBuf::as_path)
    }
}

/// TLS of one server, shared by its doors.
///
/// Each handshake checks whether a file has changed, and reads it again then. A broken state of the files (a
/// certificate without its key, half a file) is logged once, and the former certificates stay in use. Open connections
/// are not affected.
#[derive(Debug)]
pub struct ServerTls {
    files: TlsFiles,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    configs: Arc<Configs>,
    /// The stamp of the files at the last check, also where they were broken.
    stamp: Stamp,
}

/// One configuration for each protocol that a handshake may agree on.
#[derive(Debug)]
struct Configs {
    bare: Arc<ServerConfig>,
    http2: Arc<ServerConfig>,
}

impl ServerTls {
    /// Reads the files.
    ///
    /// # Errors
    /// `NotFound` for an absent file; `Invalid` for one that does not hold what it should, and for a key of another
    /// certificate.
    pub fn load(files: TlsFiles) -> Result<Self> {
        // Before reading: what changes meanwhile is read again.
        let stamp = Stamp::of(files.paths());
        let configs = Arc::new(read(&files)?);
        Ok(Self { files, state: Mutex::new(State { configs, stamp }) })
    }

    /// The files.
    #[must_use]
    pub fn files(&self) -> &TlsFiles {
        &self.files
    }

    /// Whether clients may, or must, show certificates.
    #[must_use]
    pub fn asks_for_certificates(&self) -> bool {
        self.files.client_ca.is_some()
    }

    fn configs(&self) -> Arc<Configs> {
        let mut state = self.state.lock();
        let stamp = Stamp::of(self.files.paths());
        if stamp != state.stamp {
            state.stamp = stamp;
            match read(&self.files) {
                Ok(configs) => {
                    tracing::info!("read the changed TLS certificate {}", self.files.cert.display());
                    state.configs = Arc::new(configs);
                }
                Err(error) => tracing::error!("kept the former TLS certificate, as the changed files can't be used: {error}"),
            }
        }
        Arc::clone(&state.configs)
    }

    /// Runs the handshake. Returns the client's identity by its certificate; on failure, returns the connection.
    pub(crate) async fn accept(&self, stream: TcpStream, alpn: Alpn) -> Result<(TlsStream<TcpStream>, Option<Identity>), (io::Error, TcpStream)> {
        let configs = self.configs();
        let config = match alpn {
            Alpn::Absent => &configs.bare,
            Alpn::Http2 => &configs.http2,
        };
        let stream = TlsAcceptor::from(Arc::clone(config)).accept(stream).into_fallible().await?;
        let certificate = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first());
        let identity = certificate.and_then(|der| Identity::of_certificate(der));
        Ok((stream, identity))
    }
}

fn read(files: &TlsFiles) -> Result<Configs> {
    let chain = certificates(&files.cert)?;
    let key = private_key(&files.key)?;
    warn_of_dates(&files.cert, &chain);
    let builder = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13, &rustls::version::TLS12])
        .map_err(|e| Error::internal("TLS 1.2 and 1.3 can't be configured").with_source(e))?;
    let builder = match &files.client_ca {
        None => builder.with_no_client_auth(),
        Some(ca) => {
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(authorities(ca)?), provider());
            let verifier = if files.client_cert_optional { verifier.allow_unauthenticated() } else { verifier };
            let verifier = verifier.build().map_err(|e| Error::invalid(format!("{}: it can't verify client certificates", ca.display())).with_source(e))?;
            builder.with_client_cert_verifier(verifier)
        }
    };
    let bare = builder.with_single_cert(chain, key).map_err(|e| {
        Error::invalid(format!("{} and {} can't be used together; name a certificate and its own key", files.cert.display(), files.key.display()))
            .with_source(e)
    });
    let bare = bare.context(|| "TLS can't be set up")?;
    let mut http2 = bare.clone();
    http2.alpn_protocols = vec![b"h2".to_vec()];
    Ok(Configs { bare: Arc::new(bare), http2: Arc::new(http2) })
}

/// Logs where clients will refuse the certificate for its dates. It is used all the same: the clock may be wrong.
fn warn_of_dates(path: &Path, chain: &[CertificateDer<'_>]) {
    let Some(parsed) = chain.first().and_then(|der| x509_parser::parse_x509_certificate(der).ok()) else { return };
    let validity = parsed.1.validity();
    if !validity.is_valid() {
        tracing::warn!("{}: valid from {} to {}, and not now; clients will refuse it", path.display(), validity.not_before, validity.not_after);
    }
}
