//! One error for the whole system: a kind that says what the caller must do, a text that says what went wrong
//! with which object, and the cause.

use std::error::Error as StdError;
use std::fmt;
use std::path::Path;

use serde::{Deserialize, Serialize};

/// What the caller can do about an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// The input or the call is wrong: mend it and call again.
    Invalid,
    /// The named object does not exist.
    NotFound,
    /// Somebody else changed or holds the object: nothing was changed; read again and decide.
    Conflict,
    /// Stored or received bytes are not what was written: drop what holds them and write it again.
    Corrupt,
    /// A drive, host or file can't be reached or did not answer in time: try again later or elsewhere.
    Unavailable,
    /// Memory, disk or a configured limit is used up: make room or raise the limit.
    Exhausted,
    /// Written by a newer version, or a feature that this version does not have.
    Unsupported,
    /// A defect of Skytether's own.
    Internal,
}

impl Kind {
    /// The kind in a word, as errors print it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Kind::Invalid => "invalid",
            Kind::NotFound => "not found",
            Kind::Conflict => "conflict",
            Kind::Corrupt => "corrupt",
            Kind::Unavailable => "unavailable",
            Kind::Exhausted => "exhausted",
            Kind::Unsupported => "unsupported",
            Kind::Internal => "internal",
        }
    }

    /// Whether asking the same again gives the same error, for as long as nobody mends what is asked for.
    #[must_use]
    pub fn is_lasting(self) -> bool {
        matches!(self, Kind::Invalid | Kind::NotFound | Kind::Corrupt | Kind::Unsupported)
    }
}

/// The result of everything that can fail.
pub type Result<T, E = Error> = std::result::Result<T, E>;

pub type Source = Box<dyn StdError + Send + Sync + 'static>;

/// What went wrong: see [`Kind`]. Texts are lower case, without a full stop, and name the object.
pub struct Error(Box<Inner>);

struct Inner {
    kind: Kind,
    message: String,
    source: Option<Source>,
}

macro_rules! of_kind {
    ($($(#[$doc:meta])* $name:ident => $kind:ident;)*) => {$(
        $(#[$doc])*
        pub fn $name(message: impl Into<String>) -> Self {
            Self::new(Kind::$kind, message)
        }
    )*};
}

impl Error {
    /// An error of `kind`; `message` names the object and what to do.
    pub fn new(kind: Kind, message: impl Into<String>) -> Self {
        Self(Box::new(Inner { kind, message: message.into(), source: None }))
    }

    of_kind! {
        /// [`Kind::Invalid`].
        invalid => Invalid;
        /// [`Kind::NotFound`].
        not_found => NotFound;
        /// [`Kind::Conflict`].
        conflict => Conflict;
        /// [`Kind::Corrupt`].
        corrupt => Corrupt;
        /// [`Kind::Unavailable`].
        unavailable => Unavailable;
        /// [`Kind::Exhausted`].
        exhausted => Exhausted;
        /// [`Kind::Unsupported`].
        unsupported => Unsupported;
        /// [`Kind::Internal`].
        internal => Internal;
    }

    /// An I/O failure while doing `action` ("read", "create", ...) to `path`; a full disk becomes [`Kind::Exhausted`].
    pub fn io(action: &str, path: impl AsRef<Path>, cause: std::io::Error) -> Self {
        use std::io::ErrorKind as K;
        let kind = match cause.kind() {
            K::NotFound => Kind::NotFound,
            K::StorageFull | K::QuotaExceeded | K::FileTooLarge | K::OutOfMemory => Kind::Exhausted,
            K::UnexpectedEof | K::InvalidData => Kind::Corrupt,
            K::InvalidInput | K::PermissionDenied | K::ReadOnlyFilesystem | K::NotADirectory | K::IsADirectory => Kind::Invalid,
            _ => Kind::Unavailable,
        };
        Self::new(kind, format!("cannot {action} {}", path.as_ref().display())).because(cause)
    }

    /// The same error with its cause kept.
    #[must_use]
    pub fn because(mut self, cause: impl Into<Source>) -> Self {
        self.0.source = Some(cause.into());
        self
    }

    /// The same kind, with a sentence about the object in front and this error as the cause.
    #[must_use]
    pub fn while_doing(self, what: impl Into<String>) -> Self {
        Self::new(self.kind(), what).because(self)
    }

    /// What the caller can do.
    #[must_use]
    pub fn kind(&self) -> Kind {
        self.0.kind
    }

    /// This level's text alone, without the causes.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// The text with all causes, joined by `: `.
    #[must_use]
    pub fn full_text(&self) -> String {
        let mut text = self.0.message.clone();
        let mut cause = self.source();
        while let Some(c) = cause {
            // An `Error` prints its causes itself; take only its own line.
            let line = c.downcast_ref::<Error>().map_or_else(|| c.to_string(), |e| e.0.message.clone());
            if !line.is_empty() && !text.ends_with(&line) {
                text.push_str(": ");
                text.push_str(&line);
            }
            cause = c.source();
        }
        text
    }

    /// The innermost [`Error`] hidden in a chain of other people's errors, if there is one.
    #[must_use]
    pub fn find<'a>(error: &'a (dyn StdError + 'static)) -> Option<&'a Error> {
        let mut at = Some(error);
        while let Some(e) = at {
            if let Some(ours) = e.downcast_ref::<Error>() {
                return Some(ours);
            }
            at = e.source();
        }
        None
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.full_text())
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.0.kind.as_str(), self.full_text())
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.0.source.as_deref().map(|s| s as &(dyn StdError + 'static))
    }
}

/// Names the object while passing an error on.
pub trait Context<T> {
    /// On failure, puts `what()` in front and keeps kind and cause.
    ///
    /// # Errors
    /// The error of `self`, of the same kind.
    fn context<S: Into<String>>(self, what: impl FnOnce() -> S) -> Result<T>;
}

impl<T> Context<T> for Result<T> {
    fn context<S: Into<String>>(self, what: impl FnOnce() -> S) -> Result<T> {
        self.map_err(|e| e.while_doing(what()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_whole_chain_is_printed_once() {
        let low = Error::io("read", "/data/7.slice", std::io::Error::from(std::io::ErrorKind::UnexpectedEof));
        let high = low.while_doing("cannot scan blood.pbmc3k");
        assert_eq!(high.kind(), Kind::Corrupt);
        assert_eq!(high.to_string(), "cannot scan blood.pbmc3k: cannot read /data/7.slice: unexpected end of file");
    }

    #[test]
    fn a_full_disk_is_told_apart() {
        let full = Error::io("write", "/x", std::io::Error::from(std::io::ErrorKind::StorageFull));
        assert_eq!(full.kind(), Kind::Exhausted);
    }

    #[test]
    fn ours_is_found_below_others() {
        #[derive(Debug)]
        struct Wrap(Error);
        impl fmt::Display for Wrap {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("wrapped")
            }
        }
        impl StdError for Wrap {
            fn source(&self) -> Option<&(dyn StdError + 'static)> {
                Some(&self.0)
            }
        }
        let wrapped = Wrap(Error::conflict("x"));
        assert_eq!(Error::find(&wrapped).map(Error::kind), Some(Kind::Conflict));
    }
}
