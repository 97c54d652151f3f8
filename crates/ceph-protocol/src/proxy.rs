//! Between the class and the engine next to the OSD: frames on a Unix socket, and what method `probe` answers.
//!
//! The class connects, sends [`Frame::Run`] or [`Frame::Hello`], answers each [`Frame::Read`] with a [`Frame::Data`],
//! and ends with the engine's [`Frame::Done`]. A frame is a kind (u8), a length (u32) and that many bytes. The class
//! hangs up when the time is over, which ends the plan.

use std::io::{self, Read, Write};

use crate::fields::{Decoded, Malformed, Reader, Writer, wrong};
use crate::request::MAX_REQUEST;
use crate::response::MAX_RESPONSE;

/// The folder of the engines' sockets, unless [`DIR_VARIABLE`] names another one.
pub const DIR: &str = "/run/skytether";

/// The variable in the OSD's and the engine's environment that names the folder.
pub const DIR_VARIABLE: &str = "SKYTETHER_CEPH_SOCKETS";

/// The most bytes of one read.
pub const MAX_READ: u32 = 8 << 20;

/// The socket of the engine next to OSD `number`, in the folder of the sockets.
#[must_use]
pub fn socket_name(number: u32) -> String {
    format!("osd.{number}.{}", crate::CLASS)
}

/// What one side says to the other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Frame {
    /// Class: who are you?
    Hello,
    /// Class: run this [request](crate::Request).
    Run(Vec<u8>),
    /// Engine: give these bytes of the object.
    Read {
        /// Where they begin.
        at: u64,
        /// How many; at most [`MAX_READ`].
        len: u32,
    },
    /// Class: the bytes, which are fewer at the object's end; or Ceph's error as a negative number.
    Data(Result<Vec<u8>, i32>),
    /// Engine: a [response](crate::Response), or its version for `Hello`.
    Done(Vec<u8>),
}

const HELLO: u8 = 1;
const RUN: u8 = 2;
const READ: u8 = 3;
const DATA: u8 = 4;
const DONE: u8 = 5;

impl Frame {
    /// Writes it.
    ///
    /// # Errors
    /// Those of `to`.
    pub fn write(&self, to: &mut impl Write) -> io::Result<()> {
        let mut body = Writer::default();
        let kind = match self {
            Self::Hello => HELLO,
            Self::Run(bytes) => {
                body.raw(bytes);
                RUN
            }
            Self::Read { at, len } => {
                body.u64(*at).u32(*len);
                READ
            }
            Self::Data(Ok(bytes)) => {
                body.u32(0).raw(bytes);
                DATA
            }
            Self::Data(Err(code)) => {
                body.u32(code.unsigned_abs());
                DATA
            }
            Self::Done(bytes) => {
                body.raw(bytes);
                DONE
            }
        };
        let mut head = Writer::default();
        head.u8(kind).count(body.0.len());
        to.write_all(&head.0)?;
        to.write_all(&body.0)
    }

    /// The kind and length of a frame from its first five bytes.
    ///
    /// # Errors
    /// A kind that is not known, or a length that no frame of it has.
    pub fn head(bytes: [u8; 5]) -> Decoded<(u8, usize)> {
        let [kind, length @ ..] = bytes;
        let most = match kind {
            HELLO => 0,
            RUN => MAX_REQUEST,
            READ => 12,
            DATA => MAX_READ as usize + 4,
            DONE => MAX_RESPONSE,
            other => return wrong(format!("a frame of kind {other}")),
        };
        match usize::try_from(u32::from_le_bytes(length)) {
            Ok(length) if length <= most => Ok((kind, length)),
            _ => wrong(format!("a frame of kind {kind} with more than {most} bytes")),
        }
    }

