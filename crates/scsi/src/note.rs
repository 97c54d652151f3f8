//! The note of a device that has the persistent reservations of its logical unit (APTPL).
//!
//! Reservations fence initiators off. So a unit whose note can't be read does not run without them: it refuses all
//! commands but those that need no medium (INQUIRY, REPORT LUNS, REQUEST SENSE), and reads the note again with each.
//! What is in the note for good can be given up by an operator: `skytether volume forget-reservations`.
//!
//! See also `docs/block.md`.

use std::sync::atomic::Ordering;

use skytether_common::{Error, Result, error::Kind};

use crate::persistent::Persistent;
use crate::sense::{Fail, Key, Outcome, Sense, code};
use crate::unit::LogicalUnit;

/// Its name.
pub const NAME: &str = "reservations";

/// What is known of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Note {
    /// It was not read so far, or can't be.
    Unread,
    /// It says what the state of the unit does.
    Same,
}

impl LogicalUnit {
    /// Sees to it that the persistent reservations in memory are those that the device keeps.
    ///
    /// # Errors
    /// Why the note can't be read.
    pub(crate) async fn settle(&self) -> Result<()> {
        if self.settled.load(Ordering::Acquire) {
            return Ok(());
        }
        self.settle_held(&mut *self.note.lock().await).await
    }

    /// As [`Self::settle`], for a command: an error is one that its initiator tries again, or a unit that is not ready.
    pub(crate) async fn settle_for_command(&self) -> Outcome<()> {
        self.settle().await.map_err(unsettled)
    }

    async fn settle_held(&self, note: &mut Note) -> Result<()> {
        match *note {
            Note::Same => {}
            Note::Unread => {
                if let Some(kept) = self.kept().await? {
                    self.state.lock().persistent = kept;
                }
            }
        }
        *note = Note::Same;
        self.settled.store(true, Ordering::Release);
        Ok(())
    }

    /// What the note says.
    async fn kept(&self) -> Result<Option<Persistent>> {
        let decoded = |note: &[u8]| Persistent::decode(note).ok_or_else(|| Error::corrupt("it is in no form that this version knows"));
        let read = self.device.note(NAME).await.and_then(|note| note.map(|note| decoded(&note)).transpose());
        read.map_err(|error| {
            error.context(format!(
                "volume {0}: it is not served as logical unit {1}, since the persistent reservations of its initiators can't be read (note {NAME}): \
                 repair what holds it, or give them up while it is not served with `skytether volume forget-reservations {0}`, after which initiators \
                 must register again",
                self.name, self.lun
            ))
        })
    }

    /// Keeps persistent reservations over a loss of power, or no longer.
    pub(crate) async fn keep(&self, persistent: &Persistent) -> Outcome<()> {
        Ok(self.device.keep_note(NAME, persistent.kept.then(|| persistent.encode())).await?)
    }
}

fn unsettled(error: Error) -> Fail {
    if error.kind() == Kind::Unavailable {
        return error.into();
    }
    tracing::debug!(error = error.report(), "a unit is not ready");
    Sense::new(Key::NotReady, code::MANUAL_INTERVENTION_REQUIRED).into()
}
