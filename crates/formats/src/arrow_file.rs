//! Arrow IPC, as a file or a stream. Readers believe what messages claim and make room for it, so all messages are
//! checked first: they lie within the file, and do not unpack to far more than it.

use std::io::{BufRead, BufReader, Read, Seek, SeekFrom};
use std::path::Path;

use arrow::datatypes::SchemaRef;
use arrow::ipc::reader::{FileReader, StreamReader};
use arrow::ipc::{Block, RecordBatch as Batch, root_as_footer, root_as_message};
use parquet::file::reader::Length;
use skytether_common::{Error, Result};

use super::format::Batches;
use super::guard::{corrupt, damaged, guarded, named};
use super::location::Location;
use super::source::{Failure, FileSource, failed};

/// Unpacked bytes that a message may claim, whatever the file's length.
const UNPACKED: u64 = 1 << 30;
/// How many times the file's length a message of a longer file may claim. LZ4 packs 255 to 1 at most.
const RATIO: u64 = 64;
/// Rows of a batch: some types take no bytes, so nothing else would bound their number.
const MAX_ROWS: i64 = 1 << 31;

/// Arrow IPC in its two forms.
enum Ipc {
    File(FileReader<BufReader<FileSource>>),
    Stream(StreamReader<BufReader<FileSource>>),
}

type Source = BufReader<FileSource>;

fn open(path: &Location) -> Result<(Ipc, Failure)> {
    let source = FileSource::open(path)?;
    let failure = source.failure();
    let bytes = source.len();
    let mut file = BufReader::new(source);
    let system = |e| failed("read", path, e);
    let start = file.fill_buf().map_err(system)?;
    if start.starts_with(b"FEA1") {
        return Err(Error::unsupported(format!("{} is a Feather file of version 1: write it again as version 2", path.display())));
    }
    let whole = start.starts_with(b"ARROW1");
    guarded(path, || {
        let checked = if whole { check_file(&mut file, bytes) } else { check_stream(&mut file, bytes) };
        checked.map_err(|wrong| told(path, &failure, wrong))
    })?;
    file.rewind().map_err(system)?;
    let opened = guarded(path, || {
        let opened = if whole { FileReader::try_new(file, None).map(Ipc::File) } else { StreamReader::try_new(file, None).map(Ipc::Stream) };
        opened.map_err(|e| corrupt(path, "Arrow IPC", &failure, e))
    })?;
    Ok((opened, failure))
}

/// Columns.
pub(super) fn look_at(path: &Location) -> Result<SchemaRef> {
    Ok(match open(path)?.0 {
        Ipc::File(reader) => reader.schema(),
        Ipc::Stream(reader) => reader.schema(),
    })
}

pub(super) fn read(path: Location) -> Result<Batches> {
    let (opened, failure) = open(&path)?;
    Ok(match opened {
        Ipc::File(reader) => named(path.to_path_buf(), failure, damaged, reader),
        Ipc::Stream(reader) => named(path.to_path_buf(), failure, damaged, reader),
    })
}

/// What is wrong with a message.
enum Wrong {
    System(std::io::Error),
    Broken(String),
    Large(String),
}

impl From<std::io::Error> for Wrong {
    fn from(e: std::io::Error) -> Self {
        if e.kind() == std::io::ErrorKind::UnexpectedEof { Wrong::Broken("it ends in the middle".into()) } else { Wrong::System(e) }
    }
}

fn broken<T>(why: &str) -> std::result::Result<T, Wrong> {
    Err(Wrong::Broken(why.to_owned()))
}

fn told(path: &Path, failure: &Failure, wrong: Wrong) -> Error {
    match wrong {
        Wrong::System(e) => failure.or(path, failed("read", path, e)),
        Wrong::Broken(why) => failure.or(path, Error::corrupt(format!("{} is truncated or no Arrow IPC file: {why}", path.display()))),
        Wrong::Large(what) => Error::exhausted(format!("{}: {what}: write it again in smaller batches (max_chunksize)", path.display())),
    }
}

fn check_stream(file: &mut Source, bytes: u64) -> std::result::Result<(), Wrong> {
    let mut at = 0;
    let mut first = true;
    while at < bytes {
        file.seek(SeekFrom::Start(at))?;
        match check_message(file, at, bytes, first)? {
            Some(next) => at = next,
            None => return Ok(()),
        }
        first = false;
    }
    if first { broken("it is empty") } else { Ok(()) }
}

