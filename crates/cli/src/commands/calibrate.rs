//! `skytether calibrate`: whether a drive under a device profile works as that device would.

use std::path::PathBuf;

use clap::Args;
use skytether_common::Error;
use skytether_drive::Device;

use crate::common_args::{Profile, device};
use crate::context::{Failure, print_line};
use crate::listing;
use crate::progress::Steps;

#[derive(Debug, Args)]
#[command(
    after_help = "A profile is TOML with units in its keys:\n\n  speed_per_core = 0.0667        # of a core of this machine: 1 at most\n  cores = 2\n  memory_bytes = 1073741824      # for queries\n  disk_bytes_per_s = 261000000.0 # reading on\n  \
disk_seek_s = 0.0085           # moving elsewhere; may be left out\n  link_bits_per_s = 2.5e9        # in each direction\n  link_latency_s = 0.0002        # one way; may be left out\n\n\
Exit status 1 if a figure that was got is more than 20% off what was asked. A machine gives no more than it has: ask for less, and let it be idle meanwhile."
)]
pub(crate) struct Calibrate {
    /// The profile: a shipped one (envoy, newport, server, unlimited), or a TOML file of your own.
    #[arg(long, value_name = "NAME|FILE", value_parser = device(Device::given))]
    profile: Profile,
    /// Where to make a directory to work in, which is removed afterwards (default: the system's for temporary files).
    /// It takes some 50 MiB.
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Measure the link of a drive that is served on loopback, instead of that of an embedded one.
    #[arg(long)]
    served: bool,
    /// Print the figures as JSON.
    #[arg(long)]
    json: bool,
}

/// Measures, and prints the figures.
pub(crate) async fn run(args: Calibrate) -> Result<(), Failure> {
    let progress = Steps::new(skytether::calibrate::STEPS);
    let done = skytether::calibrate(&args.profile.given, args.dir.as_deref(), args.served, |what| progress.begin(what)).await;
    progress.finish();
    let found = done?;
    let text = if args.json { listing::json(&found)? } else { listing::calibration(&found) };
    print_line(text.trim_end())?;
    let off: Vec<&str> = found.measured.iter().filter(|m| !m.within).map(|m| m.key).collect();
    if off.is_empty() {
        return Ok(());
    }
    let (off, tolerance) = (off.join(", "), 100.0 * found.tolerance);
    Err(Failure::Work(Error::unavailable(format!(
        "more than {tolerance:.0}% off: {off}; this machine may have less than was asked, or be busy with something else"
    ))))
}
