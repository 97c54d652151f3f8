//! The store of one drive in a Ceph cluster.
//!
//! A value is an object of its own, of a name that is used once. One object's omap is the index, and says which values
//! count. A batch writes its values first, and then changes the index by one operation, which compares the state of
//! the index with what this owner knows (I6). So a batch is whole or absent, and an owner that another process has
//! displaced changes nothing any more. Objects that no row names are garbage; rows and numbers say which those are, so
//! that no pool is ever listed.

use std::collections::{BTreeSet, HashSet};
use std::ffi::CString;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::{Mutex, MutexGuard};
use skytether_common::checksum::crc32c;
use skytether_common::{Context, Detail, Error, Key, Kind, Result};
use skytether_store::row::{Change, Row, To};
use skytether_store::{Entry, Op, SliceStore, Usage, Version, batch, ranges};
use uuid::Uuid;

use crate::calls::Called;
use crate::cluster::{Pool, c_text};
use crate::index::{FORMAT, GARBAGE, STATE, State, VALUES, garbage_key, plan, value_key};
use crate::operations::{PAGE, Write};

/// Numbers that an owner reserves at a time. After a crash the next owner looks for at most this number of objects,
/// and for those of the batches that were under way.
const RESERVED: u64 = 256;

/// The first of no numbers: no object has it.
const NO_NUMBER: u64 = 1 << 63;

/// How often a change is tried again after the index was found changed by a late operation of this owner.
const TRIES: usize = 8;

/// Ranges that are read by one operation.
const RANGES: usize = 64;

/// A drive's store in two pools.
#[derive(Debug)]
pub struct RadosStore {
    id: Uuid,
    name: String,
    owner: Uuid,
    index: Arc<Pool>,
    values: Arc<Pool>,
    object: CString,
    /// Copies that the pool of the values keeps, by which free space counts.
    copies: u32,
    held: Mutex<Held>,
    numbers: Mutex<Numbers>,
}

/// What this owner knows of the index. Locked while the index changes.
#[derive(Debug)]
struct Held {
    state: State,
    /// Garbage that is removed, and whose rows go with the next change.
    swept: Vec<u64>,
    /// A change failed in a way that leaves its outcome open, or another owner was met.
    unsure: bool,
}

/// Numbers of objects.
#[derive(Debug, Default)]
struct Numbers {
    next: u64,
    /// First numbers of batches that are neither in the index nor removed.
    under_way: BTreeSet<u64>,
}

/// The name of a drive's index object.
fn index_object(id: Uuid) -> Result<CString> {
    c_text(&format!("skytether-index.{id}"))
}

impl RadosStore {
    /// Makes the empty index of drive `id`. One that is there already is left as it is.
    pub(crate) fn create(index: &Arc<Pool>, id: Uuid) -> Result<()> {
        let object = index_object(id)?;
        let rows = [(STATE.to_owned(), State::new(Uuid::nil()).encode())];
        match Write::new(index).create().set_rows(&rows).run(&object) {
            code if code < 0 && code != -libc::EEXIST => Err(index.failed(code, "make", &object.to_string_lossy())),
            _ => Ok(()),
        }
    }

    /// Opens drive `id` as `owner`, which displaces the owner before it, and removes what that one left behind.
    ///
    /// # Errors
    /// `Corrupt` where the index is missing or damaged, `Unsupported` where a newer version wrote it, `Unavailable`.
    pub(crate) fn open(index: Arc<Pool>, values: Arc<Pool>, copies: u32, id: Uuid, name: &str, owner: Uuid) -> Result<Self> {
        let object = index_object(id)?;
        let held = Mutex::new(Held { state: State::new(owner), swept: Vec::new(), unsure: false });
        let store = Self { id, name: name.to_owned(), owner, index, values, object, copies, held, numbers: Mutex::default() };
        {
            let mut held = store.held.lock();
            for attempt in 0.. {
                let found = store.state()?;
                let next = State { owner, next_version: found.next_version + 1, ..found };
                match store.exchange(&found, &next, &[], &[]) {
                    Ok(()) => {
                        held.state = next;
                        break;
                    }
                    Err(e) if e.kind() == Kind::Conflict && attempt < TRIES => {}
                    Err(e) => return Err(e),
                }
            }
            store.numbers.lock().next = held.state.reserved;
            store.sweep(&mut held)?;
        }
        Ok(store)
    }

