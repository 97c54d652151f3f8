//! `skytether oas scrub`: whether the bytes that another object store wrote are still what it wrote.

use std::collections::HashMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use clap::{Args, ValueEnum};
use oas::minio::{Checked, State, Summary, scrub};
use oas::operations::write_all;
use oas::{Access, OpenFile, Session, Settings};
use serde_json::json;
use skytether_common::units::{counted, human_bytes};
use skytether_common::{Error, Result};

use crate::common_args::ListFormat;
use crate::context::Failure;

/// How an object store lays out its drives.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum StoreLayout {
    /// MinIO, and stores with its layout: digests inside the files of parts.
    Minio,
}

#[derive(Debug, Args)]
pub(crate) struct ScrubStore {
    /// The drives' directories, as the store was given them.
    #[arg(value_name = "DIR", required = true)]
    drives: Vec<PathBuf>,
    /// The store's layout.
    #[arg(long, value_enum)]
    layout: StoreLayout,
    /// The target that has the disk below the directories; or one for each of them, in their order, by giving this
    /// option as many times. As in `skytether oas sum`.
    #[arg(long = "target", value_name = "URL", env = "SKYTETHER_TARGET")]
    targets: Vec<String>,
    /// Fail where the target can't do it. Otherwise files are read and verified here, with the reason on stderr.
    #[arg(long, conflicts_with = "here")]
    there: bool,
    /// Read all files, and verify them here.
    #[arg(long)]
    here: bool,
    /// Print what is bad only.
    #[arg(short, long)]
    quiet: bool,
    /// How to print it: text, or a JSON object per line, the last one with the sums of a directory.
    #[arg(long, value_enum, default_value_t = ListFormat::Table)]
    format: ListFormat,
}

/// Verifies the drives. The exit status: 1 where something is bad or could not be verified.
pub(crate) fn work(args: &ScrubStore, out: &mut dyn Write) -> Result<u8, Failure> {
    let StoreLayout::Minio = args.layout;
    if args.targets.len() > 1 && args.targets.len() != args.drives.len() {
        let text = format!("--target is given {} times for {} directories; give it once, or once for each", args.targets.len(), args.drives.len());
        return Err(Failure::Call(Error::invalid(text)));
    }
    let mut all = Summary::default();
    // One for each URL: a session knows the disk of its first files, and asks for no places of another one.
    let mut opened: HashMap<&str, Rc<Session>> = HashMap::new();
    for (at, drive) in args.drives.iter().enumerate() {
        let target = args.targets.get(at).or(args.targets.first());
        let known = target.and_then(|url| opened.get(url.as_str()).cloned());
        let session = match known {
            Some(session) => session,
            None => Rc::new(args.session(target, drive)?),
        };
        if let Some(url) = target {
            opened.insert(url.as_str(), Rc::clone(&session));
        }
        let summary = scrub(&session, drive, &mut |checked| {
            if args.quiet && checked.state == State::Ok { Ok(()) } else { write_all(out, line(args.format, &checked)?.as_bytes()) }
        })?;
        if matches!(args.format, ListFormat::Json) {
            write_all(out, format!("{}\n", json!({ "drive": drive, "summary": summary })).as_bytes())?;
        }
        tell(drive, &summary);
        all.bad += summary.bad;
        all.failed += summary.failed;
    }
    Ok(u8::from(all.bad + all.failed > 0))
}

impl ScrubStore {
    fn session(&self, target: Option<&String>, drive: &Path) -> Result<Session> {
        let settings = Settings { here: !self.there, ..Settings::default() };
        match target {
            _ if self.here => Session::local(settings),
            Some(url) => Session::open(url, settings),
            // Any file of the drive tells its disk.
            None => Session::below(&OpenFile::open(drive.join(".minio.sys/format.json"), Access::Read)?, settings),
        }
    }
}

fn line(format: ListFormat, checked: &Checked) -> Result<String> {
    if matches!(format, ListFormat::Json) {
        return serde_json::to_string(checked).map(|text| text + "\n").map_err(|cause| Error::internal("a finding is no JSON").with_source(cause));
    }
    let state = match checked.state {
        State::Ok => "ok",
        State::Bad => "bad",
        State::Failed => "failed",
    };
    let mut text = format!("{state:<6} {}/{}", checked.bucket, checked.object);
    if checked.object.is_empty() {
        text = format!("{state:<6} {}", checked.file.display());
    }
    if let Some(version) = checked.version.as_deref().filter(|version| *version != "null") {
        text.push_str(&format!(" version {version}"));
    }
    if let Some(part) = checked.part {
        text.push_str(&format!(" part.{part}"));
    }
    if let Some(why) = &checked.why {
        text.push_str(&format!(": {why}"));
        if !checked.object.is_empty() {
            text.push_str(&format!(" ({})", checked.file.display()));
        }
    }
    Ok(text + "\n")
}

fn tell(drive: &Path, summary: &Summary) {
    if let Some(why) = &summary.why {
        eprintln!("done here ({} of {} files): {why}", summary.here, summary.here + summary.there);
    }
    let verified = format!("{} of {} ok", human_bytes(summary.bytes), counted(summary.ok, "part"));
    eprintln!("{}: {verified}, {} bad, {} could not be verified", drive.display(), summary.bad, summary.failed);
}
