//! Device profiles: a CSE's cores, memory, disk and link, for planning and for experiments.
//!
//! A profile is TOML with units in the names. [`Profile::shipped`] has those that come with Skytether, and names the
//! source of their figures.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// A device's cores, memory, disk and link.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// Speed of a core, relative to this machine's: 0.1 takes ten times as long.
    pub speed_per_core: f64,
    /// Cores.
    pub cores: u32,
    /// Bytes of memory for sub-plans.
    pub memory_bytes: u64,
    /// Bytes per second that its disk reads in sequence.
    pub disk_bytes_per_s: f64,
    /// Seconds to move to another place on the disk.
    #[serde(default)]
    pub disk_seek_s: f64,
    /// Bits per second of its link to its parent.
    pub link_bits_per_s: f64,
    /// Seconds that a message takes one way.
    #[serde(default)]
    pub link_latency_s: f64,
}

/// A profile that can't be used.
#[derive(Debug, thiserror::Error)]
pub enum ProfileError {
    /// Not TOML, or with unknown or wrongly typed keys.
    #[error("cannot read device profile {name}")]
    Syntax {
        /// The profile.
        name: String,
        /// The parser's message, with the line.
        #[source]
        cause: toml::de::Error,
    },
    /// A key is missing. An error of its own, because the parser reports it for the first line, which is not its place.
    #[error("device profile {name}: missing field `{key}`: add a line `{key} = ...`")]
    Missing {
        /// The profile.
        name: String,
        /// The key.
        key: String,
    },
    /// A value that no device has.
    #[error("device profile {name}: {key} is {value}, but must be {must}")]
    Value {
        /// The profile.
        name: String,
        /// The key.
        key: &'static str,
        /// The value.
        value: f64,
        /// What it may be.
        must: &'static str,
    },
    /// No shipped profile has this name.
    #[error("there is no device profile {name}: the shipped ones are {shipped}; write your own as TOML and give its text")]
    Unknown {
        /// The name.
        name: String,
        /// Those that there are.
        shipped: String,
    },
    /// It can't be written as TOML.
    #[error("cannot write a device profile")]
    Print(#[from] toml::ser::Error),
}

/// A profile as it is written: any key may be absent.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    speed_per_core: Option<f64>,
    cores: Option<u32>,
    memory_bytes: Option<u64>,
    disk_bytes_per_s: Option<f64>,
    #[serde(default)]
    disk_seek_s: f64,
    link_bits_per_s: Option<f64>,
    #[serde(default)]
    link_latency_s: f64,
}

impl Written {
    fn whole(self, name: &str) -> Result<Profile, ProfileError> {
        let missing = |key: &str| ProfileError::Missing { name: name.to_owned(), key: key.to_owned() };
        Ok(Profile {
            speed_per_core: self.speed_per_core.ok_or_else(|| missing("speed_per_core"))?,
            cores: self.cores.ok_or_else(|| missing("cores"))?,
            memory_bytes: self.memory_bytes.ok_or_else(|| missing("memory_bytes"))?,
            disk_bytes_per_s: self.disk_bytes_per_s.ok_or_else(|| missing("disk_bytes_per_s"))?,
            disk_seek_s: self.disk_seek_s,
            link_bits_per_s: self.link_bits_per_s.ok_or_else(|| missing("link_bits_per_s"))?,
            link_latency_s: self.link_latency_s,
        })
    }
}

const SHIPPED: &str = include_str!("profiles.toml");

impl Profile {
    /// Reads a profile; `name` is for errors.
    ///
    /// # Errors
    /// [`ProfileError::Syntax`], [`ProfileError::Missing`], [`ProfileError::Value`].
    pub fn parse(name: &str, text: &str) -> Result<Self, ProfileError> {
        let written: Written = toml::from_str(text).map_err(|cause| ProfileError::Syntax { name: name.to_owned(), cause })?;
        written.whole(name)?.checked(name)
    }

    /// The shipped profile `name`: `envoy`, `newport`, `server` or `unlimited`.
    ///
    /// # Errors
    /// [`ProfileError::Unknown`].
    pub fn shipped(name: &str) -> Result<Self, ProfileError> {
        let mut all: BTreeMap<String, Self> = toml::from_str(SHIPPED).map_err(|cause| ProfileError::Syntax { name: "profiles.toml".to_owned(), cause })?;
        match all.remove(name) {
            Some(profile) => profile.checked(name),
            None => Err(ProfileError::Unknown { name: name.to_owned(), shipped: all.into_keys().collect::<Vec<_>>().join(", ") }),
        }
    }

    /// The name of the shipped profile that this is, if it is one.
    #[must_use]
    pub fn shipped_as(&self) -> Option<String> {
        let all: BTreeMap<String, Self> = toml::from_str(SHIPPED).ok()?;
        all.into_iter().find_map(|(name, profile)| (profile == *self).then_some(name))
    }

    /// Whether it is the shipped `unlimited`: the machine as it is, with nothing to emulate.
    #[must_use]
    pub fn is_unlimited(&self) -> bool {
        self.shipped_as().is_some_and(|name| name == "unlimited")
    }

    /// The profile as TOML that [`Self::parse`] reads.
    ///
    /// # Errors
    /// [`ProfileError::Print`].
    pub fn print(&self) -> Result<String, ProfileError> {
        Ok(toml::to_string(self)?)
    }

