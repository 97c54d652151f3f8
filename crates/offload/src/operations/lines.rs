//! Lines of an object that comes in blocks: regions of whole lines, and of a chunk the head and the tail.
//!
//! Lines that lie in one block are not copied.

use std::ops::ControlFlow;

use memchr::{memchr, memrchr};
use skytether_common::{Error, Result};

use crate::codes::item_flag;
use crate::descriptor::Object;
use crate::result::Item;

/// Cuts blocks into regions of whole lines.
#[derive(Debug)]
pub struct Lines {
    /// The object's byte with which the next block begins.
    at: u64,
    /// The chunk's first bytes, until a line ends.
    in_head: bool,
    head: Vec<u8>,
    /// The begin of a line that has not ended yet.
    carry: Vec<u8>,
    followed: bool,
    most: usize,
    element: usize,
    /// Whether bytes of the carry were taken away.
    taken: bool,
}

/// Takes a region: its first byte in the object, and whole lines, each with its newline.
pub type Region<'a> = &'a mut dyn FnMut(u64, &[u8]) -> Result<ControlFlow<()>>;

impl Lines {
    /// Of this object. A line has at most `most` bytes, a head or tail `element`.
    #[must_use]
    pub fn new(object: &Object, most: usize, element: usize) -> Self {
        let (in_head, followed) = (object.is_preceded(), object.is_followed());
        Self { at: object.begin, in_head, head: Vec::new(), carry: Vec::new(), followed, most, element, taken: false }
    }

    fn too_long(&self, what: &str, most: usize) -> Error {
        Error::exhausted(format!("{what} that ends after byte {} has more than {most} bytes; compute it elsewhere", self.at))
    }

    /// Takes the next block.
    ///
    /// # Errors
    /// `Exhausted` for a line that is too long, and those of `region`.
    pub fn feed(&mut self, mut block: &[u8], region: Region<'_>) -> Result<ControlFlow<()>> {
        if self.in_head {
            let end = memchr(b'\n', block).map_or(block.len(), |at| at + 1);
            let (now, rest) = block.split_at(end);
            if self.head.len() + now.len() > self.element {
                return Err(self.too_long("the chunk's first line", self.element));
            }
            self.head.extend_from_slice(now);
            self.at += now.len() as u64;
            self.in_head = self.head.last() != Some(&b'\n');
            block = rest;
        }
        if !self.carry.is_empty() {
            let end = memchr(b'\n', block).map_or(block.len(), |at| at + 1);
            let (now, rest) = block.split_at(end);
            if self.carry.len() + now.len() > self.most {
                return Err(self.too_long("a line", self.most));
            }
            self.carry.extend_from_slice(now);
            self.at += now.len() as u64;
            block = rest;
            if self.carry.last() == Some(&b'\n') {
                let line = std::mem::take(&mut self.carry);
                let flow = region(self.at - line.len() as u64, &line)?;
                self.carry = line;
                self.carry.clear();
                self.taken = false;
                if flow.is_break() {
                    return Ok(flow);
                }
            }
        }
        let (whole, rest) = block.split_at(memrchr(b'\n', block).map_or(0, |at| at + 1));
        if !whole.is_empty() {
            let flow = region(self.at, whole)?;
            self.at += whole.len() as u64;
            // A line that was taken away entirely has ended here.
            self.taken = false;
            if flow.is_break() {
                return Ok(flow);
            }
        }
        if rest.len() > self.most {
            return Err(self.too_long("a line", self.most));
        }
        self.carry.extend_from_slice(rest);
        self.at += rest.len() as u64;
        Ok(ControlFlow::Continue(()))
    }

    /// The begin of a line that has not ended yet, and its place.
    pub(crate) fn carry(&self) -> (u64, &[u8]) {
        (self.at - self.carry.len() as u64, &self.carry)
    }

    /// Keeps only the last `bytes` of it: the others are of no use any more.
    pub(crate) fn keep(&mut self, bytes: usize) {
        let gone = self.carry.len().saturating_sub(bytes);
        self.carry.drain(..gone);
        self.taken |= gone > 0;
    }

    /// The chunk's head, where the search ends before the object does.
    pub(crate) fn take_head(&mut self) -> bytes::Bytes {
        std::mem::take(&mut self.head).into()
    }

    /// Gives the last line, with a newline if it had none. An item with head and tail.
    ///
    /// # Errors
    /// `Exhausted` for a tail that is too long, and those of `region`.
    pub fn finish(mut self, region: Region<'_>) -> Result<(Item, ControlFlow<()>)> {
        let mut item = Item { head: std::mem::take(&mut self.head).into(), ..Item::default() };
        if self.in_head {
            item.flags |= item_flag::NO_BREAK;
            return Ok((item, ControlFlow::Continue(())));
        }
        if self.followed {
            if self.taken || self.carry.len() > self.element {
                return Err(self.too_long("the chunk's last line", self.element));
            }
            item.tail = self.carry.into();
            return Ok((item, ControlFlow::Continue(())));
        }
        let mut flow = ControlFlow::Continue(());
        if !self.carry.is_empty() {
            let at = self.at - self.carry.len() as u64;
            self.carry.push(b'\n');
            flow = region(at, &self.carry)?;
        }
        Ok((item, flow))
    }
}
