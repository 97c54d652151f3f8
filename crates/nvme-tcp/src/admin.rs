//! Commands of the admin queue, and fabrics commands of all queues.

use std::sync::atomic::Ordering;

use bytes::Bytes;

use crate::command::{Command, Status, admin, fabrics};
use crate::controller::{Controller, Subsystem, property};
use crate::identify::{self, ControllerInfo, TRANSFER};
use crate::logs::{self, Wanted, page};

/// What a command that succeeded gives: 64 bits in the completion, and data.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Done {
    pub(crate) result: u64,
    pub(crate) data: Bytes,
}

impl Done {
    pub(crate) fn result(result: u64) -> Self {
        Self { result, data: Bytes::new() }
    }

    pub(crate) fn data(data: Bytes) -> Self {
        Self { result: 0, data }
    }
}

/// Settings, by their number.
mod feature {
    pub(super) const ARBITRATION: u8 = 0x01;
    pub(super) const POWER: u8 = 0x02;
    pub(super) const TEMPERATURE: u8 = 0x04;
    pub(super) const ERROR_RECOVERY: u8 = 0x05;
    pub(super) const VOLATILE_CACHE: u8 = 0x06;
    pub(super) const QUEUES: u8 = 0x07;
    pub(super) const ATOMICITY: u8 = 0x0A;
    pub(super) const EVENTS: u8 = 0x0B;
    pub(super) const KEEP_ALIVE: u8 = 0x0F;
    pub(super) const HOST_ID: u8 = 0x81;
}

/// Fabrics commands after Connect. Disconnect is the connection's own affair.
pub(crate) async fn fabrics(subsystem: &Subsystem, controller: &Controller, queue: u16, command: &Command) -> Result<Done, Status> {
    let (is_wide, at, value) = command.property();
    match command.fabrics_type() {
        fabrics::PROPERTY_GET if queue == 0 => {
            let value = controller.property(subsystem, at).ok_or(Status::INVALID_FIELD)?;
            // CAP alone has 64 bits.
            if is_wide == (at == property::CAPABILITIES) { Ok(Done::result(value)) } else { Err(Status::INVALID_FIELD) }
        }
        fabrics::PROPERTY_SET if queue == 0 => {
            if is_wide || at != property::CONFIGURATION {
                return Err(Status::INVALID_FIELD);
            }
            if controller.configure(value as u32)? {
                if !controller.is_discovery {
                    subsystem.flush().await?;
                }
                controller.shut_down();
            }
            Ok(Done::default())
        }
        fabrics::CONNECT => Err(Status::SEQUENCE),
        _ => Err(Status::INVALID_OPCODE),
    }
}

/// Commands of the admin queue, but for those that wait.
pub(crate) async fn admin(subsystem: &Subsystem, controller: &Controller, command: &Command) -> Result<Done, Status> {
    if command.opcode() == admin::KEEP_ALIVE {
        return Ok(Done::default());
    }
    if !controller.is_ready() {
        return Err(Status::SEQUENCE);
    }
    match command.opcode() {
        admin::IDENTIFY => identify(subsystem, controller, command),
        admin::GET_LOG_PAGE => log_page(subsystem, controller, command),
        admin::GET_FEATURES => get_feature(controller, command),
        admin::SET_FEATURES => set_feature(subsystem, controller, command).await,
        admin::ABORT => Ok(abort(controller, command)),
        _ => Err(Status::INVALID_OPCODE),
    }
}

fn identify(subsystem: &Subsystem, controller: &Controller, command: &Command) -> Result<Done, Status> {
    let (what, set) = (command.word(10) as u8, command.word(11) >> 24);
    let namespace = command.namespace();
    let data = match what {
        0x01 => {
            let info = ControllerInfo {
                id: controller.id,
                is_discovery: controller.is_discovery,
                subsystem: if controller.is_discovery { crate::options::DISCOVERY_NQN } else { &subsystem.nqn },
                serial: subsystem.serial,
                namespaces: subsystem.highest(),
                entries: subsystem.options.entries,
                capacity: subsystem.volumes.iter().map(|namespace| u128::from(namespace.device.info().size)).sum(),
                has_exec: subsystem.exec.is_some(),
            };
            identify::controller(&info)
        }
        _ if controller.is_discovery => return Err(Status::INVALID_FIELD),
        0x00 => match subsystem.device(namespace) {
            Ok(device) => identify::namespace(&device.info()),
            // Of inactive ones all is zero.
            Err(Status::INVALID_FIELD) => identify::inactive(),
            Err(status) => return Err(status),
        },
        0x02 if namespace >= 0xffff_fffe => return Err(Status::INVALID_NAMESPACE),
        0x02 => identify::active(subsystem.volumes.iter().map(|namespace| namespace.number), namespace),
        0x03 => identify::descriptors(&subsystem.device(namespace)?.info().id),
        0x06 if set == 0 => identify::command_set(),
        _ => return Err(Status::INVALID_FIELD),
    };
    Ok(Done::data(data))
}