fn check_file(file: &mut Source, bytes: u64) -> std::result::Result<(), Wrong> {
    // Its length and the mark end the file.
    let Some(end) = bytes.checked_sub(10).filter(|end| *end >= 8) else { return broken("it is too short") };
    file.seek(SeekFrom::Start(end))?;
    let length = u64::from(u32::from_le_bytes(array(file)?));
    if array::<6>(file)? != *b"ARROW1" {
        return broken("it has no footer");
    }
    let Some(start) = end.checked_sub(length) else { return broken("its footer would be longer than the file") };
    file.seek(SeekFrom::Start(start))?;
    let footer = take(file, length)?;
    let footer = root_as_footer(&footer).map_err(|_| Wrong::Broken("its footer can't be read".to_owned()))?;
    let blocks: Vec<Block> = footer.dictionaries().into_iter().flatten().chain(footer.recordBatches().into_iter().flatten()).copied().collect();
    for block in blocks {
        let whole = [block.offset(), i64::from(block.metaDataLength()), block.bodyLength()].map(|n| u64::try_from(n).ok());
        let [Some(at), Some(header), Some(body)] = whole else { return broken("its footer names a message before the file") };
        if at.checked_add(header).and_then(|n| n.checked_add(body)).is_none_or(|to| to > start) {
            return broken("its footer names a message beyond the file");
        }
        file.seek(SeekFrom::Start(at))?;
        check_message(file, at, start, false)?;
    }
    Ok(())
}

