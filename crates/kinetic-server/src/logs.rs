//! What the drive says of itself: `GETLOG`, and the configuration in its greeting.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use skytether_device::{CseInfo, ticket};
use skytether_kinetic::queries::ENGINE_LOG;
use skytether_kinetic_protocol::access::Target;
use skytether_kinetic_protocol::command::Body;
use skytether_kinetic_protocol::kinds::{LogType, PowerLevel};
use skytether_kinetic_protocol::log::{Capacity, Configuration, GetLog};
use skytether_kinetic_protocol::{Permission, Refusal, StatusCode};

use crate::admission::Request;
use crate::query_engine::QueryEngine;
use crate::reply::{Answer, Reply};
use crate::shared::{Shared, refusal};
use crate::usage::temperatures;

/// The version of the protocol that the drive speaks.
const PROTOCOL: &str = "4.0.1";

/// The named log with the drive's state as JSON.
const STATUS_LOG: &[u8] = b"skytether/status";

/// Answers with the logs that are asked for.
pub(crate) fn get_log(shared: &Arc<Shared>, request: &Request) -> Result<Reply, Refusal> {
    request.caller.check(Permission::GetLog, Target::Drive)?;
    let asked = request.body.get_log.clone().unwrap_or_default();
    if asked.types.is_empty() {
        return Err(Refusal::invalid("the request names no log: name one or more types"));
    }
    let types = asked.types().collect::<BTreeSet<_>>().into_iter().map(i32::from).collect();
    let mut log = GetLog { types, ..GetLog::default() };
    let mut value = Bytes::new();
    // Each once: a message may name one half a million times.
    for kind in asked.types().collect::<BTreeSet<_>>() {
        match kind {
            LogType::Utilizations => log.utilizations = shared.usage.utilizations(),
            LogType::Temperatures => log.temperatures = temperatures(Path::new("/sys/class/hwmon")),
            LogType::Capacities => log.capacity = Some(capacity(shared)?),
            LogType::Configuration => log.configuration = Some(configuration(shared)),
            LogType::Statistics => log.statistics = shared.counters.statistics(),
            LogType::Messages => log.messages = Some(shared.log_text().into()),
            LogType::Limits => log.limits = Some(shared.limits),
            LogType::Device => {
                let name = asked.device.as_ref().map(|device| device.name().to_vec()).unwrap_or_default();
                value = match (name.as_slice(), &shared.options.queries) {
                    (STATUS_LOG, _) => status_json(shared)?.into(),
                    (name, Some(queries)) if name == ENGINE_LOG.as_bytes() => engine_json(queries)?.into(),
                    _ => {
                        let (name, status) = (String::from_utf8_lossy(&name), String::from_utf8_lossy(STATUS_LOG));
                        let text = format!("there is no log {name:?}; this drive has {status:?}, and {ENGINE_LOG:?} where it has a query engine");
                        return Err(Refusal::new(StatusCode::NotFound, text));
                    }
                };
                log.device.clone_from(&asked.device);
            }
            LogType::Invalid => return Err(Refusal::invalid("the request names a type of log that this drive does not know")),
        }
    }
    let mut answer = Answer::of(request, Ok(()));
    answer.command.body = Some(Body { get_log: Some(log), ..Body::default() });
    answer.value = value;
    Ok(Reply::Now(answer))
}

/// Who the drive is and where it listens.
pub(crate) fn configuration(shared: &Shared) -> Configuration {
    let info = shared.drive.info();
    let port = |port: &std::sync::atomic::AtomicU16| Some(u32::from(port.load(Ordering::Relaxed))).filter(|port| *port != 0);
    let version = env!("CARGO_PKG_VERSION");
    let level = if shared.is_asleep() { PowerLevel::Hibernate } else { PowerLevel::Operational };
    Configuration {
        vendor: Some("Skytether".to_owned()),
        model: Some(info.name.clone()),
        serial_number: Some(info.id.to_string().into()),
        version: Some(version.to_owned()),
        interface: shared.interfaces(),
        port: port(&shared.port),
        tls_port: port(&shared.tls_port),
        // What is compiled is named by its version: two builds of one version are equal.
        compilation_date: Some(version.to_owned()),
        source_hash: Some(version.to_owned()),
        world_wide_name: Some(Bytes::copy_from_slice(info.id.as_bytes())),
        protocol_version: Some(PROTOCOL.to_owned()),
        protocol_compilation_date: Some(version.to_owned()),
        protocol_source_hash: Some(version.to_owned()),
        current_power_level: Some(level.into()),
    }
}

fn capacity(shared: &Shared) -> Result<Capacity, Refusal> {
    let usage = shared.keys.usage().map_err(|e| refusal(&e))?;
    let (size, full) = match shared.usage.disk() {
        Some((free, size)) if size > 0 => (size, 1.0 - free as f64 / size as f64),
        // A store in memory has no size of its own.
        _ => (usage.stored_bytes.max(usage.value_bytes), 0.0),
    };
    Ok(Capacity { nominal_capacity_in_bytes: Some(size), portion_full: Some(full as f32) })
}

fn engine_json(queries: &QueryEngine) -> Result<Vec<u8>, Refusal> {
    let engine = queries.engine();
    // What it can do, whatever is usual.
    let info = CseInfo { capabilities: engine.capabilities(), ..engine.info().clone() };
    ticket::json("what the query engine is", &info).map_err(|e| refusal(&e))
}

fn status_json(shared: &Shared) -> Result<String, Refusal> {
    let usage = shared.keys.usage().map_err(|e| refusal(&e))?;
    let (info, watches) = (shared.drive.info(), shared.watches.totals());
    let status = serde_json::json!({
        "id": info.id,
        "name": info.name,
        "keys": usage.keys,
        "value_bytes": usage.value_bytes,
        "stored_bytes": usage.stored_bytes,
        "connections": shared.counters.connections.now(),
        "waiting_writes": shared.counters.writes.now(),
        "open_batches": shared.open_batches.load(Ordering::Relaxed),
        "watches": watches.watches,
        "watch_runs": watches.runs,
        "watch_missed": watches.missed,
        "watch_untold": watches.untold,
        "uptime_s": shared.opened.elapsed().as_secs(),
    });
    Ok(status.to_string())
}
