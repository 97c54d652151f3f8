//! Data sets and drives as tables for people and as JSON for programs.

use serde::Serialize;
use skytether::Calibration;
use skytether_common::lost::without_name;
use skytether_common::units::{counted, human_bytes};
use skytether_common::{Error, Result};
use skytether_device::CseInfo;
use skytether_drive::Device;
use skytether_host::{DatasetInfo, DriveStatus};

use crate::output::columns;

/// The data sets, a line each.
pub(crate) fn datasets(found: &[DatasetInfo]) -> String {
    if found.is_empty() {
        return "no data sets".into();
    }
    let redundant = found.iter().any(|d| !d.redundancy.is_empty());
    let rows: Vec<Vec<String>> = found
        .iter()
        .map(|d| {
            let size = d.cells.map_or_else(|| counted(d.rows, "row"), |cells| format!("{} x {}", counted(u64::from(cells), "cell"), counted(d.rows, "gene")));
            let table = |name: &String| d.partitioned_by.get(name).map_or_else(|| name.clone(), |by| format!("{name} by {}", by.join(", ")));
            let mut cells = match &d.error {
                None => vec![d.name.to_string(), size, human_bytes(d.bytes), d.tables.iter().map(table).collect::<Vec<_>>().join(", ")],
                Some(error) => vec![d.name.to_string(), "?".into(), "?".into(), error.clone()],
            };
            if redundant {
                cells.insert(3, if d.error.is_some() { "?".into() } else { kept(d) });
            }
            cells
        })
        .collect();
    let (mut header, mut right) = (vec!["data set", "size", "stored", "tables"], vec![false, true, true, false]);
    if redundant {
        header.insert(3, "redundancy");
        right.insert(3, false);
    }
    columns(&header, &right, &rows)
}

/// How a data set is kept from loss.
fn kept(d: &DatasetInfo) -> String {
    match d.redundancy.as_slice() {
        [] => "none".into(),
        some => some.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "),
    }
}

/// The drives, a line each.
pub(crate) fn drives(found: &[DriveStatus]) -> String {
    let like_devices = found.iter().any(|d| d.info.profile.is_some());
    let on_nodes = found.iter().any(|d| d.node.is_some());
    let rows: Vec<Vec<String>> = found
        .iter()
        .map(|d| {
            let (keys, values, stored) =
                d.usage.map_or_else(|| ("?".into(), "?".into(), "?".into()), |u| (u.keys.to_string(), human_bytes(u.value_bytes), human_bytes(u.stored_bytes)));
            let state = match (&d.found, &d.error) {
                (Some(_), _) => "wrong drive",
                (None, Some(_)) if d.blank => "blank",
                (None, Some(_)) => "lost",
                (None, None) => "up",
            };
            let there = d.found.as_ref().unwrap_or(&d.info);
            let mut cells = vec![d.info.name.clone(), state.into(), keys, values, stored, human_bytes(there.memory_limit), there.id.to_string()];
            if on_nodes {
                cells.insert(1, d.node.clone().unwrap_or_else(|| "-".into()));
            }
            if like_devices {
                cells.insert(2 + usize::from(on_nodes), device(there));
            }
            cells
        })
        .collect();
    let (mut header, mut right) = (vec!["drive", "state", "keys", "data", "on disk", "memory", "id"], vec![false, false, true, true, true, true, false]);
    if on_nodes {
        header.insert(1, "node");
        right.insert(1, false);
    }
    if like_devices {
        header.insert(2 + usize::from(on_nodes), "profile");
        right.insert(2, false);
    }
    let mut text = columns(&header, &right, &rows);
    for (drive, unreadable) in found.iter().flat_map(|d| d.unreadable.iter().map(|u| (&d.info.name, u))) {
        text.push_str(&format!("{} at {drive} can't be read: {}\n", unreadable.name, unreadable.error));
    }
    for drive in found.iter().filter(|d| d.damaged > 0) {
        text.push_str(&format!("{} has damaged values ({} were met since the host began): `skytether scrub` mends them\n", drive.info.name, drive.damaged));
    }
    text
}

/// The device that a drive is like, by the name that receipts call it by.
fn device(info: &CseInfo) -> String {
    let shipped = || Some(info.profile?.shipped_as().unwrap_or_else(|| Device::NAMELESS.into()));
    info.device.clone().or_else(shipped).unwrap_or_else(|| "-".into())
}

/// What is wrong with the drives and their host: a sentence for each drive that is lost, and before them one if
/// another host has the fleet.
pub(crate) fn trouble(found: &[DriveStatus]) -> Vec<String> {
    let fenced = found.iter().find_map(|d| d.fenced.as_ref());
    let fenced = fenced.map(|who| format!("{who}: the one that was asked changes nothing any more; ask that one, or stop it and start this one again"));
    let lost = found.iter().filter_map(|d| {
        let error = d.error.as_ref()?;
        // What answers in its place is named with it.
        Some(if d.found.is_some() { error.clone() } else { format!("{} is lost: {}", d.info.name, without_name(&d.info.name, error)) })
    });
    fenced.into_iter().chain(lost).collect()
}

/// What a device profile asks for and what a drive under it gets, a line each.
pub(crate) fn calibration(found: &Calibration) -> String {
    let rows: Vec<Vec<String>> = found
        .measured
        .iter()
        .map(|m| {
            let asked = m.asked.map_or_else(|| "-".into(), |asked| m.unit.show(asked));
            let ratio = m.ratio.map_or_else(|| "-".into(), |ratio| format!("{ratio:.3}"));
            vec![m.key.into(), asked, m.unit.show(m.got), ratio, if m.within { String::new() } else { "off".into() }]
        })
        .collect();
    let link = if found.served { "Flight on loopback" } else { "in process" };
    format!("profile {}, link: {link}\n{}", found.profile, columns(&["figure", "asked", "got", "ratio", ""], &[false, true, true, true, false], &rows))
}

/// One JSON array.
pub(crate) fn json<T: Serialize + ?Sized>(found: &T) -> Result<String> {
    serde_json::to_string_pretty(found).map_err(|e| Error::internal("cannot print as JSON").with_source(e))
}
