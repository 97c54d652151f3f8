//! TLS on the client's side.

use std::error::Error as StdError;
use std::ffi::OsString;
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use parking_lot::Mutex;
use rustls::pki_types::ServerName;
use rustls::{AlertDescription, CertificateError, ClientConfig, RootCertStore};
use skytether_common::{Detail, Error, Result};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::endpoint::{DEFAULT_SCHEME, Endpoint, TLS_SCHEME};
use crate::security::Security;
use crate::tls::pem::{authorities, certificates, private_key, provider};
use crate::tls::server::Alpn;
use crate::token::Secret;

/// What a client shows (a certificate, a token), and the authorities that it trusts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Credentials {
    /// The authorities that servers' certificates must come from; if `None`, the system's.
    pub tls_ca: Option<PathBuf>,
    /// The client's certificate and its key.
    pub identity: Option<(PathBuf, PathBuf)>,
    /// A bearer token.
    pub token: Option<Secret>,
    /// Whether the token may go to another machine without TLS. All machines between the two can read it then.
    pub allow_plain_token: bool,
}

impl Credentials {
    /// The variable of the environment that holds a token.
    pub const TOKEN_VARIABLE: &str = "SKYTETHER_TOKEN";
    /// The variable of the environment that names the file of authorities.
    pub const CA_VARIABLE: &str = "SKYTETHER_TLS_CA";

    /// The variable of the environment whose value `1` lets the token go to another machine without TLS.
    pub const PLAIN_TOKEN_VARIABLE: &str = "SKYTETHER_ALLOW_PLAIN_TOKEN";

    /// Fills what is not set from the environment.
    #[must_use]
    pub fn or_environment(self) -> Self {
        self.or_variables(|name| std::env::var_os(name))
    }

    fn or_variables(mut self, value_of: impl Fn(&str) -> Option<OsString>) -> Self {
        let variable = |name: &str| value_of(name).filter(|value| !value.is_empty());
        self.allow_plain_token |= variable(Self::PLAIN_TOKEN_VARIABLE).is_some_and(|value| value == "1");
        self.tls_ca = self.tls_ca.or_else(|| variable(Self::CA_VARIABLE).map(PathBuf::from));
        self.token = self.token.or_else(|| variable(Self::TOKEN_VARIABLE).and_then(|token| token.into_string().ok()).map(Secret::new));
        self
    }

    /// Whether they may go to `at`, an address that somebody else names: who names one of their own gets the token
    /// otherwise.
    #[must_use]
    pub fn may_go_to(&self, at: &Endpoint) -> bool {
        self.token.is_none() || (at.scheme() == TLS_SCHEME && self.tls_ca.is_some())
    }

    /// Whether they may go to `addresses`, those of `at`.
    fn check_route(&self, at: &Endpoint, addresses: &[SocketAddr]) -> Result<()> {
        let remote = addresses.iter().any(|address| !address.ip().to_canonical().is_loopback());
        if self.token.is_none() || self.allow_plain_token || at.scheme() == TLS_SCHEME || !remote {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "it is on another machine, and the token would go there unencrypted; write {TLS_SCHEME}://{}, or allow it with {}=1",
            at.authority(),
            Self::PLAIN_TOKEN_VARIABLE
        )))
    }

    fn config(&self, alpn: Alpn) -> Result<ClientConfig> {
        let roots = match &self.tls_ca {
            Some(path) => authorities(path)?,
            None => system()?,
        };
        let builder = ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&rustls::version::TLS13, &rustls::version::TLS12])
            .map_err(|e| Error::internal("TLS 1.2 and 1.3 can't be configured").with_source(e))?
            .with_root_certificates(roots);
        let mut config = match &self.identity {
            None => builder.with_no_client_auth(),
            Some((cert, key)) => builder.with_client_auth_cert(certificates(cert)?, private_key(key)?).map_err(|e| {
                Error::invalid(format!("{} and {} can't be used together; name a certificate and its own key", cert.display(), key.display())).with_source(e)
            })?,
        };
        if alpn == Alpn::Http2 {
            config.alpn_protocols = vec![b"h2".to_vec()];
        }
        Ok(config)
    }
}

/// The authorities that the system trusts.
fn system() -> Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    let found = rustls_native_certs::load_native_certs();
    // Stores of systems hold a few certificates that no library takes.
    roots.add_parsable_certificates(found.certs);
    if roots.is_empty() {
        return Err(Error::invalid("this system trusts no certificate authority; name one with --tls-ca FILE (SKYTETHER_TLS_CA, in Python tls_ca=)"));
    }
    Ok(roots)
}

/// Makes the connections of one channel: the first one, and those after it broke. The files are read for each, so that
/// renewed ones are used.
#[derive(Debug, Clone)]
pub(crate) struct Connector {
    endpoint: Endpoint,
    credentials: Arc<Credentials>,
    alert: LastAlert,
}

