//! From a file's name to the places of its bytes: what is shown to people.
//!
//! See also: [`crate::places`], which tells the places that a target may work on.

use std::path::{Path, PathBuf};

use skytether_common::{Error, Result};

use crate::carrier::Carrier;
use crate::fiemap::flag;
use crate::layout::{Chunk, Layout};
use crate::places::{Access, OpenFile, Places};

/// What a part of a file is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpanKind {
    /// Bytes on the disk.
    Data,
    /// Room on the disk that was never written: zeros.
    Unwritten,
    /// No room: zeros.
    Hole,
}

impl SpanKind {
    /// The kind in a word.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Data => "data",
            Self::Unwritten => "unwritten",
            Self::Hole => "hole",
        }
    }
}

/// A part of a file that lies in one piece.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// The first byte in the file.
    pub byte: u64,
    /// How many bytes. The last span ends with the file.
    pub length: u64,
    /// The first byte on the disk; `None` for a hole.
    pub place: Option<u64>,
    /// What it is.
    pub kind: SpanKind,
}

/// Where a file lies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Location {
    /// The file, as it was named.
    pub path: PathBuf,
    /// Its length.
    pub bytes: u64,
    /// The disk.
    pub carrier: Carrier,
    /// Whether other files have some of its extents, too.
    pub shared: bool,
    /// Its bytes, in order and without gaps.
    pub spans: Vec<Span>,
}

impl Location {
    /// Where a file lies, now.
    ///
    /// # Errors
    /// Those of [`OpenFile::open`] and [`OpenFile::places`].
    pub fn of(path: impl AsRef<Path>) -> Result<Self> {
        let file = OpenFile::open(path, Access::Read)?;
        let places = file.places()?;
        let spans = spans(&places);
        Ok(Self { path: file.path().to_owned(), bytes: places.object.length, shared: places.shared, carrier: places.carrier, spans })
    }

    /// The spans of the bytes from `from` to `to`, cut to them.
    #[must_use]
    pub fn part(&self, from: u64, to: u64) -> Vec<Span> {
        let cut = |span: &Span| {
            let (low, high) = (span.byte.max(from), (span.byte + span.length).min(to));
            (low < high).then(|| Span { byte: low, length: high - low, place: span.place.map(|place| place + (low - span.byte)), kind: span.kind })
        };
        // They are in order and without gaps: chunks of a file are not each compared with all of its spans.
        let first = self.spans.partition_point(|span| span.byte + span.length <= from);
        self.spans[first..].iter().take_while(|span| span.byte < to).filter_map(cut).collect()
    }
}

fn spans(places: &Places) -> Vec<Span> {
    let (size, base) = (places.object.length, places.carrier.base);
    let (mut all, mut at): (Vec<Span>, u64) = (Vec::new(), 0);
    let mut push = |span: Span| match all.last_mut() {
        Some(last) if last.kind == span.kind && last.place.map(|place| place + last.length) == span.place => last.length += span.length,
        _ if span.length > 0 => all.push(span),
        _ => {}
    };
    for raw in places.extents().iter().filter(|raw| raw.logical < size) {
        push(Span { byte: at, length: raw.logical.saturating_sub(at), place: None, kind: SpanKind::Hole });
        let kind = if raw.flags & flag::UNWRITTEN == 0 { SpanKind::Data } else { SpanKind::Unwritten };
        let end = raw.logical.saturating_add(raw.length).min(size);
        push(Span { byte: raw.logical, length: end - raw.logical, place: Some(raw.physical + base), kind });
        at = end;
    }
    push(Span { byte: at, length: size.saturating_sub(at), place: None, kind: SpanKind::Hole });
    all
}

/// What a member of a striped file has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChunkPlaces {
    /// The row.
    pub row: u64,
    /// The chunk; `None` for parities.
    pub chunk: Option<Chunk>,
    /// The member.
    pub member: usize,
    /// The first byte in the member's file.
    pub at: u64,
    /// How many bytes.
    pub length: u64,
    /// Where they lie; none where the member can't be located.
    pub spans: Vec<Span>,
}

/// Where a striped file lies.
#[derive(Debug)]
pub struct StripedLocation {
    /// Its description.
    pub layout: Layout,
    /// The members' files, or why they can't be located.
    pub members: Vec<Result<Location>>,
}

