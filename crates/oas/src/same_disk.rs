//! Whether the target has the disk that files are on.
//!
//! Places are true on one disk only. On another one they are other files' bytes: a wrong answer, or worse, an output
//! that overwrites them. So all files of a session must be on the disk of the first one, and before the first output
//! the target shows that it has the disk: it is asked for the digest of bytes that were just made up and written there.

use std::os::unix::fs::FileExt;

use parking_lot::Mutex;
use skytether_common::{Error, Result};
use skytether_offload::operations::digests::Algorithm;
use skytether_offload::{Descriptor, ExecResult, Object};

use crate::carrier::{Carrier, Disk};
use crate::output_file::OutputFile;
use crate::places::slice;
use crate::request::{Digest, Request};

/// Bytes that are made up: a block, whose first ones are random.
const PROOF: usize = 4096;
const RANDOM: usize = 32;

/// What is known of a target's disk.
#[derive(Debug, Default)]
pub(crate) struct SameDisk(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// That of the first file.
    first: Option<(String, Disk)>,
    proven: bool,
}

impl SameDisk {
    /// Whether the disk of a file is the one of all others.
    ///
    /// # Errors
    /// `Unsupported` where it is another one.
    pub(crate) fn check(&self, carrier: &Carrier) -> Result<()> {
        let mut state = self.0.lock();
        let (name, disk) = state.first.get_or_insert_with(|| (carrier.name.clone(), carrier.disk.clone()));
        if (&*name, &*disk) == (&carrier.name, &carrier.disk) {
            return Ok(());
        }
        Err(Error::unsupported(format!("it is on the disk {}, and files before it were on {name}: a target has one disk", carrier.name)))
    }

    /// Has the target show that it has the disk of an output.
    ///
    /// # Errors
    /// `Unsupported` where it has other bytes there, and those of `exec`.
    pub(crate) fn prove(&self, output: &OutputFile, exec: impl FnOnce(&Descriptor) -> Result<ExecResult>) -> Result<()> {
        if self.0.lock().proven {
            return Ok(());
        }
        let (path, mut bytes) = (output.path(), vec![0; PROOF]);
        getrandom::fill(&mut bytes[..RANDOM]).map_err(|e| Error::unavailable(format!("the system gives no random bytes: {e}")))?;
        let file = output.file().file();
        let written = file.write_all_at(&bytes, 0).and_then(|()| file.sync_data());
        written.map_err(|cause| Error::io("write", path, cause))?;
        let object = slice(&output.object()?, 0, PROOF as u64)?;
        let inputs = vec![Object::new(object.length, object.extents)];
        let result = exec(&Descriptor { inputs, ..Request::digest(Digest::Sha256).descriptor() })?;
        result.done()?;
        let mut right = Algorithm::Sha256.start([0; 32]);
        right.update(&bytes);
        match result.items.first() {
            Some(item) if item.done()?.data[..] == right.finish()[..] => {
                self.0.lock().proven = true;
                Ok(())
            }
            _ => Err(Error::unsupported(format!(
                "the target does not have the disk that {} is on, and would overwrite other data; check its URL",
                path.display()
            ))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_a_session_are_on_one_disk() {
        let of = |name: &str, base, file: &str| Carrier { name: name.into(), base, disk: Disk::Loop { file: file.into() } };
        let same = SameDisk::default();
        same.check(&of("loop0", 0, "/a")).unwrap();
        // Another partition is the same disk. Another file behind the device is not.
        same.check(&of("loop0", 512, "/a")).unwrap();
        assert!(same.check(&of("loop1", 0, "/a")).unwrap_err().mentions("loop1") && same.check(&of("loop0", 0, "/b")).is_err());
    }
}
