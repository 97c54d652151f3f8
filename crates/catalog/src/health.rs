//! Which of a host's drives are up, and on how many of them each root record lies.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};
use skytether_common::lost::phrase;
use skytether_common::units::counted;
use skytether_common::{Error, Key, Result};
use skytether_erasure::Scheme;
use tokio::sync::{Mutex as Turn, MutexGuard as InTurn, RwLock, RwLockReadGuard, RwLockWriteGuard};
use uuid::Uuid;

use crate::records::code_map::StripeLayout;
use crate::records::code_map::code;
use crate::records::failure_domains::FailureDomains;
use crate::records::home_slots::HomeSlots;
use crate::records::membership::BLANK;
use crate::records::membership::no_nodes;

/// What a host knows of its drives as they are now. All that look at the same drives share it.
#[derive(Debug)]
pub struct DriveHealth {
    /// The number of home drives of each root record.
    homes: AtomicUsize,
    /// Held while root records change, and while drives that are back get the changes.
    turn: Turn<()>,
    /// Held to write while the homes of root records change, and to read while a root record does.
    records: RwLock<()>,
    /// Generations of volumes' extents that this process writes, and that no record names yet.
    writing: Mutex<BTreeSet<u64>>,
    /// Those of them that a record may name or not, because the outcome of its change is unknown; by records.
    open: Mutex<BTreeMap<Key, BTreeSet<u64>>>,
    /// How many of these there were, and how many were closed.
    opened: AtomicU64,
    closed: AtomicU64,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// Whether the membership record was read, which the other fields follow from.
    known: bool,
    scheme: Scheme,
    /// Why each drive is not used, if it is not: it does not answer, or did not while something changed.
    lost: Vec<Option<String>>,
    /// How often a drive that was used was no longer.
    losses: u64,
    /// The lost drives that the membership record names as absent.
    noted: BTreeSet<Uuid>,
    /// When the host last checked whether lost drives are back.
    looked: Option<Instant>,
    /// Drives outside of the fleet: they have not joined yet, or have left.
    outside: BTreeSet<usize>,
    /// Drives that are being emptied: they take no new data.
    leaving: BTreeSet<usize>,
    /// The home slots, where homes don't follow from the list of drives alone.
    seats: Option<Arc<HomeSlots>>,
    /// The nodes that the drives are on, where the membership record says so.
    domains: Option<Arc<FailureDomains>>,
    /// How often each replaced drive was replaced.
    incarnations: BTreeMap<Uuid, u32>,
}

impl DriveHealth {
    /// `drives` drives, all of them up; nothing else is known yet.
    pub fn new(drives: usize) -> Self {
        Self {
            homes: AtomicUsize::new(1),
            turn: Turn::new(()),
            records: RwLock::new(()),
            writing: Mutex::default(),
            open: Mutex::default(),
            opened: AtomicU64::new(0),
            closed: AtomicU64::new(0),
            state: Mutex::new(State {
                known: false,
                scheme: Scheme::None,
                lost: vec![None; drives],
                losses: 0,
                noted: BTreeSet::new(),
                looked: None,
                outside: BTreeSet::new(),
                leaving: BTreeSet::new(),
                seats: None,
                domains: None,
                incarnations: BTreeMap::new(),
            }),
        }
    }

    /// There is one drive more, which is not of the fleet yet; its place.
    pub fn grow(&self) -> usize {
        let mut state = self.state();
        state.lost.push(None);
        let at = state.lost.len() - 1;
        state.outside.insert(at);
        at
    }

    /// Drive `at` is of the fleet from now on.
    pub fn enter(&self, at: usize) {
        self.state().outside.remove(&at);
    }

    /// Drive `at` has left the fleet.
    pub fn leave(&self, at: usize) {
        let mut state = self.state();
        state.leaving.remove(&at);
        state.outside.insert(at);
        if let Some(lost) = state.lost.get_mut(at) {
            *lost = None;
        }
    }

