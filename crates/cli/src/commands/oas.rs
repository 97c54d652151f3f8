//! `skytether oas`: the work of `md5sum`, `grep`, `wc` and `sort` on files, done in the block storage below them.

use std::io::{self, Write};
use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use oas::output::Columns;
use oas::tools::{self, Told};
use oas::{Codec, Digest, Done, Elements, Input, Order, Pattern, Session, What};
use skytether_common::{Error, Result};

use crate::commands::oas_scrub;
use crate::commands::oas_sql::{self, Sql};
use crate::commands::oas_target::TargetArgs;
use crate::context::Failure;

#[derive(Debug, Subcommand)]
pub(crate) enum OasCommand {
    /// Print digests, as md5sum and its kin do.
    Sum(Sum),
    /// Print matches with their places, as `grep -a -o -b -E`.
    Grep(Grep),
    /// Count lines, words and bytes, as wc.
    Wc(Wc),
    /// Sort lines or records, as `LC_ALL=C sort`.
    Sort(Sort),
    /// Merge sorted files, as `LC_ALL=C sort -m`.
    Merge(Sort),
    /// Compress a file into another one.
    Compress(Compress),
    /// Decompress a file into another one.
    Decompress(Decompress),
    /// Query CSV, JSON lines or Parquet files.
    ///
    /// The query reads the table `files`: the rows of all files. The target queries each file by itself, and results
    /// are merged here.
    Sql(Sql),
    /// Verify the drives of another object store: that all bytes are those that it wrote.
    Scrub(oas_scrub::ScrubStore),
}

#[derive(Debug, Args)]
pub(crate) struct Sum {
    /// MD5, as md5sum.
    #[arg(long, group = "of")]
    md5: bool,
    /// SHA-256, as sha256sum (the default).
    #[arg(long, group = "of")]
    sha256: bool,
    /// BLAKE3, as b3sum.
    #[arg(long, group = "of")]
    blake3: bool,
    /// CRC-32C.
    #[arg(long, group = "of")]
    crc32c: bool,
    /// CRC-32, as zlib has it.
    #[arg(long, group = "of")]
    crc32: bool,
    /// CRC-64/NVME.
    #[arg(long, group = "of")]
    crc64: bool,
    /// HighwayHash-256 with the key that MinIO uses.
    #[arg(long, group = "of")]
    highwayhash: bool,
    /// The files.
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    #[command(flatten)]
    target: TargetArgs,
}

#[derive(Debug, Args)]
pub(crate) struct Grep {
    /// A regular expression.
    #[arg(value_name = "PATTERN")]
    pattern: String,
    /// The files.
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    /// The pattern is a string, and no expression; lines of it are several strings.
    #[arg(short = 'F', long)]
    fixed_strings: bool,
    /// Upper and lower case are equal.
    #[arg(short, long)]
    ignore_case: bool,
    /// Print the number of lines with a match, and no matches.
    #[arg(short, long)]
    count: bool,
    #[command(flatten)]
    target: TargetArgs,
}

#[derive(Debug, Args)]
pub(crate) struct Wc {
    /// Print the lines.
    #[arg(short, long)]
    lines: bool,
    /// Print the words.
    #[arg(short, long)]
    words: bool,
    /// Print the characters.
    #[arg(short = 'm', long)]
    chars: bool,
    /// Print the bytes.
    #[arg(short = 'c', long)]
    bytes: bool,
    /// The files.
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    #[command(flatten)]
    target: TargetArgs,
}

