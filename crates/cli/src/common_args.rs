//! Arguments that several commands have, and the parsers of their values.

use std::path::PathBuf;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, ValueEnum};
use skytether_drive::Device;
use skytether_host::{Pushdown, Scheme};
use skytether_transport::{Credentials, Endpoint, Secret};

#[derive(Debug, Args)]
pub(crate) struct FleetArg {
    /// The fleet: a directory, a host's address (HOST:PORT, grpc://HOST:PORT or, with TLS, grpc+tls://HOST:PORT), or
    /// pools of a Ceph cluster (rados://POOL?conf=PATH), or Kinetic drives (kinetic://HOST:PORT,HOST:PORT).
    #[arg(long, value_name = "DIR|URL", env = "SKYTETHER_FLEET")]
    pub(crate) fleet: String,
    #[command(flatten)]
    pub(crate) client: ClientArgs,
}

// A client's token and the certificates that it trusts. A doc comment here would become the description of each
// command.
#[derive(Debug, Args)]
pub(crate) struct ClientArgs {
    /// The token for the other side (`skytether token create` makes one). Default: the variable SKYTETHER_TOKEN, where
    /// other users of this machine can't see it.
    // Not `env =`: a variable that is set and empty means no token.
    #[arg(long, value_name = "TOKEN", value_parser = secret)]
    pub(crate) token: Option<Secret>,
    /// The authorities whose certificates are trusted, a PEM file such as the ca.pem of `skytether pki init`
    /// (default: the variable SKYTETHER_TLS_CA, or those that the system trusts).
    #[arg(long, value_name = "FILE")]
    pub(crate) tls_ca: Option<PathBuf>,
}

impl ClientArgs {
    /// The credentials for connections.
    pub(crate) fn credentials(&self) -> Credentials {
        Credentials { tls_ca: self.tls_ca.clone(), token: self.token.clone(), ..Credentials::default() }.or_environment()
    }
}

/// Hides a token.
fn secret(text: &str) -> Result<Secret, &'static str> {
    if text.bytes().all(|b| b.is_ascii_graphic()) && !text.is_empty() { Ok(Secret::new(text)) } else { Err("a token has no spaces and no special characters") }
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
    clap::builder::StringValueParser::new().try_map(move |given| read(&given).map(|device| Profile { given, device }).map_err(|e| e.report()))
}

/// Parses an address to listen on. Binding it later checks that its host is one of this machine, and that its scheme is
/// known.
pub(crate) fn address(text: &str) -> Result<Endpoint, &'static str> {
    let endpoint = text.parse::<Endpoint>().ok().filter(|endpoint| endpoint.socket().is_ok());
    endpoint.ok_or("write HOST:PORT, for example 127.0.0.1:5310, or SCHEME://HOST:PORT")
}

/// Parses a redundancy scheme.
pub(crate) fn scheme(text: &str) -> Result<Scheme, String> {
    text.parse().map_err(|e: skytether_common::Error| e.message().to_owned())
}

/// Parses a pushdown policy.
pub(crate) fn pushdown() -> impl TypedValueParser<Value = Pushdown> {
    PossibleValuesParser::new(["adaptive", "full", "filter", "raw"]).try_map(|word| word.parse::<Pushdown>())
}

/// Parses a rate in MB/s; the result is in bytes per second.
pub(crate) fn megabytes(text: &str) -> Result<u64, String> {
    match text.parse::<f64>() {
        Ok(rate) if rate * 1e6 >= 1.0 && rate <= 1e9 => Ok((rate * 1e6) as u64),
        _ => Err("a number of MB/s above 0 is wanted, such as 50".to_owned()),
    }
}
