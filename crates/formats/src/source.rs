//! [`FileSource`]: a file that remembers why it could not be read. The readers of the formats pass errors of the system
//! on as texts, or not at all.

use std::fs::File;
use std::io::{self, BufReader, Cursor, Read, Seek, SeekFrom};
use std::ops::Deref;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use flate2::read::MultiGzDecoder;
use parking_lot::Mutex;
use parquet::errors::ParquetError;
use parquet::file::reader::{ChunkReader, Length};
use skytether_common::{Error, Result};

use super::location::{Location, Object};

/// What the system says where a process, or the whole system, has as many files open as it may: EMFILE and ENFILE.
const TOO_MANY_FILES: [i32; 2] = [24, 23];

/// The system's error while doing `action` to `path`; of an object, what its store says, which keeps its kind.
pub(super) fn failed(action: &str, path: &Path, e: io::Error) -> Error {
    if let Some(of_store) = Error::find(&e) {
        return of_store.flattened().context(format!("cannot {action} {}", path.display()));
    }
    if e.raw_os_error().is_some_and(|code| TOO_MANY_FILES.contains(&code)) {
        return Error::exhausted(format!("cannot {action} {}: too many files are open; raise the limit (`ulimit -n`)", path.display())).with_source(e);
    }
    Error::io(action, path, e)
}

/// An open file, or an object.
pub(super) struct FileSource {
    bytes: Opened,
    failure: Failure,
}

enum Opened {
    File(File),
    Object { object: Arc<dyn Object>, at: u64 },
}

/// The last error that the system gave for a file.
#[derive(Clone, Default)]
pub(super) struct Failure(Arc<Mutex<Option<io::Error>>>);

impl Failure {
    /// The system's error if there is one, otherwise `other`.
    pub(super) fn or(&self, path: &Path, other: Error) -> Error {
        match self.0.lock().take() {
            Some(e) if e.raw_os_error().is_none() && matches!(e.kind(), io::ErrorKind::UnexpectedEof | io::ErrorKind::InvalidData) => {
                let how = if e.kind() == io::ErrorKind::UnexpectedEof { "truncated" } else { "damaged" };
                Error::corrupt(format!("the compressed data of {} are {how}: fetch the file again", path.display())).with_source(e)
            }
            Some(e) => failed("read", path, e),
            None => other,
        }
    }

    fn note<T>(&self, done: io::Result<T>) -> io::Result<T> {
        done.map_err(|e| {
            if e.kind() == io::ErrorKind::Interrupted {
                return e;
            }
            let (kind, text) = (e.kind(), e.to_string());
            let told = match (Error::find(&e), e.raw_os_error()) {
                (Some(of_store), _) => io::Error::new(kind, of_store.flattened()),
                (None, Some(code)) => io::Error::from_raw_os_error(code),
                (None, None) => io::Error::new(kind, text),
            };
            *self.0.lock() = Some(e);
            told
        })
    }
}

impl FileSource {
    pub(super) fn open(place: &Location) -> Result<Self> {
        let bytes = match place.bytes() {
            Some(object) => Opened::Object { object: Arc::clone(object), at: 0 },
            None => Opened::File(File::open(place.deref()).map_err(|e| failed("open", place, e))?),
        };
        Ok(Self { bytes, failure: Failure::default() })
    }

    pub(super) fn failure(&self) -> Failure {
        self.failure.clone()
    }
}

/// The bytes of a text file, without a byte order mark. It is decompressed if it is gzip or zstd, whatever its name.
pub(super) struct Text {
    reader: Box<dyn Read + Send>,
    failure: Failure,
}

const BYTE_ORDER_MARK: [u8; 3] = [0xef, 0xbb, 0xbf];

impl Text {
    pub(super) fn open(path: &Location) -> Result<Self> {
        let wrong = |e| failed("read", path, e);
        let source = FileSource::open(path)?;
        let failure = source.failure();
        let (start, whole) = peek(Box::new(BufReader::new(source))).map_err(wrong)?;
        let unpacked: Box<dyn Read + Send> = match start.as_slice() {
            // Block-compressing tools write members one after another. zstd's reader takes frames one after another,
            // too.
            [0x1f, 0x8b, ..] => Box::new(Unpacked(MultiGzDecoder::new(whole))),
            [0x28, 0xb5, 0x2f, 0xfd] => Box::new(Unpacked(zstd::stream::read::Decoder::new(whole).map_err(wrong)?)),
            _ => return Ok(Self { reader: unmarked(whole).map_err(wrong)?, failure }),
        };
        // From here on an error of the reader may concern the data and not the system.
        let reader = unmarked(unpacked).map_err(|e| {
            let _told = failure.note::<()>(Err(e));
            failure.or(path, Error::corrupt(format!("cannot unpack {}", path.display())))
        })?;
        Ok(Self { reader, failure })
    }

