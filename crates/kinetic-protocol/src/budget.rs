//! How much memory a decoded command takes, computed before it is decoded.
//!
//! Two bytes of a message make an element of a list, which takes up to some hundred bytes when it is decoded. A message
//! of 1 MiB may so become 100 MiB. [`check`] walks the bytes, adds the sizes of all elements of lists, and refuses what
//! would be more than [`MAX_DECODED`]. What is in no list exists once, and byte fields share the memory of the frame.
//!
//! See also [`crate::command::Command::parse`], which calls it.

use bytes::Bytes;

use crate::command::Operation;
use crate::log::{Interface, Statistics, Temperature, Utilization};
use crate::program::ProcessStatus;
use crate::security::{Acl, Scope};
use crate::status::Refusal;

/// The most memory that the elements of a command's lists may take, in bytes. 1,000 identities with all permissions
/// take less than half a megabyte, and the sequences of 24,000 deletes 192 kB. While a list grows it takes up to three
/// times as much.
pub const MAX_DECODED: usize = 4 << 20;

/// How deep messages may be nested. A push that is passed on from drive to drive takes two levels for each.
const MAX_DEPTH: usize = 64;

/// What a field of a message is, if it has to be counted or walked.
enum Field {
    /// A message, which exists once.
    Message(&'static [(u64, Field)]),
    /// An element of a list of messages: its size in memory.
    Messages(usize, &'static [(u64, Field)]),
    /// An element of a list of byte strings.
    Strings,
    /// An element of a list of numbers, or, packed, several: the size of one.
    Numbers(usize),
}

use Field::{Message, Messages, Numbers, Strings};

const ENUMERATION: Field = Numbers(size_of::<i32>());

static COMMAND: &[(u64, Field)] = &[(2, Message(BODY))];
static BODY: &[(u64, Field)] = &[
    (2, Message(&[(8, Strings)])),
    (4, Message(&PUSH)),
    (6, Message(LOG)),
    (7, Message(&[(2, Messages(size_of::<Acl>(), &[(4, Messages(size_of::<Scope>(), &[(3, ENUMERATION)]))]))])),
    (9, Message(&[(2, Numbers(size_of::<u64>()))])),
    (11, Message(APPLET)),
];
// Two arrays, because each refers to the other.
static PUSH: [(u64, Field); 1] = [(2, Messages(size_of::<Operation>(), &OPERATION))];
static OPERATION: [(u64, Field); 1] = [(8, Message(&PUSH))];
static LOG: &[(u64, Field)] = &[
    (1, ENUMERATION),
    (2, Messages(size_of::<Utilization>(), &[])),
    (3, Messages(size_of::<Temperature>(), &[])),
    (5, Message(&[(9, Messages(size_of::<Interface>(), &[]))])),
    (6, Messages(size_of::<Statistics>(), &[])),
];
static APPLET: &[(u64, Field)] = &[(3, Strings), (5, Messages(size_of::<ProcessStatus>(), &[(1, Strings)])), (6, Message(&[(3, ENUMERATION)])), (7, Strings)];

/// Checks the bytes of a command before they are decoded.
///
/// # Errors
/// [`crate::StatusCode::InvalidRequest`] if the bytes are no protocol buffer, are nested too deep, or would take more
/// than [`MAX_DECODED`] bytes.
pub fn check(command: &[u8]) -> Result<(), Refusal> {
    let mut left = MAX_DECODED;
    walk(command, COMMAND, &mut left, MAX_DEPTH)
}

fn walk(mut bytes: &[u8], fields: &[(u64, Field)], left: &mut usize, depth: usize) -> Result<(), Refusal> {
    let depth = depth.checked_sub(1).ok_or_else(|| Refusal::invalid(format!("the command is nested deeper than {MAX_DEPTH} messages")))?;
    while !bytes.is_empty() {
        let key = varint(&mut bytes)?;
        let field = fields.iter().find(|(tag, _)| *tag == key >> 3).map(|(_, field)| field);
        match key & 7 {
            0 => {
                varint(&mut bytes)?;
                if let Some(Numbers(size)) = field {
                    take(left, *size)?;
                }
            }
            1 => drop(split(&mut bytes, 8)?),
            5 => drop(split(&mut bytes, 4)?),
            2 => {
                let length = varint(&mut bytes)?;
                let content = split(&mut bytes, length)?;
                match field {
                    Some(Message(fields)) => walk(content, fields, left, depth)?,
                    Some(Messages(size, fields)) => {
                        take(left, *size)?;
                        walk(content, fields, left, depth)?;
                    }
                    Some(Strings) => take(left, size_of::<Bytes>())?,
                    // Each number of a packed list has one byte without the highest bit.
                    Some(Numbers(size)) => take(left, size.saturating_mul(content.iter().filter(|byte| **byte < 0x80).count()))?,
                    None => {}
                }
            }
            wire => return Err(Refusal::invalid(format!("the command is malformed: wire type {wire}"))),
        }
    }
    Ok(())
}

fn take(left: &mut usize, size: usize) -> Result<(), Refusal> {
    let too_much = || Refusal::invalid(format!("the command's lists take more than {MAX_DECODED} bytes of memory; send fewer elements"));
    *left = left.checked_sub(size).ok_or_else(too_much)?;
    Ok(())
}

fn split<'a>(bytes: &mut &'a [u8], length: u64) -> Result<&'a [u8], Refusal> {
    let parts = usize::try_from(length).ok().and_then(|length| bytes.split_at_checked(length));
    let (first, rest) = parts.ok_or_else(|| Refusal::invalid(format!("the command is malformed: {length} bytes of a field, {} are there", bytes.len())))?;
    *bytes = rest;
    Ok(first)
}

