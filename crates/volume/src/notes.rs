//! Notes: small values that doors keep with a volume, such as reservations that outlive a loss of power.

use bytes::Bytes;
use skytether_common::{Error, Key, Kind, Result};
use skytether_store::{Expect, Op};

use crate::names::header_key;
use crate::volume::Volume;

/// The longest note, in bytes.
const MOST: usize = 1 << 20;

impl Volume {
    fn note_key(&self, name: &str) -> Result<Key> {
        Key::new(format!("{}n/{name}", self.extents.prefix))
    }

    pub(crate) async fn read_note(&self, name: &str) -> Result<Option<Bytes>> {
        match self.extents.backing.get(&self.note_key(name)?).await {
            Ok(note) => Ok(Some(note)),
            Err(error) if error.kind() == Kind::NotFound => Ok(None),
            Err(error) => Err(error.context(format!("{}: its note {name} can't be read", self.what()))),
        }
    }

    /// The condition is that of merges: a process that lost the volume changes nothing.
    pub(crate) async fn write_note(&self, name: &str, note: Option<Bytes>) -> Result<()> {
        self.writable()?;
        if note.as_ref().is_some_and(|note| note.len() > MOST) {
            return Err(Error::exhausted(format!("{}: a note has at most {MOST} bytes", self.what())));
        }
        let (key, expect) = (self.note_key(name)?, Expect::Any);
        let header = self.header.lock().await;
        let change = match note {
            Some(value) => Op::Put { key, value, expect },
            None => Op::Delete { key, expect },
        };
        let check = Op::Check { key: header_key(&self.extents.prefix)?, expect: Expect::Version(header.1) };
        let done = self.extents.backing.apply(vec![check, change]).await;
        done.map(drop).map_err(|error| error.context(format!("{}: its note {name} can't be written", self.what())))
    }
}
