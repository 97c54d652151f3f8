//! The columns of several files as those of one table, and how each file's batches become those of the table.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::array::{ArrayRef, new_null_array};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use arrow::record_batch::{RecordBatch, RecordBatchOptions};
use skytether_common::{Error, Result};

use super::format::Batches;
use super::options::{ReadOptions, SchemaMode};
use super::{convert, hive, open, sound, widen};

/// The columns of a file.
pub(super) struct Columns<'a> {
    pub(super) path: &'a Path,
    pub(super) schema: &'a SchemaRef,
    /// Whether the types are the file's own, and not inferred.
    pub(super) typed: bool,
    pub(super) keys: &'a [hive::Key],
}

/// The columns of all files together.
pub(super) struct Together {
    pub(super) schema: SchemaRef,
    /// What people should know of a union.
    pub(super) notes: Vec<String>,
    /// For each file.
    pub(super) maps: Vec<Map>,
}

/// From the columns of a file to those of the table.
pub(super) struct Map {
    /// The file's own columns, with the types in which its reader gives them.
    pub(super) reading: SchemaRef,
    from: Vec<From>,
}

/// Where a column of the table is from.
enum From {
    /// From this column of the file.
    Column(usize),
    /// From a directory's name.
    Key(hive::Key),
    /// From this column of the file, which a directory's name says as well.
    Both(usize, hive::Key),
    /// The file does not have it.
    Nothing,
}

/// How many names a note lists.
const LISTED: usize = 5;

/// Decides on the columns of `files`.
///
/// # Errors
/// `Invalid`, naming the files and the column, where their columns do not go together.
pub(super) fn columns(files: &[Columns<'_>], options: &ReadOptions) -> Result<Together> {
    let Some(lead) = files.iter().find(|file| file.typed).or(files.first()) else { return Err(Error::invalid("no file to read")) };
    let union = options.schema == SchemaMode::Union;
    if union {
        files.iter().try_for_each(check_names)?;
    }
    let mut common: Vec<Field> = lead.schema.fields().iter().map(|f| f.as_ref().clone()).collect();
    let (mut typed, mut noted) = (vec![lead.typed; common.len()], Noted::default());
    let mut places = Vec::new();
    for file in files {
        let mut at = vec![None; common.len()];
        for (own, field) in file.schema.fields().iter().enumerate() {
            let place = match place_of(&common, field.name(), own, union, file) {
                Some(place) => place,
                None if union => {
                    noted.added.insert(field.name().clone());
                    common.push(field.as_ref().clone().with_nullable(true));
                    typed.push(file.typed);
                    at.push(None);
                    common.len() - 1
                }
                None => return Err(differs(file, lead)),
            };
            if at[place].replace(own).is_some() {
                return Err(differs(file, lead));
            }
            let to = &mut common[place];
            if to.name() != field.name() {
                noted.cases.insert(format!("{:?} and {:?}", to.name(), field.name()));
            }
            let both = match (typed[place], file.typed) {
                (false, false) => widen::inferred(to.data_type(), field.data_type()),
                _ if union => widen::either(to.data_type(), field.data_type()),
                (true, true) | (true, false) if field.data_type().is_null() => Some(to.data_type().clone()),
                _ if to.data_type().is_null() => Some(field.data_type().clone()),
                _ => (to.data_type() == field.data_type()).then(|| to.data_type().clone()),
            };
            let Some(both) = both else {
                if union {
                    return Err(Error::invalid(format!(
                        "{}: column {:?} is {}, and {} in other files: no type holds both",
                        file.path.display(),
                        field.name(),
                        field.data_type(),
                        to.data_type()
                    )));
                }
                return Err(differs(file, lead));
            };
            if file.typed && both != *to.data_type() && !to.data_type().is_null() || both != *field.data_type() && !field.data_type().is_null() && file.typed {
                noted.widened.insert(format!("{:?} to {both}", to.name()));
            }
            to.set_data_type(both);
            to.set_nullable(to.is_nullable() || field.is_nullable());
            typed[place] |= file.typed;
        }
        if !union && (at.len() < common.len() || at.iter().any(Option::is_none)) {
            return Err(differs(file, lead));
        }
        places.push(at);
    }
    for (place, field) in common.iter_mut().enumerate() {
        if places.iter().any(|at| at.get(place).copied().flatten().is_none()) {
            field.set_nullable(true);
        }
    }
    let keys = keys(files, &common, options)?;
    let mut all = common.clone();
    all.extend(keys.iter().map(|(key, of)| Field::new(key, of.clone(), true)));
    let maps = files.iter().zip(places).map(|(file, at)| {
        let mut reading: Vec<Field> = file.schema.fields().iter().map(|f| f.as_ref().clone()).collect();
        let mut from = Vec::new();
        for (place, field) in common.iter().enumerate() {
            let own = at.get(place).copied().flatten();
            if let Some(own) = own.and_then(|own| reading.get_mut(own))
                && !file.typed
                && open::is_read_as(own.data_type(), field.data_type())
            {
                own.set_data_type(field.data_type().clone());
            }
            from.push(match (own, key_of(file, field.name(), union)) {
                (Some(own), None) => From::Column(own),
                (Some(own), Some(key)) => From::Both(own, key.clone()),
                (None, key) => key.map_or(From::Nothing, |key| From::Key(key.clone())),
            });
        }
        from.extend(keys.iter().map(|(key, _)| key_of(file, key, union).map_or(From::Nothing, |key| From::Key(key.clone()))));
        Map { reading: Arc::new(Schema::new(reading)), from }
    });
    let maps: Vec<Map> = maps.collect();
    noted.short = maps.iter().filter(|map| map.from.iter().take(common.len()).any(|from| matches!(from, From::Nothing))).count();
    Ok(Together { maps, notes: noted.told(files.len()), schema: Arc::new(Schema::new(all)) })
}

/// The place of a file's column among those of the table.
fn place_of(common: &[Field], name: &str, own: usize, union: bool, file: &Columns<'_>) -> Option<usize> {
    if common.get(own).is_some_and(|field| field.name() == name) {
        return Some(own);
    }
    if let Some(place) = common.iter().position(|field| field.name() == name) {
        return Some(place);
    }
    // Another case of letters, where only one column can be meant.
    let alike = |field: &&Field| field.name().to_lowercase() == name.to_lowercase();
    let one = |count: usize| count == 1;
    if !union || !one(file.schema.fields().iter().filter(|f| alike(&f.as_ref())).count()) || !one(common.iter().filter(alike).count()) {
        return None;
    }
    common.iter().position(|field| alike(&field))
}

/// Whether two names mean one column: in a union also in other cases of letters.
fn is_same(a: &str, b: &str, union: bool) -> bool {
    a == b || (union && a.to_lowercase() == b.to_lowercase())
}

/// What the directories of `file` say of a column.
fn key_of<'a>(file: &Columns<'a>, name: &str, union: bool) -> Option<&'a hive::Key> {
    file.keys.iter().find(|(key, _)| key == name).or_else(|| file.keys.iter().find(|(key, _)| is_same(key, name, union)))
}