    /// The drive's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Calls a method of an object class on the value of `key`, in the OSD that has it. `input` is made of the value's
    /// length and CRC-32C. `None`: there is no such key.
    ///
    /// # Errors
    /// As [`SliceStore::get`] for the index.
    pub fn call(&self, key: &Key, class: &str, method: &str, input: impl FnOnce(u64, u32) -> Vec<u8>) -> Result<Option<Called>> {
        let Some(row) = self.row(key)? else { return Ok(None) };
        self.values.call(&self.value_object(row.number)?, class, method, &input(row.len.into(), row.crc32c)).map(Some)
    }

    /// Calls a method of an object class on the drive's index: whether the class is there at all.
    ///
    /// # Errors
    /// `Invalid` for names with a zero byte.
    pub fn call_index(&self, class: &str, method: &str) -> Result<Called> {
        self.index.call(&self.object, class, method, &[])
    }

    fn where_it_is(&self) -> String {
        format!("{} (index {} in pool {})", self.name, self.object.to_string_lossy(), self.index.name)
    }

    fn damaged_index(&self, what: &str) -> Error {
        Error::corrupt(format!("the index of {} {what}: restore the object from a backup of the pool", self.where_it_is()))
    }

    /// The name of a value's object.
    fn value_object(&self, number: u64) -> Result<CString> {
        c_text(&format!("skytether-value.{}.{number:016x}", self.id))
    }

    /// The state that the index has now.
    fn state(&self) -> Result<State> {
        let rows = self.index.rows(&self.object, &[STATE.to_owned()])?.ok_or_else(|| self.damaged_index("is missing"))?;
        let (_, bytes) = rows.first().ok_or_else(|| self.damaged_index("has no state"))?;
        State::decode(bytes).map_err(|format| match format {
            Some(format) => Error::unsupported(format!(
                "the index of {} was made by a newer version of Skytether (format {format}, this version reads up to {FORMAT}): upgrade to open it",
                self.where_it_is()
            )),
            None => self.damaged_index("has a damaged state"),
        })
    }

    /// Changes the index from `from` to `to`, with these rows. `Conflict` where it is not `from`.
    fn exchange(&self, from: &State, to: &State, set: &[(CString, Vec<u8>)], remove: &[CString]) -> Result<()> {
        let rows = [&[(STATE.to_owned(), to.encode())][..], set].concat();
        let write = Write::new(&self.index).if_row(STATE, &from.encode()).set_rows(&rows).remove_rows(remove);
        match write.run(&self.object) {
            code if code == -libc::ECANCELED => Err(Error::conflict(format!("the index of {} has changed", self.where_it_is()))),
            code if code == -libc::ENOENT => Err(self.damaged_index("is missing")),
            code if code < 0 => Err(self.index.failed(code, "change", &self.object.to_string_lossy())),
            _ => Ok(()),
        }
    }

    /// Learns the state after [`Self::exchange`] found another one.
    fn learn(&self, held: &mut Held) -> Result<()> {
        let found = self.state()?;
        if found.owner != self.owner {
            // The known state stays the old one: a change that begins from the new one would pass.
            held.unsure = true;
            return Err(Error::conflict(format!(
                "another process has opened the fleet of {}, and this one may not change it any more: nothing was changed; open the fleet again",
                self.where_it_is()
            )));
        }
        held.state = found;
        Ok(())
    }

    fn row(&self, key: &Key) -> Result<Option<Row>> {
        Ok(self.rows(&[key])?.pop().flatten())
    }

    /// The rows of `keys`, in order.
    fn rows(&self, keys: &[&Key]) -> Result<Vec<Option<Row>>> {
        let names: Vec<CString> = keys.iter().map(|key| value_key(key)).collect::<Result<_>>()?;
        let mut found = std::collections::HashMap::with_capacity(keys.len());
        for names in names.chunks(PAGE) {
            found.extend(self.index.rows(&self.object, names)?.ok_or_else(|| self.damaged_index("is missing"))?);
        }
        let row = |key: &&Key| {
            let bytes = found.get(&format!("{VALUES}{key}"));
            bytes.map(|bytes| Row::decode(key.as_str(), bytes).ok_or_else(|| self.damaged_index(&format!("has a damaged row for key {key}")))).transpose()
        };
        keys.iter().map(row).collect()
    }

