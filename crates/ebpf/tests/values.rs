//! A host in memory for tests.

use std::collections::BTreeMap;

use bytes::Bytes;
use skytether_common::{Error, Result};
use skytether_ebpf::Host;

/// A host that keeps values in memory. Keys that begin with `secret` are refused.
#[derive(Default, Clone)]
pub(crate) struct Values(pub(crate) BTreeMap<Vec<u8>, Bytes>);

impl Values {
    pub(crate) fn with(values: &[(&str, &[u8])]) -> Self {
        Self(values.iter().map(|(key, value)| (key.as_bytes().to_vec(), Bytes::copy_from_slice(value))).collect())
    }

    fn permit(key: &[u8]) -> Result<()> {
        if key.starts_with(b"panic") {
            panic!("a host that panics");
        }
        if key.starts_with(b"secret") { Err(Error::invalid("the identity may not touch this key")) } else { Ok(()) }
    }
}

impl Host for Values {
    fn get(&mut self, key: &[u8]) -> Result<Option<Bytes>> {
        Self::permit(key)?;
        Ok(self.0.get(key).cloned())
    }

    fn next(&mut self, after: &[u8]) -> Result<Option<Bytes>> {
        Self::permit(after)?;
        use std::ops::Bound::{Excluded, Unbounded};
        Ok(self.0.range::<[u8], _>((Excluded(after), Unbounded)).next().map(|(key, _)| Bytes::copy_from_slice(key)))
    }

    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        Self::permit(key)?;
        self.0.insert(key.to_vec(), Bytes::copy_from_slice(value));
        Ok(())
    }
}
