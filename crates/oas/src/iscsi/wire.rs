//! Units to and from a stream.

use bytes::{BufMut, BytesMut};
use skytether_common::{Error, Result};
use tokio::io::{AsyncRead, AsyncReadExt};

use skytether_iscsi::decoder::{Broken, Data, Decoder, Digests, Space};
use skytether_iscsi::pdu::{Header, padding};

/// Appends a unit to `out`.
pub(super) fn put(out: &mut BytesMut, mut header: Header, data: &[u8], digests: Digests) {
    header.set_data_length(data.len());
    out.put_slice(&header.0);
    if digests.header {
        out.put_u32_le(crc32c::crc32c(&header.0));
    }
    if data.is_empty() {
        return;
    }
    let begin = out.len();
    out.put_slice(data);
    out.put_bytes(0, padding(data.len()));
    if digests.data {
        let digest = crc32c::crc32c(&out[begin..]);
        out.put_u32_le(digest);
    }
}

/// Units out of a stream.
#[derive(Debug)]
pub(super) struct Units {
    decoder: Decoder,
    header: Option<Header>,
}

impl Units {
    pub(super) fn new(most: usize) -> Self {
        Self { decoder: Decoder::new(most), header: None }
    }

    pub(super) fn set(&mut self, digests: Digests, most: usize) {
        self.decoder.set(digests, most);
    }

    /// The next unit of what was read so far.
    ///
    /// # Errors
    /// `Corrupt` where the stream has no units.
    pub(super) fn next(&mut self) -> Result<Option<(Header, BytesMut)>> {
        if self.header.is_none() {
            let Some(header) = self.decoder.header().map_err(broken)? else { return Ok(None) };
            if header.data_length() == 0 {
                return Ok(Some((header, BytesMut::new())));
            }
            self.decoder.receive(BytesMut::new());
            self.header = Some(header);
        }
        let Some(Data { bytes, intact }) = self.decoder.data() else { return Ok(None) };
        if !intact {
            return Err(Error::unavailable("a data digest of the target is wrong"));
        }
        Ok(self.header.take().map(|header| (header, bytes)))
    }

    /// Reads more. May be dropped: nothing is lost then.
    ///
    /// # Errors
    /// `Unavailable` where the stream ends or fails.
    pub(super) async fn fill(&mut self, from: &mut (impl AsyncRead + Unpin)) -> Result<()> {
        let (read, into_data) = match self.decoder.space() {
            Space::Buffer(space) => (from.read(space).await, false),
            Space::Data(mut space) => (from.read_buf(&mut space).await, true),
        };
        match read {
            Ok(0) => Err(Error::unavailable("the target closed the connection")),
            Ok(n) => {
                self.decoder.filled(n, into_data);
                Ok(())
            }
            Err(cause) => Err(Error::unavailable("the connection to the target broke").with_source(cause)),
        }
    }
}

fn broken(how: Broken) -> Error {
    match how {
        Broken::HeaderDigest => Error::unavailable("a header digest of the target is wrong"),
        Broken::TooLong => Error::unavailable("the target sends longer data than was declared"),
    }
}