    /// All rows of keys that begin with `prefix` and come after `after`, at most `limit`, in pages.
    fn list_rows(&self, prefix: &str, after: &str, limit: usize, mut each: impl FnMut(&str, Row) -> Result<()>) -> Result<()> {
        let (prefix, mut after, mut left) = (format!("{VALUES}{prefix}"), after.to_owned(), limit);
        while left > 0 {
            let (rows, more) = self.index.page(&self.object, &prefix, &after, left)?.ok_or_else(|| self.damaged_index("is missing"))?;
            let Some((last, _)) = rows.last() else { break };
            left -= rows.len().min(left);
            after.clone_from(last);
            for (name, bytes) in &rows {
                let key = name.strip_prefix(VALUES).unwrap_or(name);
                each(key, Row::decode(key, bytes).ok_or_else(|| self.damaged_index(&format!("has a damaged row for key {key}")))?)?;
            }
            if !more {
                break;
            }
        }
        Ok(())
    }

    /// Removes what the owner before this one left: garbage that rows name, and objects of batches that it did not
    /// finish. What can't be removed now stays noted.
    fn sweep(&self, held: &mut Held) -> Result<()> {
        let mut garbage = Vec::new();
        let mut after = String::new();
        loop {
            let (rows, more) = self.index.page(&self.object, GARBAGE, &after, PAGE)?.ok_or_else(|| self.damaged_index("is missing"))?;
            let Some((last, _)) = rows.last() else { break };
            after.clone_from(last);
            garbage.extend(rows.iter().filter_map(|(name, _)| u64::from_str_radix(name.strip_prefix(GARBAGE)?, 16).ok()));
            if !more {
                break;
            }
        }
        let state = held.state;
        let mut unfinished = Vec::new();
        if state.floor < state.reserved {
            let mut seen = State { keys: 0, value_bytes: 0, key_bytes: 0, sum: 0, ..state };
            let mut named = HashSet::new();
            self.list_rows("", VALUES, usize::MAX, |key, row| {
                seen.keys += 1;
                seen.value_bytes += u64::from(row.len);
                seen.key_bytes += key.len() as u64;
                seen.sum = seen.sum.wrapping_add(row.share(key));
                if row.number >= state.floor {
                    named.insert(row.number);
                }
                Ok(())
            })?;
            if seen != state {
                return Err(self.damaged_index("has lost rows"));
            }
            unfinished = (state.floor..state.reserved).filter(|number| !named.contains(number)).collect();
        }
        if garbage.is_empty() && state.floor == state.reserved {
            return Ok(());
        }
        let objects = garbage.iter().chain(&unfinished).map(|number| self.value_object(*number)).collect::<Result<Vec<_>>>()?;
        if let Err(e) = self.values.remove_all(objects) {
            // They stay noted: the next owner tries again.
            self.numbers.lock().under_way.insert(state.floor);
            tracing::warn!("{}: what an unfinished ingest left stays for now: {e}", self.name);
            return Ok(());
        }
        let next = State { floor: state.reserved, next_version: state.next_version + 1, ..state };
        let rows = garbage.into_iter().map(garbage_key).collect::<Result<Vec<_>>>()?;
        self.exchange(&state, &next, &[], &rows).map_err(|e| if e.kind() == Kind::Conflict { self.learn(held).err().unwrap_or(e) } else { e })?;
        held.state = next;
        Ok(())
    }

    /// The first of `count` numbers for objects. The index notes them before any object is written.
    fn allocate(&self, count: u64) -> Result<u64> {
        if count == 0 {
            return Ok(NO_NUMBER);
        }
        let mut held = self.held.lock();
        for attempt in 0.. {
            {
                let mut numbers = self.numbers.lock();
                if numbers.next + count <= held.state.reserved {
                    let first = numbers.next;
                    numbers.next += count;
                    numbers.under_way.insert(first);
                    return Ok(first);
                }
            }
            let state = held.state;
            let next = State { reserved: self.numbers.lock().next + count + RESERVED, next_version: state.next_version + 1, ..state };
            match self.exchange(&state, &next, &[], &[]) {
                Ok(()) => held.state = next,
                Err(e) if e.kind() == Kind::Conflict && attempt < TRIES => self.learn(&mut held)?,
                Err(e) => return Err(e),
            }
        }
        Err(Error::internal("a loop without an end has ended"))
    }

