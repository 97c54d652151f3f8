//! Panics of the Substrait library, as errors.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::task::Poll;

use skytether_common::{Error, Result};

/// Drives `future`; a panic within the library becomes an error. Earlier checks refuse everything that is known to make
/// it panic, so this catches only unknown cases.
pub(crate) async fn without_panic<T>(future: impl Future<Output = Result<T>>) -> Result<T> {
    let mut future = pin!(future);
    std::future::poll_fn(move |context| match catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(context))) {
        Ok(poll) => poll,
        Err(_) => Poll::Ready(Err(Error::invalid("the plan contradicts itself in a way that its reader could not name"))),
    })
    .await
}
