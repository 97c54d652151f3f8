//! Where a file lies, or a striped file: as a table and as JSON.

use std::path::{Path, PathBuf};

use oas::carrier::{Carrier, Disk};
use oas::locate::{ChunkPlaces, Location, Span, StripedLocation, is_description};
use serde::Serialize;
use skytether_common::units::counted;
use skytether_common::{Error, Result};

use crate::common_args::ListFormat;
use crate::context::{Failure, print_line};
use crate::listing;
use crate::output::columns;

/// What is asked of a file.
pub(crate) struct Asked {
    pub(crate) path: PathBuf,
    pub(crate) target: Option<String>,
    /// The file itself, if it describes a striped one.
    pub(crate) itself: bool,
    /// A line for each chunk.
    pub(crate) values: bool,
    pub(crate) format: ListFormat,
}

#[derive(Debug, Serialize)]
struct FileJson<'a> {
    file: &'a Path,
    bytes: u64,
    device: DeviceJson<'a>,
    target: Option<&'a str>,
    /// Whether other files have some of the extents, too.
    shared: bool,
    extents: Vec<SpanJson>,
}

#[derive(Debug, Serialize)]
struct DeviceJson<'a> {
    name: &'a str,
    kind: &'static str,
    /// Added to places on the file system's device: the begin of a partition, the offset of a loop device.
    base: u64,
    /// The file behind a loop device.
    #[serde(skip_serializing_if = "Option::is_none")]
    behind: Option<&'a Path>,
    #[serde(skip_serializing_if = "Option::is_none")]
    node: Option<&'a Path>,
    #[serde(skip_serializing_if = "Option::is_none")]
    iscsi_target: Option<&'a str>,
}

#[derive(Debug, Serialize)]
struct SpanJson {
    byte: u64,
    length: u64,
    /// The first byte on the device; null for a hole.
    place: Option<u64>,
    kind: &'static str,
}

#[derive(Debug, Serialize)]
struct StripedJson<'a> {
    file: &'a Path,
    bytes: u64,
    chunk: u64,
    redundancy: String,
    members: Vec<MemberJson<'a>>,
    chunks: Vec<ChunkJson>,
}

#[derive(Debug, Serialize)]
struct MemberJson<'a> {
    member: usize,
    file: &'a Path,
    target: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    device: Option<DeviceJson<'a>>,
    /// Why it can't be located.
    #[serde(skip_serializing_if = "Option::is_none")]
    lost: Option<String>,
}

#[derive(Debug, Serialize)]
struct ChunkJson {
    row: u64,
    /// Null for parities.
    chunk: Option<u64>,
    /// The first byte in the whole; null for parities.
    byte: Option<u64>,
    length: u64,
    member: usize,
    /// The first byte in the member's file.
    at: u64,
    extents: Vec<SpanJson>,
}

impl From<Span> for SpanJson {
    fn from(span: Span) -> Self {
        Self { byte: span.byte, length: span.length, place: span.place, kind: span.kind.as_str() }
    }
}

/// Prints where the file lies.
pub(crate) async fn run(asked: Asked) -> Result<(), Failure> {
    // The library blocks.
    let text = tokio::task::spawn_blocking(move || text(&asked)).await.map_err(|e| Error::internal("the work was interrupted").with_source(e))??;
    print_line(text.trim_end())?;
    Ok(())
}

fn text(asked: &Asked) -> Result<String> {
    let striped = !asked.itself && is_description(&asked.path);
    match (striped, asked.format) {
        (false, ListFormat::Json) => listing::json(&of_file(&Location::of(&asked.path)?, asked.target.as_deref())),
        (false, ListFormat::Table) => Ok(file_table(&Location::of(&asked.path)?, asked.target.as_deref())),
        (true, ListFormat::Json) => listing::json(&of_striped(&asked.path, &StripedLocation::of(&asked.path)?)),
        (true, ListFormat::Table) => {
            let found = StripedLocation::of(&asked.path)?;
            Ok(if asked.values { chunk_table(&found) } else { member_table(&asked.path, &found) })
        }
    }
}

fn of_device(carrier: &Carrier) -> DeviceJson<'_> {
    let mut device = DeviceJson { name: &carrier.name, kind: "other", base: carrier.base, behind: None, node: None, iscsi_target: None };
    match &carrier.disk {
        Disk::Loop { file } => (device.kind, device.behind) = ("loop", Some(file.as_path())),
        Disk::Scsi { node, target } => (device.kind, device.node, device.iscsi_target) = ("scsi", Some(node.as_path()), target.as_deref()),
        Disk::Nvme { node } => (device.kind, device.node) = ("nvme", Some(node.as_path())),
        Disk::Other => {}
    }
    device
}

fn of_file<'a>(found: &'a Location, target: Option<&'a str>) -> FileJson<'a> {
    FileJson {
        file: &found.path,
        bytes: found.bytes,
        device: of_device(&found.carrier),
        target,
        shared: found.shared,
        extents: found.spans.iter().map(|span| (*span).into()).collect(),
    }
}