    /// The profile, if a device can be so; `name` is for errors.
    ///
    /// # Errors
    /// [`ProfileError::Value`].
    pub fn checked(self, name: &str) -> Result<Self, ProfileError> {
        let wrong = |key, value, must| Err(ProfileError::Value { name: name.to_owned(), key, value, must });
        for (key, value) in [("speed_per_core", self.speed_per_core), ("disk_bytes_per_s", self.disk_bytes_per_s), ("link_bits_per_s", self.link_bits_per_s)] {
            if !(value.is_finite() && value > 0.0) {
                return wrong(key, value, "a number above 0");
            }
        }
        for (key, value) in [("disk_seek_s", self.disk_seek_s), ("link_latency_s", self.link_latency_s)] {
            if !(value.is_finite() && (0.0..=60.0).contains(&value)) {
                return wrong(key, value, "from 0 to 60 seconds");
            }
        }
        if !(1..=65_536).contains(&self.cores) {
            return wrong("cores", f64::from(self.cores), "from 1 to 65536");
        }
        if self.memory_bytes < 1 << 20 {
            return wrong("memory_bytes", self.memory_bytes as f64, "at least 1048576, one slice");
        }
        Ok(self)
    }

    /// Bytes per second of the link.
    #[must_use]
    pub fn link_bytes_per_s(&self) -> f64 {
        self.link_bits_per_s / 8.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "speed_per_core = 0.5\ncores = 4\nmemory_bytes = 2000000000\ndisk_bytes_per_s = 5e8\nlink_bits_per_s = 1e9\n";

    #[test]
    fn shipped_profiles_are_as_the_papers_say() {
        let envoy = Profile::shipped("envoy").unwrap();
        assert!((envoy.speed_per_core * 15.0 - 1.0).abs() < 1e-9);
        assert_eq!((envoy.cores, envoy.memory_bytes, envoy.disk_bytes_per_s, envoy.link_bits_per_s), (2, 1 << 30, 261e6, 2.5e9));
        let newport = Profile::shipped("newport").unwrap();
        assert_eq!(newport.speed_per_core, envoy.speed_per_core, "the same processor");
        for name in ["server", "unlimited"] {
            assert_eq!(Profile::shipped(name).unwrap().speed_per_core, 1.0);
        }
    }

    #[test]
    fn printed_profile_reads_back_equal() {
        for name in ["envoy", "newport", "server", "unlimited"] {
            let profile = Profile::shipped(name).unwrap();
            assert_eq!(Profile::parse(name, &profile.print().unwrap()).unwrap(), profile);
        }
        let own = Profile::parse("mine", GOOD).unwrap();
        assert_eq!((own.shipped_as(), own.is_unlimited()), (None, false));
        let envoy = Profile::shipped("envoy").unwrap();
        assert_eq!((envoy.shipped_as().as_deref(), envoy.is_unlimited()), (Some("envoy"), false));
        assert!(Profile::shipped("unlimited").unwrap().is_unlimited());
        assert_eq!((own.disk_seek_s, own.link_latency_s), (0.0, 0.0));
        assert_eq!(Profile::parse("mine", &own.print().unwrap()).unwrap(), own);
    }

    #[test]
    fn bad_profiles_are_refused_by_name_and_key() {
        let with = |from: &str, to: &str| GOOD.replace(from, to);
        for (text, says) in [
            (format!("{GOOD}disk_mb_per_s = 3\n"), "disk_mb_per_s"),
            (with("cores = 4\n", ""), "missing field `cores`: add a line `cores = ...`"),
            (with("link_bits_per_s = 1e9\n", ""), "missing field `link_bits_per_s`"),
            (with("cores = 4\n", "disk_mb_per_s = 3\n"), "disk_mb_per_s"),
            (with("cores = 4", "cores = 0"), "cores is 0, but must be from 1 to 65536"),
            (with("cores = 4", "cores = 2.5"), "cores"),
            (with("speed_per_core = 0.5", "speed_per_core = -1.0"), "speed_per_core is -1, but must be a number above 0"),
            (with("speed_per_core = 0.5", "speed_per_core = nan"), "speed_per_core is NaN"),
            (with("link_bits_per_s = 1e9", "link_bits_per_s = inf"), "link_bits_per_s is inf"),
            (with("memory_bytes = 2000000000", "memory_bytes = 10"), "memory_bytes is 10"),
            (format!("{GOOD}disk_seek_s = 100.0\n"), "disk_seek_s is 100, but must be from 0 to 60 seconds"),
            ("cores = ".to_owned(), "TOML"),
        ] {
            let error = Profile::parse("mine", &text).unwrap_err();
            let mut whole = error.to_string();
            if let Some(cause) = std::error::Error::source(&error) {
                whole = format!("{whole}: {cause}");
            }
            assert!(whole.contains("mine") && whole.contains(says), "{text}\n{whole}");
            assert!(!whole.contains("missing field") || !whole.contains("line 1"), "{whole}");
        }
        let error = Profile::shipped("envy").unwrap_err().to_string();
        assert!(error.contains("envy") && error.contains("envoy, newport, server, unlimited"), "{error}");
    }
}
