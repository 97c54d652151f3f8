//! A fleet in a cluster: its record, which names the drives and their pools, and the stores of its drives.

use std::ffi::CStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use skytether_common::{Error, Result};
use uuid::Uuid;

use crate::address::Address;
use crate::cluster::{Cluster, Pool};
use crate::lease::Lease;
use crate::operations::Write;
use crate::pools;
use crate::store::RadosStore;

/// The format of fleets that this version writes, and the newest that it reads.
pub const FORMAT: u32 = 1;

const OBJECT: &CStr = c"skytether-fleet";

/// The longest record that is read.
const MAX_RECORD: u64 = 4 << 20;

/// Which drives a fleet has, and where their values are: JSON in one object, written once, after all else of a new
/// fleet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Record {
    format: u32,
    drives: Vec<Member>,
    /// The pool of the values.
    data: String,
    /// Whether pools that keep one copy are taken.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    lossy: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Member {
    id: Uuid,
    name: String,
}

/// One drive of an open fleet.
#[derive(Debug)]
pub struct OpenDrive {
    /// Drawn when the fleet was made.
    pub id: Uuid,
    /// For people.
    pub name: String,
    /// What it stores on.
    pub store: Arc<RadosStore>,
}

/// Keeps other processes from the fleet, until it is dropped: after the stores.
#[derive(Debug)]
pub struct Guard {
    _lease: Lease,
}

/// The drives of an open fleet.
#[derive(Debug)]
pub struct OpenFleet {
    /// In the order of the record.
    pub drives: Vec<OpenDrive>,
    /// Where it is: the address without parameters.
    pub name: String,
    /// What Ceph keeps of each value, for people.
    pub kept: String,
    /// Whether this call made it.
    pub new: bool,
    /// See there.
    pub guard: Guard,
}

/// Opens the fleet at `at`, or makes one of `create` drives where there is none and that is given. It blocks.
///
/// # Errors
/// `NotFound` where there is no fleet, no pool or no librados; `Invalid` for pools that can't hold a fleet, which the
/// text names with the reason; `Conflict` while another process has the fleet; `Corrupt`, `Unsupported`; `Unavailable`
/// where the cluster does not answer within the address's timeout.
pub fn open(at: &Address, create: Option<usize>) -> Result<OpenFleet> {
    let cluster = Cluster::connect(at)?;
    let all = cluster.pools()?;
    pools::named(&all, &at.pool)?;
    let index = cluster.pool(&at.pool, &at.namespace)?;
    let there = read(&index, at)?;
    match (&there, create) {
        (None, None) => return Err(Error::not_found(format!("there is no fleet at {}: make one with `skytether init`", at.name()))),
        // Before the lock, which leaves an object in the pool.
        (None, Some(_)) => {
            pools::check_index(pools::named(&all, &at.pool)?, at.lossy)?;
            pools::check_data(pools::named(&all, at.data.as_ref().unwrap_or(&at.pool))?, at.lossy)?;
        }
        (Some(_), _) => {}
    }
    let owner = Uuid::new_v4();
    let lease = Lease::take(&index, &at.name(), owner)?;
    // Another process may have made it before the lock was taken.
    let (record, new) = match read(&index, at)? {
        Some(record) => (record, false),
        None => (found(&index, at, create.unwrap_or(1))?, true),
    };
    if let Some(data) = at.data.as_ref().filter(|data| **data != record.data) {
        return Err(Error::invalid(format!("the fleet at {} keeps its values in pool {}, not {data}: leave data= out of the address", at.name(), record.data)));
    }
    let lossy = at.lossy || record.lossy;
    let data = pools::named(&all, &record.data)?;
    pools::check_index(pools::named(&all, &at.pool)?, lossy)?;
    pools::check_data(data, lossy)?;
    let values = if record.data == at.pool { Arc::clone(&index) } else { cluster.pool(&record.data, &at.namespace)? };
    let mut drives = Vec::with_capacity(record.drives.len());
    for Member { id, name } in record.drives {
        let store = RadosStore::open(Arc::clone(&index), Arc::clone(&values), data.size, id, &name, owner)?;
        drives.push(OpenDrive { id, name, store: Arc::new(store) });
    }
    Ok(OpenFleet { drives, name: at.name(), kept: pools::described(data), new, guard: Guard { _lease: lease } })
}

/// The record of the fleet at `at`, if there is one.
fn read(index: &Pool, at: &Address) -> Result<Option<Record>> {
    #[derive(Deserialize)]
    struct Head {
        format: u32,
    }
    let Some(bytes) = index.read(OBJECT, std::slice::from_ref(&(0..MAX_RECORD)))?.and_then(|mut parts| parts.pop()) else { return Ok(None) };
    let damaged =
        |e| Error::corrupt(format!("the record of the fleet at {} (object {}) is damaged: restore it", at.name(), OBJECT.to_string_lossy())).with_source(e);
    let head: Head = serde_json::from_slice(&bytes).map_err(damaged)?;
    if head.format > FORMAT {
        return Err(Error::unsupported(format!(
            "the fleet at {} was made by a newer version of Skytether (format {}, this version reads up to {FORMAT}): upgrade to open it",
            at.name(),
            head.format
        )));
    }
    serde_json::from_slice(&bytes).map(Some).map_err(damaged)
}

/// Makes a fleet: its drives first, and then the record, so that it exists with all of them or not at all.
fn found(index: &Arc<Pool>, at: &Address, drives: usize) -> Result<Record> {
    let drives: Vec<Member> = (0..drives).map(|n| Member { id: Uuid::new_v4(), name: format!("drive-{n}") }).collect();
    for drive in &drives {
        RadosStore::create(index, drive.id)?;
    }
    let record = Record { format: FORMAT, drives, data: at.data.clone().unwrap_or_else(|| at.pool.clone()), lossy: at.lossy };
    let bytes = serde_json::to_vec_pretty(&record).map_err(|e| Error::internal("cannot write the record of a fleet").with_source(e))?;
    match Write::new(index).create().bytes(&bytes).run(OBJECT) {
        code if code < 0 => Err(index.failed(code, "make", &OBJECT.to_string_lossy())),
        _ => Ok(record),
    }
}
