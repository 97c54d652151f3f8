//! Names of devices to emulate: a shipped profile's name, a TOML file, or TOML itself.

use std::path::Path;

use skytether_common::{Error, Result};
use skytether_scheduler::profile::{Profile, ProfileError};

/// A device by its name.
#[derive(Debug, Clone, PartialEq)]
pub struct Device {
    /// For people: `envoy`, or a file's name without its ending.
    pub name: String,
    /// Its profile.
    pub profile: Profile,
}

impl Device {
    /// What a profile is called that has no name.
    pub const NAMELESS: &str = "own profile";

    /// The device that `given` means: the name of a shipped profile, the path of a TOML file, or a profile's TOML text
    /// (which has a `=`, or several lines). `None` for `unlimited`, which has no bounds.
    ///
    /// # Errors
    /// Invalid for anything else, naming the shipped profiles, and for a profile that can't be used, naming the key;
    /// `io` errors of a file that can't be read.
    pub fn given(given: &str) -> Result<Option<Self>> {
        let device = match Profile::shipped(given) {
            Ok(profile) => Self { name: given.to_owned(), profile },
            Err(ProfileError::Unknown { shipped, .. }) => Self::own(given, &shipped)?,
            Err(other) => return Err(Error::internal("the shipped device profiles can't be read").with_source(other)),
        };
        Ok((!device.profile.is_unlimited()).then_some(device))
    }

    /// As [`Self::given`], for a drive that emulates the device: emulation can only slow a drive down.
    ///
    /// # Errors
    /// As there; Invalid where its cores are faster than this machine's.
    pub fn enforced(given: &str) -> Result<Option<Self>> {
        let device = Self::given(given)?;
        match &device {
            Some(Self { name, profile }) if profile.speed_per_core > 1.0 => Err(Error::invalid(format!(
                "device profile {name}: speed_per_core is {}, but a drive's cores can't be made faster than this machine's: say 1 at most (`skytether calibrate` tells what is kept to)",
                profile.speed_per_core
            ))),
            _ => Ok(device),
        }
    }

    fn own(given: &str, shipped: &str) -> Result<Self> {
        let parse = |name: &str, text: &str| match Profile::parse(name, text) {
            Ok(profile) => Ok(Self { name: name.to_owned(), profile }),
            // Its cause says what is wrong, and where.
            Err(ProfileError::Syntax { name, cause }) => Err(Error::invalid(format!("cannot read device profile {name}")).with_source(cause)),
            Err(wrong) => Err(Error::invalid(wrong.to_string())),
        };
        if given.contains(['\n', '=']) && !Path::new(given).exists() {
            return parse(Self::NAMELESS, given);
        }
        let path = Path::new(given);
        match std::fs::read_to_string(path) {
            Ok(text) => parse(&path.file_stem().map_or_else(|| given.into(), |stem| stem.to_string_lossy()), &text),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Err(Error::invalid(format!(
                "there is no device profile {given:?}, and no file of that name: the shipped ones are {shipped}; write your own as TOML and give its path"
            ))),
            Err(e) => Err(Error::io("read the device profile", path, e)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use skytether_common::Kind;

    const OWN: &str = "speed_per_core = 0.5\ncores = 4\nmemory_bytes = 2000000000\ndisk_bytes_per_s = 5e8\nlink_bits_per_s = 1e9\n";

    #[test]
    fn names_files_and_texts_mean_devices() {
        let envoy = Device::given("envoy").unwrap().unwrap();
        assert_eq!((envoy.name.as_str(), envoy.profile), ("envoy", Profile::shipped("envoy").unwrap()));
        assert_eq!(Device::given("unlimited").unwrap(), None);
        assert_eq!(Device::given(&Profile::shipped("unlimited").unwrap().print().unwrap()).unwrap(), None, "whatever it is called");
        let own = Device::given(OWN).unwrap().unwrap();
        assert_eq!((own.name.as_str(), own.profile.cores), (Device::NAMELESS, 4));
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("a=b.toml");
        std::fs::write(&file, OWN).unwrap();
        assert_eq!(Device::given(file.to_str().unwrap()).unwrap().unwrap(), Device { name: "a=b".into(), ..own });
    }

    #[test]
    fn nothing_is_made_faster_than_the_machine() {
        let with = |speed: &str| Device::enforced(&OWN.replace("0.5", speed));
        assert!(with("0.5").is_ok() && with("1.0").is_ok());
        let error = with("2.0").unwrap_err();
        assert!(error.kind() == Kind::Invalid && error.to_string().contains("speed_per_core is 2, but"), "{error}");
    }

    #[test]
    fn unknown_device_is_refused_with_the_known_ones() {
        let dir = tempfile::tempdir().unwrap();
        let wrong = |given: &str, says: &[&str]| {
            let error = Device::given(given).unwrap_err();
            assert_eq!(error.kind(), Kind::Invalid, "{error}");
            let text = error.report();
            assert!(says.iter().all(|says| text.contains(says)), "{given}: {text}");
        };
        wrong("envy", &["\"envy\"", "no file", "envoy, newport, server, unlimited"]);
        wrong("cores = 2", &[Device::NAMELESS, "missing field"]);
        wrong(&OWN.replace("cores = 4", "cores = 0"), &[Device::NAMELESS, "cores is 0, but must be from 1 to 65536"]);
        let file = dir.path().join("mine.toml");
        std::fs::write(&file, OWN.replace("cores", "kernels")).unwrap();
        wrong(file.to_str().unwrap(), &["profile mine", "kernels"]);
        let error = Device::given(dir.path().to_str().unwrap()).unwrap_err().to_string();
        assert!(error.contains(&dir.path().display().to_string()), "{error}");
    }
}
