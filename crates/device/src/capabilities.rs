//! What a CSE can do, as one value that callers ask before they call.
//!
//! Invariant: a method that is not among a CSE's capabilities answers `Unsupported` and names the CSE. Callers that
//! have another way use those of [`negotiate`](crate::negotiate), which ask the value and take that way.

use serde::{Deserialize, Deserializer, Serialize};

use crate::program::ProgramKind;

/// How the changes of one [`apply`](crate::Storage::apply) take effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Batches {
    /// As one: their conditions decide about all of them. After a crash, at most values remain that no record names.
    #[default]
    Atomic,
    /// Each key by itself. A fleet commits data sets by conditions on several keys, and so takes no such CSE as a
    /// drive.
    PerKey,
}

/// What a CSE can do. The default is what a drive of this version can do, for a caller in another process.
///
/// It travels in [`CseInfo`](crate::CseInfo) as JSON. A field that is missing, as in the answer of an older drive,
/// has its default: a host then calls the method, and an older drive refuses what it does not know.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[allow(clippy::struct_excessive_bools, reason = "independent facts")]
pub struct Capabilities {
    /// The CSE, or its drives, are behind a connection. It can be lost and found again while this process runs, and
    /// several hosts can reach it. This is a fact about the way to the CSE, so it does not travel.
    #[serde(skip)]
    pub remote: bool,
    /// Calls and their messages end with an error of their own when the CSE is dead: silence means slow work, and a
    /// caller needs no deadline. A fact about the way to the CSE, so that it does not travel.
    #[serde(skip)]
    pub heartbeats: bool,
    /// [`Cse::open`](crate::Cse::open) may answer with a session.
    pub sessions: bool,
    /// [`Storage::verify`](crate::Storage::verify): the CSE verifies values itself.
    pub verify: bool,
    /// [`Op::Link`](skytether_store::Op::Link): a value gets a second key without a copy of its bytes.
    pub link: bool,
    /// How the changes of one batch take effect.
    pub batches: Batches,
    /// [`Storage::indexes`](crate::Storage::indexes): it builds the indexes that root records name.
    pub indexes: bool,
    /// The kinds of programs that it runs; none where it only stores.
    #[serde(deserialize_with = "known_kinds")]
    pub programs: Vec<ProgramKind>,
}

impl Default for Capabilities {
    fn default() -> Self {
        Self {
            remote: false,
            heartbeats: false,
            sessions: true,
            verify: true,
            link: true,
            batches: Batches::Atomic,
            indexes: true,
            programs: vec![ProgramKind::Substrait],
        }
    }
}

impl Capabilities {
    /// The capabilities of a CSE that only stores values.
    #[must_use]
    pub fn storage_only() -> Self {
        Self { sessions: false, verify: false, link: false, indexes: false, programs: Vec::new(), ..Self::default() }
    }

    /// Whether it runs programs of `kind`.
    #[must_use]
    pub fn runs(&self, kind: ProgramKind) -> bool {
        self.programs.contains(&kind)
    }

    /// Whether the part that travels is the default: then it need not travel.
    pub(crate) fn is_usual(&self) -> bool {
        Self { remote: false, heartbeats: false, ..self.clone() } == Self::default()
    }
}

/// Passes over kinds that this version does not know.
fn known_kinds<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<ProgramKind>, D::Error> {
    let all = Vec::<serde_json::Value>::deserialize(from)?;
    Ok(all.into_iter().filter_map(|kind| ProgramKind::deserialize(kind).ok()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_fields_mean_the_behaviour_of_older_drives() {
        let none: Capabilities = serde_json::from_str("{}").unwrap();
        assert_eq!(none, Capabilities::default());
        assert!(none.is_usual() && Capabilities { remote: true, heartbeats: true, ..none }.is_usual());
    }

    #[test]
    fn unknown_kinds_of_newer_drives_are_ignored() {
        let newer: Capabilities = serde_json::from_str(r#"{"link": false, "programs": ["substrait", "quantum"], "telepathy": true}"#).unwrap();
        assert_eq!(newer, Capabilities { link: false, ..Capabilities::default() });
        assert!(!newer.is_usual() && newer.runs(ProgramKind::Substrait));
    }

    #[test]
    fn the_way_to_a_cse_does_not_travel() {
        let own = Capabilities { remote: true, heartbeats: true, ..Capabilities::storage_only() };
        let text = serde_json::to_string(&own).unwrap();
        assert!(!text.contains("remote") && !text.contains("heartbeats"), "{text}");
        assert_eq!(serde_json::from_str::<Capabilities>(&text).unwrap(), Capabilities::storage_only());
    }
}
