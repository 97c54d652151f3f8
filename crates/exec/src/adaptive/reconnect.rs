//! Calls to a drive that may be restarting: tried again for a few seconds before the drive counts as lost.

use std::time::Duration;

use backon::{ConstantBuilder, Retryable};
use skytether_common::{Kind, Result};
use tokio::time::Instant;

/// How long a lost drive has to come back, and the largest share of the silence limit that this may take.
const COMING_BACK: (Duration, f64) = (Duration::from_secs(8), 0.8);

/// Pause between two attempts to reach a lost drive.
const ASK_AGAIN: Duration = Duration::from_millis(200);

/// How long a scan with this silence limit waits for a lost drive.
pub(crate) fn patience(silence: Duration) -> Duration {
    COMING_BACK.0.min(silence.mul_f64(COMING_BACK.1))
}

/// Makes `call` until it does anything but fail with Unavailable, for `patience` from now on.
///
/// # Errors
/// Those of the last call.
pub(crate) async fn reconnecting<T, F: Future<Output = Result<T>>>(patience: Duration, call: impl FnMut() -> F) -> Result<T> {
    // The pause is constant, not random: a simulation must follow from its seed.
    let pauses = ConstantBuilder::new().with_delay(ASK_AGAIN).without_max_times();
    let until = Instant::now() + patience;
    call.retry(pauses).when(|e| e.kind() == Kind::Unavailable && Instant::now() < until).await
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use skytether_common::Error;

    use super::*;

    /// Calls of a drive that is gone `times` times; how the last one ended, and how many there were.
    async fn calls(patience: Duration, times: u32, why: fn() -> Error) -> (Result<()>, u32) {
        let calls = Cell::new(0);
        let call = || async {
            calls.set(calls.get() + 1);
            if calls.get() <= times { Err(why()) } else { Ok(()) }
        };
        (reconnecting(patience, call).await, calls.get())
    }

    #[tokio::test]
    async fn a_call_is_repeated_until_its_drive_is_back() {
        let (ended, calls) = calls(Duration::from_secs(60), 2, || Error::unavailable("gone")).await;
        assert!(ended.is_ok() && calls == 3, "{ended:?} {calls}");
    }

    #[tokio::test]
    async fn a_call_ends_with_its_patience_or_another_error() {
        let (ended, once) = calls(Duration::ZERO, u32::MAX, || Error::unavailable("gone")).await;
        assert_eq!((ended.unwrap_err().kind(), once), (Kind::Unavailable, 1));
        let (ended, once) = calls(Duration::from_secs(60), u32::MAX, || Error::corrupt("bad")).await;
        assert_eq!((ended.unwrap_err().kind(), once), (Kind::Corrupt, 1));
        assert_eq!(patience(Duration::from_secs(5)), Duration::from_secs(4));
        assert_eq!(patience(Duration::from_secs(60)), Duration::from_secs(8));
    }
}
