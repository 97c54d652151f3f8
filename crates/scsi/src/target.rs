//! A target: its logical units, and the nexuses of initiators with it.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use skytether_common::Error;

use crate::address;
use crate::command::InitiatorPort;
use crate::computed::Computed;
use crate::copied::Copied;
use crate::kept::Kept;
use crate::options::Options;
use crate::tasks::Tasks;
use crate::unit::{LogicalUnit, NexusId, Unit};

/// Copies that RECEIVE COPY RESULTS tells of.
const COPIES: usize = 16;

/// Logical units, and what all nexuses share: reservations, unit attentions, task sets.
pub struct Target {
    pub(crate) options: Options,
    /// By their numbers.
    pub(crate) units: Vec<Arc<LogicalUnit>>,
    nexuses: Mutex<HashMap<NexusId, Weak<Nexus>>>,
    next: AtomicU64,
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Target").field("name", &self.options.name).field("units", &self.units).finish_non_exhaustive()
    }
}

impl Target {
    /// A target of `units`. Of two with one number the first counts.
    #[must_use]
    pub fn new(mut units: Vec<Unit>, options: Options) -> Arc<Self> {
        units.sort_by_key(|unit| unit.lun);
        units.dedup_by_key(|unit| unit.lun);
        let units = units.into_iter().map(|unit| Arc::new(LogicalUnit::new(unit))).collect();
        Arc::new(Self { options, units, nexuses: Mutex::default(), next: AtomicU64::new(1) })
    }

    /// Takes over the persistent reservations that the devices of the units keep, before the first command: why units
    /// are not served, since theirs can't be read. Such a unit refuses its commands, and tries again with each.
    pub async fn restore(&self) -> Vec<Error> {
        let mut failed = Vec::new();
        for unit in &self.units {
            failed.extend(unit.settle().await.err());
        }
        failed
    }

    /// The numbers of the logical units, ascending.
    #[must_use]
    pub fn luns(&self) -> Vec<u8> {
        self.units.iter().map(|unit| unit.lun).collect()
    }

    /// A new nexus with an initiator port. Each of its logical units first reports a unit attention, POWER ON. It ends
    /// with [`Nexus::lost`] or when it is dropped.
    #[must_use]
    pub fn connect(self: &Arc<Self>, port: InitiatorPort) -> Arc<Nexus> {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        for unit in &self.units {
            unit.state.lock().joined(id);
        }
        let options = &self.options;
        let nexus = Arc::new(Nexus {
            id,
            // Names of iSCSI are in lower case, but for the digits of a session's identifier.
            port: InitiatorPort { name: port.name.to_ascii_lowercase(), ..port },
            target: self.clone(),
            tasks: Tasks::new(options.tasks),
            copies: Kept::new(COPIES, usize::MAX, |_| 0),
            computed: Kept::new(options.exec_results, options.exec_bytes, Computed::len),
        });
        self.nexuses.lock().insert(id, Arc::downgrade(&nexus));
        nexus
    }

    pub(crate) fn unit(&self, lun: u64) -> Option<&Arc<LogicalUnit>> {
        let number = address::number(lun)?;
        self.units.iter().find(|unit| u16::from(unit.lun) == number)
    }

    /// All nexuses that live.
    pub(crate) fn nexuses(&self) -> Vec<Arc<Nexus>> {
        self.nexuses.lock().values().filter_map(Weak::upgrade).collect()
    }
}

/// An initiator port's nexus with a target: an iSCSI session, for example.
pub struct Nexus {
    pub(crate) id: NexusId,
    pub(crate) port: InitiatorPort,
    pub(crate) target: Arc<Target>,
    pub(crate) tasks: Tasks,
    /// What RECEIVE COPY RESULTS tells.
    pub(crate) copies: Kept<Copied>,
    /// What EXEC IN fetches.
    pub(crate) computed: Kept<Computed>,
}

impl fmt::Debug for Nexus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Nexus").field("id", &self.id).field("port", &self.port).finish_non_exhaustive()
    }
}

impl Nexus {
    /// The nexus is lost: its commands end, and with them its reservation by RESERVE and results of EXEC. Persistent
    /// reservations stay.
    pub fn lost(&self) {
        self.tasks.abort(|_| true);
        self.copies.clear();
        self.computed.clear();
        for unit in &self.target.units {
            unit.state.lock().left(self.id);
        }
        self.target.nexuses.lock().remove(&self.id);
    }
}

impl Drop for Nexus {
    fn drop(&mut self) {
        self.lost();
    }
}