impl StripedLocation {
    /// The files that a description names.
    ///
    /// # Errors
    /// Those of [`Layout::read`].
    pub fn of(description: impl AsRef<Path>) -> Result<Self> {
        let layout = Layout::read(description)?;
        let members = layout.members.iter().map(|member| Location::of(&member.path)).collect();
        Ok(Self { layout, members })
    }

    /// All chunks and parities, row by row.
    pub fn chunks(&self) -> impl Iterator<Item = ChunkPlaces> + '_ {
        let data = self.layout.data() as u64;
        (0..self.layout.chunks().div_ceil(data)).flat_map(move |row| {
            let first = row * data;
            let (lengths, parity) = self.layout.row(row);
            let chunks = (first..first + lengths.len() as u64).map(|number| self.layout.chunk(number));
            let chunks = chunks.map(move |chunk| (Some(chunk), chunk.member, chunk.at, chunk.length));
            let parities = self.layout.code().map_or(0..0, |code| code.data()..code.shards()).map(move |shard| {
                let (member, at) = self.layout.place(row, shard);
                (None, member, at, parity as u64)
            });
            chunks.chain(parities).map(move |(chunk, member, at, length)| {
                let spans = match self.members.get(member) {
                    Some(Ok(file)) => file.part(at, at + length),
                    _ => Vec::new(),
                };
                ChunkPlaces { row, chunk, member, at, length, spans }
            })
        })
    }
}

/// Whether a file is the description of a striped one, by its name and content.
#[must_use]
pub fn is_description(path: &Path) -> bool {
    let named = path.extension().is_some_and(|ending| ending == "toml" || ending == "json");
    named && Layout::read(path).is_ok()
}

/// The error for what is named as a file and a data set could be named so, too.
#[must_use]
pub fn ambiguous(name: &str) -> Error {
    Error::invalid(format!("{name:?} is a file here, and can be a data set of the fleet: write ./{name} for the file, or --dataset for the data set"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::carrier::Disk;

    #[test]
    fn parts_of_files_are_cut_out_of_their_spans() {
        let span = |byte, length, place, kind| Span { byte, length, place, kind };
        let spans = vec![span(0, 100, Some(5000), SpanKind::Data), span(100, 50, None, SpanKind::Hole), span(150, 70, Some(900), SpanKind::Unwritten)];
        let carrier = Carrier { name: "loop0".into(), base: 0, disk: Disk::Other };
        let location = Location { path: "f".into(), bytes: 220, carrier, shared: false, spans: spans.clone() };
        assert_eq!(location.part(0, 220), spans);
        let part = location.part(90, 160);
        let right = [span(90, 10, Some(5090), SpanKind::Data), span(100, 50, None, SpanKind::Hole), span(150, 10, Some(900), SpanKind::Unwritten)];
        assert_eq!(part, right);
        assert!(location.part(220, 300).is_empty());
        for (from, to) in (0..222).flat_map(|from| (from..222).map(move |to| (from, to))) {
            let bytes: u64 = location.part(from, to).iter().map(|span| span.length).sum();
            assert_eq!(bytes, to.min(220).saturating_sub(from), "{from} to {to}");
        }
    }

    /// A file in as many pieces as it has chunks: each chunk is found without a look at all pieces, which would take
    /// hours.
    #[test]
    fn parts_of_a_file_in_many_pieces_are_found_at_once() {
        let pieces = 400_000;
        let spans = (0..pieces).map(|n| Span { byte: n * 4096, length: 4096, place: Some((n * 7919 % pieces) * 4096), kind: SpanKind::Data }).collect();
        let carrier = Carrier { name: "loop0".into(), base: 0, disk: Disk::Other };
        let location = Location { path: "f".into(), bytes: pieces * 4096, carrier, shared: false, spans };
        for n in 0..pieces {
            let part = location.part(n * 4096 + 4000, n * 4096 + 4200);
            assert_eq!((part[0].byte, part[0].length), (n * 4096 + 4000, 96));
            assert_eq!(part.len(), 2 - usize::from(n + 1 == pieces));
        }
    }
}
