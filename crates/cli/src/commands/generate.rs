//! `skytether generate`: synthetic data.

use std::path::PathBuf;
use std::time::Instant;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, Subcommand};
use skytether::{Particles, generate};
use skytether_common::Error;
use skytether_common::units::{counted, human_bytes, human_seconds};
use skytether_formats::Format;

use crate::common_args::ListFormat;
use crate::context::{Failure, print_line};
use crate::progress::Rows;

#[derive(Debug, Subcommand)]
pub(crate) enum Generate {
    /// Particles as plasma simulations write them (ID, x, y, z, ke). The share of energetic ones is the one that C2's
    /// authors published.
    Particles(GenerateParticles),
}

#[derive(Debug, Args)]
#[command(
    after_help = "Of 500 M particles 1.1 M have ke > 0.3, 63 k > 0.4, 2.5 k > 0.5, 80 > 0.6 and none > 0.7; of any other number the same shares, each particle drawn by itself. Rows are in the order of the ranks of a simulation, \
each with the particles of one brick of the box: conditions on places skip most slices. IDs are the numbers from 0 on in no order.\n\n\
Raw records (.vpic) have 48 bytes, little endian: u64 ID, 8 bytes of padding, f32 x, y, z, i32 cell, f32 ux, uy, uz, f32 ke.\n\n\
Examples:\n  skytether generate particles --rows 50M --seed 1 --out particles.parquet\n  skytether generate particles --rows 1M --seed 1 --out dump.vpic\n  skytether ingest dump.vpic --to physics.run1 --fleet fleet"
)]
pub(crate) struct GenerateParticles {
    /// The number of particles; k, M and G mean thousands, millions and billions.
    #[arg(long, value_name = "N", value_parser = count)]
    rows: u64,
    /// The seed of all numbers: equal seeds make equal files, on any machine.
    #[arg(long, value_name = "S", default_value_t = 1)]
    seed: u64,
    /// The file; it is there whole or not at all. Its ending says what it is: .parquet, or .vpic for raw records.
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// Parquet or raw records, if the file's name does not say so.
    #[arg(long, value_name = "FORMAT", value_parser = PossibleValuesParser::new(["parquet", "vpic"]).try_map(|word| word.parse::<Format>()))]
    output_format: Option<Format>,
    /// The share of the energetic particles (ke > 0.3) that is in every 16th brick, as where field lines reconnect; the
    /// others are anywhere. The number of particles above each energy stays the same.
    #[arg(long, value_name = "SHARE", default_value_t = 0.0)]
    gathered: f64,
    /// Replace the file if there is one.
    #[arg(long)]
    replace: bool,
    /// How to say what was done.
    #[arg(long, value_enum, default_value_t = ListFormat::Table)]
    format: ListFormat,
}

/// Parses a count.
fn count(text: &str) -> Result<u64, String> {
    let wrong = || "a whole number is wanted, such as 1000000, 250k, 50M or 1G".to_owned();
    let times = match text.chars().last() {
        Some('k' | 'K') => 1_000,
        Some('M') => 1_000_000,
        Some('G') => 1_000_000_000,
        _ => 1,
    };
    let digits = if times == 1 { text } else { text.get(..text.len() - 1).unwrap_or_default() };
    // No table and no file can hold more.
    digits.replace('_', "").parse::<u64>().ok().and_then(|n| n.checked_mul(times)).filter(|n| *n <= 1 << 40).ok_or_else(wrong)
}

/// Carries it out.
pub(crate) fn run(what: Generate) -> Result<(), Failure> {
    let Generate::Particles(args) = what;
    let particles = Particles::new(args.rows, args.seed).gathered(args.gathered).map_err(Failure::Call)?;
    let format = match args.output_format {
        Some(format) => format,
        None => Format::of(&args.out)
            .ok()
            .filter(|format| matches!(format, Format::Parquet | Format::Vpic))
            .ok_or_else(|| Failure::Call(Error::invalid(format!("{}: call the file .parquet or .vpic, or say --output-format", args.out.display()))))?,
    };
    let started = Instant::now();
    let progress = Rows::new(&format!("writing {}", args.out.display()), Some(args.rows));
    let counter = progress.counter();
    let done = generate::particles(&particles, &args.out, format, args.replace, |rows| {
        counter(usize::try_from(rows).unwrap_or(usize::MAX));
        Ok(())
    });
    progress.finish();
    let (bytes, seconds) = (done?, started.elapsed().as_secs_f64());
    match args.format {
        ListFormat::Table => {
            print_line(&format!("{}: {}, {}, {}", args.out.display(), counted(args.rows, "particle"), human_bytes(bytes), human_seconds(seconds)))?
        }
        ListFormat::Json => {
            let out = args.out.display().to_string();
            print_line(&serde_json::json!({ "out": out, "rows": args.rows, "seed": args.seed, "bytes": bytes, "seconds": seconds }).to_string())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_may_be_short() {
        for (text, n) in [("0", 0), ("17", 17), ("250k", 250_000), ("50M", 50_000_000), ("1G", 1_000_000_000), ("1_000", 1000)] {
            assert_eq!(count(text), Ok(n), "{text}");
        }
        for text in ["", "k", "-1", "1.5M", "12T", "2000G", "ü"] {
            assert!(count(text).is_err(), "{text}");
        }
    }
}