fn varint(bytes: &mut &[u8]) -> Result<u64, Refusal> {
    let mut number = 0u64;
    for shift in (0..64).step_by(7) {
        let Some((byte, rest)) = bytes.split_first() else { break };
        *bytes = rest;
        number |= u64::from(byte & 0x7f) << shift;
        if *byte < 0x80 {
            return Ok(number);
        }
    }
    Err(Refusal::invalid("the command is malformed: a number has no end"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::{Batch, Body, Command, P2pOperation};
    use crate::kinds::Permission;
    use crate::security::Security;

    /// A field of messages, around `content`.
    fn nested(tags: &[u8], content: Vec<u8>) -> Vec<u8> {
        tags.iter().rev().fold(content, |content, tag| {
            let mut field = vec![tag << 3 | 2];
            prost::encoding::encode_varint(content.len() as u64, &mut field);
            [field, content].concat()
        })
    }

    fn refused(bytes: &[u8]) -> bool {
        check(bytes).is_err_and(|refusal| refusal.text.contains("more than 4194304 bytes"))
    }

    /// Every list, filled with its shortest elements up to 1 MiB, would take more than 4 MiB.
    #[test]
    fn every_list_is_bounded() {
        let lists: [&[u8]; 11] =
            [&[2, 2, 8], &[2, 4, 2], &[2, 6, 2], &[2, 6, 3], &[2, 6, 5, 9], &[2, 6, 6], &[2, 7, 2], &[2, 7, 2, 4], &[2, 11, 3], &[2, 11, 5], &[2, 11, 7]];
        for path in lists {
            let (last, outer) = path.split_last().unwrap();
            assert!(refused(&nested(outer, [last << 3 | 2, 0].repeat(500_000))), "{path:?}");
            assert_eq!(check(&nested(outer, [last << 3 | 2, 0].repeat(800))), Ok(()), "{path:?}");
        }
    }

    #[test]
    fn numbers_are_bounded_packed_or_not() {
        assert!(refused(&nested(&[2, 9, 2], vec![1; 1 << 20])));
        assert!(refused(&nested(&[2, 9], [0x10, 0].repeat(600_000))));
        // Numbers of four bytes are at most twice as large as their message, and a packed one four times.
        assert_eq!(check(&nested(&[2, 6], [0x08, 0].repeat(500_000))), Ok(()));
        assert!(refused(&nested(&[2, 6, 1], vec![0; (1 << 20) + 1])));
        // Numbers of many bytes are few.
        assert_eq!(check(&nested(&[2, 9, 2], [0xff, 0xff, 0xff, 0xff, 1].repeat(200_000))), Ok(()));
    }

    /// Fields that exist once may be written any number of times; lists in them add up.
    #[test]
    fn lists_of_repeated_messages_add_up() {
        assert!(refused(&nested(&[2, 2], vec![0x42, 0]).repeat(150_000)));
        assert_eq!(check(&nested(&[2, 2], vec![0x0a, 0]).repeat(150_000)), Ok(()));
    }

    #[test]
    fn depth_is_bounded() {
        let deep = |levels: usize| nested(&[2, 4], (0..levels).fold(vec![], |inner, _| nested(&[2, 8], inner)));
        assert_eq!(check(&deep(30)), Ok(()));
        assert!(check(&deep(31)).unwrap_err().text.contains("nested deeper"));
        assert!(Command::parse(deep(30).into()).is_ok());
    }

    #[test]
    fn largest_permitted_commands_are_taken() {
        let permission = Permission::ALL.iter().map(|permission| i32::from(*permission)).collect();
        let scope = vec![Scope { permission, ..Scope::default() }; 4];
        let acl = vec![Acl { scope, ..Acl::default() }; 1000];
        let batch = Batch { sequence: (1 << 40..(1 << 40) + 24_000).collect(), ..Batch::default() };
        let push = P2pOperation { operation: vec![Operation::default(); 10_000], ..P2pOperation::default() };
        let body = Body { security: Some(Security { acl, ..Security::default() }), batch: Some(batch), p2p_operation: Some(push), ..Body::default() };
        let command = Command { body: Some(body), ..Command::default() };
        assert_eq!(Command::parse(command.to_bytes()).unwrap(), command);
    }

    #[test]
    fn malformed_bytes_are_refused() {
        for bytes in [&[0x80][..], &[0x0a], &[0x0a, 2, 0], &[0x0d, 1, 2, 3], &[0x09, 1], &[0x0b], &[0x0c], &[0x0f], &[0xff; 11], &[0x12, 2, 0x12, 1]] {
            assert!(check(bytes).unwrap_err().text.contains("malformed"), "{bytes:?}");
        }
    }
}
