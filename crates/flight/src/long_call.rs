//! Long work that a client asks of a host: it reports progress, and ends when the client leaves.
//!
//! Each answer of such an action is JSON: `{"progress": {...}}` now and then, and last `{"done": ...}`, the report.

use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use skytether_common::Result;
use skytether_flight_drive::frames;
use skytether_flight_drive::status::to_status;
use tokio::sync::mpsc;
use tonic::Status;

use skytether_api::scrub_report::Progress;

/// Messages that wait for a slow client. Progress reports are dropped where there is no room.
const BACKLOG: usize = 16;

/// One message of an answer.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Said<R> {
    /// How far it is.
    Progress(Progress),
    /// It is done.
    Done(R),
}

/// Takes progress reports.
pub(crate) type Teller = Arc<dyn Fn(&Progress) + Send + Sync>;

type Answer = std::result::Result<arrow_flight::Result, Status>;

fn message<R: Serialize>(said: &Said<R>) -> Answer {
    let body: Result<Bytes> = frames::encode_json(said);
    body.map(|body| arrow_flight::Result { body }).map_err(|e| to_status(&e))
}

/// Begins some work; its messages.
pub(crate) fn begin<R, F>(work: impl FnOnce(Teller) -> F) -> mpsc::Receiver<Answer>
where
    R: Serialize + Send + 'static,
    F: Future<Output = Result<R>> + Send + 'static,
{
    let (send, receive) = mpsc::channel(BACKLOG);
    let telling = send.clone();
    let work = work(Arc::new(move |progress: &Progress| {
        // A report without room is dropped: it is soon out of date.
        let _ = telling.try_send(message::<()>(&Said::Progress(progress.clone())));
    }));
    tokio::spawn(async move {
        tokio::select! {
            done = work => {
                // It fails where the client has left.
                let _ = send.send(done.map_err(|e| to_status(&e)).and_then(|done| message(&Said::Done(done)))).await;
            }
            () = send.closed() => {}
        }
    });
    receive
}
