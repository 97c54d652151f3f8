//! How volumes are served.

use std::time::Duration;

use skytether_common::{Error, Result};

use crate::login::MAX_NAME;
use crate::secrets::Secrets;

/// The scheme of addresses.
pub const SCHEME: &str = "iscsi";

/// What stands before the name of a drive in the default name of its target.
pub const NAME_PREFIX: &str = "iqn.2024-01.io.skytether:";

/// How volumes are served.
#[derive(Debug, Clone)]
pub struct Options {
    /// The name of the target. `None`: [`NAME_PREFIX`] and the name of the drive.
    pub name: Option<String>,
    /// Who may log in, by CHAP; `None`: any initiator that reaches the port.
    pub secrets: Option<Secrets>,
    /// Commands that one session may have under way, at most 1,024. It gets less where many sessions share the memory.
    pub depth: u32,
    /// The most that one command reads or writes, in bytes: a multiple of 512, at least 1 MiB.
    pub transfer: u32,
    /// What reads and requested writes of all sessions hold together, in bytes.
    pub memory: u64,
    /// What reads and requested writes of one session hold, in bytes.
    pub session_memory: u64,
    /// What initiators may send without being asked, of all sessions together, in bytes.
    pub unasked_memory: u64,
    /// How long a login may take in all.
    pub login_time: Duration,
    /// How long an initiator is silent before it is probed.
    pub probe_after: Duration,
    /// How long a probed initiator may be silent.
    pub probe_time: Duration,
    /// How long an initiator may read nothing while answers wait for it.
    pub write_time: Duration,
    /// How long the data of one write may take.
    pub transfer_time: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            name: None,
            secrets: None,
            depth: 128,
            transfer: 16 << 20,
            memory: 256 << 20,
            session_memory: 64 << 20,
            unasked_memory: 512 << 20,
            login_time: Duration::from_secs(20),
            probe_after: Duration::from_secs(60),
            probe_time: Duration::from_secs(60),
            write_time: Duration::from_secs(60),
            transfer_time: Duration::from_secs(120),
        }
    }
}

impl Options {
    /// Checks values that depend on each other.
    ///
    /// # Errors
    /// `Invalid` for a name that is no iSCSI name, for values out of their ranges, and where one command takes more
    /// than a session or all sessions may.
    pub fn check(&self) -> Result<()> {
        if let Some(name) = &self.name {
            check_name(name)?;
        }
        let transfer = u64::from(self.transfer);
        if transfer < 1 << 20 || !transfer.is_multiple_of(512) {
            return Err(Error::invalid(format!("iscsi: commands of {transfer} bytes: give a multiple of 512 from 1 MiB on")));
        }
        if transfer > self.session_memory || self.session_memory > self.memory {
            return Err(Error::invalid("iscsi: a command takes at most what a session may, and a session what all may: raise the memory"));
        }
        if self.depth == 0 || self.depth > 1024 {
            return Err(Error::invalid(format!("iscsi: {} commands of a session at once: give 1 to 1024", self.depth)));
        }
        Ok(())
    }
}

/// Checks that `name` is an iSCSI name (RFC 7143, section 4.2.7).
///
/// # Errors
/// `Invalid`.
pub fn check_name(name: &str) -> Result<()> {
    let typed = ["iqn.", "eui.", "naa."].iter().any(|kind| name.starts_with(kind));
    let valid = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '.' | '-' | ':') || !c.is_ascii() && c.is_alphanumeric();
    if typed && name.len() <= MAX_NAME && name.chars().all(valid) {
        return Ok(());
    }
    Err(Error::invalid(format!("{name:?} is no iSCSI name: give one such as iqn.2024-01.com.example:disks, in lower case, with at most {MAX_NAME} bytes")))
}

/// The default name of the target of the drive `drive`.
#[must_use]
pub fn default_name(drive: &str) -> String {
    let lower = drive.to_lowercase();
    let name: String = lower.chars().map(|c| if c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | ':') { c } else { '-' }).collect();
    format!("{NAME_PREFIX}{name}").chars().take(MAX_NAME).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn default_names_are_valid() {
        for drive in ["drive-0", "Drive 7", "Änderung", "a_b/c", ""] {
            check_name(&default_name(drive)).unwrap();
        }
        assert_eq!(default_name("Drive 7"), "iqn.2024-01.io.skytether:drive-7");
        for wrong in ["disk", "iqn.2024-01.x:A", "iqn.a b", ""] {
            assert!(check_name(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn memory_for_less_than_a_command_is_refused() {
        Options::default().check().unwrap();
        assert!(Options { session_memory: 1 << 20, ..Options::default() }.check().is_err());
        assert!(Options { depth: 0, ..Options::default() }.check().is_err());
        assert!(Options { transfer: 4096, ..Options::default() }.check().is_err());
    }
}
