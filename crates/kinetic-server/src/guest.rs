//! Who a program is on its connection to the drive that runs it.
//!
//! It is an identity that exists for one run, with the scopes of the program's caller at the time of the request.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use skytether_kinetic_protocol::security::Acl;
use skytether_kinetic_protocol::{MessageType, Permission, Refusal, StatusCode};

use crate::chain::Chain;
use crate::settings::Settings;
use crate::shared::Shared;

/// What a program may do if its caller may. Without MANAGE_APPLET it starts no programs.
const PERMISSIONS: &[Permission] = &[Permission::Read, Permission::Write, Permission::Delete, Permission::Range, Permission::GetLog];

/// The length of a run's key, in bytes before they are written as hexadecimal digits.
const KEY: usize = 20;

/// A program on its connection.
#[derive(Debug)]
pub(crate) struct Guest {
    /// The one identity of the connection.
    pub(crate) settings: Arc<Settings>,
    /// How many erasures there were when the run was asked for.
    erasures: u64,
    /// Set when the program is to end.
    aborted: Arc<AtomicBool>,
    /// The watches whose runs led to this one.
    pub(crate) chain: Chain,
}

/// What the program must know: the number of its identity, and the key with which it signs.
pub(crate) struct Proof {
    pub(crate) identity: i64,
    pub(crate) key: String,
}

impl Guest {
    /// A new identity with the rights of `caller`, as far as programs may have them.
    ///
    /// # Errors
    /// `InternalError` where the system gives no random numbers.
    pub(crate) fn new(caller: Option<&Acl>, chain: Chain, erasures: u64, aborted: Arc<AtomicBool>) -> Result<(Self, Proof), Refusal> {
        let mut random = [0; 8 + KEY];
        getrandom::fill(&mut random).map_err(|e| Refusal::new(StatusCode::InternalError, format!("no random key for the program: {e}")))?;
        let (number, key) = random.split_at(8);
        let number = number.iter().fold(0, |number: i64, byte| number << 8 | i64::from(*byte));
        let proof = Proof { identity: number & i64::MAX, key: key.iter().map(|byte| format!("{byte:02x}")).collect() };
        let mut acl = caller.cloned().unwrap_or_default();
        (acl.identity, acl.key) = (Some(proof.identity), Some(Bytes::copy_from_slice(proof.key.as_bytes())));
        for scope in &mut acl.scope {
            scope.permission.retain(|number| PERMISSIONS.iter().any(|permission| i32::from(*permission) == *number));
        }
        Ok((Self { settings: Arc::new(Settings::of_one(acl)), erasures, aborted, chain }, proof))
    }

    /// Checks that the run goes on. If not, its connection ends.
    pub(crate) fn check_runs(&self, shared: &Shared) -> Result<(), Refusal> {
        if self.aborted.load(Ordering::Relaxed) || shared.erasures() != self.erasures {
            return Err(Refusal::new(StatusCode::ConnectionTerminated, "the program was aborted"));
        }
        Ok(())
    }

    /// Checks that programs may send such requests.
    pub(crate) fn check_kind(&self, kind: MessageType) -> Result<(), Refusal> {
        match kind {
            MessageType::Get
            | MessageType::GetNext
            | MessageType::GetPrevious
            | MessageType::GetVersion
            | MessageType::GetKeyRange
            | MessageType::Put
            | MessageType::Delete
            | MessageType::FlushAllData
            | MessageType::StartBatch
            | MessageType::EndBatch
            | MessageType::AbortBatch
            | MessageType::GetLog
            | MessageType::Noop => Ok(()),
            other => Err(Refusal::new(StatusCode::NotAuthorized, format!("a program inside the drive may not send {other}"))),
        }
    }
}