    /// The values of `batch` that become objects.
    fn contents(&self, batch: &[Op]) -> Result<Vec<Bytes>> {
        let mut contents = Vec::with_capacity(batch.len());
        for op in batch {
            match op {
                Op::Put { value, .. } => contents.push(value.clone()),
                Op::Link { from, len, crc32c, .. } => {
                    let found = self.get_expected(from, *len, *crc32c).context(|| format!("nothing was changed: cannot link from key {from}"))?;
                    contents.push(found.ok_or_else(|| {
                        Error::conflict(format!(
                            "key {from} has another value than the one of {len} bytes (CRC-32C {crc32c:08x}) that was to be linked: nothing was changed"
                        ))
                    })?);
                }
                Op::Delete { .. } | Op::Check { .. } => {}
            }
        }
        Ok(contents)
    }

    fn changes<'a>(batch: &'a [Op], first: u64, contents: &[Bytes]) -> Vec<Change<'a>> {
        let mut values = (first..).zip(contents);
        let change = |op: &'a Op| {
            let to = match op {
                // Fits: `validate` has refused what is above `MAX_VALUE`.
                Op::Put { .. } | Op::Link { .. } => {
                    values.next().map_or(To::Stay, |(number, value)| To::Be(Row { version: 0, number, len: value.len() as u32, crc32c: crc32c(value) }))
                }
                Op::Delete { .. } => To::Go,
                Op::Check { .. } => To::Stay,
            };
            Change { key: op.key(), expect: op.expect(), to }
        };
        batch.iter().map(change).collect()
    }

    /// Makes `changes` visible as one. `Ok(Err)`: nothing has changed.
    fn commit(&self, first: u64, changes: &[Change<'_>], seen: (u64, Vec<Option<Row>>)) -> Result<Result<Vec<Version>>> {
        let keys: Vec<&Key> = changes.iter().map(|change| change.key).collect();
        let (mut version, mut rows) = seen;
        let mut held = self.held.lock();
        for attempt in 0.. {
            if held.state.next_version != version {
                (version, rows) = match self.rows(&keys) {
                    Ok(rows) => (held.state.next_version, rows),
                    Err(e) => return Ok(Err(e)),
                };
            }
            let planned = match plan(held.state, changes, &rows) {
                Ok(planned) => planned,
                Err(e) => return Ok(Err(e)),
            };
            let mut next = planned.state;
            next.floor = {
                let numbers = self.numbers.lock();
                numbers.under_way.iter().find(|number| **number != first).copied().unwrap_or(numbers.next).min(next.reserved)
            };
            let mut set = Vec::with_capacity(changes.len() + planned.replaced.len());
            let mut remove = Vec::new();
            for (change, to) in changes.iter().zip(&planned.rows) {
                match to {
                    To::Be(row) => set.push((value_key(change.key)?, row.encode(change.key.as_str()).to_vec())),
                    To::Go => remove.push(value_key(change.key)?),
                    To::Stay => {}
                }
            }
            for number in &planned.replaced {
                set.push((garbage_key(*number)?, Vec::new()));
            }
            for number in &held.swept {
                remove.push(garbage_key(*number)?);
            }
            let state = held.state;
            match self.exchange(&state, &next, &set, &remove) {
                Ok(()) => {
                    held.state = next;
                    held.swept.clear();
                    self.numbers.lock().under_way.remove(&first);
                    drop(held);
                    self.remove_replaced(planned.replaced);
                    return Ok(Ok(planned.versions));
                }
                // Nothing of this batch can be there, also not later: the state that it compares with is gone.
                Err(e) if e.kind() == Kind::Conflict && attempt < TRIES => {
                    if let Err(e) = self.learn(&mut held) {
                        return Ok(Err(e));
                    }
                }
                Err(e) if matches!(e.kind(), Kind::Conflict | Kind::Exhausted | Kind::Invalid | Kind::Corrupt) => return Ok(Err(e)),
                Err(e) => {
                    held.unsure = true;
                    return Err(e);
                }
            }
        }
        Err(Error::internal("a loop without an end has ended"))
    }

    /// Removes objects that no row names any more. Their rows of garbage stay where that fails.
    fn remove_replaced(&self, numbers: Vec<u64>) {
        let removed = numbers.iter().map(|number| self.value_object(*number)).collect::<Result<Vec<_>>>().and_then(|objects| self.values.remove_all(objects));
        match removed {
            Ok(()) => self.held.lock().swept.extend(numbers),
            Err(e) => tracing::warn!("{}: values that were replaced stay until the fleet is opened again: {e}", self.name),
        }
    }

    /// Forgets a batch that did not come about, with its objects.
    fn abandon(&self, first: u64, count: u64) {
        if count == 0 {
            return;
        }
        let objects = (first..first + count).map(|number| self.value_object(number)).collect::<Result<Vec<_>>>();
        match objects.and_then(|objects| self.values.remove_all(objects)) {
            Ok(()) => drop(self.numbers.lock().under_way.remove(&first)),
            // The number stays noted, and the next owner removes them.
            Err(e) => tracing::warn!("{}: what a failed batch left stays until the fleet is opened again: {e}", self.name),
        }
    }

    fn damaged(&self, key: &Key, row: Row, what: &str) -> Error {
        let object = format!("skytether-value.{}.{:016x}", self.id, row.number);
        Error::corrupt(format!("the value of key {key} in object {object} of pool {} {what}: drop its data set and ingest it again", self.values.name))
    }

    fn missing(&self, key: &Key) -> Error {
        Error::not_found(format!("there is no key {key} on drive {}", self.name)).with_detail(Detail::missing_key(key))
    }

    /// The index's row of `key`, and the bytes of its value at `wanted` or all, unverified.
    fn read(&self, key: &Key, wanted: Option<&[Range<u64>]>) -> Result<(Row, Vec<Bytes>)> {
        let mut before = None;
        loop {
            let row = self.row(key)?.ok_or_else(|| self.missing(key))?;
            let len = u64::from(row.len);
            // One byte more than it should have shows an object that is too long.
            let whole = 0..len + 1;
            if let Some(wanted) = wanted {
                ranges::check(key, len, wanted)?;
            }
            let due: Vec<Range<u64>> = wanted.unwrap_or(std::slice::from_ref(&whole)).iter().filter(|range| !range.is_empty()).cloned().collect();
            let object = self.value_object(row.number)?;
            let mut found = Some(Vec::with_capacity(due.len()));
            for due in due.chunks(RANGES) {
                match self.values.read(&object, due).context(|| format!("cannot read key {key}"))? {
                    Some(parts) => found.iter_mut().zip([parts]).for_each(|(found, parts)| found.extend(parts.into_iter().map(Bytes::from))),
                    None => found = None,
                }
            }
            let Some(mut found) = found else {
                // Replaced since the row was read, or lost if the row is still the same.
                if before == Some(row) {
                    return Err(self.damaged(key, row, "is missing"));
                }
                before = Some(row);
                continue;
            };
            let Some(wanted) = wanted else {
                let value = found.pop().unwrap_or_default();
                if value.len() as u64 != len {
                    return Err(self.damaged(key, row, &format!("has another length than {len}")));
                }
                return Ok((row, vec![value]));
            };
            if due.iter().zip(&found).any(|(due, part)| part.len() as u64 != due.end - due.start) {
                return Err(self.damaged(key, row, &format!("is shorter than {len} bytes")));
            }
            let mut parts = found.into_iter();
            return Ok((row, wanted.iter().map(|range| if range.is_empty() { Bytes::new() } else { parts.next().unwrap_or_default() }).collect()));
        }
    }

    fn verified(&self, key: &Key, row: Row, parts: Vec<Bytes>) -> Result<Bytes> {
        match parts.into_iter().next() {
            Some(bytes) if crc32c(&bytes) == row.crc32c => Ok(bytes),
            _ => Err(self.damaged(key, row, "does not match its checksum")),
        }
    }

    fn listed(&self, prefix: &str, after: Option<&Key>, limit: usize, _whole: Option<MutexGuard<'_, Held>>) -> Result<Vec<Entry>> {
        // OSDs begin at the prefix where `after` lies before it.
        let after = after.map_or_else(|| VALUES.to_owned(), |after| format!("{VALUES}{after}"));
        let mut entries = Vec::new();
        self.list_rows(prefix, &after, limit, |key, row| {
            entries.push(row.entry(Key::new(key)?));
            Ok(())
        })?;
        Ok(entries)
    }
}

