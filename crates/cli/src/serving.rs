//! Listening, security and shutdown, for `drive serve` and `host serve`.

use std::future::Future;
use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;
use futures::future::{BoxFuture, try_join_all};
use skytether_common::{Error, Result};
use skytether_transport::endpoint::{DEFAULT_SCHEME, TLS_SCHEME};
use skytether_transport::{Credentials, Endpoint, Gate, Listener, Registry, Security, ServeContext, ServerTls, TlsFiles, TokenStore};

use crate::common_args::address;
use crate::context::{Failure, print_line};

#[derive(Debug, Args)]
pub(crate) struct ServeArgs {
    /// Address to listen on; may be given several times. Schemes: grpc:// (also without one), grpc+tls://, for a drive
    /// also kinetic:// and kinetics:// (with TLS), and for its volumes iscsi://, nvme-tcp:// and nbd://. Port 0 picks a
    /// free one. The addresses are printed on stdout, a line each, when the server is ready [default: 127.0.0.1:0].
    #[arg(long, value_name = "URL", value_parser = address)]
    listen: Vec<Endpoint>,
    /// The server's certificate, a PEM file; it is read again when it changes. `skytether pki init DIR` makes one.
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// The private key of the certificate, a PEM file.
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// Accept only clients with a certificate of these authorities, a PEM file (mutual TLS). With --require-auth and
    /// tokens, a client may show a token instead. Without --require-auth, addresses without TLS are refused.
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_client_ca: Option<PathBuf>,
    /// Refuse callers that show neither a valid token nor a client certificate.
    #[arg(long)]
    require_auth: bool,
    /// The file of the tokens that are accepted (`skytether token create NAME --tokens FILE` makes one).
    #[arg(long, value_name = "FILE")]
    tokens: Option<PathBuf>,
    /// Listen without TLS beyond loopback, or next to --tls-client-ca: all that reach the port can read and change
    /// everything.
    #[arg(long)]
    insecure: bool,
}

/// The ports of a server, bound, and what they share.
#[derive(Debug)]
pub(crate) struct Bound {
    pub(crate) listeners: Vec<Listener>,
    pub(crate) context: ServeContext,
    pub(crate) tokens: Option<Arc<TokenStore>>,
}

impl ServeArgs {
    /// Binds all ports, with the security of each scheme in `doors`. `tokens` is the token file if the options name
    /// none.
    ///
    /// # Errors
    /// A wrong call for options that contradict each other, an unknown scheme, and a port that other machines could
    /// reach unprotected; a failure where a port is taken or a file can't be read.
    pub(crate) async fn bind(&self, doors: &Registry<Security>, tokens: Option<PathBuf>) -> Result<Bound, Failure> {
        let tokens = self.tokens.clone().or(tokens).map(|path| Arc::new(TokenStore::new(path)));
        if self.require_auth && tokens.is_none() && self.tls_client_ca.is_none() {
            let text = "--require-auth: nothing says who may call; give --tokens FILE (`skytether token create NAME --tokens FILE`), or --tls-client-ca FILE";
            return Err(Failure::Call(Error::invalid(text)));
        }
        if let Some(tokens) = &tokens {
            // A damaged file is better found now than at the first call.
            tokens.list()?;
        }
        let tls = match (&self.tls_cert, &self.tls_key) {
            (Some(cert), Some(key)) => {
                let client_cert_optional = self.require_auth && tokens.is_some();
                let files = TlsFiles { cert: cert.clone(), key: key.clone(), client_ca: self.tls_client_ca.clone(), client_cert_optional };
                Some(Arc::new(ServerTls::load(files)?))
            }
            _ => None,
        };
        let auth = Arc::new(Gate { tokens: tokens.clone(), required: self.require_auth });
        let context = ServeContext { tls, auth, insecure: self.insecure, ..ServeContext::default() };
        let default = [Endpoint::new(if context.tls.is_some() { TLS_SCHEME } else { DEFAULT_SCHEME }, "127.0.0.1:0")];
        let mut listeners = Vec::new();
        for at in if self.listen.is_empty() { &default[..] } else { &self.listen } {
            let security = doors.get(at).map_err(Failure::Call)?;
            let bound = Listener::bind(at, *security, &context).await;
            listeners.push(bound.map_err(|e| if e.kind() == skytether_common::Kind::Invalid { Failure::Call(e) } else { Failure::Work(e) })?);
        }
        Ok(Bound { listeners, context, tokens })
    }

    /// What this server shows to those that it calls itself: its own certificate, unless `credentials` have one.
    pub(crate) fn own_credentials(&self, credentials: Credentials) -> Credentials {
        let own = self.tls_cert.clone().zip(self.tls_key.clone());
        Credentials { identity: credentials.identity.or(own), ..credentials }
    }
}

impl Bound {
    /// Prints where `who` can be reached, and serves each port with `serve` until an interrupt. The first port that
    /// fails ends all.
    pub(crate) async fn serve(self, who: &str, mut serve: impl FnMut(Listener, ServeContext) -> Result<BoxFuture<'static, Result<()>>>) -> Result<(), Failure> {
        let stop = interrupts();
        let Self { listeners, context, .. } = self;
        let mut serving = Vec::new();
        for listener in listeners {
            // Scripts take the last word.
            print_line(&format!("{who} ({}) at {}", context.security_text(listener.security() == Security::Tls), listener.url()))?;
            serving.push(serve(listener, context.clone())?);
        }
        let stopping = async {
            stop.await;
            context.shutdown.cancel();
            std::future::pending::<()>().await;
        };
        tokio::select! {
            ended = try_join_all(serving) => ended.map(drop)?,
            () = stopping => {}
        }
        eprintln!("stopped");
        Ok(())
    }
}

/// Ready after Ctrl-C or, on Unix, SIGTERM.
pub(crate) fn interrupts() -> impl Future<Output = ()> + Send {
    #[cfg(unix)]
    {
        use tokio::signal::unix::{SignalKind, signal};
        // Registered now, and not when the future is first polled.
        let (int, term) = (signal(SignalKind::interrupt()), signal(SignalKind::terminate()));
        async move {
            match (int, term) {
                (Ok(mut int), Ok(mut term)) => {
                    tokio::select! {
                        _ = int.recv() => {}
                        _ = term.recv() => {}
                    }
                }
                _ => drop(tokio::signal::ctrl_c().await),
            }
        }
    }
    #[cfg(not(unix))]
    async {
        let _ = tokio::signal::ctrl_c().await;
    }
}
