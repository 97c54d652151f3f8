//! Actions as types: one table of what a server offers, from which parsing, calls and the list derive.
//!
//! [`actions!`](crate::actions!) makes an enum of a table. A name occurs only there, so a server can't offer what its
//! list omits: it matches on the enum, which the compiler checks.

use arrow_flight::ActionType;
use bytes::Bytes;
use skytether_common::{Error, Result};
use skytether_device::Verify;
use skytether_store::Op;

use crate::frames::{self, KeyRequest, ListRequest, RangesRequest};

/// How the answer to an action comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answered {
    /// In one message.
    Once,
    /// After messages that report progress.
    Progress,
}

/// A row of a table of actions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Row {
    /// The action's name on the wire.
    pub name: &'static str,
    /// What it does, for people.
    pub description: &'static str,
    /// How its answer comes.
    pub answered: Answered,
}

impl Row {
    /// The row as `ListActions` shows it, under this name.
    #[must_use]
    pub fn listed(&self, name: String) -> ActionType {
        let more = if self.answered == Answered::Progress { "; tells how far it is" } else { "" };
        ActionType { r#type: name, description: format!("{}{more}", self.description) }
    }
}

/// Makes an enum of a table of actions.
///
/// A row is `Variant(Request as codec) = "name", Answered, "description";`. The codec is a module with `encode` and
/// `decode`, for example [`json`](crate::actions::json). Without a request the body is empty, and an incoming body is
/// ignored.
#[macro_export]
macro_rules! actions {
    (
        $(#[$meta:meta])*
        $vis:vis enum $Action:ident {
            $($Variant:ident $(($Request:ty as $codec:ident))? = $name:literal, $answered:ident, $description:literal;)*
        }
    ) => {
        $(#[$meta])*
        #[derive(Debug, Clone, PartialEq)]
        $vis enum $Action {
            $(#[doc = concat!("`", $name, "`: ", $description, ".")] $Variant $(($Request))?,)*
        }

        impl $Action {
            /// All actions, in the order of the list.
            $vis const TABLE: &'static [$crate::actions::Row] =
                &[$($crate::actions::Row { name: $name, description: $description, answered: $crate::actions::Answered::$answered },)*];

            /// The name on the wire.
            #[must_use]
            $vis fn name(&self) -> &'static str {
                match self {
                    $(Self::$Variant { .. } => $name,)*
                }
            }

            /// The body of the request.
            ///
            /// # Errors
            /// Those of its codec.
            // The codec's name also names the request: only it occurs just where there is a request.
            $vis fn encode(&self) -> skytether_common::Result<bytes::Bytes> {
                match self {
                    $(Self::$Variant $(($codec))? => $crate::actions::or_empty([$($codec::encode($codec))?]),)*
                }
            }

            /// The action of this name, with its request; `None` for a name that is not in the table.
            ///
            /// # Errors
            /// Those of its codec.
            $vis fn parse(name: &str, body: &bytes::Bytes) -> skytether_common::Result<Option<Self>> {
                Ok(Some(match name {
                    $($name => Self::$Variant $(($codec::decode(concat!("a `", $name, "` request"), body)?))?,)*
                    _ => return Ok(None),
                }))
            }
        }
    };
}

/// The body of a request that may not be there.
#[doc(hidden)]
pub fn or_empty<const N: usize>(body: [Result<Bytes>; N]) -> Result<Bytes> {
    body.into_iter().next().unwrap_or_else(|| Ok(Bytes::new()))
}

/// What a server answers to an action that is not in its table.
#[must_use]
pub fn unknown(server: &str, name: &str, table: &[Row]) -> Error {
    let known: Vec<&str> = table.iter().map(|row| row.name).collect();
    Error::unsupported(format!("{server} does not know the action {:?}: {}", name.chars().take(80).collect::<String>(), known.join(", ")))
}

/// A request as JSON.
pub mod json {
    use bytes::Bytes;
    use serde::Serialize;
    use serde::de::DeserializeOwned;
    use skytether_common::Result;

    use crate::frames;

    /// The body.
    ///
    /// # Errors
    /// Internal for what JSON can't hold.
    pub fn encode<T: Serialize>(request: &T) -> Result<Bytes> {
        frames::encode_json(request)
    }

    /// Reads the body of `what`.
    ///
    /// # Errors
    /// Invalid for another form.
    pub fn decode<T: DeserializeOwned>(what: &str, body: &Bytes) -> Result<T> {
        frames::decode_json(what, body)
    }
}

/// Changes as `apply` has them.
mod batch {
    use super::{Bytes, Op, Result, frames};

    pub(super) fn encode(batch: &[Op]) -> Result<Bytes> {
        frames::encode_batch(batch)
    }

    pub(super) fn decode(_: &str, body: &Bytes) -> Result<Vec<Op>> {
        frames::decode_batch(body)
    }
}

/// What `verify` asks for.
mod verify {
    use super::{Bytes, Result, Verify};

    #[expect(clippy::unnecessary_wraps, reason = "all codecs have one form")]
    pub(super) fn encode(asked: &Verify) -> Result<Bytes> {
        Ok(asked.encode())
    }

    pub(super) fn decode(_: &str, body: &Bytes) -> Result<Verify> {
        Verify::decode(body)
    }
}

actions! {
    /// An action of a drive.
    pub enum DriveAction {
        Info = "info", Once, "who this is, and the protocol";
        Get(KeyRequest as json) = "get", Once, "a value";
        GetRanges(RangesRequest as json) = "get_ranges", Once, "parts of a value";
        Stat(KeyRequest as json) = "stat", Once, "what is known of a key";
        List(ListRequest as json) = "list", Once, "keys by prefix";
        Usage = "usage", Once, "how much is stored";
        Indexes = "indexes", Once, "the indexes that it has or builds, and how far they are";
        Apply(Vec<Op> as batch) = "apply", Once, "a batch of changes, atomically";
        Verify(Verify as verify) = "verify", Once, "reads values where they lie, and reports what is not as expected";
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use skytether_common::{Key, Kind};
    use skytether_store::Expect;

    use super::*;

    #[test]
    fn every_drive_action_survives_its_wire_form() {
        let key = || Key::new("a/b").unwrap();
        let samples = [
            (DriveAction::Info, ""),
            (DriveAction::Get(KeyRequest { key: key() }), r#"{"key":"a/b"}"#),
            (
                DriveAction::GetRanges(RangesRequest { key: key(), ranges: vec![1..3, 5..6] }),
                r#"{"key":"a/b","ranges":[{"start":1,"end":3},{"start":5,"end":6}]}"#,
            ),
            (DriveAction::Stat(KeyRequest { key: key() }), r#"{"key":"a/b"}"#),
            (DriveAction::List(ListRequest { prefix: "a".into(), after: None, limit: 7 }), r#"{"prefix":"a","after":null,"limit":7}"#),
            (DriveAction::Usage, ""),
            (DriveAction::Indexes, ""),
            (DriveAction::Apply(vec![Op::Delete { key: key(), expect: Expect::Any }]), ",\0\0\0[{\"op\":\"delete\",\"key\":\"a/b\",\"expect\":\"any\"}]"),
            (DriveAction::Verify(Verify::default()), "\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0"),
        ];
        for (action, bytes) in &samples {
            let body = action.encode().unwrap();
            assert_eq!(body, bytes.as_bytes(), "{}", action.name());
            assert_eq!(DriveAction::parse(action.name(), &body).unwrap().as_ref(), Some(action));
        }
        let names: BTreeSet<&str> = samples.iter().map(|(action, _)| action.name()).collect();
        assert_eq!(names, DriveAction::TABLE.iter().map(|row| row.name).collect());
        assert_eq!(DriveAction::TABLE.len(), samples.len(), "a name occurs once");
    }

    #[test]
    fn unknown_actions_and_wrong_bodies_are_refused_by_name() {
        assert_eq!(DriveAction::parse("greet", &Bytes::new()).unwrap(), None);
        let error = unknown("a drive", "greet", DriveAction::TABLE);
        assert!(error.kind() == Kind::Unsupported && error.to_string().contains("\"greet\"") && error.to_string().contains("get_ranges"), "{error}");
        let error = DriveAction::parse("get", &Bytes::from_static(b"{}")).unwrap_err();
        assert!(error.kind() == Kind::Invalid && error.to_string().contains("`get`"), "{error}");
    }
}
