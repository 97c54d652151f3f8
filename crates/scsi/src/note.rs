//! The note of a device that has the persistent reservations of its logical unit (APTPL).
//!
//! Reservations fence initiators off. So a unit whose note can't be read does not run without them: it refuses all
//! commands but those that need no medium (INQUIRY, REPORT LUNS, REQUEST SENSE), and reads the note again with each.
//! What is in the note for good can be given up by an operator: `skytether volume forget-reservations`.
//!
//! The note is written before the state in memory changes, and before a command is answered: what was acknowledged
//! survives. Where the write fails, the note may have been changed all the same. The one before is written again then,
//! so that a change which failed is not there after a restart. Until that is done, the unit refuses commands as well.
//!
//! See also `docs/block.md`.

use std::sync::atomic::Ordering;

use bytes::Bytes;
use skytether_common::{Error, Result, error::Kind};

use crate::persistent::Persistent;
use crate::sense::{Fail, Key, Outcome, Sense, code};
use crate::unit::{LogicalUnit, Note};

/// Its name.
pub const NAME: &str = "reservations";

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

    pub(crate) async fn settle_held(&self, note: &mut Note) -> Result<()> {
        match *note {
            Note::Same => {}
            Note::Unread => {
                if let Some(kept) = self.kept().await? {
                    self.state.lock().persistent = kept;
                }
            }
            Note::Unsure => {
                let before = self.state.lock().persistent.clone();
                // Never removed: a write that comes late has the condition that nothing was written since, and a
                // missing note looks like the one that was missing before.
                let again = if before.kept { before.encode() } else { Bytes::new() };
                self.device.keep_note(NAME, Some(again)).await.map_err(|error| {
                    error.context(format!(
                        "volume {}: it is not served as logical unit {} until the persistent reservations of its initiators (note {NAME}) can be written",
                        self.name, self.lun
                    ))
                })?;
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

    /// Makes `next` the persistent reservations, in the note as well if they are or were kept: in both or in neither.
    pub(crate) async fn change(&self, note: &mut Note, next: Persistent) -> Result<()> {
        if next.kept || self.state.lock().persistent.kept {
            let written = self.device.keep_note(NAME, next.kept.then(|| next.encode())).await;
            if let Err(error) = written {
                // Of these kinds it is known that nothing was changed.
                if !matches!(error.kind(), Kind::Conflict | Kind::Exhausted) {
                    *note = Note::Unsure;
                    self.settled.store(false, Ordering::Release);
                    if let Err(error) = self.settle_held(note).await {
                        tracing::error!(error = error.report(), "a logical unit is not served");
                    }
                }
                return Err(error);
            }
        }
        self.state.lock().persistent = next;
        Ok(())
    }
}

/// Why a command can't be carried out while the note is not settled.
pub(crate) fn unsettled(error: Error) -> Fail {
    if error.kind() == Kind::Unavailable {
        return error.into();
    }
    tracing::debug!(error = error.report(), "a unit is not ready");
    Sense::new(Key::NotReady, code::MANUAL_INTERVENTION_REQUIRED).into()
}
