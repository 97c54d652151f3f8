//! `skytether pki`: certificates for TLS.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use skytether_transport::pki;

use crate::context::{Failure, print_line};

#[derive(Debug, Subcommand)]
pub(crate) enum PkiCommand {
    /// Make an authority, and the certificates of a host and of drives.
    Init(PkiInit),
}

#[derive(Debug, Args)]
pub(crate) struct PkiInit {
    /// The directory that they are written to: ca.pem, ca.key, host.pem, host.key, drive.pem, drive.key.
    dir: PathBuf,
    /// A name or address by which clients reach the host; may be given several times. This machine's name, localhost
    /// and the loopback addresses are in its certificate anyway.
    #[arg(long, value_name = "HOST")]
    name: Vec<String>,
    /// A name or address by which the host reaches a drive on another machine; may be given several times. Localhost
    /// and the loopback addresses are in the drives' certificate anyway. With a name of the host, a drive could pose as
    /// the host.
    #[arg(long, value_name = "HOST")]
    drive_name: Vec<String>,
    /// Replace those that are there. What the former authority signed is trusted no more.
    #[arg(long)]
    force: bool,
}

/// Carries out a command about certificates.
pub(crate) fn run(command: PkiCommand) -> Result<(), Failure> {
    let PkiCommand::Init(args) = command;
    let written = pki::init(&args.dir, &args.name, &args.drive_name, args.force)?;
    let dir = args.dir.display();
    for path in &written.files {
        print_line(&path.display().to_string())?;
    }
    eprintln!(
        "made an authority, a certificate of a host ({}) and one of drives ({}). Keep ca.key away from servers. Next:\n  \
         skytether drive serve --data drive-0 --listen grpc+tls://127.0.0.1:5310 --tls-cert {dir}/drive.pem --tls-key {dir}/drive.key --tls-client-ca {dir}/ca.pem\n  \
         skytether host serve --drives grpc+tls://127.0.0.1:5310 --tls-ca {dir}/ca.pem --listen grpc+tls://127.0.0.1:5300 --tls-cert {dir}/host.pem --tls-key {dir}/host.key",
        written.names.join(", "),
        written.drive_names.join(", ")
    );
    Ok(())
}
