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

    #[tokio::test(start_paused = true)]
    async fn a_call_is_repeated_until_its_drive_is_back() {
        let (calls, began) = (Cell::new(0), Instant::now());
        let call = || async {
            calls.set(calls.get() + 1);
            if began.elapsed() < Duration::from_secs(3) { Err(Error::unavailable("gone")) } else { Ok(calls.get()) }
        };
        assert_eq!(reconnecting(Duration::from_secs(4), call).await.unwrap(), 16);
        assert_eq!(began.elapsed(), Duration::from_secs(3));
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_ends_with_its_patience_or_another_error() {
        let began = Instant::now();
        let error = reconnecting(Duration::from_secs(2), || async { Err::<(), _>(Error::unavailable("gone")) }).await.unwrap_err();
        assert_eq!((error.kind(), began.elapsed()), (Kind::Unavailable, Duration::from_secs(2)));
        let error = reconnecting(Duration::from_secs(2), || async { Err::<(), _>(Error::corrupt("bad")) }).await.unwrap_err();
        assert_eq!((error.kind(), began.elapsed()), (Kind::Corrupt, Duration::from_secs(2)));
        assert_eq!(patience(Duration::from_secs(5)), Duration::from_secs(4));
        assert_eq!(patience(Duration::from_secs(60)), Duration::from_secs(8));
    }
}
