//! Arguments that several commands have, and the parsers of their values.

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, ValueEnum};
use skytether_drive::Device;
use skytether_fleet::address::is_host_and_port;
use skytether_host::{Cut, Scheme};

#[derive(Debug, Args)]
pub(crate) struct FleetArg {
    /// The fleet: a directory, or a host's address (HOST:PORT or grpc://HOST:PORT).
    #[arg(long, value_name = "DIR|URL", env = "SKYTETHER_FLEET")]
    pub(crate) fleet: String,
}

#[derive(Debug, Args)]
pub(crate) struct ListArgs {
    #[command(flatten)]
    pub(crate) fleet: FleetArg,
    /// How to print it.
    #[arg(long, value_enum, default_value_t = ListFormat::Table)]
    pub(crate) format: ListFormat,
}

/// How a listing is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ListFormat {
    /// For people.
    Table,
    /// As JSON.
    Json,
}

/// How a result is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// For people.
    Table,
    /// With a header line.
    Csv,
    /// One object per line.
    Json,
    /// An Arrow IPC stream.
    Arrow,
}

/// A device profile: the given text and the parsed device. An invalid profile is a wrong call.
#[derive(Debug, Clone)]
pub(crate) struct Profile {
    pub(crate) given: String,
    pub(crate) device: Option<Device>,
}

/// Parses profiles by name, file or text with `read`: [`Device::given`] accepts any, [`Device::enforced`] those that a
/// drive on this machine can emulate.
pub(crate) fn device(read: fn(&str) -> skytether_common::Result<Option<Device>>) -> impl TypedValueParser<Value = Profile> {
    clap::builder::StringValueParser::new().try_map(move |given| read(&given).map(|device| Profile { given, device }).map_err(|e| e.full_text()))
}

/// Parses an address to listen on. Binding it later checks that its host is one of this machine.
pub(crate) fn address(text: &str) -> Result<String, &'static str> {
    if is_host_and_port(text) { Ok(text.to_owned()) } else { Err("write HOST:PORT, for example 127.0.0.1:5310") }
}

/// Parses a redundancy scheme.
pub(crate) fn scheme(text: &str) -> Result<Scheme, String> {
    text.parse().map_err(|e: skytether_common::Error| e.message().to_owned())
}

/// Parses a pushdown policy.
pub(crate) fn pushdown() -> impl TypedValueParser<Value = Cut> {
    PossibleValuesParser::new(["adaptive", "full", "filter", "raw"]).try_map(|word| word.parse::<Cut>())
}

/// Parses a rate in MB/s; the result is in bytes per second.
pub(crate) fn megabytes(text: &str) -> Result<u64, String> {
    match text.parse::<f64>() {
        Ok(rate) if rate * 1e6 >= 1.0 && rate <= 1e9 => Ok((rate * 1e6) as u64),
        _ => Err("a number of MB/s above 0 is wanted, such as 50".to_owned()),
    }
}
