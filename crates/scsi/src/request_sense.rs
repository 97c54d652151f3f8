//! REQUEST SENSE.

use crate::call::{Call, allocated};
use crate::cdb::Cdb;
use crate::sense::{Key, Outcome, Sense, code};

/// Reports, and so clears, a unit attention that waits; else what the unit does.
pub(crate) fn request_sense(call: &Call<'_>) -> Outcome {
    let mut state = call.unit.state.lock();
    let sense = match (state.attention(call.nexus.id), state.sanitizing) {
        (Some(attention), _) => Sense::new(Key::Attention, attention),
        (None, Some(progress)) => Sense::new(Key::NotReady, code::SANITIZE_IN_PROGRESS).progress(progress),
        (None, None) if state.stopped => Sense::new(Key::NotReady, code::INITIALIZING_COMMAND_REQUIRED),
        (None, None) => Sense::new(Key::None, code::NONE),
    };
    allocated(sense.bytes(call.cdb.bit(1, 0)), call.cdb.u8(4))
}

/// For a logical unit that does not exist (SPC-4, 6.39).
pub(crate) fn absent(cdb: &Cdb) -> Outcome {
    allocated(Sense::illegal(code::LOGICAL_UNIT_NOT_SUPPORTED).bytes(cdb.bit(1, 0)), cdb.u8(4))
}
