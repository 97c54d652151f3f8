//! The state of a drive as the host sees it.

use serde::{Deserialize, Serialize};
use skytether_device::CseInfo;
use skytether_store::Usage;

use skytether_catalog::listing::Unreadable;

/// One drive as the host sees it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DriveStatus {
    /// The drive's name, id and properties.
    pub info: CseInfo,
    /// The drive that answers at its address in its place.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub found: Option<CseInfo>,
    /// The node that it is on, where the record of the fleet says so.
    #[serde(default, rename = "host", skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// Its usage of space, if it answers.
    pub usage: Option<Usage>,
    /// Why it is lost: why it does not answer, or is not used although it does.
    pub error: Option<String>,
    /// Whether it is down because it is blank: it replaces a lost drive, and nothing was rebuilt on it yet.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub blank: bool,
    /// Another host that it takes changes from, if that is not this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fenced: Option<String>,
    /// Values of this drive that were found damaged since the host began, and not repaired since: a scrub repairs them.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub damaged: u64,
    /// Data sets whose root records are on this drive and can't be read.
    #[serde(default)]
    pub unreadable: Vec<Unreadable>,
}

fn is_zero(n: &u64) -> bool {
    *n == 0
}
