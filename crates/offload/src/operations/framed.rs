//! Digests inside the object, in front of each block, as MinIO lays them.

use skytether_common::{Error, Result};

use super::digests::{Algorithm, Hasher};
use crate::codes::{item_flag, opcode, tag};
use crate::descriptor::Descriptor;
use crate::job::Input;
use crate::operation::{Arguments, ObjectWork, Operation, Plan};
use crate::output::Sink;
use crate::result::Item;

/// Compares each frame's digest with its data. The object is a row of frames: a digest, then at most
/// [`tag::FRAME`] bytes of data. Only the last one may be shorter, and has at least one byte of data.
#[derive(Debug)]
pub struct VerifyFramed;

struct Work {
    algorithm: Algorithm,
    key: [u8; 32],
    frame: u64,
}

impl Operation for VerifyFramed {
    fn opcode(&self) -> u16 {
        opcode::VERIFY_FRAMED
    }

    fn name(&self) -> &'static str {
        "verify framed"
    }

    fn plan(&self, arguments: &mut Arguments<'_>, _: &Descriptor) -> Result<Plan> {
        let number = arguments.number(tag::ALGORITHM, u16::MAX.into())?.unwrap_or_default();
        let algorithm = Algorithm::ALL.into_iter().find(|algorithm| u64::from(algorithm.opcode()) == number);
        let algorithm = algorithm.ok_or_else(|| Error::unsupported(format!("verify framed: algorithm {number:#06x} is no digest")))?;
        let key = algorithm.key(arguments)?;
        let frame = arguments.length(tag::FRAME, 1 << 40)?;
        Ok(Plan::Objects(Box::new(Work { algorithm, key, frame })))
    }
}

impl ObjectWork for Work {
    fn run(&mut self, input: &mut Input<'_>, _: &mut Sink<'_>) -> Result<Item> {
        let mut frame = 0;
        let mut expected = Vec::with_capacity(32);
        let mut data: Option<(Hasher, u64)> = None;
        let bad = |frame: u64| Item { flags: item_flag::BAD_FRAME, values: vec![frame], ..Item::default() };
        while let Some(block) = input.next_block()? {
            let mut rest = &block[..];
            while !rest.is_empty() {
                if expected.len() < self.algorithm.length() {
                    let (now, later) = rest.split_at((self.algorithm.length() - expected.len()).min(rest.len()));
                    expected.extend_from_slice(now);
                    rest = later;
                    continue;
                }
                let (hasher, left) = data.get_or_insert_with(|| (self.algorithm.start(self.key), self.frame));
                let (now, later) = rest.split_at((*left).min(rest.len() as u64) as usize);
                hasher.update(now);
                *left -= now.len() as u64;
                rest = later;
                if *left == 0
                    && let Some((hasher, _)) = data.take()
                {
                    if hasher.finish() != expected {
                        return Ok(bad(frame));
                    }
                    frame += 1;
                    expected.clear();
                }
            }
        }
        let right = match data {
            Some((hasher, _)) => hasher.finish() == expected,
            // A digest without data, or a part of one: the object was cut.
            None => expected.is_empty(),
        };
        Ok(if right { Item::default() } else { bad(frame) })
    }
}
