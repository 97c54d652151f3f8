//! The operations of a connection on the drive itself: logs, setup, identities, PINs, power, media, copies.

use std::time::Duration;

use bytes::Bytes;
use skytether_kinetic_protocol::command::{Body, P2pOperation, PinOperation, PowerManagement, Setup};
use skytether_kinetic_protocol::kinds::{LogType, PinOpType, PowerLevel, SecurityOpType, SetupOpType};
use skytether_kinetic_protocol::log::{Device, GetLog};
use skytether_kinetic_protocol::security::{Acl, Security};
use skytether_kinetic_protocol::{MessageType, Refusal};

use crate::connection::{Connection, Queue, Request, Response};
use crate::failure::Outcome;
use crate::traffic::Proof;
use crate::values::Keys;

impl Connection {
    /// Logs of these types; with [`LogType::Device`], use [`Connection::get_device_log`].
    ///
    /// # Errors
    /// [`crate::Failure`].
    pub async fn get_log(&self, types: &[LogType]) -> Outcome<GetLog> {
        let wanted = GetLog { types: types.iter().map(|of| (*of).into()).collect(), ..GetLog::default() };
        let response = self.read(Request::new(MessageType::GetLog).body(Body { get_log: Some(wanted), ..Body::default() })).await?;
        response.body().get_log.ok_or_else(|| self.wrong("no log"))
    }

    /// The vendor's log of that name.
    ///
    /// # Errors
    /// `NOT_FOUND` where there is none; [`crate::Failure`].
    pub async fn get_device_log(&self, name: Bytes) -> Outcome<Bytes> {
        let wanted = GetLog { types: vec![LogType::Device.into()], device: Some(Device { name: Some(name) }), ..GetLog::default() };
        Ok(self.read(Request::new(MessageType::GetLog).body(Body { get_log: Some(wanted), ..Body::default() })).await?.value)
    }

    /// Sets the cluster version. Other connections, and this one, are refused with the former one from then on.
    ///
    /// # Errors
    /// [`crate::Failure`].
    pub async fn set_cluster_version(&self, version: i64) -> Outcome<()> {
        let setup = Setup { new_cluster_version: Some(version), setup_op_type: Some(SetupOpType::ClusterVersion.into()), ..Setup::default() };
        self.write(Request::new(MessageType::Setup).body(Body { setup: Some(setup), ..Body::default() })).await.map(drop)
    }

    /// Loads firmware.
    ///
    /// # Errors
    /// [`crate::Failure`].
    pub async fn load_firmware(&self, firmware: Bytes) -> Outcome<()> {
        let setup = Setup { firmware_download: Some(true), setup_op_type: Some(SetupOpType::Firmware.into()), ..Setup::default() };
        self.write(Request::new(MessageType::Setup).body(Body { setup: Some(setup), ..Body::default() }).value(firmware)).await.map(drop)
    }

    /// Sets identities. A drive may replace all others. Over TLS only.
    ///
    /// # Errors
    /// `INVALID_REQUEST` without TLS; [`crate::Failure`].
    pub async fn set_identities(&self, acl: Vec<Acl>) -> Outcome<()> {
        self.security(Security { acl, security_op_type: Some(SecurityOpType::Acl.into()), ..Security::default() }).await
    }

    /// Sets the PIN that permits to erase. Over TLS only.
    ///
    /// # Errors
    /// `NOT_AUTHORIZED` where `old` is not the PIN; [`crate::Failure`].
    pub async fn set_erase_pin(&self, old: Bytes, new: Bytes) -> Outcome<()> {
        let op = Some(SecurityOpType::ErasePin.into());
        self.security(Security { old_erase_pin: Some(old), new_erase_pin: Some(new), security_op_type: op, ..Security::default() }).await
    }

    /// Sets the PIN that permits to lock and unlock. Over TLS only.
    ///
    /// # Errors
    /// `NOT_AUTHORIZED` where `old` is not the PIN; [`crate::Failure`].
    pub async fn set_lock_pin(&self, old: Bytes, new: Bytes) -> Outcome<()> {
        let op = Some(SecurityOpType::LockPin.into());
        self.security(Security { old_lock_pin: Some(old), new_lock_pin: Some(new), security_op_type: op, ..Security::default() }).await
    }

    async fn security(&self, security: Security) -> Outcome<()> {
        self.write(Request::new(MessageType::Security).body(Body { security: Some(security), ..Body::default() })).await.map(drop)
    }

    /// Locks, unlocks or erases the drive, within `patience`. Over TLS only.
    ///
    /// # Errors
    /// `NOT_AUTHORIZED` where `pin` is not the PIN; [`crate::Failure`].
    pub async fn pin_operation(&self, of: PinOpType, pin: Bytes, patience: Duration) -> Outcome<()> {
        let body = Body { pin_op: Some(PinOperation { pin_op_type: Some(of.into()) }), ..Body::default() };
        self.call(Queue::Write, Request::new(MessageType::PinOp).body(body), Proof::Pin(pin), patience).await.map(drop)
    }

    /// Sets the power level.
    ///
    /// # Errors
    /// [`crate::Failure`].
    pub async fn set_power_level(&self, level: PowerLevel) -> Outcome<()> {
        let power = PowerManagement { level: Some(level.into()) };
        self.write(Request::new(MessageType::SetPowerLevel).body(Body { power: Some(power), ..Body::default() })).await.map(drop)
    }

    /// Copies values to another drive, within `patience`. The result has a status for each.
    ///
    /// # Errors
    /// `REMOTE_CONNECTION_ERROR` where the other drive does not answer; [`crate::Failure`].
    pub async fn push(&self, push: P2pOperation, patience: Duration) -> Outcome<P2pOperation> {
        let request = timed(Request::new(MessageType::PeerToPeerPush), patience).body(Body { p2p_operation: Some(push), ..Body::default() });
        let response = self.call(Queue::Write, request, Proof::Hmac, patience).await?;
        response.body().p2p_operation.ok_or_else(|| self.wrong("no status of the copies"))
    }

    /// Lets the drive verify the values of a range, within `patience`; the keys of damaged values.
    ///
    /// # Errors
    /// `DATA_ERROR` where the drive found damage and names no key; [`crate::Failure`].
    pub async fn media_scan(&self, range: Keys, patience: Duration) -> Outcome<Vec<Bytes>> {
        let response = self.media(MessageType::MediaScan, range, patience).await?;
        let damaged = response.body().range.unwrap_or_default().keys;
        match Refusal::check(response.command.status.as_ref()) {
            Err(refusal) if damaged.is_empty() => Err(refusal.into()),
            _ => Ok(damaged),
        }
    }

    /// Lets the drive reorder a range on its medium, within `patience`.
    ///
    /// # Errors
    /// [`crate::Failure`].
    pub async fn media_optimize(&self, range: Keys, patience: Duration) -> Outcome<()> {
        self.media(MessageType::MediaOptimize, range, patience).await.map(drop)
    }

    async fn media(&self, of: MessageType, range: Keys, patience: Duration) -> Outcome<Response> {
        self.call(Queue::Read, timed(Request::new(of), patience).body(range.body()), Proof::Hmac, patience).await
    }
}

/// The request, with the time after which the drive may give up.
pub(crate) fn timed(mut request: Request, patience: Duration) -> Request {
    request.header.timeout = u64::try_from(patience.as_millis()).ok();
    request
}
