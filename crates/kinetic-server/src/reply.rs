//! What becomes of a request.

use bytes::Bytes;
use futures::future::BoxFuture;
use skytether_kinetic_protocol::command::{Command, Header};
use skytether_kinetic_protocol::response::respond;
use skytether_kinetic_protocol::status::Status;
use skytether_kinetic_protocol::{Refusal, StatusCode};

use crate::admission::Request;

/// An answer to a request.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) command: Command,
    pub(crate) value: Bytes,
}

impl Answer {
    /// Success or a refusal, without a body.
    pub(crate) fn of(request: &Request, outcome: Result<(), Refusal>) -> Self {
        let status = outcome.map_or_else(|refusal| refusal.status(), |()| Status::of(StatusCode::Success));
        Self { command: respond(&request.header, status), value: Bytes::new() }
    }

    /// A refusal.
    pub(crate) fn refused(header: &Header, why: &Refusal) -> Self {
        Self { command: respond(header, why.status()), value: Bytes::new() }
    }
}

/// What becomes of a request.
pub(crate) enum Reply {
    /// It is answered at once.
    Now(Answer),
    /// It is a write on its way to the store. Later reads of the connection wait for it.
    Write(BoxFuture<'static, Answer>),
    /// It takes a while, and later requests do not wait for it.
    Work(BoxFuture<'static, Answer>),
    /// It is answered at once; what follows is told without a request.
    Begun(Answer, BoxFuture<'static, Answer>),
    /// It has no answer.
    Silent,
    /// The connection ends.
    Close(Refusal),
}