#[derive(Debug, Args)]
pub(crate) struct Sort {
    /// The files.
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    /// The file that gets the result (default: stdout). It lies on the same file system, so that the target writes it.
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// The greatest first.
    #[arg(short, long)]
    reverse: bool,
    /// Of equal elements, the first only.
    #[arg(short, long)]
    unique: bool,
    /// Records of this many bytes, and no lines.
    #[arg(long, value_name = "BYTES")]
    record: Option<u64>,
    /// The place of the key in a record.
    #[arg(long, value_name = "BYTE", requires = "record", default_value_t = 0)]
    key_at: u64,
    /// The length of the key (default: to the record's end).
    #[arg(long, value_name = "BYTES", requires = "record")]
    key_length: Option<u64>,
    #[command(flatten)]
    target: TargetArgs,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Form {
    Zstd,
    Lz4,
}

impl From<Form> for Codec {
    fn from(form: Form) -> Self {
        match form {
            Form::Zstd => Codec::Zstd,
            Form::Lz4 => Codec::Lz4,
        }
    }
}

/// From a file into another one.
#[derive(Debug, Args)]
struct IntoArgs {
    /// The file.
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// The file that gets the result.
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// The format.
    #[arg(long, value_enum, default_value_t = Form::Zstd)]
    format: Form,
    #[command(flatten)]
    target: TargetArgs,
}

#[derive(Debug, Args)]
pub(crate) struct Compress {
    #[command(flatten)]
    files: IntoArgs,
    /// How much: 1 is the fastest, 12 the smallest. zstd only.
    #[arg(long, value_name = "LEVEL", value_parser = clap::value_parser!(u64).range(1..=12))]
    level: Option<u64>,
}

#[derive(Debug, Args)]
pub(crate) struct Decompress {
    #[command(flatten)]
    files: IntoArgs,
    /// The most bytes that may come out (512MiB, 10G).
    #[arg(long, value_name = "SIZE", default_value = "1GiB", value_parser = size)]
    room: u64,
}

fn size(text: &str) -> Result<u64, String> {
    skytether_volume::names::parse_size(text).map_err(|error| error.report())
}

/// Runs a command on a thread that may block, as the library blocks.
pub(crate) async fn run(command: OasCommand) -> Result<(), Failure> {
    if let OasCommand::Sql(args) = command {
        return oas_sql::run(args).await;
    }
    let work = tokio::task::spawn_blocking(move || work(command));
    work.await.map_err(|e| Error::internal("the work was interrupted").with_source(e))?
}

fn work(command: OasCommand) -> Result<(), Failure> {
    let mut out = io::BufWriter::new(io::stdout().lock());
    let code = match command {
        OasCommand::Sum(args) => ended(tools::sum(&session(&args.target, &args.files)?, args.digest(), &args.files, &mut out)?, false)?,
        OasCommand::Grep(args) => {
            let session = session(&args.target, &args.files)?;
            let pattern = args.pattern();
            let told = match args.count {
                true => tools::grep_lines_count(&session, &pattern, &args.files, &mut out)?,
                false => tools::grep(&session, &pattern, &args.files, &mut out)?,
            };
            ended(told, true)?
        }
        OasCommand::Wc(args) => {
            let asked = args.lines || args.words || args.chars || args.bytes;
            let some = Columns { lines: args.lines, words: args.words, characters: args.chars, bytes: args.bytes };
            let columns = if asked { some } else { Columns::default() };
            ended(tools::wc(&session(&args.target, &args.files)?, columns, true, &args.files, &mut out)?, false)?
        }
        // It is done above.
        OasCommand::Sql(_) => 0,
        OasCommand::Sort(args) => sort(&args, false, &mut out)?,
        OasCommand::Merge(args) => sort(&args, true, &mut out)?,
        OasCommand::Compress(args) => {
            let IntoArgs { file, output, format, target } = args.files;
            written(tools::compress_into(&target.session(&file)?, format.into(), args.level, &Input::open(&file)?, &output))?
        }
        OasCommand::Decompress(args) => {
            let IntoArgs { file, output, format, target } = args.files;
            written(tools::decompress_into(&target.session(&file)?, format.into(), &Input::open(&file)?, &output, args.room))?
        }
        OasCommand::Scrub(args) => oas_scrub::work(&args, &mut out)?,
    };
    match out.flush() {
        Ok(()) if code == 0 => Ok(()),
        Ok(()) => Err(Failure::Status(code)),
        Err(e) => Err(Error::unavailable("stdout can't be written").with_source(e).into()),
    }
}

fn session(target: &TargetArgs, files: &[PathBuf]) -> Result<Session> {
    let none = PathBuf::new();
    target.session(files.first().unwrap_or(&none))
}

fn sort(args: &Sort, merge: bool, out: &mut dyn Write) -> Result<u8, Failure> {
    let session = session(&args.target, &args.files)?;
    let order = args.order();
    let Some(output) = &args.output else { return ended(tools::sort(&session, &order, &args.files, merge, out)?, false) };
    let inputs = args.files.iter().map(Input::open).collect::<Result<Vec<_>>>()?;
    let into = if merge { tools::merge_into } else { tools::sort_into };
    written(into(&session, &order, &inputs, output))
}

/// Tells where something was computed, and what failed. The exit status: 1 where a search found nothing.
fn ended(told: Told, search: bool) -> Result<u8, Failure> {
    if let Some(why) = &told.why {
        eprintln!("done here ({} of {} files): {why}", told.here, told.here + told.there);
    }
    let failed: Vec<Error> = told.failed.into_iter().map(|(path, error)| error.named(&path.display().to_string())).collect();
    match failed.is_empty() {
        true => Ok(u8::from(search && !told.found)),
        false => Err(Failure::Each(failed)),
    }
}

fn written(done: Done<u64>) -> Result<u8, Failure> {
    if let oas::Ran::Here { why: Some(why) } = &done.ran {
        eprintln!("done here: {}", why.report());
    }
    done.value?;
    Ok(0)
}

impl Sum {
    fn digest(&self) -> Digest {
        let asked = [
            (self.md5, Digest::Md5),
            (self.blake3, Digest::Blake3),
            (self.crc32c, Digest::Crc32c),
            (self.crc32, Digest::Crc32),
            (self.crc64, Digest::Crc64Nvme),
            (self.highwayhash, Digest::Highway256(oas::MINIO_KEY)),
        ];
        asked.into_iter().find_map(|(asked, digest)| asked.then_some(digest)).unwrap_or(Digest::Sha256)
    }
}

impl Grep {
    fn pattern(&self) -> Pattern {
        let what = match self.fixed_strings {
            true => What::Strings(self.pattern.split('\n').map(|line| line.as_bytes().to_vec()).collect()),
            false => What::Regex(self.pattern.clone()),
        };
        Pattern { what, ignore_case: self.ignore_case, utf8: true }
    }
}

impl Sort {
    fn order(&self) -> Order {
        let elements = match self.record {
            None => Elements::Lines,
            Some(length) => {
                let key_length = self.key_length.unwrap_or(length.saturating_sub(self.key_at));
                Elements::Records { length, key_at: self.key_at, key_length }
            }
        };
        Order { elements, reverse: self.reverse, unique: self.unique }
    }
}
