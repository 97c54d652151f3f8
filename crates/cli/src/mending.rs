//! `skytether scrub` and `skytether repair`.

use std::fmt::Display;

use serde::Serialize;
use skytether_common::Error;
use skytether_common::units::counted;
use skytether_fleet::{RepairOptions, ScrubOptions};

use crate::args::{ListFormat, Repair, Scrub};
use crate::listing;
use crate::progress::Bytes;
use crate::run::{Failure, fleet, name, say};

/// A report, for people or for programs.
pub(crate) fn print<R: Display + Serialize>(format: ListFormat, report: &R) -> Result<(), Failure> {
    say(&match format {
        ListFormat::Table => report.to_string(),
        ListFormat::Json => listing::json(report)?,
    })?;
    Ok(())
}

pub(crate) async fn scrub(args: Scrub) -> Result<(), Failure> {
    let datasets = args.datasets.iter().map(|text| name(text)).collect::<Result<_, _>>()?;
    let options = ScrubOptions { datasets, bytes_per_s: args.rate, check: args.check };
    let fleet = fleet(&args.fleet.fleet).await?;
    let progress = Bytes::new("");
    let done = fleet.scrub(&options, &|far| progress.told(far)).await;
    progress.finish();
    let report = done?;
    print(args.format, &report)?;
    match report.left() {
        // Who scrubs by a timetable is to hear of it.
        0 if !report.skipped.is_empty() => {
            let names: Vec<&str> = report.skipped.keys().map(String::as_str).collect();
            Err(Failure::Work(Error::unavailable(format!(
                "{} {} left out, so that not everything was verified: bring back or rebuild what is lost (skytether repair), and scrub again",
                names.join(", "),
                if names.len() == 1 { "was" } else { "were" }
            ))))
        }
        0 => Ok(()),
        left if args.check => Err(Failure::Work(Error::corrupt(format!("{} damaged: scrub without --check to mend what can be", counted(left, "value"))))),
        left => Err(Failure::Work(Error::corrupt(format!("{} left damaged", counted(left, "value"))))),
    }
}

pub(crate) async fn repair(args: Repair) -> Result<(), Failure> {
    let options = RepairOptions { drives: args.replace, address: args.with, bytes_per_s: args.rate };
    let fleet = fleet(&args.fleet.fleet).await?;
    let progress = Bytes::new("");
    let done = fleet.repair(&options, &|far| progress.told(far)).await;
    progress.finish();
    let report = done?;
    print(args.format, &report)?;
    if !report.left.is_empty() {
        let left = report.left.len() as u64 + report.left_more;
        return Err(Failure::Work(Error::corrupt(format!("{} could not be rebuilt", counted(left, "part")))));
    }
    if report.lost.is_empty() {
        return Ok(());
    }
    let lost: Vec<&str> = report.lost.keys().map(String::as_str).collect();
    let text = format!("lost still: {}; bring back what is lost, or replace it (`skytether repair --replace {}`, see --help)", lost.join(", "), lost.join(","));
    Err(Failure::Work(Error::unavailable(text)))
}
