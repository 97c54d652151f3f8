//! Opens files as one table: inspects each, decides on the columns, and reads one after the other.

use std::collections::HashMap;
use std::path::Path;

use arrow::datatypes::{DataType, Schema, SchemaRef, TimeUnit};
use arrow::record_batch::RecordBatch;
use skytether_common::{Error, Result};

use super::format::{Batches, Format};
use super::legacy::Units;
use super::location::Location;
use super::options::{ReadOptions, TextOptions};
use super::together::{self, Columns, Together};
use super::{arrow_file, hive, json_file, parquet_file, separated, source, vpic_file};

/// A table that is read batch by batch.
pub struct TableFile {
    /// The columns of every batch.
    pub schema: SchemaRef,
    /// The rows.
    pub batches: Box<dyn Iterator<Item = Result<RecordBatch>> + Send>,
    /// Number of rows, where the files say it.
    pub rows: Option<u64>,
    /// The files' size in bytes.
    pub bytes: u64,
    /// A warning for people about files that can be read, but seem to be wrong, or whose columns differ.
    pub hint: Option<String>,
}

impl std::fmt::Debug for TableFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TableFile").field("schema", &self.schema).field("rows", &self.rows).finish_non_exhaustive()
    }
}

/// A file that was inspected and closed again.
struct Looked {
    path: Location,
    format: Format,
    schema: SchemaRef,
    rows: Option<u64>,
    keys: Vec<hive::Key>,
    /// Of Parquet: the units that the times of INT96 columns may have.
    times: HashMap<String, Units>,
    /// Of separated values: how they are read.
    text: Option<separated::Looked>,
}

impl Looked {
    /// Whether the types are those of the file, and not inferred.
    fn is_typed(&self) -> bool {
        matches!(self.format, Format::Parquet | Format::Arrow | Format::Vpic)
    }
}

/// Opens files with the same columns as one table. They are read one after the other, in the given order.
///
/// The types of text files are inferred from all of their rows together. They are the narrowest that hold every value:
/// integers and floats become floats, integers beyond 64 bits text, dates and times become times, anything else mixed
/// becomes text. JSON objects may leave keys out. Blank lines are skipped, except in separated values of one column,
/// where each is a null.
///
/// # Errors
/// `NotFound`; `Unsupported` for an unknown ending; `Corrupt` or `Invalid` for content of another kind; `Invalid` for a
/// file with other columns than the first; `Exhausted` and `Unavailable` where the system can't read on, and
/// `Exhausted` for rows and batches that are too long. All name the file.
pub fn open<P: AsRef<Path>>(paths: &[P]) -> Result<TableFile> {
    open_with(paths, &ReadOptions::default())
}

/// As [`open`], where all files have `format`, whatever their names end in.
///
/// # Errors
/// As there.
pub fn open_as<P: AsRef<Path>>(paths: &[P], format: Option<Format>) -> Result<TableFile> {
    open_with(paths, &ReadOptions { format, ..ReadOptions::default() })
}

/// As [`open`], with what the caller says about the files.
///
/// # Errors
/// As there; `Invalid` for options that do not fit the files.
pub fn open_with<P: AsRef<Path>>(paths: &[P], options: &ReadOptions) -> Result<TableFile> {
    let locations: Vec<_> = paths.iter().map(|path| Location::file(path.as_ref())).collect();
    open_locations(&locations, options)
}

/// As [`open_with`], where some or all of the files are objects.
///
/// # Errors
/// As there.
pub fn open_locations(locations: &[Location], options: &ReadOptions) -> Result<TableFile> {
    options.text.check()?;
    let (mut bytes, mut named) = (0, Vec::new());
    for location in locations {
        bytes += match location.bytes() {
            Some(object) => object.len(),
            None => {
                let data = std::fs::metadata(&**location).map_err(|e| source::failed("open", location, e))?;
                check_kind(location, &data)?;
                data.len()
            }
        };
        named.push((format_of(location, options)?, location.clone()));
    }
    check_text_options(&named, &options.text)?;
    let (mut files, hint) = look_at(named, options)?;
    let units = units_of(&mut files)?;
    let own: Vec<Columns<'_>> = files.iter().map(|file| Columns { path: &file.path, schema: &file.schema, typed: file.is_typed(), keys: &file.keys }).collect();
    let Together { schema, notes, maps } = together::columns(&own, options)?;
    check_asked(&files, &schema, &options.text)?;
    let rows = files.iter().map(|file| file.rows).sum();
    let (text, to) = (options.text.clone(), SchemaRef::clone(&schema));
    let batches = files.into_iter().zip(maps).flat_map(move |(file, map)| {
        let path = file.path.clone();
        match read(file, &map.reading, &units, &text) {
            Ok(batches) => map.apply(path.to_path_buf(), batches, &to),
            Err(e) => Box::new(std::iter::once(Err(e))),
        }
    });
    let hint = hint.into_iter().chain(notes).collect::<Vec<_>>();
    Ok(TableFile { schema, batches: Box::new(batches), rows, bytes, hint: (!hint.is_empty()).then(|| hint.join("; ")) })
}

/// Refuses what is read twice and is no file: nothing would come a second time, or nothing ends.
fn check_kind(path: &Path, data: &std::fs::Metadata) -> Result<()> {
    if data.is_file() || data.is_dir() {
        return Ok(());
    }
    Err(Error::invalid(format!("{} is a pipe or a device, and files are read twice: write it to a file first", path.display())))
}