fn log_page(subsystem: &Subsystem, controller: &Controller, command: &Command) -> Result<Done, Status> {
    let wanted = Wanted::of(command);
    let page = match (wanted.page, controller.is_discovery) {
        (page::DISCOVERY, true) => logs::discovery(&subsystem.nqn, &subsystem.address.0, &subsystem.address.1),
        (page::ERRORS, _) => logs::errors(controller.state.lock().failures.iter()),
        (page::EFFECTS, is_discovery) => logs::effects(is_discovery, subsystem.exec.is_some()),
        (page::HEALTH, false) => subsystem.counters.page(),
        (page::FIRMWARE, false) => logs::firmware(),
        // Volumes do not change while the door is open.
        (page::CHANGED, false) => Bytes::from(vec![0; 4096]),
        (page::EXEC, false) => subsystem.exec.as_ref().ok_or(Status::INVALID_LOG_PAGE)?.capabilities(),
        _ => return Err(Status::INVALID_LOG_PAGE),
    };
    wanted.cut(&page, TRANSFER).map(Done::data)
}

fn get_feature(controller: &Controller, command: &Command) -> Result<Done, Status> {
    let (number, select) = (command.word(10) as u8, command.word(10) >> 8 & 7);
    // Only current values: defaults and saved ones are not kept.
    if select != 0 {
        return Err(Status::INVALID_FIELD);
    }
    if controller.is_discovery && !matches!(number, feature::EVENTS | feature::KEEP_ALIVE) {
        return Err(Status::INVALID_FIELD);
    }
    let state = controller.state.lock();
    let value = match number {
        feature::VOLATILE_CACHE => u32::from(controller.caches.load(Ordering::Relaxed)),
        feature::QUEUES => {
            let queues = u32::from(state.granted.saturating_sub(1));
            queues | queues << 16
        }
        feature::KEEP_ALIVE => state.keep_alive.map_or(0, |time| u32::try_from(time.as_millis()).unwrap_or(u32::MAX)),
        feature::HOST_ID => {
            // Only in its form of 128 bits, which fabrics demand.
            return if command.word(11) & 1 == 1 { Ok(Done::data(controller.host_id().to_vec().into())) } else { Err(Status::INVALID_FIELD) };
        }
        feature::ARBITRATION | feature::POWER | feature::TEMPERATURE | feature::ERROR_RECOVERY | feature::ATOMICITY | feature::EVENTS => {
            state.features.get(&number).copied().unwrap_or(0)
        }
        _ => return Err(Status::INVALID_FIELD),
    };
    Ok(Done::result(value.into()))
}

async fn set_feature(subsystem: &Subsystem, controller: &Controller, command: &Command) -> Result<Done, Status> {
    let (number, value) = (command.word(10) as u8, command.word(11));
    // Nothing is saved.
    if command.word(10) & 1 << 31 != 0 {
        return Err(Status::INVALID_FIELD);
    }
    if controller.is_discovery && !matches!(number, feature::EVENTS | feature::KEEP_ALIVE) {
        return Err(Status::INVALID_FIELD);
    }
    match number {
        feature::VOLATILE_CACHE => return subsystem.set_cache(controller, value & 1 != 0).await.map(|()| Done::default()),
        feature::QUEUES => {
            let (submission, completion) = (value & 0xffff, value >> 16);
            if submission == 0xffff || completion == 0xffff {
                return Err(Status::INVALID_FIELD);
            }
            let mut state = controller.state.lock();
            if state.queues.keys().any(|number| *number > 0) {
                return Err(Status::SEQUENCE);
            }
            // A queue of a fabric has both directions. Both numbers are below 65,535.
            state.granted = (submission.max(completion) as u16 + 1).min(subsystem.options.queues);
            let granted = u64::from(state.granted - 1);
            return Ok(Done::result(granted | granted << 16));
        }
        feature::KEEP_ALIVE => controller.set_keep_alive(value),
        feature::POWER if value & 0x1f != 0 => return Err(Status::INVALID_FIELD),
        feature::HOST_ID => return Err(Status::SEQUENCE),
        feature::ARBITRATION | feature::POWER | feature::TEMPERATURE | feature::ERROR_RECOVERY | feature::ATOMICITY | feature::EVENTS => {
            controller.state.lock().features.insert(number, value);
        }
        _ => return Err(Status::INVALID_FIELD),
    }
    Ok(Done::default())
}

/// Ends a computation. Other commands end by themselves, soon.
fn abort(controller: &Controller, command: &Command) -> Done {
    let (queue, id) = (command.word(10) as u16, (command.word(10) >> 16) as u16);
    let queue = controller.state.lock().queues.get(&queue).cloned();
    let ended = queue.and_then(|queue| queue.commands.lock().get(&id).cloned().flatten()).map(|token| token.cancel());
    // Bit 0 says that the command was not aborted.
    Done::result(u64::from(ended.is_none()))
}
