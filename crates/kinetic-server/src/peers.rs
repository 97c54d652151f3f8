//! Pushes: the drive copies values of its keys to another drive.
//!
//! Each copy has a status of its own. The drive shows itself to the other one as the identity that asked.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use skytether_kinetic::values::Put;
use skytether_kinetic::{ClientOptions, Connection, Failure, Identity};
use skytether_kinetic_protocol::access::Target;
use skytether_kinetic_protocol::command::{Body, Operation, P2pOperation, Peer};
use skytether_kinetic_protocol::kinds::{Priority, Synchronization};
use skytether_kinetic_protocol::{Permission, Refusal, StatusCode};
use skytether_transport::Endpoint;

use crate::admission::{Request, Signer};
use crate::data::detached;
use crate::options::{SCHEME, TLS_SCHEME};
use crate::reply::{Answer, Reply};
use crate::shared::{Shared, deadline, refusal};

/// How long all copies of a request may take, at most: there are few turns for such work.
const PATIENCE: Duration = Duration::from_secs(60);

/// Copies of one request. They are made one after the other.
const COPIES: usize = 1000;

/// Copies values to another drive.
pub(crate) fn push(shared: &Arc<Shared>, request: &Request) -> Result<Reply, Refusal> {
    request.caller.check(Permission::PeerToPeer, Target::Drive)?;
    let asked = request.body.p2p_operation.as_ref().ok_or_else(|| Refusal::invalid("the request names no copies"))?;
    let peer = asked.peer.clone().ok_or_else(|| Refusal::invalid("the request names no other drive"))?;
    let copies = copies(asked);
    if copies > COPIES {
        return Err(Refusal::invalid(format!("the request has {copies} copies, the limit is {COPIES}; send several requests")));
    }
    for operation in &asked.operation {
        shared.limits.check_key(operation.key())?;
        request.caller.check(Permission::Read, Target::Key(operation.key()))?;
    }
    let Signer::Identity(number, key) = request.caller.signer.clone() else { return Err(Refusal::invalid("a push needs an identity")) };
    let latest = request.received + PATIENCE;
    let until = deadline(request.received, request.header.timeout()).map_or(latest, |asked| asked.min(latest));
    // Detached: the copies may wait for longer than the frame that they came in should stay.
    let operations: Vec<Operation> = asked.operation.iter().map(detached_operation).collect();
    let (shared, mut answer, header) = (Arc::clone(shared), Answer::of(request, Ok(())), request.header.clone());
    let waiting = shared.long_work.ask(Priority::of(header.priority));
    Ok(Reply::Work(Box::pin(async move {
        let waiting = tokio::time::timeout_at(until.into(), waiting).await;
        let Ok(Some(_turn)) = waiting else {
            return Answer::refused(&header, &Refusal::new(StatusCode::ServiceBusy, "the drive has too much other work; send the push again later"));
        };
        let options = ClientOptions { identity: Identity { number, key }, cluster_version: None, connect: shared.options.connect.clone() };
        let left = until.saturating_duration_since(Instant::now());
        let connecting = tokio::time::timeout(left, Connection::open(&endpoint(&peer), Arc::new(options))).await;
        let connection = match connecting {
            Ok(Ok(connection)) => connection,
            Ok(Err(failure)) => return Answer::refused(&header, &Refusal::new(StatusCode::RemoteConnectionError, failure.to_string())),
            Err(_) => return Answer::refused(&header, &Refusal::new(StatusCode::RemoteConnectionError, "the other drive does not answer in time")),
        };
        let mut done = Vec::with_capacity(operations.len());
        for operation in operations {
            done.push(copy(&shared, &connection, operation, until).await);
        }
        let whole = done.iter().all(|operation| operation.status.as_ref().is_some_and(|status| status.code() == StatusCode::Success));
        let nested = done.iter().filter_map(|operation| operation.p2pop.as_ref()).all(P2pOperation::all_child_operations_succeeded);
        let body = P2pOperation { peer: Some(peer), operation: done, all_child_operations_succeeded: Some(whole && nested) };
        answer.command.body = Some(Body { p2p_operation: Some(body), ..Body::default() });
        answer
    })))
}

/// The copies of a push and of all that it passes on. Messages are nested 64 deep at most.
fn copies(push: &P2pOperation) -> usize {
    push.operation.iter().map(|operation| 1 + operation.p2pop.as_ref().map_or(0, copies)).sum()
}

/// One copy, with its status.
async fn copy(shared: &Shared, to: &Connection, mut operation: Operation, until: Instant) -> Operation {
    let outcome = copied(shared, to, &mut operation, until).await;
    let status = match outcome {
        Ok(()) => skytether_kinetic_protocol::Status::of(StatusCode::Success),
        Err(why) => why.status(),
    };
    operation.status = Some(status);
    operation
}

async fn copied(shared: &Shared, to: &Connection, operation: &mut Operation, until: Instant) -> Result<(), Refusal> {
    let absent = || Refusal::new(StatusCode::NotFound, "there is no such key");
    let record = shared.keys.get(operation.key()).map_err(|e| refusal(&e))?.ok_or_else(absent)?;
    let put = Put {
        key: operation.new_key.clone().or_else(|| operation.key.clone()).unwrap_or_default(),
        value: record.value,
        expected: (!operation.force()).then(|| operation.version.clone().unwrap_or_default()),
        version: record.meta.version,
        tag: (record.meta.tag, record.meta.algorithm),
        synchronization: Synchronization::WriteThrough,
    };
    let late = || Refusal::new(StatusCode::Expired, "the push took longer than its timeout");
    let left = || until.saturating_duration_since(Instant::now());
    tokio::time::timeout(left(), to.put(put)).await.map_err(|_| late())?.map_err(|failure| told(&failure))?;
    if let Some(next) = operation.p2pop.take() {
        // The other drive copies on what it has now.
        let pushed = tokio::time::timeout(left(), to.push(next, left())).await.map_err(|_| late())?;
        operation.p2pop = Some(pushed.map_err(|failure| told(&failure))?);
    }
    Ok(())
}

fn told(failure: &Failure) -> Refusal {
    match failure {
        Failure::Refused(refusal) => refusal.clone(),
        lost @ Failure::Lost { .. } => Refusal::new(StatusCode::RemoteConnectionError, lost.to_string()),
    }
}

fn endpoint(peer: &Peer) -> Endpoint {
    let scheme = if peer.tls() { TLS_SCHEME } else { SCHEME };
    let host = peer.hostname();
    let host = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
    Endpoint::new(scheme, format!("{host}:{}", peer.port()))
}

fn detached_operation(operation: &Operation) -> Operation {
    let copy = |bytes: &Option<Bytes>| bytes.as_ref().map(detached);
    Operation {
        key: copy(&operation.key),
        version: copy(&operation.version),
        new_key: copy(&operation.new_key),
        force: operation.force,
        status: None,
        p2pop: operation.p2pop.as_ref().map(|next| P2pOperation { operation: next.operation.iter().map(detached_operation).collect(), ..next.clone() }),
    }
}