    /// A frame of this kind and these bytes.
    ///
    /// # Errors
    /// Bytes that are no such frame.
    pub fn of(kind: u8, body: Vec<u8>) -> Decoded<Self> {
        let mut reader = Reader::new("frame", &body);
        Ok(match kind {
            HELLO => Self::Hello,
            RUN => Self::Run(body),
            READ => {
                let (at, len) = (reader.u64()?, reader.u32()?);
                reader.end()?;
                if len > MAX_READ {
                    return wrong(format!("a read of {len} bytes; at most {MAX_READ} are given"));
                }
                Self::Read { at, len }
            }
            DATA => match i32::try_from(reader.u32()?) {
                Ok(0) => Self::Data(Ok(body[4..].to_vec())),
                Ok(code) => Self::Data(Err(-code)),
                Err(_) => return wrong("a frame with an error that is none"),
            },
            DONE => Self::Done(body),
            other => return wrong(format!("a frame of kind {other}")),
        })
    }

    /// Reads a frame.
    ///
    /// # Errors
    /// Those of `from`; `InvalidData` for bytes that are no frame.
    pub fn read(from: &mut impl Read) -> io::Result<Self> {
        let invalid = |wrong: Malformed| io::Error::new(io::ErrorKind::InvalidData, wrong);
        let mut head = [0; 5];
        from.read_exact(&mut head)?;
        let (kind, length) = Self::head(head).map_err(invalid)?;
        let mut body = vec![0; length];
        from.read_exact(&mut body)?;
        Self::of(kind, body).map_err(invalid)
    }
}

/// What method `probe` says of the class on an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Probe {
    /// The OSD's number; `None` where the class does not find it out.
    pub osd: Option<u32>,
    /// Version of the class.
    pub class: String,
    /// What reading a byte of the object gave: 0, or Ceph's error as a negative number (-95 in erasure-coded pools).
    pub read: i32,
    /// The version of the engine; `Err`: why none answers.
    pub engine: Result<String, String>,
}

/// The most bytes of a text of a probe.
const MAX_TEXT: usize = 4096;

impl Probe {
    /// Its bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::default();
        let (works, text) = match &self.engine {
            Ok(version) => (1, version),
            Err(why) => (0, why),
        };
        writer.raw(b"STCP").u16(crate::VERSION).u32(self.osd.unwrap_or(u32::MAX)).blob(self.class.as_bytes());
        writer.u32(self.read.unsigned_abs()).u8(works).blob(text.as_bytes());
        writer.0
    }

    /// Reads the answer of a probe, which may be any bytes.
    ///
    /// # Errors
    /// What is wrong.
    pub fn decode(bytes: &[u8]) -> Decoded<Self> {
        let mut reader = Reader::new("answer of a probe", bytes);
        if reader.raw(4)? != b"STCP" || reader.u16()? != crate::VERSION {
            return wrong("these bytes are no answer of a probe, or one of another version");
        }
        let osd = Some(reader.u32()?).filter(|number| *number != u32::MAX);
        let class = reader.text(MAX_TEXT)?;
        let Ok(code) = i32::try_from(reader.u32()?) else { return wrong("an error that is none") };
        let works = reader.u8()? == 1;
        let text = reader.text(MAX_TEXT)?;
        reader.end()?;
        Ok(Self { osd, class, read: -code, engine: if works { Ok(text) } else { Err(text) } })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn frames_come_back_as_they_were() {
        let frames = [
            Frame::Hello,
            Frame::Run(vec![1; 10]),
            Frame::Read { at: 1 << 40, len: 5 },
            Frame::Data(Ok(vec![2; 7])),
            Frame::Data(Err(-95)),
            Frame::Done(vec![3]),
        ];
        let mut bytes = Vec::new();
        for frame in &frames {
            frame.write(&mut bytes).unwrap();
        }
        let mut from = bytes.as_slice();
        for frame in frames {
            assert_eq!(Frame::read(&mut from).unwrap(), frame);
        }
        assert!(Frame::read(&mut [9u8, 0, 0, 0, 0].as_slice()).is_err());
        assert!(Frame::read(&mut [READ, 255, 255, 255, 255].as_slice()).is_err());
    }

    #[test]
    fn probes_come_back_as_they_were() {
        for engine in [Ok("1".to_owned()), Err("no socket".to_owned())] {
            let own = Probe { osd: Some(1), class: "0.1.0".to_owned(), read: -95, engine };
            assert_eq!(Probe::decode(&own.encode()).unwrap(), own);
        }
        Probe::decode(b"no").unwrap_err();
    }
}
