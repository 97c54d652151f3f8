//! What all programs have: bytes, which are the values of their keys one after the other, and a time.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use skytether_device::subplan::MAX_PLAN;
use skytether_device::ticket::MAX_HEADER;
use skytether_kinetic_protocol::access::Target;
use skytether_kinetic_protocol::program::ManageApplet;
use skytether_kinetic_protocol::{Permission, Refusal, StatusCode};

use crate::admission::Caller;
use crate::shared::{Shared, refusal};

/// How many keys a program may have.
const KEYS: usize = 1024;

/// The longest program, in bytes: the longest sub-plan, with its header.
const LONGEST: usize = MAX_PLAN + MAX_HEADER;

/// How long a run may take that asks for so long, `most` at most; `most` where it does not ask.
pub(crate) fn run_time(asked: &ManageApplet, most: Duration) -> Duration {
    u64::try_from(asked.max_run_time()).ok().filter(|time| *time > 0).map_or(most, Duration::from_millis).min(most)
}

/// Checks that the caller may read the program of these keys, and that it is there and not too long.
pub(crate) fn check_keys(shared: &Shared, caller: &Caller, keys: &[Bytes]) -> Result<(), Refusal> {
    let unfit = |text: String| Err(Refusal::new(StatusCode::InvalidExecute, text));
    if keys.is_empty() || keys.len() > KEYS {
        return unfit(format!("the request names {} keys of a program; name 1 to {KEYS}", keys.len()));
    }
    let mut length = 0;
    for key in keys {
        shared.limits.check_key(key)?;
        caller.check(Permission::Read, Target::Key(key))?;
        let meta = shared.keys.meta(key).map_err(|e| refusal(&e))?;
        length += meta.ok_or_else(|| absent(key))?.len as usize;
    }
    if length > LONGEST { unfit(format!("the program has {length} bytes, the limit is {LONGEST}")) } else { Ok(()) }
}

fn absent(key: &[u8]) -> Refusal {
    Refusal::new(StatusCode::NotFound, format!("there is no key {:?} of a program", String::from_utf8_lossy(key)))
}

/// The values of the keys, one after the other. It blocks.
pub(crate) fn bytes_of(shared: &Shared, keys: &[Bytes]) -> Result<Bytes, Refusal> {
    let mut program = BytesMut::new();
    for key in keys {
        let record = shared.keys.get(key).map_err(|e| refusal(&e))?;
        let value = record.ok_or_else(|| absent(key))?.value;
        if program.len() + value.len() > LONGEST {
            return Err(Refusal::new(StatusCode::InvalidExecute, format!("the program is longer than {LONGEST} bytes")));
        }
        program.extend_from_slice(&value);
    }
    Ok(program.freeze())
}

pub(crate) fn interrupted() -> Refusal {
    Refusal::new(StatusCode::InternalError, "the work was interrupted")
}
