//! Files of synthetic particles ([`skytether_vpic::generate`]).

use std::io::BufWriter;
use std::path::Path;

use parquet::arrow::ArrowWriter;
use parquet::basic::Compression;
use parquet::file::properties::WriterProperties;
use skytether_common::{Error, Result};
use skytether_vpic::{Particles, schema};

use skytether_formats::Format;
use skytether_formats::atomic_file::AtomicFile;

/// Rows that are made at once.
const BATCH: usize = 1 << 16;

/// Rows of a Parquet row group. One takes some 25 MB while it is written, which bounds the memory.
const GROUP: usize = 1 << 20;

/// Writes `particles` to the file `to`, as Parquet or as raw VPIC records. The file is there whole or not at all.
/// `progress` gets the rows since its last call; its error ends the work. Gives the bytes of the file. Blocks.
///
/// # Errors
/// `Unsupported` for other formats; `Conflict` where the file exists and `replace` is false; `Exhausted` for a full
/// disk; other errors of the system.
pub fn particles(particles: &Particles, to: &Path, format: Format, replace: bool, mut progress: impl FnMut(u64) -> Result<()>) -> Result<u64> {
    let raw = match format {
        Format::Vpic => true,
        Format::Parquet => false,
        _ => return Err(Error::unsupported(format!("{}: particles are written as .parquet or as .vpic", to.display()))),
    };
    let mut file = AtomicFile::begin(to, replace)?;
    let failed = |e: parquet::errors::ParquetError| match e {
        parquet::errors::ParquetError::External(cause) if cause.is::<std::io::Error>() => match cause.downcast::<std::io::Error>() {
            Ok(cause) => Error::io("write", to, *cause),
            Err(cause) => Error::unavailable(format!("cannot write {}", to.display())).with_source(cause),
        },
        e => Error::unavailable(format!("cannot write {}", to.display())).with_source(e),
    };
    if raw {
        for part in particles.parts(BATCH) {
            let rows = part.end - part.start;
            file.write(&particles.records(part)?)?;
            progress(rows)?;
        }
    } else {
        // The numbers have no pattern, so dictionaries and compression would not make them smaller.
        let properties = WriterProperties::builder()
            .set_compression(Compression::UNCOMPRESSED)
            .set_dictionary_enabled(false)
            .set_max_row_group_row_count(Some(GROUP))
            .set_created_by("skytether generate particles".into());
        let mut writer = ArrowWriter::try_new(BufWriter::with_capacity(1 << 20, file.file()), schema(), Some(properties.build())).map_err(failed)?;
        for batch in particles.batches(BATCH) {
            let batch = batch?;
            writer.write(&batch).map_err(failed)?;
            progress(batch.num_rows() as u64)?;
        }
        writer.close().map_err(failed)?;
    }
    let bytes = file.file().metadata().map_err(|e| Error::io("write", file.to(), e))?.len();
    file.finish()?;
    Ok(bytes)
}