    /// Whether drive `at` is not of the fleet.
    pub fn is_outside(&self, at: usize) -> bool {
        self.state().outside.contains(&at)
    }

    /// Whether drive `at` is being emptied, from now on.
    pub fn set_leaving(&self, at: usize, leaving: bool) {
        let mut state = self.state();
        if leaving {
            state.leaving.insert(at)
        } else {
            state.leaving.remove(&at)
        };
    }

    /// Whether drive `at` is being emptied.
    pub fn is_leaving(&self, at: usize) -> bool {
        self.state().leaving.contains(&at)
    }

    /// The drives that take new data.
    pub fn writable(&self) -> Vec<usize> {
        let state = self.state();
        (0..state.lost.len()).filter(|at| state.lost[*at].is_none() && !state.outside.contains(at) && !state.leaving.contains(at)).collect()
    }

    /// The drives of the fleet, lost or not.
    pub fn members(&self) -> Vec<usize> {
        let state = self.state();
        (0..state.lost.len()).filter(|at| !state.outside.contains(at)).collect()
    }

    /// The drives that are not of the fleet.
    pub fn outside(&self) -> Vec<usize> {
        self.state().outside.iter().copied().collect()
    }

    /// The drives that are being emptied.
    pub fn leaving(&self) -> Vec<usize> {
        self.state().leaving.iter().copied().collect()
    }

    /// The home slots, if homes don't follow from the list of drives alone.
    pub(crate) fn home_slots(&self) -> Option<Arc<HomeSlots>> {
        self.state().seats.clone()
    }

    /// What the membership record says of that.
    pub fn set_home_slots(&self, seats: Option<HomeSlots>) {
        self.state().seats = seats.map(Arc::new);
    }

    /// The nodes that the drives are on, if known.
    pub fn failure_domains(&self) -> Option<Arc<FailureDomains>> {
        self.state().domains.clone()
    }

    /// What the membership record says of that.
    pub fn set_failure_domains(&self, domains: Option<FailureDomains>) {
        self.state().domains = domains.map(Arc::new);
    }

    /// How often each replaced drive was replaced.
    pub fn incarnations(&self) -> BTreeMap<Uuid, u32> {
        self.state().incarnations.clone()
    }

    /// What the membership record says of that.
    pub(crate) fn replaced(&self, incarnations: BTreeMap<Uuid, u32>) {
        self.state().incarnations = incarnations;
    }

    /// The drives for a table that is written over `drives` with `scheme`; `None` where it has no parities.
    ///
    /// # Errors
    /// Invalid where `scheme` needs more drives or nodes, or where nodes are unknown.
    pub fn layout(&self, scheme: Scheme, drives: &[usize]) -> Result<Option<StripeLayout>> {
        if let Scheme::Levels(outer, inner) = scheme {
            let domains = self.failure_domains().ok_or_else(|| no_nodes(scheme))?;
            let (drives, nodes) = domains.usable(outer, inner, drives)?;
            return Ok(Some(StripeLayout { scheme, drives, nodes }));
        }
        Ok(code(scheme, drives.len())?.map(|_| StripeLayout { scheme, drives: drives.to_vec(), nodes: Vec::new() }))
    }

