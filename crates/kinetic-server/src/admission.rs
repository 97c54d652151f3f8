//! Who sent a request, and whether it may be answered at all.
//!
//! Order of the checks: proof of the sender, header, sequence, cluster version, lock. Permissions and limits follow
//! where the request is carried out, because they depend on what it is about.

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use skytether_kinetic_protocol::access::{Target, permits, permits_priority};
use skytether_kinetic_protocol::command::{Body, Command, Header};
use skytether_kinetic_protocol::kinds::{PinOpType, Priority};
use skytether_kinetic_protocol::message::{Authentication, Message};
use skytether_kinetic_protocol::response::{check_cluster_version, respond};
use skytether_kinetic_protocol::security::Acl;
use skytether_kinetic_protocol::{Frame, HmacKey, MessageType, Permission, Refusal, StatusCode};

use crate::chain::Chain;
use crate::guest::Guest;
use crate::settings::{DEFAULT_KEY, Pin, Settings};
use crate::shared::Shared;
use crate::watches::Owner;

/// A request whose sender is known.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) header: Header,
    pub(crate) body: Body,
    pub(crate) value: Bytes,
    /// The length of the message before the value, in bytes.
    pub(crate) message_bytes: usize,
    /// The length of a value that was too long and was dropped.
    pub(crate) dropped: Option<u32>,
    pub(crate) caller: Caller,
    pub(crate) received: Instant,
}

impl Request {
    pub(crate) fn kind(&self) -> MessageType {
        self.header.message_type()
    }

    /// How many bytes the value has, or had.
    pub(crate) fn value_bytes(&self) -> u64 {
        self.dropped.map_or(self.value.len() as u64, u64::from)
    }
}

/// Who sent a request.
#[derive(Debug, Clone)]
pub(crate) struct Caller {
    pub(crate) signer: Signer,
    settings: Arc<Settings>,
    pub(crate) tls: bool,
    /// The watches whose runs led to what the caller does.
    pub(crate) chain: Chain,
}

/// With what the answer is signed.
#[derive(Debug, Clone)]
pub(crate) enum Signer {
    /// The key of that identity.
    Identity(i64, HmacKey),
    /// Nothing: the request had a PIN.
    Pin(Pin),
    /// Nothing: the request named an identity that does not exist, or there is no request.
    Unknown,
}

impl Signer {
    /// The answer as a message.
    pub(crate) fn sign(&self, command: &Command) -> Message {
        match self {
            Signer::Identity(number, key) => Message::signed(*number, key, command),
            Signer::Pin(_) => Message::pin_response(command),
            // The drive has no key with which it could sign.
            Signer::Unknown => Message::unsolicited(command),
        }
    }
}

impl Caller {
    /// The identity that set a watch, with the rights that it has now, if it is still there.
    pub(crate) fn of_watch(settings: Arc<Settings>, owner: &Owner, chain: Chain) -> Option<Self> {
        let identity = settings.identity(owner.identity).filter(|_| owner.is_in(&settings))?;
        let signer = Signer::Identity(owner.identity, identity.key.clone());
        Some(Self { signer, settings, tls: owner.tls, chain })
    }

    /// The identity of the sender, if it has one.
    pub(crate) fn acl(&self) -> Option<&Acl> {
        match &self.signer {
            Signer::Identity(number, _) => self.settings.identity(*number).map(|identity| &identity.acl),
            Signer::Pin(_) | Signer::Unknown => None,
        }
    }

    /// Whether the caller may do this.
    pub(crate) fn may(&self, permission: Permission, target: Target<'_>) -> bool {
        self.acl().is_some_and(|acl| permits(acl, permission, target, self.tls))
    }

    /// Checks that the caller may do this.
    pub(crate) fn check(&self, permission: Permission, target: Target<'_>) -> Result<(), Refusal> {
        if self.may(permission, target) {
            return Ok(());
        }
        tracing::debug!(?target, tls = self.tls, "refused: no scope of the identity has the permission {permission}");
        // The Java client's suite compares this text.
        Err(Refusal::new(StatusCode::NotAuthorized, "permission denied"))
    }

    fn check_priority(&self, header: &Header) -> Result<(), Refusal> {
        match self.acl() {
            Some(acl) if !permits_priority(acl, Priority::of(header.priority)) => {
                Err(Refusal::new(StatusCode::NotAuthorized, "the priority is above the highest of this identity"))
            }
            _ => Ok(()),
        }
    }
}

/// A put or a delete of a batch.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Member {
    pub(crate) batch: u32,
    pub(crate) sequence: u64,
}

impl Member {
    /// The member that a request is, if it is one.
    pub(crate) fn of(header: &Header) -> Option<Self> {
        let writes = matches!(header.message_type(), MessageType::Put | MessageType::Delete);
        header.batch_id.filter(|_| writes).map(|batch| Self { batch, sequence: header.sequence() })
    }
}

/// A request that is not carried out.
#[derive(Debug)]
pub(crate) enum Turned {
    /// It is answered so; or, if it is a member of a batch, it fails the batch, as members have no answers.
    Away(Box<(Command, Signer, Option<Member>)>),
    /// The connection ends.
    Out(Refusal),
}

impl From<Refusal> for Turned {
    fn from(refusal: Refusal) -> Self {
        Turned::Out(refusal)
    }
}

