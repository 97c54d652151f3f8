//! What mode parameters can change of a logical unit. Nothing of it is saved when the target ends.

/// The values of the changeable parameters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Modes {
    /// WCE.
    write_cache: bool,
    /// D_SENSE.
    descriptors: bool,
    /// SWP.
    protect: bool,
}

impl Default for Modes {
    fn default() -> Self {
        Self { write_cache: true, descriptors: false, protect: false }
    }
}

impl Modes {
    /// After a reset: the default values, but for a write cache that was switched off. An initiator that relies on that
    /// would not hear in time that writes are cached again.
    pub(crate) fn after_reset(self) -> Self {
        Self { write_cache: self.write_cache, ..Self::default() }
    }

    /// Whether sense data is in the descriptor format.
    pub(crate) fn descriptors(self) -> bool {
        self.descriptors
    }

    /// Whether writes may be acknowledged before they are durable.
    pub(crate) fn write_cache(self) -> bool {
        self.write_cache
    }

    /// Whether an initiator protects the blocks from changes.
    pub(crate) fn software_write_protect(self) -> bool {
        self.protect
    }

    pub(crate) fn set_write_cache(&mut self, on: bool) {
        self.write_cache = on;
    }

    pub(crate) fn set_control(&mut self, descriptors: bool, protect: bool) {
        (self.descriptors, self.protect) = (descriptors, protect);
    }
}
