//! Device profiles that the drives of an embedded fleet emulate.

use std::collections::BTreeMap;

use skytether_common::{Error, Result};
use skytether_drive::Device;

/// Profiles for the drives; each is a shipped name, the path of a TOML file, or TOML ([`Device::given`]).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Profiles {
    /// The same for every drive.
    Every(String),
    /// One for each drive, in order.
    Each(Vec<String>),
    /// For some drives by their numbers; the others are as fast as the machine.
    Some(BTreeMap<usize, String>),
}

impl Default for Profiles {
    fn default() -> Self {
        Self::Every("unlimited".into())
    }
}

impl From<&str> for Profiles {
    fn from(given: &str) -> Self {
        Self::Every(given.into())
    }
}

impl Profiles {
    /// The number of drives, where it is given.
    pub(crate) fn drives(&self) -> Option<usize> {
        match self {
            Self::Each(given) => Some(given.len()),
            Self::Every(_) | Self::Some(_) => None,
        }
    }

    /// Reads the device profiles.
    ///
    /// # Errors
    /// As [`Device::enforced`]; the text names the drive, unless the profile is for all.
    pub(crate) fn read(&self) -> Result<Devices> {
        let of = |n: usize, given: &String| Device::enforced(given).map_err(|e| e.context(format!("drive {n}")));
        Ok(match self {
            Self::Every(given) => Devices::Every(Device::enforced(given)?),
            Self::Each(given) => Devices::Each(given.iter().enumerate().map(|(n, given)| of(n, given)).collect::<Result<_>>()?),
            Self::Some(given) => Devices::Some(given.iter().map(|(n, given)| Ok((*n, of(*n, given)?))).collect::<Result<_>>()?),
        })
    }
}

/// [`Profiles`], read.
#[derive(Debug, Clone)]
pub(crate) enum Devices {
    Every(Option<Device>),
    Each(Vec<Option<Device>>),
    Some(BTreeMap<usize, Option<Device>>),
}

impl Devices {
    /// The device profile of each of `drives` drives, in order.
    ///
    /// # Errors
    /// `Invalid` where the profiles are for another number of drives.
    pub(crate) fn of(self, drives: usize) -> Result<Vec<Option<Device>>> {
        match self {
            Self::Every(device) => Ok(vec![device; drives]),
            Self::Each(devices) if devices.len() == drives => Ok(devices),
            Self::Each(devices) => {
                Err(Error::invalid(format!("there are {} profiles for {drives} drives: give one for each drive, or one for all", devices.len())))
            }
            Self::Some(mut devices) => match devices.last_key_value() {
                Some((last, _)) if *last >= drives => {
                    Err(Error::invalid(format!("there is a profile for drive {last}, but the fleet has drives 0 to {}", drives.saturating_sub(1))))
                }
                _ => Ok((0..drives).map(|n| devices.remove(&n).flatten()).collect()),
            },
        }
    }
}