impl SliceStore for RadosStore {
    fn apply(&self, batch: Vec<Op>) -> Result<Vec<Version>> {
        batch::validate(&batch)?;
        if batch.is_empty() {
            return Ok(Vec::new());
        }
        let contents = self.contents(&batch)?;
        let keys: Vec<&Key> = batch.iter().map(Op::key).collect();
        let version = self.held.lock().state.next_version;
        let rows = self.rows(&keys)?;
        for (op, row) in batch.iter().zip(&rows) {
            batch::check_expectation(op.key(), op.expect(), row.map(|row| row.version))?;
        }
        if batch.iter().all(|op| matches!(op, Op::Check { .. })) {
            return Ok(vec![0; batch.len()]);
        }
        let count = contents.len() as u64;
        let first = self.allocate(count)?;
        let written = (first..).zip(&contents).map(|(number, value)| Ok((self.value_object(number)?, value.clone()))).collect::<Result<Vec<_>>>();
        if let Err(e) = written.and_then(|objects| self.values.write_all(&objects)) {
            self.abandon(first, count);
            return Err(e);
        }
        let changes = Self::changes(&batch, first, &contents);
        match self.commit(first, &changes, (version, rows)) {
            Ok(Ok(versions)) => Ok(versions),
            Ok(Err(e)) => {
                self.abandon(first, count);
                Err(e)
            }
            // The objects must stay: the batch may turn out to be there.
            Err(e) => Err(Error::unavailable(format!("nobody can know whether the batch reached {}: read it again", self.where_it_is())).with_source(e)),
        }
    }