    /// While a caller holds this, the homes of root records don't change.
    pub async fn record_write(&self) -> RwLockReadGuard<'_, ()> {
        self.records.read().await
    }

    /// While it is held, no root record changes.
    pub async fn freeze_records(&self) -> RwLockWriteGuard<'_, ()> {
        self.records.write().await
    }

    /// A generation of an extent of a volume is written from now on: its parts are no garbage.
    pub fn begin_generation(&self, generation: u64) {
        self.writing.lock().insert(generation);
    }

    /// It is written, and its record is committed, or it is given up.
    pub fn end_generation(&self, generation: u64) {
        self.writing.lock().remove(&generation);
    }

    /// It is unknown whether the record of `key` names this generation: it stays begun until that is changed again.
    pub fn leave_generation_open(&self, key: &Key, generation: u64) {
        self.open.lock().entry(key.clone()).or_default().insert(generation);
        self.opened.fetch_add(1, Ordering::AcqRel);
    }

    /// The records that may name such a generation.
    pub fn keys_of_open_generations(&self) -> Vec<Key> {
        self.open.lock().keys().cloned().collect()
    }

    /// The generations that the record of `key` may name. Once a later change of it is made, it names none of them,
    /// and [`Self::close_generations`] is to be called with them.
    pub fn open_generations(&self, key: &Key) -> Vec<u64> {
        self.open.lock().get(key).into_iter().flatten().copied().collect()
    }

    /// These generations are named by no record, and will be by none.
    pub fn close_generations(&self, key: &Key, generations: &[u64]) {
        let mut open = self.open.lock();
        if let Some(of_key) = open.get_mut(key) {
            for generation in generations.iter().filter(|generation| of_key.remove(*generation)) {
                self.end_generation(*generation);
                self.closed.fetch_add(1, Ordering::AcqRel);
            }
        }
        open.retain(|_, of_key| !of_key.is_empty());
    }

    /// How many generations were left open so far.
    pub fn opened_generations(&self) -> u64 {
        self.opened.load(Ordering::Acquire)
    }

    /// How many generations were closed so far: their parts are garbage.
    pub fn closed_generations(&self) -> u64 {
        self.closed.load(Ordering::Acquire)
    }

    /// The generations that this process writes.
    pub fn generations(&self) -> BTreeSet<u64> {
        self.writing.lock().clone()
    }

    /// Whether this process writes it.
    pub fn is_writing(&self, generation: u64) -> bool {
        self.writing.lock().contains(&generation)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Every change is a plain assignment.
        self.state.lock()
    }

    /// The number of home drives of each root record: one drive fewer may be lost without hiding a data set.
    pub fn homes(&self) -> usize {
        self.homes.load(Ordering::Acquire)
    }

    /// Whether anything may be lost at all.
    pub fn is_redundant(&self) -> bool {
        self.homes() > 1
    }

    /// The lock for changes of root records, and for bringing a drive that is back up to date. Only one task of this
    /// process holds it. `None` where records have one home each.
    pub async fn membership_lock(&self) -> Option<InTurn<'_, ()>> {
        if self.is_redundant() { Some(self.turn.lock().await) } else { None }
    }

    /// Whether this host has ever [adopted](crate::root_store::Catalog::adopt_membership) a membership record.
    pub fn is_known(&self) -> bool {
        self.state().known
    }

    /// What new data sets are stored with.
    pub fn scheme(&self) -> Scheme {
        self.state().scheme
    }

    /// What the membership record says.
    pub fn set_policy(&self, homes: usize, scheme: Scheme) {
        let mut state = self.state();
        (state.known, state.scheme) = (true, scheme);
        self.homes.store(homes.max(1), Ordering::Release);
    }

    /// Why drive `at` is not used, if it is not.
    pub fn down_reason(&self, at: usize) -> Option<String> {
        self.state().lost.get(at).cloned().flatten()
    }

    /// Whether drive `at` is there, and is not used because it is blank.
    pub fn is_blank(&self, at: usize) -> bool {
        self.state().lost.get(at).is_some_and(|why| why.as_deref() == Some(BLANK))
    }

    /// Whether drive `at` is not to be used.
    pub fn is_down(&self, at: usize) -> bool {
        self.state().lost.get(at).is_some_and(Option::is_some)
    }

    /// The drives that are not used.
    pub fn down(&self) -> Vec<usize> {
        let state = self.state();
        (0..state.lost.len()).filter(|at| state.lost[*at].is_some() && !state.outside.contains(at)).collect()
    }

    /// How often a drive was marked as down so far: who did something while all were up can tell if one was not since.
    pub fn losses(&self) -> u64 {
        self.state().losses
    }

    /// The drives that are used.
    pub fn up(&self) -> Vec<usize> {
        let state = self.state();
        (0..state.lost.len()).filter(|at| state.lost[*at].is_none() && !state.outside.contains(at)).collect()
    }

    /// Marks drive `at` as down. Returns whether it was up.
    pub fn mark_down(&self, at: usize, why: &str) -> bool {
        let mut state = self.state();
        match state.lost.get_mut(at) {
            Some(lost @ None) => {
                *lost = Some(why.to_owned());
                state.losses += 1;
                true
            }
            _ => false,
        }
    }

    /// Drive `at` is not to be used, for this reason, whatever the reason was before.
    pub(crate) fn set_down_reason(&self, at: usize, why: &str) {
        let mut state = self.state();
        if let Some(lost) = state.lost.get_mut(at)
            && lost.replace(why.to_owned()).is_none()
        {
            state.losses += 1;
        }
    }

    /// Drive `at` is back, with all that changed meanwhile.
    pub(crate) fn mark_up(&self, at: usize) {
        let mut state = self.state();
        if let Some(lost) = state.lost.get_mut(at) {
            *lost = None;
        }
    }

    /// Whether the membership record says that all of these are lost.
    pub(crate) fn are_noted(&self, ids: &[Uuid]) -> bool {
        let state = self.state();
        ids.iter().all(|id| state.noted.contains(id))
    }

    /// The membership record says that these are lost.
    pub(crate) fn add_absent(&self, ids: &[Uuid]) {
        self.state().noted.extend(ids);
    }

    /// The membership record no longer names these as absent.
    pub(crate) fn clear_absent(&self, ids: &BTreeSet<Uuid>) {
        self.state().noted.retain(|id| !ids.contains(id));
    }

    /// The membership record says that these are lost, and no others.
    pub fn set_absent(&self, ids: &[Uuid]) {
        self.state().noted = ids.iter().copied().collect();
    }

    /// Whether `every` has passed since the last check for lost drives. If so, this counts as the next check.
    pub(crate) fn may_look(&self, every: Duration) -> bool {
        let mut state = self.state();
        let due = state.looked.is_none_or(|last| last.elapsed() >= every);
        if due {
            state.looked = Some(Instant::now());
        }
        due
    }

    /// Checks that all data sets are visible: no more drives are lost than root records survive. `name` gives the
    /// drives' names.
    ///
    /// # Errors
    /// Unavailable, naming the drives that are lost.
    pub(crate) fn check<'a>(&self, name: impl Fn(usize) -> &'a str) -> Result<()> {
        let (lost, homes, domains) = (self.down(), self.homes(), self.failure_domains());
        let survives = domains.as_ref().map_or(lost.len() < homes, |domains| domains.survives(&lost, homes));
        if survives {
            return Ok(());
        }
        // Where drives are on nodes, how many must be back depends on which.
        let back = if domains.is_some() { "enough".to_owned() } else { (lost.len() + 1).saturating_sub(homes).to_string() };
        let survived = domains.and_then(|domains| domains.survival()).unwrap_or_else(|| (homes - 1).to_string());
        let reasons: Vec<_> = lost.iter().map(|at| (name(*at), self.down_reason(*at).unwrap_or_default())).collect();
        let (told, advice) = phrase(reasons.iter().map(|(name, reason)| (*name, reason.as_str())));
        let advice = advice.map(|advice| format!(": {advice}")).unwrap_or_default();
        let (count, verb) = (counted(lost.len() as u64, "drive"), if lost.len() == 1 { "is" } else { "are" });
        Err(Error::unavailable(format!("{count} {verb} lost, but this fleet survives the loss of {survived}: bring back {back} of {told}{advice}")))
    }
}