fn check_names(file: &Columns<'_>) -> Result<()> {
    let mut seen = HashSet::new();
    match file.schema.fields().iter().find(|field| !seen.insert(field.name())) {
        None => Ok(()),
        Some(twice) => Err(Error::invalid(format!("{} has two columns named {:?}: rename one", file.path.display(), twice.name()))),
    }
}

fn differs(file: &Columns<'_>, lead: &Columns<'_>) -> Error {
    Error::invalid(format!(
        "{} has other columns than {}: {}; to take all columns of all files, widened, ask for it (schema=\"union\", in the shell --schema union)",
        file.path.display(),
        lead.path.display(),
        difference(lead.schema, file.schema)
    ))
}

fn difference(first: &SchemaRef, other: &SchemaRef) -> String {
    let same_names = first.fields().len() == other.fields().len() && first.fields().iter().all(|f| other.index_of(f.name()).is_ok());
    for (at, a) in first.fields().iter().enumerate() {
        let b = if same_names { other.field_with_name(a.name()).ok() } else { other.fields().get(at).map(AsRef::as_ref) };
        let Some(b) = b else { break };
        if a.name() != b.name() || a.data_type() != b.data_type() {
            return format!("{:?} ({}) instead of {:?} ({})", b.name(), b.data_type(), a.name(), a.data_type());
        }
    }
    let more = |of: &SchemaRef, than: &SchemaRef| of.fields().get(than.fields().len()).map(|f| format!("{:?} ({})", f.name(), f.data_type()));
    let which = match (more(other, first), more(first, other)) {
        (Some(column), _) => format!(", {column} more"),
        (_, Some(column)) => format!(", without {column}"),
        _ => String::new(),
    };
    format!("{} columns instead of {}{which}", other.fields().len(), first.fields().len())
}