    pub(super) fn failure(&self) -> Failure {
        self.failure.clone()
    }
}

impl Read for Text {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        // An error of the system was noted by the file already, and is noted as the same again.
        self.failure.note(self.reader.read(buf))
    }
}

/// A decompressor whose own errors all mean damaged data.
struct Unpacked<R>(R);

impl<R: Read> Read for Unpacked<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.0.read(buf).map_err(|e| match e.kind() {
            io::ErrorKind::Interrupted | io::ErrorKind::UnexpectedEof => e,
            _ if e.raw_os_error().is_some() => e,
            _ => io::Error::new(io::ErrorKind::InvalidData, e),
        })
    }
}

/// The first bytes, four at most, and a reader that still has them.
fn peek(mut reader: Box<dyn Read + Send>) -> io::Result<(Vec<u8>, Box<dyn Read + Send>)> {
    let mut start = Vec::new();
    reader.by_ref().take(4).read_to_end(&mut start)?;
    Ok((start.clone(), Box::new(Cursor::new(start).chain(reader))))
}

fn unmarked(reader: Box<dyn Read + Send>) -> io::Result<Box<dyn Read + Send>> {
    let (start, mut reader) = peek(reader)?;
    if start.starts_with(&BYTE_ORDER_MARK) {
        reader.read_exact(&mut [0; BYTE_ORDER_MARK.len()])?;
    }
    Ok(reader)
}

impl Read for FileSource {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let read = match &mut self.bytes {
            Opened::File(file) => file.read(buf),
            Opened::Object { object, at } => object.read_at(*at, buf).inspect(|read| *at += *read as u64),
        };
        self.failure.note(read)
    }
}

impl Seek for FileSource {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let moved = match &mut self.bytes {
            Opened::File(file) => file.seek(to),
            Opened::Object { object, at } => {
                let target = match to {
                    SeekFrom::Start(to) => Some(to),
                    SeekFrom::End(by) => object.len().checked_add_signed(by),
                    SeekFrom::Current(by) => at.checked_add_signed(by),
                };
                let target = target.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput));
                target.inspect(|to| *at = *to)
            }
        };
        self.failure.note(moved)
    }
}

impl Length for FileSource {
    fn len(&self) -> u64 {
        match &self.bytes {
            Opened::File(file) => self.failure.note(file.metadata()).map_or(0, |m| m.len()),
            Opened::Object { object, .. } => object.len(),
        }
    }
}

impl ChunkReader for FileSource {
    type T = BufReader<FileSource>;

    fn get_read(&self, start: u64) -> Result<Self::T, ParquetError> {
        let bytes = match &self.bytes {
            Opened::File(file) => Opened::File(self.failure.note(file.try_clone())?),
            Opened::Object { object, .. } => Opened::Object { object: Arc::clone(object), at: 0 },
        };
        let mut source = Self { bytes, failure: self.failure() };
        source.seek(SeekFrom::Start(start))?;
        Ok(BufReader::new(source))
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes, ParquetError> {
        let mut buffer = Vec::with_capacity(length);
        let read = self.get_read(start)?.take(length as u64).read_to_end(&mut buffer)?;
        if read != length {
            return Err(ParquetError::EOF(format!("expected {length} bytes at {start}, found {read}")));
        }
        Ok(buffer.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use skytether_common::Kind;

    #[test]
    fn too_many_open_files_is_an_exhausted_error() {
        for code in TOO_MANY_FILES {
            let error = failed("open", Path::new("t.parquet"), io::Error::from_raw_os_error(code));
            assert!(error.kind() == Kind::Exhausted && error.to_string().contains("t.parquet") && error.to_string().contains("ulimit"), "{error}");
        }
        assert_eq!(failed("read", Path::new("t"), io::Error::from_raw_os_error(5)).kind(), Kind::Unavailable);
    }

    /// A parser sees only that the bytes end. The error of the system says why.
    #[test]
    fn io_error_takes_precedence_over_the_parser_error() {
        let dir = tempfile::tempdir().unwrap();
        let mut source = FileSource::open(&Location::file(dir.path())).unwrap();
        let failure = source.failure();
        assert_eq!(failure.or(dir.path(), Error::corrupt("x")).kind(), Kind::Corrupt);
        // A directory opens, and can't be read.
        assert!(source.read(&mut [0]).is_err());
        assert_eq!(failure.or(dir.path(), Error::corrupt("x")).kind(), Kind::Invalid);
    }
}