/// The disk in words.
fn device_words(carrier: &Carrier) -> String {
    let name = &carrier.name;
    match &carrier.disk {
        Disk::Loop { file } => format!("{name}, a loop device over {}", file.display()),
        Disk::Scsi { target: Some(target), .. } => format!("{name}, of the iSCSI target {target}"),
        Disk::Scsi { .. } => format!("{name}, a SCSI disk"),
        Disk::Nvme { .. } => format!("{name}, an NVMe disk"),
        Disk::Other => name.clone(),
    }
}

fn place(span: &Span) -> String {
    span.place.map_or_else(|| "-".to_owned(), |place| place.to_string())
}

fn file_table(found: &Location, target: Option<&str>) -> String {
    let mut text = format!("{}: {} on {}", found.path.display(), counted(found.bytes, "byte"), device_words(&found.carrier));
    if let Some(target) = target {
        text += &format!("\ntarget {target}");
    }
    if found.shared {
        text += "\nother files have some of these extents, too";
    }
    let rows: Vec<Vec<String>> =
        found.spans.iter().map(|span| vec![span.byte.to_string(), span.length.to_string(), place(span), span.kind.as_str().into()]).collect();
    format!("{text}\n{}", columns(&["byte", "bytes", "place", "what"], &[true, true, true, false], &rows))
}

fn of_striped<'a>(path: &'a Path, found: &'a StripedLocation) -> StripedJson<'a> {
    let member = |(number, (member, file)): (usize, (&'a oas::layout::MemberFile, &'a Result<Location>))| {
        let there = file.as_ref().ok();
        MemberJson {
            member: number,
            file: &member.path,
            target: member.target.as_deref(),
            bytes: there.map(|file| file.bytes),
            device: there.map(|file| of_device(&file.carrier)),
            lost: file.as_ref().err().map(Error::report),
        }
    };
    let chunk = |places: ChunkPlaces| ChunkJson {
        row: places.row,
        chunk: places.chunk.map(|chunk| chunk.number),
        byte: places.chunk.map(|chunk| chunk.position),
        length: places.length,
        member: places.member,
        at: places.at,
        extents: places.spans.into_iter().map(Into::into).collect(),
    };
    StripedJson {
        file: path,
        bytes: found.layout.length,
        chunk: found.layout.chunk,
        redundancy: found.layout.redundancy.to_string(),
        members: found.layout.members.iter().zip(&found.members).enumerate().map(member).collect(),
        chunks: found.chunks().map(chunk).collect(),
    }
}

/// A line for each member.
fn member_table(path: &Path, found: &StripedLocation) -> String {
    let layout = &found.layout;
    let mut sums = vec![(0u64, 0u64, 0u64); layout.members.len()];
    for places in found.chunks() {
        if let Some((chunks, parities, bytes)) = sums.get_mut(places.member) {
            *if places.chunk.is_some() { chunks } else { parities } += 1;
            *bytes += places.length;
        }
    }
    let rows: Vec<Vec<String>> = layout
        .members
        .iter()
        .zip(&found.members)
        .zip(sums)
        .enumerate()
        .map(|(number, ((member, file), (chunks, parities, bytes)))| {
            let place = file.as_ref().map_or_else(|error| format!("lost: {}", error.report()), |file| device_words(&file.carrier));
            let target = member.target.clone().unwrap_or_else(|| "-".to_owned());
            vec![number.to_string(), member.path.display().to_string(), chunks.to_string(), parities.to_string(), bytes.to_string(), target, place]
        })
        .collect();
    let (bytes, chunks) = (counted(layout.length, "byte"), counted(layout.chunks(), "chunk"));
    let text = format!("{}: {bytes} in {chunks} of {} bytes, redundancy {}", path.display(), layout.chunk, layout.redundancy);
    let header = ["member", "file", "chunks", "parities", "bytes", "target", "disk"];
    format!("{text}\n{}", columns(&header, &[true, false, true, true, true, false, false], &rows))
}

/// A line for each piece of each chunk.
fn chunk_table(found: &StripedLocation) -> String {
    let mut rows = Vec::new();
    for places in found.chunks() {
        let (number, byte) = places.chunk.map_or(("parity".to_owned(), "-".to_owned()), |chunk| (chunk.number.to_string(), chunk.position.to_string()));
        let mut line = |byte: &str, length: u64, at: u64, place: String, what: &str| {
            let numbers = [places.row.to_string(), number.clone(), byte.to_owned(), length.to_string(), places.member.to_string(), at.to_string()];
            rows.push(numbers.into_iter().chain([place, what.to_owned()]).collect::<Vec<String>>());
        };
        if places.spans.is_empty() {
            line(&byte, places.length, places.at, "-".to_owned(), "lost");
        }
        for span in &places.spans {
            let byte = places.chunk.map_or(byte.clone(), |chunk| (chunk.position + (span.byte - places.at)).to_string());
            line(&byte, span.length, span.byte, place(span), span.kind.as_str());
        }
    }
    let header = ["row", "chunk", "byte", "bytes", "member", "at", "place", "what"];
    columns(&header, &[true, true, true, true, true, true, true, false], &rows)
}
