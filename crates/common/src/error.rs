//! The error of the whole system. It has a kind that says what the caller must do, a text that names the object and
//! what happened, a cause, and a detail by which programs decide.

use std::error::Error as StdError;
use std::fmt;
use std::io;
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::detail::Detail;

/// What the caller can do about an error.
///
/// Texts, protocols and Python have one word for each: that of [`Kind::as_str`]. Readers also take words whose spaces
/// are written as underscores.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// The input or the call is wrong: correct it and call again.
    Invalid,
    /// The named object does not exist.
    NotFound,
    /// Another process changed or holds the object: nothing was changed; read again and decide.
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
    /// All kinds.
    pub const ALL: [Kind; 8] =
        [Kind::Invalid, Kind::NotFound, Kind::Conflict, Kind::Corrupt, Kind::Unavailable, Kind::Exhausted, Kind::Unsupported, Kind::Internal];

    /// The kind in a word, as errors print it and as it travels.
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

    /// Whether the same request gives the same error until its object is repaired.
    #[must_use]
    pub fn is_permanent(self) -> bool {
        matches!(self, Kind::Invalid | Kind::NotFound | Kind::Corrupt | Kind::Unsupported)
    }
}

impl FromStr for Kind {
    type Err = Error;

    /// The kind of that word. What sessions sent before had `not_found` for `not found`.
    fn from_str(word: &str) -> Result<Self> {
        let is = |kind: &Kind| kind.as_str() == word || kind.as_str().replace(' ', "_") == word;
        Self::ALL.into_iter().find(is).ok_or_else(|| Error::invalid(format!("{:?} is no kind of error", word.chars().take(40).collect::<String>())))
    }
}

impl Serialize for Kind {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for Kind {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        String::deserialize(from)?.parse().map_err(D::Error::custom)
    }
}

/// The result of everything that can fail.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The cause of an error: another error, or a text.
pub type Source = Box<dyn StdError + Send + Sync + 'static>;

/// What went wrong: see [`Kind`]. Texts are lower case, without a full stop, and name the object.
///
/// Texts are for people. A program decides by [`Error::kind`] and [`Error::detail`] only.
pub struct Error(Box<Inner>);