fn format_of(path: &Path, options: &ReadOptions) -> Result<Format> {
    let by = options.text.delimiter;
    let said = match options.format {
        Some(format) => Ok(format),
        None => Format::of(path),
    };
    match (said, by) {
        (Ok(Format::Separated(_)), Some(by)) => Ok(Format::Separated(by)),
        // Who says what separates the values of a `.txt` says the format.
        (Err(_), Some(by)) if options.format.is_none() && path.extension().is_none_or(|ending| ending == "txt" || ending == "dat" || ending == "psv") => {
            Ok(Format::Separated(by))
        }
        (said, _) => said,
    }
}

fn check_text_options(named: &[(Format, Location)], text: &TextOptions) -> Result<()> {
    let separated = named.iter().any(|(format, _)| matches!(format, Format::Separated(_)));
    let plain = TextOptions { types: text.types.clone(), ..TextOptions::default() };
    if !separated && *text != plain {
        return Err(Error::invalid("delimiter, header, quote, null and all_text are said of separated values (CSV, TSV), and none of the files is one"));
    }
    Ok(())
}

/// Types are asked of columns that there are, of separated values or directories.
fn check_asked(files: &[Looked], schema: &Schema, text: &TextOptions) -> Result<()> {
    for (name, _) in &text.types {
        let there = files.iter().any(|file| file.text.is_some() && file.schema.index_of(name).is_ok() || file.keys.iter().any(|(key, _)| key == name));
        if !there {
            let why = if schema.index_of(name).is_ok() { "has its type from its file" } else { "is not there" };
            let columns = schema.fields().iter().take(20).map(|f| f.name().as_str()).collect::<Vec<_>>().join(", ");
            return Err(Error::invalid(format!("a type is asked for the column {name:?}, which {why}: the columns are {columns}")));
        }
    }
    Ok(())
}

/// Inspects the files. Also gives a warning for people.
fn look_at(named: Vec<(Format, Location)>, options: &ReadOptions) -> Result<(Vec<Looked>, Option<String>)> {
    // A key in one JSON file may be missing in another, so these files are inspected together.
    let json: Vec<_> = named.iter().filter(|(format, _)| *format == Format::JsonLines).map(|(_, path)| path.clone()).collect();
    let (json_schema, json_rows) = if json.is_empty() { (Schema::empty(), Vec::new()) } else { json_file::look_at(&json)? };
    let (json_schema, mut json_rows) = (SchemaRef::from(json_schema), json_rows.into_iter());
    let (mut files, mut hint) = (Vec::new(), None);
    for (format, path) in named {
        let keys = if options.hive { hive::keys(&path)? } else { Vec::new() };
        let mut file = Looked { path, format, schema: SchemaRef::clone(&json_schema), rows: None, keys, times: HashMap::new(), text: None };
        match format {
            Format::Parquet => {
                let found = parquet_file::look_at(&file.path)?;
                (file.schema, file.rows, file.times) = (found.schema, found.rows, found.times);
            }
            Format::Arrow => file.schema = arrow_file::look_at(&file.path)?,
            Format::Separated(by) => {
                let found = separated::look_at(&file.path, by, &options.text)?;
                hint = hint.or_else(|| separated::hint(&file.path, by, &found.schema));
                (file.schema, file.rows) = (SchemaRef::from(found.schema.clone()), Some(found.rows));
                file.text = Some(found);
            }
            Format::JsonLines => file.rows = json_rows.next(),
            Format::Vpic => (file.schema, file.rows) = (skytether_vpic::schema(), Some(vpic_file::look_at(&file.path)?)),
        }
        files.push(file);
    }
    Ok((files, hint))
}

/// One unit of time for each INT96 column of all files, which the schemas then have.
fn units_of(files: &mut [Looked]) -> Result<HashMap<String, TimeUnit>> {
    let mut all: HashMap<String, (Units, Location)> = HashMap::new();
    for file in files.iter() {
        for (column, units) in &file.times {
            let both = all.get(column).map_or(*units, |(before, _)| before.and(*units));
            if let (None, Some((_, first))) = (both.finest(), all.get(column)) {
                return Err(Error::invalid(format!(
                    "{}: column {column:?}: no unit of time holds the INT96 values of this file and of {} in 64 bits: write the column as TIMESTAMP(MICROS)",
                    file.path.display(),
                    first.display()
                )));
            }
            all.insert(column.clone(), (both, file.path.clone()));
        }
    }
    let units: HashMap<String, TimeUnit> = all.into_iter().filter_map(|(column, (units, _))| Some((column, units.finest()?))).collect();
    if units.values().any(|unit| *unit != TimeUnit::Nanosecond) {
        for file in files.iter_mut().filter(|file| !file.times.is_empty()) {
            file.schema = parquet_file::schema(&file.path, &units)?;
        }
    }
    Ok(units)
}

/// The rows of a file with the types of `schema`, where its format has them.
fn read(file: Looked, schema: &SchemaRef, units: &HashMap<String, TimeUnit>, text: &TextOptions) -> Result<Batches> {
    match (file.format, file.text) {
        (Format::Parquet, _) => parquet_file::read(file.path, units),
        (Format::Arrow, _) => arrow_file::read(file.path),
        (Format::Separated(by), Some(looked)) => separated::read(file.path, by, text, &looked, schema),
        (Format::Separated(_), None) => Err(Error::internal(format!("{} was not looked at", file.path.display()))),
        (Format::JsonLines, _) => json_file::read(file.path, schema),
        (Format::Vpic, _) => vpic_file::read(file.path),
    }
}

/// Whether the reader of an inferred format gives a column this type instead of its own.
pub(super) fn is_read_as(own: &DataType, of: &DataType) -> bool {
    own == of || (!own.is_nested() && separated::is_parsed(of))
}