    fn get(&self, key: &Key) -> Result<Bytes> {
        let (row, parts) = self.read(key, None)?;
        self.verified(key, row, parts)
    }

    fn get_expected(&self, key: &Key, len: u64, crc32c: u32) -> Result<Option<Bytes>> {
        let (row, parts) = self.read(key, None)?;
        if u64::from(row.len) == len && row.crc32c == crc32c { self.verified(key, row, parts).map(Some) } else { Ok(None) }
    }

    fn get_ranges_unverified(&self, key: &Key, wanted: &[Range<u64>]) -> Result<Vec<Bytes>> {
        Ok(self.read(key, Some(wanted))?.1)
    }

    fn stat(&self, key: &Key) -> Result<Option<Entry>> {
        Ok(self.row(key)?.map(|row| row.entry(key.clone())))
    }

    fn list(&self, prefix: &str, after: Option<&Key>, limit: usize) -> Result<Vec<Entry>> {
        if limit == 0 {
            return Ok(Vec::new());
        }
        // One operation sees whole batches. Several do only while this owner changes nothing.
        let entries = self.listed(prefix, after, limit.min(PAGE), None)?;
        if entries.len() < PAGE || limit <= PAGE {
            return Ok(entries);
        }
        let held = self.held.lock();
        self.listed(prefix, after, limit, Some(held))
    }

    fn usage(&self) -> Result<Usage> {
        let State { keys, value_bytes, key_bytes, .. } = self.state()?;
        // A row is its key and 30 bytes. Copies are Ceph's.
        Ok(Usage { keys, value_bytes, stored_bytes: value_bytes + key_bytes + 30 * keys })
    }

    fn free(&self) -> Result<Option<(u64, u64)>> {
        let copies = u64::from(self.copies.max(1));
        Ok(self.values.cluster.space()?.map(|(free, all)| (free / copies, all / copies)))
    }
}

impl Drop for RadosStore {
    /// Notes that nothing is under way, so that the next owner looks for nothing.
    fn drop(&mut self) {
        let (next, idle) = {
            let numbers = self.numbers.get_mut();
            (numbers.next, numbers.under_way.is_empty())
        };
        let held = self.held.lock();
        let state = held.state;
        if held.unsure || !idle || (state.floor == state.reserved && held.swept.is_empty()) {
            return;
        }
        let closed = State { reserved: next, floor: next, next_version: state.next_version + 1, ..state };
        let swept = held.swept.iter().map(|number| garbage_key(*number)).collect::<Result<Vec<_>>>();
        if let Err(e) = swept.and_then(|swept| self.exchange(&state, &closed, &[], &swept)) {
            tracing::debug!("{} was not closed: {e}", self.name);
        }
    }
}
