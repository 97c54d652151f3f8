//! The secrets of CHAP, from a file that its owner alone reads.

use std::collections::HashMap;
use std::fmt;
use std::path::Path;

use skytether_common::{Error, Result};

/// The shortest secret in bytes (RFC 7143, section 12.1.3: 96 bits).
const SHORTEST: usize = 12;

/// The longest secret and the longest name in bytes.
const LONGEST: usize = 255;

/// Entries of a file.
const MAX_ENTRIES: usize = 10_000;

/// The longest file in bytes.
const MAX_FILE: u64 = 4 << 20;

/// A name and what proves it.
#[derive(Clone, PartialEq, Eq)]
pub struct Credential {
    /// The name, `CHAP_N`.
    pub name: String,
    /// The secret.
    pub secret: Vec<u8>,
}

impl fmt::Debug for Credential {
    /// Without the secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Credential({})", self.name)
    }
}

/// Who may log in, and how the target proves itself to initiators that ask for it (mutual CHAP).
///
/// As a file, it has an entry a line; `#` begins a comment:
/// ```text
/// initiator NAME SECRET
/// target NAME SECRET
/// ```
/// Names and secrets have no spaces; secrets have 12 to 255 bytes. There are one or more initiators and at most one
/// target. No initiator has the target's secret, because it could then prove to be the target.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Secrets {
    initiators: HashMap<String, Vec<u8>>,
    target: Option<Credential>,
}

impl fmt::Debug for Secrets {
    /// Without the secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Secrets({} initiators, target {:?})", self.initiators.len(), self.target)
    }
}

impl Secrets {
    /// Reads the file at `path`.
    ///
    /// # Errors
    /// `NotFound` and others where it can't be read. `Invalid` where others than its owner may read it, and for
    /// malformed lines, which are named by their number.
    pub fn read(path: &Path) -> Result<Self> {
        let metadata = std::fs::metadata(path).map_err(|e| Error::io("read", path, e))?;
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            if metadata.permissions().mode() & 0o077 != 0 {
                return Err(Error::invalid(format!("{}: others than the owner may use this file of secrets: `chmod 600` it", path.display())));
            }
        }
        if metadata.len() > MAX_FILE {
            return Err(Error::invalid(format!("{}: a file of secrets has at most {MAX_FILE} bytes", path.display())));
        }
        let text = std::fs::read_to_string(path).map_err(|e| Error::io("read", path, e))?;
        Self::parse(&text).map_err(|e| e.context(path.display().to_string()))
    }

    /// Reads the text of a file.
    ///
    /// # Errors
    /// `Invalid` for a malformed line, which is named by its number.
    pub fn parse(text: &str) -> Result<Self> {
        let mut secrets = Self::default();
        for (number, line) in text.lines().enumerate() {
            let words: Vec<&str> = line.split_whitespace().collect();
            let wrong = |what: &str| Error::invalid(format!("line {}: {what}", number + 1));
            match words.as_slice() {
                [] => {}
                [first, ..] if first.starts_with('#') => {}
                [role @ ("initiator" | "target"), name, secret] => {
                    if !(SHORTEST..=LONGEST).contains(&secret.len()) || name.len() > LONGEST {
                        return Err(wrong("a secret has 12 to 255 bytes, a name at most 255"));
                    }
                    let (name, secret) = ((*name).to_owned(), secret.as_bytes().to_vec());
                    let twice = match *role {
                        "initiator" => secrets.initiators.insert(name, secret).is_some(),
                        _ => secrets.target.replace(Credential { name, secret }).is_some(),
                    };
                    if twice {
                        return Err(wrong("this entry comes twice"));
                    }
                }
                _ => return Err(wrong("an entry is `initiator NAME SECRET` or `target NAME SECRET`")),
            }
            if secrets.initiators.len() > MAX_ENTRIES {
                return Err(wrong("there are too many entries"));
            }
        }
        if secrets.initiators.is_empty() {
            return Err(Error::invalid("no initiator has a secret: add a line `initiator NAME SECRET`"));
        }
        if secrets.target.as_ref().is_some_and(|target| secrets.initiators.values().any(|secret| *secret == target.secret)) {
            return Err(Error::invalid("an initiator has the secret of the target: give each its own"));
        }
        Ok(secrets)
    }

    /// The secret of the initiator that calls itself `name`.
    #[must_use]
    pub fn initiator(&self, name: &str) -> Option<&[u8]> {
        self.initiators.get(name).map(Vec::as_slice)
    }

    /// How the target proves itself.
    #[must_use]
    pub fn target(&self) -> Option<&Credential> {
        self.target.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_found_by_name() {
        let secrets = Secrets::parse("# who\ninitiator alice 0123456789ab\n\ntarget drive ba9876543210\n").unwrap();
        assert_eq!(secrets.initiator("alice"), Some(&b"0123456789ab"[..]));
        assert_eq!(secrets.initiator("bob"), None);
        assert_eq!(secrets.target().map(|target| target.name.as_str()), Some("drive"));
        let shown = format!("{secrets:?}");
        assert!(!shown.contains("0123") && !shown.contains("9876"), "{shown}");
    }

    #[test]
    fn malformed_secrets_are_refused_with_their_line() {
        let cases = [
            ("initiator alice short", "line 1: a secret has"),
            ("\ninitiator alice", "line 2: an entry is"),
            ("initiator a 0123456789ab\ninitiator a 0123456789ac", "line 2: this entry comes twice"),
            ("target drive 0123456789ab", "no initiator"),
            ("initiator a 0123456789ab\ntarget drive 0123456789ab", "the secret of the target"),
        ];
        for (text, expected) in cases {
            let error = Secrets::parse(text).unwrap_err();
            assert!(error.message().contains(expected), "{text}: {error}");
        }
    }

    #[cfg(unix)]
    #[test]
    fn a_file_that_others_read_is_refused() {
        use std::os::unix::fs::PermissionsExt;
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "initiator alice 0123456789ab\n").unwrap();
        for (mode, right) in [(0o640, false), (0o604, false), (0o600, true), (0o400, true)] {
            std::fs::set_permissions(file.path(), std::fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(Secrets::read(file.path()).is_ok(), right, "{mode:o}");
        }
    }
}