/// A connection, plain or TLS.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// The alert that ended the newest connection of a channel; none once a connection has given bytes, or could not be
/// made.
///
/// With TLS 1.3 a server refuses a client's certificate after the client's handshake is over, so that no handshake
/// fails. HTTP/2 then cancels calls that it has not sent yet, and their errors don't have the alert as their cause.
#[derive(Debug, Clone, Default)]
pub(crate) struct LastAlert(Arc<Mutex<Option<AlertDescription>>>);

impl LastAlert {
    /// What the alert means, if there was one.
    pub(crate) fn explained(&self) -> Option<Error> {
        self.0.lock().map(refused)
    }

    /// Forgets the alert: the newest connection failed for another reason.
    fn forget(&self) {
        *self.0.lock() = None;
    }
}

/// A TLS connection that notes the alert by which the server ends it.
struct Watched {
    stream: TlsStream<TcpStream>,
    alert: LastAlert,
}

impl AsyncRead for Watched {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let read = ready!(Pin::new(&mut self.stream).poll_read(cx, buf));
        match &read {
            Ok(()) if buf.filled().len() > before => *self.alert.0.lock() = None,
            Ok(()) => {}
            Err(error) => {
                if let Some(rustls::Error::AlertReceived(alert)) = error.get_ref().and_then(|inner| inner.downcast_ref()) {
                    *self.alert.0.lock() = Some(*alert);
                }
            }
        }
        Poll::Ready(read)
    }
}

impl AsyncWrite for Watched {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bufs: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

impl Connector {
    pub(crate) fn new(endpoint: Endpoint, credentials: Arc<Credentials>) -> Self {
        Self { endpoint, credentials, alert: LastAlert::default() }
    }

    /// The alert of the newest connection that this, or a clone of it, has made.
    pub(crate) fn last_alert(&self) -> LastAlert {
        self.alert.clone()
    }

    pub(crate) async fn connect(self) -> Result<Box<dyn Stream>> {
        let alert = self.alert.clone();
        self.connect_newly().await.inspect_err(|_| alert.forget())
    }

    async fn connect_newly(self) -> Result<Box<dyn Stream>> {
        let stream = reach(&self.endpoint, |addresses| self.credentials.check_route(&self.endpoint, addresses)).await?;
        if self.endpoint.scheme() != TLS_SCHEME {
            return Ok(Box::new(stream));
        }
        let stream = handshake(&self.endpoint, stream, &self.credentials, Alpn::Http2, (DEFAULT_SCHEME, TLS_SCHEME)).await?;
        Ok(Box::new(Watched { stream, alert: self.alert }))
    }
}

/// Connects to `at` for a protocol other than gRPC, which has its own way of authentication: the token is not sent.
/// With TLS, `credentials` say which certificates are trusted and shown, and no protocol is agreed on. `schemes` are
/// those of the protocol, plain and with TLS, for errors. The caller sets a deadline.
///
/// # Errors
/// `Invalid` for an address or a certificate that can't be right, `Unavailable` where nothing answers. The text is the
/// cause alone: the caller names the object.
pub async fn dial(at: &Endpoint, security: Security, credentials: &Credentials, schemes: (&str, &str)) -> Result<Box<dyn Stream>> {
    let stream = reach(at, |_| Ok(())).await?;
    match security {
        Security::Plain => Ok(Box::new(stream)),
        Security::Tls => Ok(Box::new(handshake(at, stream, credentials, Alpn::Absent, schemes).await?)),
    }
}

async fn reach(at: &Endpoint, check: impl FnOnce(&[SocketAddr]) -> Result<()>) -> Result<TcpStream> {
    let failed = |e: io::Error| Error::unavailable(format!("{e}")).with_source(e);
    let addresses: Vec<SocketAddr> = tokio::net::lookup_host(at.socket()?).await.map_err(failed)?.collect();
    check(&addresses)?;
    let stream = TcpStream::connect(addresses.as_slice()).await.map_err(failed)?;
    stream.set_nodelay(true).map_err(failed)?;
    Ok(stream)
}

async fn handshake(at: &Endpoint, stream: TcpStream, credentials: &Credentials, alpn: Alpn, schemes: (&str, &str)) -> Result<TlsStream<TcpStream>> {
    let (host, _) = at.socket()?;
    let name = host.split('%').next().unwrap_or(host).to_owned();
    let name = ServerName::try_from(name).map_err(|e| Error::invalid(format!("{host:?} can't be the name in a certificate")).with_source(e))?;
    let config = credentials.config(alpn)?;
    TlsConnector::from(Arc::new(config)).connect(name, stream).await.map_err(|error| of_handshake(error, schemes))
}

/// What is wrong with a server's certificate, and what to do.
fn of_certificate(why: &CertificateError) -> &'static str {
    match why {
        CertificateError::UnknownIssuer | CertificateError::BadSignature => {
            "its certificate comes from an authority that is not trusted here; name the right one with --tls-ca FILE (SKYTETHER_TLS_CA, in Python tls_ca=)"
        }
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => "its certificate has expired; renew it, or set this machine's clock right",
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            "its certificate is not valid yet; set the clock of this machine, or of the one that made it, right"
        }
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            "its certificate is for other names than this address; connect by one of them, or make it with `skytether pki init DIR --name HOST` (a drive's: --drive-name)"
        }
        _ => "its certificate can't be verified",
    }
}