fn array<const N: usize>(file: &mut Source) -> std::io::Result<[u8; N]> {
    let mut bytes = [0; N];
    file.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// The next `n` bytes, which are known to be there.
fn take(file: &mut Source, n: u64) -> std::io::Result<Vec<u8>> {
    let mut bytes = vec![0; n as usize];
    file.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// Checks the message that begins at `at`, before byte `bytes`. Gives where the next one begins, and `None` at the end
/// mark.
fn check_message(file: &mut Source, at: u64, bytes: u64, first: bool) -> std::result::Result<Option<u64>, Wrong> {
    let mut prefix = 4;
    let mut length = u32::from_le_bytes(array(file)?);
    // Streams before Arrow 0.15 had no mark before the length.
    if length == u32::MAX {
        length = u32::from_le_bytes(array(file)?);
        prefix = 8;
    }
    if length == 0 {
        return Ok(None);
    }
    let left = bytes.saturating_sub(at + prefix);
    if u64::from(length) > left {
        return broken(if first { "its first message would be longer than the file" } else { "a message would be longer than the file" });
    }
    let header = take(file, u64::from(length))?;
    let message = root_as_message(&header).map_err(|_| Wrong::Broken("a message can't be read".to_owned()))?;
    let left = left - u64::from(length);
    let Some(body) = u64::try_from(message.bodyLength()).ok().filter(|body| *body <= left) else {
        return broken("a message would be longer than the file");
    };
    let start = at + prefix + u64::from(length);
    if let Some(batch) = message.header_as_record_batch() {
        check_batch(file, &batch, start, body, bytes)?;
    }
    if let Some(batch) = message.header_as_dictionary_batch().and_then(|dictionary| dictionary.data()) {
        check_batch(file, &batch, start, body, bytes)?;
    }
    Ok(Some(start + body))
}

fn check_batch(file: &mut Source, batch: &Batch<'_>, start: u64, body: u64, bytes: u64) -> std::result::Result<(), Wrong> {
    if !(0..=MAX_ROWS).contains(&batch.length()) {
        return Err(Wrong::Large(format!("a batch of {} rows, and at most {MAX_ROWS} are read", batch.length())));
    }
    let packed = batch.compression().is_some();
    let mut unpacked = 0u64;
    for buffer in batch.buffers().into_iter().flatten() {
        let (Ok(offset), Ok(length)) = (u64::try_from(buffer.offset()), u64::try_from(buffer.length())) else {
            return broken("a buffer begins before its message");
        };
        if offset.checked_add(length).is_none_or(|end| end > body) {
            return broken("a buffer ends beyond its message");
        }
        // A packed buffer begins with its length once unpacked, or -1 where it is not packed.
        if packed && length >= 8 {
            file.seek(SeekFrom::Start(start + offset))?;
            unpacked = unpacked.saturating_add(u64::try_from(i64::from_le_bytes(array(file)?)).unwrap_or(0));
        }
    }
    let most = UNPACKED.max(bytes.saturating_mul(RATIO));
    if unpacked > most {
        return Err(Wrong::Large(format!("a batch of {} MiB once unpacked, and at most {} are read of a file of this length", unpacked >> 20, most >> 20)));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{ArrayRef, Int64Array, NullArray, StringArray};
    use arrow::ipc::CompressionType;
    use arrow::ipc::writer::{FileWriter, IpcWriteOptions, StreamWriter};
    use arrow::record_batch::RecordBatch;
    use skytether_common::Kind;

    use super::*;

    fn written(stream: bool, compressed: bool) -> Vec<u8> {
        let numbers: ArrayRef = Arc::new(Int64Array::from_iter_values(0..1000));
        let texts: ArrayRef = Arc::new(StringArray::from_iter_values((0..1000).map(|i| format!("text {i}"))));
        let batch = RecordBatch::try_from_iter([("i", numbers), ("s", texts), ("n", Arc::new(NullArray::new(1000)))]).unwrap();
        let options = IpcWriteOptions::default().try_with_compression(compressed.then_some(CompressionType::ZSTD)).unwrap();
        let mut bytes = Vec::new();
        if stream {
            let mut writer = StreamWriter::try_new_with_options(&mut bytes, &batch.schema(), options).unwrap();
            writer.write(&batch).and_then(|()| writer.finish()).unwrap();
        } else {
            let mut writer = FileWriter::try_new_with_options(&mut bytes, &batch.schema(), options).unwrap();
            writer.write(&batch).and_then(|()| writer.finish()).unwrap();
        }
        bytes
    }

    /// All rows of a file with these bytes, or its error.
    fn rows(bytes: &[u8]) -> Result<usize> {
        let dir = tempfile::tempdir().unwrap();
        rows_at(&dir.path().join("a.arrow"), bytes)
    }

    fn rows_at(path: &Path, bytes: &[u8]) -> Result<usize> {
        std::fs::write(path, bytes).unwrap();
        look_at(&Location::file(path))?;
        read(Location::file(path))?.map(|batch| batch.map(|batch| batch.num_rows())).sum()
    }

    /// Bytes of a stream and of a file are wrong, one at a time. Nothing ends the process, and no error lacks the file.
    #[test]
    fn damaged_files_are_errors_that_name_them() {
        for (stream, compressed) in [(true, false), (true, true), (false, false), (false, true)] {
            let whole = written(stream, compressed);
            assert_eq!(rows(&whole).unwrap(), 1000);
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("a.arrow");
            // The messages' headers and the footer, and some of the values.
            let (head, tail) = (1500.min(whole.len()), whole.len().saturating_sub(900));
            for at in (0..head).step_by(3).chain((head..tail).step_by(61)).chain((tail.max(head)..whole.len()).step_by(3)) {
                {
                    let wrong = 0xff;
                    let mut bytes = whole.clone();
                    bytes[at] ^= wrong;
                    if let Err(e) = rows_at(&path, &bytes) {
                        assert!(e.to_string().contains("a.arrow"), "{stream} {compressed} {at}: {e}");
                    }
                }
            }
            for len in (0..whole.len() - 10).step_by(97) {
                let cut = rows_at(&path, &whole[..len]);
                // A stream may end after any message.
                assert!(cut.as_ref().map_or_else(|e| e.to_string().contains("a.arrow"), |rows| stream && *rows == 0), "{stream} {len}: {cut:?}");
            }
        }
    }

    #[test]
    fn claims_of_packed_buffers_are_bounded() {
        let whole = written(true, true);
        let packed: Vec<usize> = (8..whole.len() - 4).filter(|&at| whole[at..at + 4] == [0x28, 0xb5, 0x2f, 0xfd]).collect();
        assert!(!packed.is_empty());
        for claim in [1i64 << 31, 1 << 46, i64::MAX] {
            let mut bytes = whole.clone();
            bytes[packed[0] - 8..packed[0]].copy_from_slice(&claim.to_le_bytes());
            let error = rows(&bytes).unwrap_err();
            assert!(error.kind() == Kind::Exhausted && error.to_string().contains("once unpacked"), "{claim}: {error}");
        }
    }
}
