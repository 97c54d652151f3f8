//! Media scans, which verify the values of a range, and the optimisation of the store.

use std::sync::{Arc, Weak};
use std::time::Instant;

use bytes::Bytes;
use skytether_common::Error;
use skytether_kinetic_protocol::access::Target;
use skytether_kinetic_protocol::command::{Body, Range};
use skytether_kinetic_protocol::kinds::Priority;
use skytether_kinetic_protocol::range::KeyRange;
use skytether_kinetic_protocol::{Permission, Refusal, StatusCode};

use crate::admission::{Caller, Request};
use crate::data::{ends, fit};
use crate::reply::{Answer, Reply};
use crate::shared::{Shared, deadline, refusal};

/// Damaged keys that one answer names.
const DAMAGED: usize = 1000;

/// How many keys are verified before other work gets its turn.
const STEP: usize = 256;

/// Verifies the values of a range. The answer names damaged keys, and the last key that was verified.
pub(crate) fn scan(shared: &Arc<Shared>, request: &Request) -> Result<Reply, Refusal> {
    let range = asked(request)?;
    let until = deadline(request.received, request.header.timeout());
    let (shared, header, early) = (Arc::clone(shared), request.header.clone(), request.header.early_exit());
    let caller = request.caller.clone();
    let mut answer = Answer::of(request, Ok(()));
    let waiting = shared.long_work.ask(Priority::of(header.priority));
    Ok(Reply::Work(Box::pin(async move {
        let Some(turn) = waiting.await else { return Answer::refused(&header, &interrupted()) };
        let of = Arc::clone(&shared);
        // Dropped with this future, when the client has gone.
        let waited = Arc::new(());
        let waits = Arc::downgrade(&waited);
        let scanned = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            verify(&of, &caller, &range, until, &waits)
        });
        let scanned = scanned.await;
        drop(waited);
        let (mut damaged, last, complete) = match scanned {
            Ok(Ok(scanned)) => scanned,
            Ok(Err(error)) => return Answer::refused(&header, &refusal(&error)),
            Err(_) => return Answer::refused(&header, &interrupted()),
        };
        if !damaged.is_empty() {
            shared.note(&format!("a media scan found {} damaged values", damaged.len()));
            let text = format!("{} values are damaged; write them again", damaged.len());
            answer = Answer::refused(&header, &Refusal::new(StatusCode::DataError, text));
        } else if !complete && !early {
            answer = Answer::refused(&header, &Refusal::new(StatusCode::Expired, "the scan did not end within its timeout; the answer names its last key"));
        }
        fit(&shared, &mut damaged);
        let end_key = (!complete).then_some(last).flatten();
        answer.command.body = Some(Body { range: Some(Range { keys: damaged, end_key, ..Range::default() }), ..Body::default() });
        answer
    })))
}

type Scanned = (Vec<Bytes>, Option<Bytes>, bool);

/// Verifies in steps, until the range, the time or the room for damaged keys ends, or the client has gone. Keys that
/// the caller may not see are verified and not named.
fn verify(shared: &Shared, caller: &Caller, range: &KeyRange, until: Option<Instant>, waits: &Weak<()>) -> Result<Scanned, Error> {
    let visible = |key: &Bytes| caller.may(Permission::Range, Target::Key(key));
    let (mut start, mut end) = ends(range);
    let mut left = usize::try_from(range.max_returned).unwrap_or(usize::MAX);
    let (mut damaged, mut last) = (Vec::new(), None);
    loop {
        let step = KeyRange { start: start.clone(), end: end.clone(), ..range.clone() };
        let Some((from, to)) = step.bounds() else { return Ok((damaged, last, true)) };
        let found = shared.keys.verify(from, to, range.reverse, left.min(STEP), until)?;
        damaged.extend(found.damaged.into_iter().filter(visible));
        last = found.last.clone().filter(visible).or(last);
        left = left.saturating_sub(usize::try_from(found.checked).unwrap_or(usize::MAX));
        if found.complete {
            return Ok((damaged, last, true));
        }
        let Some(reached) = found.last else { return Ok((damaged, last, false)) };
        if left == 0 || damaged.len() >= DAMAGED || waits.strong_count() == 0 || until.is_some_and(|until| until <= Instant::now()) {
            return Ok((damaged, last, false));
        }
        let beyond = std::ops::Bound::Excluded(reached);
        if range.reverse {
            end = beyond;
        } else {
            start = beyond;
        }
    }
}

/// Rewrites the store so that deleted and replaced values take no more space.
pub(crate) fn optimise(shared: &Arc<Shared>, request: &Request) -> Result<Reply, Refusal> {
    // The whole store is rewritten, whatever range is named.
    request.caller.check(Permission::Range, Target::Drive)?;
    let (shared, header, done) = (Arc::clone(shared), request.header.clone(), Answer::of(request, Ok(())));
    let waiting = shared.long_work.ask(Priority::of(header.priority));
    Ok(Reply::Work(Box::pin(async move {
        let Some(turn) = waiting.await else { return Answer::refused(&header, &interrupted()) };
        let keys = Arc::clone(&shared.keys);
        let compacting = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            keys.compact()
        });
        match compacting.await {
            Ok(Ok(())) => done,
            Ok(Err(error)) => Answer::refused(&header, &refusal(&error)),
            Err(_) => Answer::refused(&header, &interrupted()),
        }
    })))
}

/// The range of a scan: all keys where none is named.
fn asked(request: &Request) -> Result<KeyRange, Refusal> {
    let range = request.body.range.clone().unwrap_or_default();
    request.caller.check(Permission::Range, Target::Keys(range.start_key(), range.end_key()))?;
    Ok(KeyRange::unlimited(&range))
}

fn interrupted() -> Refusal {
    Refusal::new(StatusCode::InternalError, "the work was interrupted")
}
