//! What an operation is, and the registry of all.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::Arc;

use bytes::Bytes;
use skytether_common::{Error, Result};

use crate::codes::{MOST_LENGTH, opcode, tag};
use crate::descriptor::{Argument, Descriptor, Object, Value};
use crate::job::{Input, Job};
use crate::output::Sink;
use crate::result::Item;

/// An operation, known by its number. It has no state: each EXEC has its own [`Plan`].
pub trait Operation: Send + Sync + Debug {
    /// The number; see [`crate::codes::opcode`]. Operations that others add begin at `OTHERS`.
    fn opcode(&self) -> u16;

    /// A word for people.
    fn name(&self) -> &'static str;

    /// Whether inputs may be chunks of a whole.
    fn takes_chunks(&self) -> bool {
        false
    }

    /// Reads the arguments. Nothing of the objects was read yet.
    ///
    /// # Errors
    /// `Invalid` for wrong arguments, `Unsupported` for what it can't do.
    fn plan(&self, arguments: &mut Arguments<'_>, descriptor: &Descriptor) -> Result<Plan>;
}

/// How an operation works.
pub enum Plan {
    /// On each input alone, with an item for each.
    Objects(Box<dyn ObjectWork>),
    /// On all inputs together.
    Whole(Box<dyn WholeWork>),
}

/// Work on one input after the other, on a thread that may block.
pub trait ObjectWork: Send {
    /// Reads the input with [`Input::next_block`], and asks [`Input::check`] where it computes for long between blocks.
    /// Bytes that it gives the sink become the item's data, or go to the output object.
    ///
    /// # Errors
    /// Any; they become the item of this input alone.
    fn run(&mut self, input: &mut Input<'_>, sink: &mut Sink<'_>) -> Result<Item>;
}

/// Work on all inputs, on a thread that may block.
pub trait WholeWork: Send {
    /// The items of the result.
    ///
    /// # Errors
    /// Any; they become the failure of the whole.
    fn run(self: Box<Self>, job: &mut Job) -> Result<Vec<Item>>;
}

/// The arguments of a descriptor. An operation takes those that it knows; the rest is refused.
#[derive(Debug)]
pub struct Arguments<'a> {
    name: &'static str,
    left: Vec<&'a Argument>,
}

impl<'a> Arguments<'a> {
    pub(crate) fn new(name: &'static str, descriptor: &'a Descriptor) -> Self {
        Self { name, left: descriptor.arguments.iter().collect() }
    }

    fn error(&self, tag: u16, what: &str) -> Error {
        Error::invalid(format!("{}: argument {tag} {what}", self.name))
    }

    /// All values of a tag, in their order.
    pub fn all(&mut self, tag: u16) -> Vec<&'a Value> {
        let (found, left) = std::mem::take(&mut self.left).into_iter().partition(|argument| argument.tag == tag);
        self.left = left;
        let found: Vec<&'a Argument> = found;
        found.into_iter().map(|argument| &argument.value).collect()
    }

    fn one(&mut self, tag: u16) -> Result<Option<&'a Value>> {
        match self.all(tag)[..] {
            [] => Ok(None),
            [value] => Ok(Some(value)),
            _ => Err(self.error(tag, "is there more than once")),
        }
    }

    /// A number of at most `most`.
    ///
    /// # Errors
    /// `Invalid` where it is none, or greater.
    pub fn number(&mut self, tag: u16, most: u64) -> Result<Option<u64>> {
        match self.one(tag)? {
            None => Ok(None),
            Some(Value::Number(number)) if *number <= most => Ok(Some(*number)),
            _ => Err(self.error(tag, &format!("is no number of at most {most}"))),
        }
    }

    /// Whether it is 1.
    ///
    /// # Errors
    /// `Invalid` where it is neither 0 nor 1.
    pub fn flag(&mut self, tag: u16) -> Result<bool> {
        Ok(self.number(tag, 1)? == Some(1))
    }

    /// A length that is needed and not 0.
    ///
    /// # Errors
    /// `Invalid` where it is missing, 0, or greater than `most`.
    pub fn length(&mut self, tag: u16, most: u64) -> Result<u64> {
        self.number(tag, most.min(MOST_LENGTH))?.filter(|length| *length > 0).ok_or_else(|| self.error(tag, "is needed, and greater than 0"))
    }

    /// Bytes.
    ///
    /// # Errors
    /// `Invalid` where it is something else.
    pub fn bytes(&mut self, tag: u16) -> Result<Option<Bytes>> {
        match self.one(tag)? {
            None => Ok(None),
            Some(Value::Bytes(bytes)) => Ok(Some(bytes.clone())),
            _ => Err(self.error(tag, "is not of bytes")),
        }
    }

    /// A text.
    ///
    /// # Errors
    /// `Invalid` where it is something else.
    pub fn text(&mut self, tag: u16) -> Result<Option<&'a str>> {
        match self.one(tag)? {
            None => Ok(None),
            Some(Value::Text(text)) => Ok(Some(text)),
            _ => Err(self.error(tag, "is no text")),
        }
    }

    /// The 32 bytes of a key.
    ///
    /// # Errors
    /// `Invalid` where there are others, or none.
    pub fn key(&mut self) -> Result<[u8; 32]> {
        let key = self.bytes(tag::KEY)?.unwrap_or_default();
        key[..].try_into().map_err(|_| self.error(tag::KEY, &format!("is a key of 32 bytes, not of {}", key.len())))
    }

    pub(crate) fn finish(self) -> Result<()> {
        match self.left.first() {
            None => Ok(()),
            Some(argument) => Err(Error::unsupported(format!("{}: argument {} is not known", self.name, argument.tag))),
        }
    }
}

/// The operations of a target, by their numbers.
#[derive(Debug, Clone, Default)]
pub struct Registry {
    operations: BTreeMap<u16, Arc<dyn Operation>>,
}

impl Registry {
    /// None.
    #[must_use]
    pub fn empty() -> Self {
        Self::default()
    }

    /// With a further operation.
    ///
    /// # Errors
    /// `Conflict` where its number is taken.
    pub fn add(&mut self, operation: Arc<dyn Operation>) -> Result<()> {
        let (opcode, name) = (operation.opcode(), operation.name());
        if let Some(there) = self.operations.get(&opcode) {
            return Err(Error::conflict(format!("operation {name}: number {opcode:#06x} is that of {}", there.name())));
        }
        self.operations.insert(opcode, operation);
        Ok(())
    }

    /// The operation of that number.
    ///
    /// # Errors
    /// `Unsupported` where there is none.
    pub fn get(&self, opcode: u16) -> Result<&Arc<dyn Operation>> {
        self.operations.get(&opcode).ok_or_else(|| Error::unsupported(format!("operation {opcode:#06x} is not known here")))
    }

    /// All numbers, ascending.
    pub fn opcodes(&self) -> impl Iterator<Item = u16> + '_ {
        self.operations.keys().copied()
    }
}

/// Refuses chunks where an operation takes none.
pub(crate) fn check_chunks(operation: &dyn Operation, inputs: &[Object]) -> Result<()> {
    if !operation.takes_chunks() && inputs.iter().any(|object| object.flags != 0) {
        return Err(Error::invalid(format!("{}: its inputs can't be chunks", operation.name())));
    }
    if inputs.iter().any(|object| object.resume != 0) && operation.opcode() < opcode::OTHERS && operation.opcode() != opcode::SEARCH {
        return Err(Error::invalid(format!("{}: it can't go on within an object", operation.name())));
    }
    Ok(())
}
