//! Inputs of one descriptor, and the places of their files.

use std::collections::HashMap;
use std::sync::Arc;

use skytether_common::Result;
use skytether_offload::{Capabilities, Object};

use crate::input::Input;
use crate::places::{OpenFile, Places};
use crate::same_disk::SameDisk;

/// Bytes of a result that each input takes for sure.
const SURE: usize = 128;

/// The most bytes that one descriptor reads where it has several inputs. The target's time for a descriptor is limited.
const MOST_SEEN: u64 = 4 << 30;

/// Names the file of an input, as long as the input lives.
pub(crate) fn key(input: &Input) -> usize {
    Arc::as_ptr(&input.file) as usize
}

/// Places of files, each asked for once.
pub(crate) struct Maps<'a> {
    files: HashMap<usize, (Arc<OpenFile>, Result<Places>)>,
    disk: &'a SameDisk,
}

impl<'a> Maps<'a> {
    /// Of files that must be on this disk.
    pub(crate) fn new(disk: &'a SameDisk) -> Self {
        Self { files: HashMap::new(), disk }
    }

    /// The object of an input.
    pub(crate) fn object(&mut self, input: &Input) -> Result<Object> {
        let (_, places) = self.files.entry(key(input)).or_insert_with(|| (input.file.clone(), input.file.places()));
        match places {
            Ok(places) => {
                self.disk.check(&places.carrier).map_err(|error| error.named(&input.file.path().display().to_string()))?;
                input.there(places)
            }
            Err(error) => Err(error.flattened()),
        }
    }

    /// Files that are not what they were.
    pub(crate) fn changed(&self) -> Vec<usize> {
        let is_changed = |(file, places): &(Arc<OpenFile>, Result<Places>)| match places {
            Ok(places) => !file.is_unchanged(places).unwrap_or(false),
            Err(_) => false,
        };
        self.files.iter().filter(|(_, file)| is_changed(file)).map(|(key, _)| *key).collect()
    }
}

/// Inputs of one descriptor.
#[derive(Default)]
pub(crate) struct Group {
    /// Their numbers.
    pub(crate) inputs: Vec<usize>,
    pub(crate) objects: Vec<Object>,
    extents: usize,
    seen: u64,
}

impl Group {
    /// Whether there is room for one more, in the descriptor and in a result of `result` bytes.
    pub(crate) fn fits(&self, further: &Object, capabilities: &Capabilities, result: usize) -> bool {
        let (objects, extents) = (self.objects.len() + 1, self.extents + further.extents.len());
        // An object has 40 bytes and an extent 16; half of a descriptor may be arguments.
        let bytes = objects * 40 + extents * 16;
        objects <= capabilities.objects as usize
            && extents <= capabilities.extents as usize
            && bytes <= capabilities.limits.descriptor as usize / 2
            && self.seen.saturating_add(further.seen()) <= capabilities.bytes.min(MOST_SEEN)
            && objects * SURE <= result.min(capabilities.limits.result as usize)
    }

    pub(crate) fn push(&mut self, at: usize, object: Object) {
        self.inputs.push(at);
        self.extents += object.extents.len();
        self.seen += object.seen();
        self.objects.push(object);
    }
}
