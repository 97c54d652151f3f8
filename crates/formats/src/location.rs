//! [`Location`]: where the bytes of a table lie. Most are files; a drive reads objects that lie in ranges of a volume.

use std::fmt;
use std::io;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Bytes that are read as a file is, and are none of this machine's.
pub trait Object: Send + Sync {
    /// Their number. It does not change.
    fn len(&self) -> u64;

    /// Whether there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Reads bytes from `at` on into `into`, and says how many; none at the end only.
    ///
    /// # Errors
    /// Any; the table's error names the object, with this one as the cause.
    fn read_at(&self, at: u64, into: &mut [u8]) -> io::Result<usize>;
}

/// A file, or an object with a name that looks like that of a file.
#[derive(Clone)]
pub struct Location {
    path: PathBuf,
    object: Option<Arc<dyn Object>>,
}

impl Location {
    /// A file of this machine.
    #[must_use]
    pub fn file(path: &Path) -> Self {
        Self { path: path.to_path_buf(), object: None }
    }

    /// An object. Errors call it `name`, whose ending says the format where the caller does not.
    #[must_use]
    pub fn object(name: &str, object: Arc<dyn Object>) -> Self {
        Self { path: PathBuf::from(name), object: Some(object) }
    }

    pub(super) fn bytes(&self) -> Option<&Arc<dyn Object>> {
        self.object.as_ref()
    }
}

impl Deref for Location {
    type Target = Path;

    fn deref(&self) -> &Path {
        &self.path
    }
}

impl fmt::Debug for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.path.fmt(f)
    }
}