struct Inner {
    kind: Kind,
    message: String,
    detail: Option<Detail>,
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
        Self(Box::new(Inner { kind, message: message.into(), detail: None, source: None }))
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
        Self::new(kind, format!("cannot {action} {}", path.as_ref().display())).with_source(cause)
    }

    /// The same error with its cause kept.
    #[must_use]
    pub fn with_source(mut self, cause: impl Into<Source>) -> Self {
        self.0.source = Some(cause.into());
        self
    }

    /// The same error with what a program may want to know of it.
    #[must_use]
    pub fn with_detail(mut self, detail: Detail) -> Self {
        self.0.detail = Some(detail);
        self
    }

    /// The same kind, with a sentence about the object in front and this error as the cause.
    #[must_use]
    pub fn context(self, what: impl Into<String>) -> Self {
        Self::new(self.kind(), what).with_source(self)
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

    /// The detail of this error, or of the first cause that has one and is of the same kind.
    ///
    /// A cause of another kind was translated: its detail is no longer what the caller has to act on.
    #[must_use]
    pub fn detail(&self) -> Option<&Detail> {
        let mut at: Option<&(dyn StdError + 'static)> = Some(self);
        while let Some(error) = at {
            if let Some(ours) = as_ours(error) {
                if ours.0.kind != self.0.kind {
                    return None;
                }
                if let Some(detail) = &ours.0.detail {
                    return Some(detail);
                }
            }
            at = error.source();
        }
        None
    }

    /// The same kind, text and detail in one error without causes, for callers that only have a reference.
    #[must_use]
    pub fn flattened(&self) -> Self {
        let mut flat = Self::new(self.0.kind, self.report());
        flat.0.detail = self.detail().cloned();
        flat
    }

    /// Whether the text names `name`. Only for texts about an error, never for decisions.
    #[must_use]
    pub fn mentions(&self, name: &str) -> bool {
        self.report().contains(name)
    }

    /// This error, with `name` in front of its text unless it is there.
    #[must_use]
    pub fn named(self, name: &str) -> Self {
        if self.0.message.starts_with(name) { self } else { self.context(name) }
    }

    /// The text with all causes, without `name: ` in front.
    #[must_use]
    pub fn text_without(&self, name: &str) -> String {
        let text = self.report();
        text.strip_prefix(name).and_then(|rest| rest.strip_prefix(": ")).map(ToOwned::to_owned).unwrap_or(text)
    }

    /// The text with all causes, joined by `: `.
    #[must_use]
    pub fn report(&self) -> String {
        let mut text = self.0.message.clone();
        let mut cause = self.source();
        while let Some(c) = cause {
            // An `Error` prints its causes itself; take only its own line.
            let line = as_ours(c).map_or_else(|| c.to_string(), |e| e.0.message.clone());
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
            if let Some(ours) = as_ours(e) {
                return Some(ours);
            }
            // The `source()` of an I/O error leaves out the error that it was made of.
            at = match e.downcast_ref::<io::Error>().and_then(io::Error::get_ref) {
                Some(within) => Some(within),
                None => e.source(),
            };
        }
        None
    }
}

/// `error` as one of ours, also where several have it.
fn as_ours<'a>(error: &'a (dyn StdError + 'static)) -> Option<&'a Error> {
    error.downcast_ref::<Error>().or_else(|| error.downcast_ref::<Arc<Error>>().map(AsRef::as_ref))
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.report())
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.0.kind.as_str(), self.report())
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
        self.map_err(|e| e.context(what()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_whole_chain_is_printed_once() {
        let low = Error::io("read", "/data/7.slice", std::io::Error::from(std::io::ErrorKind::UnexpectedEof));
        let high = low.context("cannot scan blood.pbmc3k");
        assert_eq!(high.kind(), Kind::Corrupt);
        assert_eq!(high.to_string(), "cannot scan blood.pbmc3k: cannot read /data/7.slice: unexpected end of file");
    }

    #[test]
    fn full_disk_has_its_own_kind() {
        let full = Error::io("write", "/x", std::io::Error::from(std::io::ErrorKind::StorageFull));
        assert_eq!(full.kind(), Kind::Exhausted);
    }

    #[test]
    fn a_detail_is_found_below_causes_of_its_kind() {
        let missing = || Detail::MissingKey { key: crate::Key::new("lab/t").unwrap() };
        let error = || Error::not_found("there is no key lab/t").with_detail(missing());
        assert_eq!(Error::not_found("x").detail(), None);
        assert_eq!(error().context("a").context("b").detail(), Some(&missing()));
        let shared = Error::not_found("there is no key lab/t").with_source(Arc::new(error().context("a")));
        assert_eq!((shared.detail(), shared.to_string().as_str()), (Some(&missing()), "there is no key lab/t: a: there is no key lab/t"));
        let flat = error().context("a").flattened();
        assert_eq!((flat.kind(), flat.message(), flat.detail()), (Kind::NotFound, "a: there is no key lab/t", Some(&missing())));
        assert!(StdError::source(&flat).is_none());
        // What was translated is another error, and the outer detail is what the caller acts on.
        assert_eq!(Error::conflict("replaced").with_source(error()).detail(), None);
        let outer = Detail::MissingTable { table: "t".into() };
        assert_eq!(Error::not_found("x").with_detail(outer.clone()).with_source(error()).detail(), Some(&outer));
    }

    #[test]
    fn a_kind_is_read_in_both_spellings() {
        for kind in Kind::ALL {
            let json = serde_json::to_string(&kind).unwrap();
            assert_eq!(json, format!("{:?}", kind.as_str()));
            for word in [json.clone(), json.replace(' ', "_")] {
                assert_eq!(serde_json::from_str::<Kind>(&word).unwrap(), kind, "{word}");
            }
        }
        assert!("no kind".parse::<Kind>().is_err() && serde_json::from_str::<Kind>("3").is_err());
    }

    #[test]
    fn a_name_is_put_in_front_once() {
        let error = || Error::invalid("drive-1: broken");
        assert_eq!(error().named("drive-1").to_string(), "drive-1: broken");
        assert_eq!(error().named("drive-2").to_string(), "drive-2: drive-1: broken");
        assert_eq!((error().text_without("drive-1"), error().text_without("drive-2")), ("broken".to_owned(), "drive-1: broken".to_owned()));
        assert!(error().context("x").mentions("drive-1") && !error().mentions("drive-2"));
    }

    #[test]
    fn ours_is_found_within_an_io_error() {
        let io = io::Error::other(Error::exhausted("full").with_detail(Detail::SpillDiskFull));
        assert_eq!(Error::find(&io).and_then(Error::detail), Some(&Detail::SpillDiskFull));
        assert!(Error::find(&io::Error::from(io::ErrorKind::StorageFull)).is_none());
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
