//! What a program reaches: the keys of the drive with the rights of its caller, and slices to read.

use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use skytether_common::{Error, Key, Kind, Result};
use skytether_ebpf::Host;
use skytether_kinetic_protocol::Permission;
use skytether_kinetic_protocol::access::Target;
use skytether_kv::Change;
use tokio::runtime::Handle;

use crate::admission::Caller;
use crate::shared::Shared;

/// The keys that one caller may reach. It blocks, and so belongs on a thread of its own.
pub(crate) struct Reach {
    shared: Arc<Shared>,
    caller: Caller,
    /// How many erasures there were when it was asked for.
    erasures: u64,
    runtime: Handle,
    /// Set when the program is to end.
    aborted: Arc<AtomicBool>,
}

impl Reach {
    pub(crate) fn new(shared: Arc<Shared>, caller: Caller, erasures: u64, runtime: Handle, aborted: Arc<AtomicBool>) -> Self {
        Self { shared, caller, erasures, runtime, aborted }
    }

    fn goes_on(&self) -> Result<()> {
        if self.aborted.load(Ordering::Relaxed) || self.shared.erasures() != self.erasures {
            return Err(Error::unavailable("the program was aborted"));
        }
        Ok(())
    }

    /// Checks that the program may go on, and that its caller may do this.
    fn check(&self, permission: Permission, target: Target<'_>) -> Result<()> {
        self.goes_on()?;
        if self.caller.may(permission, target) {
            return Ok(());
        }
        Err(Error::invalid(format!("the program's caller has no scope with the permission {permission} for this key")))
    }
}

impl Host for Reach {
    fn get(&mut self, key: &[u8]) -> Result<Option<Bytes>> {
        self.check(Permission::Read, Target::Key(key))?;
        if let Some(record) = self.shared.keys.get(key)? {
            return Ok(Some(record.value));
        }
        let Some(slice) = std::str::from_utf8(key).ok().and_then(|name| Key::new(name).ok()) else { return Ok(None) };
        match self.runtime.block_on(self.shared.drive.get(&slice)) {
            Ok(value) => Ok(Some(value)),
            Err(error) if error.kind() == Kind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The list of keys ends before the first one that the caller may not see.
    fn next(&mut self, after: &[u8]) -> Result<Option<Bytes>> {
        self.goes_on()?;
        let next = self.shared.keys.keys(Bound::Excluded(after), Bound::Unbounded, false, 1)?.pop();
        let Some(key) = next else { return Ok(None) };
        Ok(self.caller.may(Permission::Range, Target::Key(&key)).then_some(key))
    }

    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.check(Permission::Write, Target::Key(key))?;
        let wrong = |why: skytether_kinetic_protocol::Refusal| Error::invalid(why.text);
        self.shared.limits.check_key(key).map_err(wrong)?;
        self.shared.limits.check_value(value.len() as u64).map_err(wrong)?;
        let change = Change::put(Bytes::copy_from_slice(key), Bytes::copy_from_slice(value));
        let written = self.runtime.block_on(self.shared.write_of_program(&self.caller.chain, change, self.erasures));
        written.map_err(|why| Error::new(why.code.kind(), why.text))
    }
}