/// The columns that only directories give.
fn keys(files: &[Columns<'_>], common: &[Field], options: &ReadOptions) -> Result<Vec<(String, DataType)>> {
    let union = options.schema == SchemaMode::Union;
    let mut names: Vec<&str> = Vec::new();
    for (key, _) in files.iter().flat_map(|file| file.keys) {
        if !names.iter().any(|name| is_same(name, key, union)) && !common.iter().any(|field| is_same(field.name(), key, union)) {
            names.push(key);
        }
    }
    let mut found = Vec::new();
    for name in names {
        if let Some(other) = files.iter().find(|file| key_of(file, name, union).is_none())
            && !union
        {
            return Err(Error::invalid(format!(
                "{} is in no directory called \"{name}=...\", as others are: give files of one kind, take nulls there (schema=\"union\", in the shell --schema union), or leave directories out (hive=False, in the shell --no-hive)",
                other.path.display()
            )));
        }
        let values = files.iter().filter_map(|file| key_of(file, name, union)).filter_map(|(_, value)| value.as_deref());
        found.push((name.to_owned(), hive::type_of(name, values, &options.text)?));
    }
    Ok(found)
}

/// What a union did.
#[derive(Default)]
struct Noted {
    widened: std::collections::BTreeSet<String>,
    cases: std::collections::BTreeSet<String>,
    added: std::collections::BTreeSet<String>,
    short: usize,
}

impl Noted {
    fn told(self, files: usize) -> Vec<String> {
        let list = |names: Vec<String>| {
            let more = if names.len() > LISTED { format!(" and {} more", names.len() - LISTED) } else { String::new() };
            format!("{}{more}", names[..names.len().min(LISTED)].join(", "))
        };
        let mut notes = Vec::new();
        if self.short > 0 {
            notes.push(format!("{} of {files} files lack columns that others have, which are null there", self.short));
        }
        if !self.cases.is_empty() {
            notes.push(format!("columns whose names differ in the case of letters were taken for one: {}", list(self.cases.into_iter().collect())));
        }
        if !self.widened.is_empty() {
            notes.push(format!("types were widened: {}", list(self.widened.into_iter().collect())));
        }
        notes
    }
}

impl Map {
    /// The batches of the file at `path` as those of the table.
    pub(super) fn apply(self, path: PathBuf, batches: Batches, to: &SchemaRef) -> Batches {
        let to = Arc::clone(to);
        let mut before = 0;
        Box::new(batches.map(move |batch| {
            let batch = batch?;
            let rows = before;
            before += batch.num_rows();
            self.batch(&path, rows, &batch, &to)
        }))
    }

    fn batch(&self, path: &Path, before: usize, batch: &RecordBatch, to: &SchemaRef) -> Result<RecordBatch> {
        sound::check(batch, before).map_err(|e| Error::invalid(format!("{}: {e}", path.display())))?;
        let mut columns = Vec::with_capacity(self.from.len());
        for (from, field) in self.from.iter().zip(to.fields()) {
            columns.push(match from {
                From::Nothing => new_null_array(field.data_type(), batch.num_rows()),
                From::Key(key) => hive::column(path, key, field.data_type(), batch.num_rows())?,
                From::Column(at) => Self::own(path, before, batch, *at, field)?,
                From::Both(at, key) => {
                    let own = Self::own(path, before, batch, *at, field)?;
                    hive::check_same(path, key, &own, before)?;
                    own
                }
            });
        }
        let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
        RecordBatch::try_new_with_options(Arc::clone(to), columns, &options)
            .map_err(|e| Error::invalid(format!("{}: a batch does not keep its schema", path.display())).with_source(e))
    }

    /// Column `at` of a file's batch, which follows `before` rows, as `field`.
    fn own(path: &Path, before: usize, batch: &RecordBatch, at: usize, field: &Field) -> Result<ArrayRef> {
        let Some(own) = batch.columns().get(at) else {
            return Err(Error::invalid(format!("{} has changed while it was read", path.display())));
        };
        convert::exactly(own, field.data_type()).map_err(|e| {
            let row = convert::row_at_fault(own, |part| convert::exactly(part, field.data_type()).is_err());
            let value = row.map(|row| format!(", row {}: {}", before + row + 1, convert::shown(own, row))).unwrap_or_default();
            Error::invalid(format!(
                "{}: column {:?}{value} does not fit the type {} that all files have together",
                path.display(),
                field.name(),
                field.data_type()
            ))
            .with_source(e)
        })
    }
}