/// What a connection knows for admitting requests.
#[derive(Debug)]
pub(crate) struct Gate {
    pub(crate) connection: i64,
    pub(crate) tls: bool,
    /// Where the other end is a program inside the drive.
    guest: Option<Guest>,
    last_sequence: Option<u64>,
}

impl Gate {
    pub(crate) fn new(connection: i64, tls: bool) -> Self {
        Self { connection, tls, guest: None, last_sequence: None }
    }

    /// For a program inside the drive. It has the rights of its caller over a connection such as the caller's.
    pub(crate) fn of_guest(connection: i64, tls: bool, guest: Guest) -> Self {
        Self { connection, tls, guest: Some(guest), last_sequence: None }
    }

    /// Whether the other end is a program inside the drive.
    pub(crate) fn is_of_guest(&self) -> bool {
        self.guest.is_some()
    }

    /// Checks that the program at the other end, if there is one, goes on.
    pub(crate) fn check_runs(&self, shared: &Shared) -> Result<(), Refusal> {
        self.guest.as_ref().map_or(Ok(()), |guest| guest.check_runs(shared))
    }

    /// Whether a request had a proof.
    pub(crate) fn has_admitted(&self) -> bool {
        self.last_sequence.is_some()
    }

    /// The request in `frame`.
    pub(crate) fn admit(&mut self, shared: &Shared, frame: Frame) -> Result<Request, Turned> {
        let received = Instant::now();
        let message_bytes = frame.message.len();
        let message = Message::parse(frame.message)?;
        let cluster_version = shared.settings().cluster_version;
        let settings = self.guest.as_ref().map_or_else(|| shared.settings(), |guest| Arc::clone(&guest.settings));
        let (signer, proven) = match message.authentication()? {
            Authentication::Identity(number) => match settings.identity(number) {
                Some(identity) => (Signer::Identity(number, identity.key.clone()), message.is_signed_by(&identity.key)),
                None => (Signer::Unknown, false),
            },
            Authentication::Pin(pin) => (Signer::Pin(Pin::new(pin)), true),
            Authentication::Unsolicited => return Err(Refusal::invalid("a client sends an unsolicited status; only drives do").into()),
        };
        let command = message.command()?;
        let Some(header) = command.header else { return Err(Refusal::new(StatusCode::HeaderRequired, "the command has no header").into()) };
        let member = Member::of(&header).filter(|_| proven);
        let away = |refusal: Refusal| Turned::Away(Box::new((respond(&header, refusal.status()), signer.clone(), member)));
        if !proven {
            return Err(away(Refusal::new(StatusCode::HmacFailure, "the HMAC is not that of the identity's key, or there is no such identity")));
        }
        let kind = header.message_type();
        self.check_runs(shared)?;
        if let Some(guest) = &self.guest {
            guest.check_kind(kind).map_err(away)?;
        }
        if matches!(signer, Signer::Pin(_)) != (kind == MessageType::PinOp) {
            return Err(away(Refusal::invalid(format!("{kind} and this kind of authentication do not fit: PIN operations, and no others, have a PIN"))));
        }
        let known_to_all = |number: i64| settings.identity(number).is_some_and(|identity| identity.acl.key() == DEFAULT_KEY);
        let sets_identities = kind == MessageType::Security
            && settings.is_as_made()
            && command.body.as_ref().and_then(|body| body.security.as_ref()).is_some_and(|security| !security.acl.is_empty());
        if shared.is_demanding() && !sets_identities && matches!(&signer, Signer::Identity(number, _) if known_to_all(*number)) {
            let text = "this drive demands authentication, and all know this identity's key: set identities with keys of your own over TLS first";
            return Err(away(Refusal::new(StatusCode::NotAuthorized, text)));
        }
        let sequence = header.sequence();
        if self.last_sequence.is_some_and(|last| sequence <= last) {
            return Err(away(Refusal::invalid(format!("the sequence {sequence} is not above the last one; sequences of a connection grow"))));
        }
        self.last_sequence = Some(sequence);
        if shared.options.enforce_connection_id && header.connection_id() != self.connection {
            return Err(away(Refusal::invalid(format!("the request has connection id {}, this connection {}", header.connection_id(), self.connection))));
        }
        check_cluster_version(&header, cluster_version).map_err(|answer| Turned::Away(Box::new((*answer, signer.clone(), member))))?;
        let body = command.body.unwrap_or_default();
        let unlocks = kind == MessageType::PinOp && body.pin_op.is_some_and(|op| matches!(op.pin_op_type(), PinOpType::Unlock | PinOpType::Lock));
        if shared.is_locked() && !unlocks {
            return Err(away(Refusal::new(StatusCode::DeviceLocked, "the drive is locked; unlock it with its PIN")));
        }
        let chain = self.guest.as_ref().map(|guest| guest.chain.clone()).unwrap_or_default();
        let caller = Caller { signer: signer.clone(), settings, tls: self.tls, chain };
        caller.check_priority(&header).map_err(away)?;
        if shared.is_asleep() && !matches!(kind, MessageType::SetPowerLevel | MessageType::Noop | MessageType::GetLog) {
            return Err(away(Refusal::new(StatusCode::Hibernate, "the drive hibernates; set its power level to OPERATIONAL")));
        }
        Ok(Request { header, body, value: frame.value, message_bytes, dropped: frame.dropped, caller, received })
    }
}
