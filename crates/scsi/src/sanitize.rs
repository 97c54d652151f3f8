//! SANITIZE: overwrites or erases a whole logical unit.
//!
//! It runs as a task of its own, which goes on when the command is aborted, the unit reset or the nexus lost (SBC-3,
//! 4.11). It ends with the process: an initiator that gets no GOOD has to ask again.

use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use skytether_common::Result;
use skytether_volume::{Durability, Zeros};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::call::Call;
use crate::cdb::be16;
use crate::sense::{Fail, Key, Outcome, Sense, code};
use crate::unit::BLOCK;
use crate::unit::LogicalUnit;

/// Bytes at a time.
const STEP: u64 = 1 << 20;

/// What is done to all blocks.
enum Work {
    /// Writes this pattern of a whole number of blocks.
    Overwrite { pattern: Bytes, passes: u8, invert: bool },
    /// Unmaps them.
    Erase,
}

/// How fast blocks are overwritten.
struct Pace {
    /// At most, in bytes a second.
    rate: u64,
    /// The time that all takes at least.
    least: Duration,
}

pub(crate) async fn sanitize(call: &Call<'_>) -> Outcome {
    let cdb = call.cdb;
    // The conformance suite sends these: reserved bits are errors here.
    if cdb.bit(1, 6) {
        return Err(Sense::cdb_bit(1, 6).into());
    }
    if let Some(byte) = (2..7).find(|&byte| cdb.u8(byte) != 0) {
        return Err(Sense::cdb(byte as u16).into());
    }
    let length = usize::from(cdb.u16(7));
    let work = match cdb.action() {
        1 => overwrite(call, length)?,
        action => {
            if length != 0 {
                return Err(Sense::cdb(7).into());
            }
            // EXIT FAILURE MODE: a sanitize that fails ends, and there is no mode to leave.
            if action == 0x1F {
                return Ok(Bytes::new());
            }
            Work::Erase
        }
    };
    {
        let mut state = call.unit.state.lock();
        if let Some(progress) = state.sanitizing {
            return Err(Sense::new(Key::NotReady, code::SANITIZE_IN_PROGRESS).progress(progress).into());
        }
        state.sanitizing = Some(0);
    }
    let options = &call.nexus.target.options;
    let (done, mut ended) = watch::channel(None);
    tokio::spawn(run(Arc::downgrade(call.unit), work, Pace { rate: options.sanitize_rate, least: options.sanitize_time }, done));
    // IMMED.
    if cdb.bit(1, 7) {
        return Ok(Bytes::new());
    }
    let result = ended.wait_for(Option::is_some).await.ok().and_then(|result| result.clone());
    match result {
        Some(Ok(())) => Ok(Bytes::new()),
        Some(Err(fail)) => Err(fail),
        None => Err(Sense::new(Key::Hardware, code::INTERNAL_TARGET_FAILURE).into()),
    }
}

/// The parameter list of OVERWRITE (SBC-3, table 102).
fn overwrite(call: &Call<'_>, length: usize) -> Outcome<Work> {
    // A header and a pattern of one byte to a block.
    if length < 5 || length > BLOCK as usize + 4 || call.data.len() < length {
        return Err(Sense::cdb(7).into());
    }
    let data = &call.data[..length];
    // INVERT, TEST (must be 0) and OVERWRITE COUNT.
    let (invert, passes, pattern) = (data[0] & 0x80 != 0, data[0] & 0x1F, usize::from(be16(data, 2)));
    if data[0] & 0x60 != 0 || passes == 0 {
        return Err(Sense::parameter(0).into());
    }
    if pattern == 0 || pattern > BLOCK as usize || 4 + pattern > length {
        return Err(Sense::parameter(2).into());
    }
    // It begins again in each block.
    let block: Vec<u8> = data[4..4 + pattern].iter().copied().cycle().take(BLOCK as usize).collect();
    Ok(Work::Overwrite { pattern: block.repeat((STEP / BLOCK) as usize).into(), passes, invert })
}

async fn run(unit: Weak<LogicalUnit>, work: Work, pace: Pace, done: watch::Sender<Option<Outcome<()>>>) {
    let result = carry_out(&unit, work, &pace).await;
    if let Some(unit) = unit.upgrade() {
        unit.state.lock().sanitizing = None;
    }
    // The command may be over.
    let _ = done.send(Some(result.map_err(Fail::from)));
}

/// Ends early when the target is dropped.
async fn carry_out(unit: &Weak<LogicalUnit>, work: Work, pace: &Pace) -> Result<()> {
    match work {
        Work::Erase => {
            let Some(unit) = unit.upgrade() else { return Ok(()) };
            unit.device.zero(0, unit.blocks * BLOCK, Zeros::Unmapped, Durability::Durable).await?;
        }
        Work::Overwrite { pattern, passes, invert } => {
            let began = Instant::now();
            let inverted: Bytes = pattern.iter().map(|byte| !byte).collect();
            let mut written = 0;
            for pass in 0..passes {
                let pattern = if invert && pass % 2 == 1 { &inverted } else { &pattern };
                let mut at = 0;
                loop {
                    let Some(unit) = unit.upgrade() else { return Ok(()) };
                    let end = unit.blocks * BLOCK;
                    if at >= end {
                        unit.device.flush().await?;
                        break;
                    }
                    let len = STEP.min(end - at);
                    unit.device.write(at, pattern.slice(..len as usize), Durability::Cached).await?;
                    (at, written) = (at + len, written + len);
                    let part = written as f64 / (end as f64 * f64::from(passes));
                    unit.state.lock().sanitizing = Some((part * 65_535.0) as u16);
                    drop(unit);
                    let paced = Duration::from_secs_f64(written as f64 / pace.rate.max(1) as f64);
                    tokio::time::sleep_until(began + paced.max(pace.least.mul_f64(part))).await;
                }
            }
        }
    }
    Ok(())
}
