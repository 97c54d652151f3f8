//! Deadlines of requests to drives.

use std::time::Duration;

use skytether_common::{Error, Result};

/// Waits for `work` no longer than `deadline`.
///
/// # Errors
/// `Unavailable`, naming the drive and the request, when the time is up; else those of `work`.
pub async fn within<T>(deadline: Duration, drive: &str, what: &str, work: impl Future<Output = Result<T>>) -> Result<T> {
    tokio::time::timeout(deadline, work)
        .await
        .unwrap_or_else(|_| Err(Error::unavailable(format!("{drive} did not answer within {} s when asked to {what}", deadline.as_secs_f64()))))
}