/// What a failed handshake means, and what to do. `plain` and `tls` are the schemes without and with TLS.
fn of_handshake(error: io::Error, (plain, tls): (&str, &str)) -> Error {
    let cause = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()).cloned();
    let text = match &cause {
        Some(rustls::Error::InvalidCertificate(why)) => of_certificate(why).to_owned(),
        Some(rustls::Error::AlertReceived(alert)) => return refused(*alert),
        Some(rustls::Error::InvalidMessage(_)) => format!("it does not speak TLS; write {plain}:// instead of {tls}://, or start it with --tls-cert"),
        None if error.kind() == io::ErrorKind::UnexpectedEof || error.kind() == io::ErrorKind::ConnectionReset => {
            format!("it ended the TLS handshake; if it speaks no TLS, write {plain}:// instead of {tls}://")
        }
        _ => "the TLS handshake failed".to_owned(),
    };
    match cause {
        Some(_) => Error::invalid(text).with_detail(Detail::TlsRefused).with_source(error),
        // Not a word of TLS: it is gone, or going. Others may stand in for it.
        None => Error::unavailable(text).with_source(error),
    }
}

/// Alerts with which a server refuses a client's certificate, or asks for one.
const OF_CERTIFICATES: [AlertDescription; 8] = [
    AlertDescription::CertificateRequired,
    AlertDescription::UnknownCA,
    AlertDescription::DecryptError,
    AlertDescription::BadCertificate,
    AlertDescription::CertificateExpired,
    AlertDescription::CertificateUnknown,
    AlertDescription::UnsupportedCertificate,
    AlertDescription::CertificateRevoked,
];

fn refused(alert: AlertDescription) -> Error {
    let text = if OF_CERTIFICATES.contains(&alert) {
        format!("it refuses this machine's client certificate, or demands one ({alert:?}); give --tls-cert and --tls-key of its authority")
    } else {
        format!("it ended the TLS handshake ({alert:?})")
    };
    Error::invalid(text).with_detail(Detail::TlsRefused)
}

/// The error of ours among the causes of `error`: what a connector said.
pub(crate) fn explain(error: &(dyn StdError + 'static)) -> Option<Error> {
    Error::find(error).map(|ours| {
        let copy = Error::new(ours.kind(), ours.message());
        ours.detail().cloned().into_iter().fold(copy, Error::with_detail)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_token_is_allowed_by_the_value_1_only() {
        for (value, allowed) in [(None, false), (Some(""), false), (Some("0"), false), (Some("false"), false), (Some("1"), true)] {
            let read = |name: &str| value.filter(|_| name == "SKYTETHER_ALLOW_PLAIN_TOKEN").map(OsString::from);
            assert_eq!(Credentials::default().or_variables(read).allow_plain_token, allowed, "{value:?}");
        }
        assert!(Credentials { allow_plain_token: true, ..Credentials::default() }.or_variables(|_| None).allow_plain_token);
    }

    #[test]
    fn token_goes_in_plain_to_loopback_addresses_only() {
        let credentials = Credentials { token: Some(Secret::new("sky_x")), ..Credentials::default() };
        let check = |credentials: &Credentials, scheme: &str, to: &[&str]| {
            let addresses: Vec<SocketAddr> = to.iter().map(|address| address.parse().unwrap()).collect();
            credentials.check_route(&Endpoint::new(scheme, "box:1"), &addresses)
        };
        for to in [&["127.0.0.1:1"][..], &["[::1]:1", "127.8.9.1:1"], &["[::ffff:127.0.0.1]:1"]] {
            check(&credentials, "grpc", to).unwrap();
        }
        // A name that means both would be tried at either.
        for to in [&["192.0.2.1:1"][..], &["[2001:db8::1]:1"], &["127.0.0.1:1", "192.0.2.1:1"], &["[::ffff:192.0.2.1]:1"], &["0.0.0.0:1"]] {
            let error = check(&credentials, "grpc", to).unwrap_err();
            assert!(error.message().contains("grpc+tls://box:1") && error.message().contains("SKYTETHER_ALLOW_PLAIN_TOKEN=1"), "{error}");
            check(&credentials, TLS_SCHEME, to).unwrap();
            check(&Credentials { allow_plain_token: true, ..credentials.clone() }, "grpc", to).unwrap();
            check(&Credentials::default(), "grpc", to).unwrap();
        }
    }
}
