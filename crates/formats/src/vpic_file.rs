//! Raw records of VPIC particles.

use std::io::Read;

use parquet::file::reader::Length;
use skytether_common::Result;
use skytether_vpic::{Records, vpic};

use super::format::{BATCH_ROWS, Batches};
use super::location::Location;
use super::source::{FileSource, failed};

/// Number of particles.
pub(super) fn look_at(path: &Location) -> Result<u64> {
    let mut source = FileSource::open(path)?;
    // A directory, which can't be read, has a length too.
    let begins = source.read(&mut [0]).map_err(|e| failed("read", path, e))?;
    vpic::records(&path.display().to_string(), if begins == 0 { 0 } else { source.len() })
}

pub(super) fn read(path: Location) -> Result<Batches> {
    let source = FileSource::open(&path)?;
    let failure = source.failure();
    let records = Records::new(path.display().to_string(), source, BATCH_ROWS);
    Ok(Box::new(records.map(move |batch| batch.map_err(|e| failure.or(&path, e)))))
}
