//! Listening and shutting down, for `drive serve` and `host serve`.

use std::future::Future;

use skytether_common::{Error, Result};
use tokio::net::TcpListener;

use crate::context::Failure;

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

/// Binds `at`.
///
/// # Errors
/// `Unavailable` where another process has the port.
pub(crate) async fn listen(at: &str) -> Result<TcpListener> {
    TcpListener::bind(at).await.map_err(|e| {
        let hint = if e.kind() == std::io::ErrorKind::AddrInUse { " (another process does: choose another port)" } else { "" };
        Error::unavailable(format!("cannot listen on {at}{hint}")).because(e)
    })
}

/// The URL of a listener.
pub(crate) fn address(listener: &TcpListener) -> Result<String> {
    Ok(format!("grpc://{}", listener.local_addr().map_err(|e| Error::unavailable("cannot learn the address that was bound").because(e))?))
}

/// Awaits `serving`, then prints that it has stopped.
pub(crate) async fn serve_until_interrupted(serving: impl Future<Output = Result<()>>) -> Result<(), Failure> {
    serving.await?;
    eprintln!("stopped");
    Ok(())
}
