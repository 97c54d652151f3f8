//! Identities, PINs, erasure, cluster version and power.

use std::sync::Arc;

use skytether_kinetic_protocol::access::{Target, check_identities};
use skytether_kinetic_protocol::kinds::{PinOpType, PowerLevel};
use skytether_kinetic_protocol::security::{Security, SecurityChange};
use skytether_kinetic_protocol::{Permission, Refusal, StatusCode};

use crate::admission::{Request, Signer};
use crate::options::Profile;
use crate::reply::{Answer, Reply};
use crate::settings::Pin;
use crate::shared::Shared;

/// An answer when `work` is done. It is a write, as what follows on the connection must find it done.
fn after(request: &Request, work: impl Future<Output = Result<(), Refusal>> + Send + 'static) -> Reply {
    let (done, header) = (Answer::of(request, Ok(())), request.header.clone());
    // A task of its own: a change that has begun is finished, whether or not its client stays.
    let work = tokio::spawn(work);
    Reply::Write(Box::pin(async move {
        match work.await {
            Ok(Ok(())) => done,
            Ok(Err(why)) => Answer::refused(&header, &why),
            Err(_) => Answer::refused(&header, &Refusal::new(StatusCode::InternalError, "the change was interrupted")),
        }
    }))
}

/// Sets the cluster version.
pub(crate) fn setup(shared: &Arc<Shared>, request: &Request) -> Result<Reply, Refusal> {
    request.caller.check(Permission::Setup, Target::Drive)?;
    let setup = request.body.setup.clone().unwrap_or_default();
    if setup.is_firmware() {
        let text = "this drive takes no firmware over Kinetic: install a newer version of Skytether and start it again";
        return Err(Refusal::invalid(text));
    }
    let Some(version) = setup.new_cluster_version else { return Err(Refusal::invalid("the request sets nothing: name a new cluster version")) };
    let shared = Arc::clone(shared);
    Ok(after(request, async move {
        let _changing = shared.changing.lock().await;
        let mut settings = shared.settings().as_ref().clone();
        settings.cluster_version = version;
        shared.change_settings(settings).await?;
        shared.note(&format!("the cluster version is {version}"));
        Ok(())
    }))
}

/// Sets identities or a PIN.
pub(crate) fn security(shared: &Arc<Shared>, request: &Request) -> Result<Reply, Refusal> {
    if !request.caller.tls {
        return Err(Refusal::invalid("SECURITY is answered over TLS only; use the port with TLS"));
    }
    request.caller.check(Permission::Security, Target::Drive)?;
    let asked = request.body.security.clone().unwrap_or_default();
    let change = asked.change()?;
    match change {
        // The Java client's suite sets a lock PIN of no bytes, which its client leaves out.
        SecurityChange::Nothing => {}
        SecurityChange::Identities => check_identities(&asked.acl, &shared.limits)?,
        SecurityChange::ErasePin => shared.limits.check_pin(asked.new_erase_pin())?,
        SecurityChange::LockPin => shared.limits.check_pin(asked.new_lock_pin())?,
    }
    let shared = Arc::clone(shared);
    Ok(after(request, async move {
        let _changing = shared.changing.lock().await;
        change_security(&shared, asked, change).await
    }))
}

async fn change_security(shared: &Shared, asked: Security, change: SecurityChange) -> Result<(), Refusal> {
    let mut settings = shared.settings().as_ref().clone();
    let what = match change {
        SecurityChange::Nothing => return Ok(()),
        SecurityChange::Identities => {
            // The simulator adds to the identities that are there, a real drive replaces them all.
            if shared.options.profile == Profile::Drive {
                settings.clear_identities();
            }
            shared.limits.check_identities(settings.identities_with(&asked.acl))?;
            settings.add(asked.acl);
            if shared.is_demanding() {
                settings.drop_known_keys();
                if settings.identities_with(&[]) == 0 {
                    return Err(Refusal::invalid("this drive demands authentication, and all know the key of each of these identities; choose others"));
                }
            }
            "identities changed"
        }
        SecurityChange::ErasePin => {
            check_old(shared, settings.erase_pin(), asked.old_erase_pin()).await?;
            settings.set_erase_pin(asked.new_erase_pin());
            "the erase PIN changed"
        }
        SecurityChange::LockPin => {
            check_old(shared, settings.lock_pin(), asked.old_lock_pin()).await?;
            settings.set_lock_pin(asked.new_lock_pin());
            "the lock PIN changed"
        }
    };
    shared.change_settings(settings).await?;
    shared.note(what);
    Ok(())
}

/// Checks the old PIN that a change of one names.
async fn check_old(shared: &Shared, now: &Pin, named: &[u8]) -> Result<(), Refusal> {
    if !now.is_set() || now.is_bytes(named) {
        return Ok(());
    }
    shared.punish().await;
    Err(Refusal::new(StatusCode::NotAuthorized, "the old PIN is another one"))
}

/// Locks, unlocks or erases the drive.
pub(crate) fn pin_operation(shared: &Arc<Shared>, request: &Request) -> Result<Reply, Refusal> {
    if !request.caller.tls {
        return Err(Refusal::invalid("PIN operations are answered over TLS only; use the port with TLS"));
    }
    let Signer::Pin(pin) = request.caller.signer.clone() else { return Err(Refusal::invalid("a PIN operation needs a PIN")) };
    let operation = request.body.pin_op.unwrap_or_default().pin_op_type();
    if operation == PinOpType::Invalid {
        return Err(Refusal::invalid("the PIN operation is none of UNLOCK, LOCK, ERASE and SECURE_ERASE"));
    }
    let shared = Arc::clone(shared);
    Ok(after(request, async move {
        // While a wrong PIN is being punished, no other is compared.
        let _changing = shared.changing.lock().await;
        let settings = shared.settings();
        let wrong = || Refusal::new(StatusCode::NotAuthorized, "the PIN is another one, or none is set");
        let known = |now: &Pin| now.is(&pin);
        match operation {
            PinOpType::Lock | PinOpType::Unlock => {
                if !settings.lock_pin().is_set() {
                    return Err(wrong());
                }
                if !known(settings.lock_pin()) {
                    shared.punish().await;
                    return Err(wrong());
                }
                shared.set_locked(operation == PinOpType::Lock);
                Ok(())
            }
            PinOpType::Erase | PinOpType::SecureErase => {
                if !settings.erase_pin().is_set() && shared.is_demanding() {
                    let text = "this drive demands authentication, and no erase PIN is set: set one first";
                    return Err(Refusal::new(StatusCode::NotAuthorized, text));
                }
                if settings.erase_pin().is_set() && !known(settings.erase_pin()) {
                    shared.punish().await;
                    return Err(wrong());
                }
                shared.erase(operation == PinOpType::SecureErase).await
            }
            PinOpType::Invalid => Err(wrong()),
        }
    }))
}

/// Sends the drive to sleep, or wakes it.
pub(crate) fn power(shared: &Arc<Shared>, request: &Request) -> Result<Reply, Refusal> {
    request.caller.check(Permission::PowerManagement, Target::Drive)?;
    match request.body.power.unwrap_or_default().level() {
        PowerLevel::Operational => shared.set_asleep(false),
        PowerLevel::Hibernate => shared.set_asleep(true),
        PowerLevel::Shutdown | PowerLevel::Fail | PowerLevel::Invalid => {
            return Err(Refusal::invalid("this drive has the power levels OPERATIONAL and HIBERNATE; stop its process to shut it down"));
        }
    }
    Ok(Reply::Now(Answer::of(request, Ok(()))))
}
