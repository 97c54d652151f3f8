//! JSON: objects, one a line or elements of one array. Their types are inferred from all of them.

use std::cell::RefCell;
use std::path::{Path, PathBuf};

use arrow::array::RecordBatch;
use arrow::datatypes::{Schema, SchemaRef};
use arrow::error::ArrowError;
use arrow::json::reader::{Decoder, infer_json_schema_from_iterator};
use serde_json::Value;
use skytether_common::{Error, Result};

use super::format::{BATCH_ROWS, Batches, check_columns};
use super::guard::follows;
use super::json_objects::{Objects, Place};
use super::json_shape::Shape;
use super::large_text;
use super::location::Location;
use super::pieces::PIECE_BYTES;

/// Columns of some files together, and the number of rows of each.
pub(super) fn look_at(paths: &[Location]) -> Result<(Schema, Vec<u64>)> {
    let rows = RefCell::new(Vec::new());
    // The place of the reader, for errors without one.
    let at = RefCell::new((Path::new(""), Place::Line(0)));
    let shape = RefCell::new(Shape::default());
    let values = paths.iter().flat_map(|path| {
        rows.borrow_mut().push(0);
        let (objects, broken) = match Objects::open(path) {
            Ok(objects) => (Some(objects), None),
            Err(e) => (None, Some(Err(e))),
        };
        let (rows, at, shape) = (&rows, &at, &shape);
        objects.into_iter().flatten().chain(broken).map(move |object| {
            let (place, text) = object.map_err(external)?;
            *at.borrow_mut() = (path, place);
            if let Some(rows) = rows.borrow_mut().last_mut() {
                *rows += 1;
            }
            match serde_json::from_str(&large_text::as_texts(&text)) {
                Ok(value @ Value::Object(_)) => match shape.borrow_mut().add(&value, path, place) {
                    Ok(()) => Ok(value),
                    Err(e) => Err(external(e)),
                },
                Ok(_) => Err(external(Error::invalid(format!("{}: {place} is no JSON object", path.display())))),
                Err(e) => Err(external(unread(path, place, &e))),
            }
        })
    });
    let schema = infer_json_schema_from_iterator(values).map_err(|e| match Error::find(&e) {
        Some(ours) => ours.flattened(),
        None => {
            let (path, place) = *at.borrow();
            Error::invalid(format!("{}: {place} does not fit those before it", path.display())).with_source(e)
        }
    })?;
    for path in paths.iter().take(1) {
        check_columns(path, &schema)?;
    }
    Ok((shape.into_inner().exact(&schema), rows.into_inner()))
}

/// The error for an object that can't be parsed. The parser counts lines and columns within the object.
fn unread(path: &Path, place: Place, e: &serde_json::Error) -> Error {
    let said = e.to_string();
    let what = said.rsplit_once(" at line ").map_or(said.as_str(), |(what, _)| what);
    let column = match place {
        Place::Line(_) => format!(", column {}", e.column()),
        Place::Element(_) => String::new(),
    };
    match what {
        "number out of range" => Error::invalid(format!("{}: {place}{column}: a number is beyond doubles: write it as text, in quotes", path.display())),
        _ => Error::invalid(format!("{}: {place} is no JSON object: {what}{column}", path.display())),
    }
}

fn external(e: Error) -> ArrowError {
    ArrowError::ExternalError(Box::new(e))
}

pub(super) fn read(location: Location, schema: &SchemaRef) -> Result<Batches> {
    let objects = Objects::open(&location)?;
    let reader = Reader { path: location.to_path_buf(), schema: SchemaRef::clone(schema), objects, rows: 0, over: false };
    Ok(Box::new(reader))
}

/// Batches of bounded rows and bytes.
struct Reader {
    path: PathBuf,
    schema: SchemaRef,
    objects: Objects,
    rows: usize,
    over: bool,
}

impl Reader {
    fn decoder(&self) -> std::result::Result<Decoder, ArrowError> {
        // A column that holds numbers and texts is text.
        arrow::json::ReaderBuilder::new(SchemaRef::clone(&self.schema)).with_batch_size(BATCH_ROWS).with_coerce_primitive(true).build_decoder()
    }

    fn batch(&mut self) -> Result<Option<RecordBatch>> {
        let (mut texts, mut bytes) = (Vec::new(), 0);
        while texts.len() < BATCH_ROWS && bytes < PIECE_BYTES {
            let Some(object) = self.objects.next().transpose()? else { break };
            bytes += object.1.len();
            texts.push(object);
        }
        if texts.is_empty() {
            return Ok(None);
        }
        let decoded = self.decoder().and_then(|mut decoder| {
            texts.iter().try_for_each(|(_, text)| decoder.decode(text.as_bytes()).map(drop))?;
            decoder.flush()
        });
        match decoded {
            Ok(Some(batch)) if batch.num_rows() == texts.len() => {
                self.rows += texts.len();
                Ok(Some(batch))
            }
            Ok(_) => Err(Error::invalid(follows(&self.path, self.rows))),
            Err(e) => Err(self.misfit(&texts, e)),
        }
    }

    /// The error for the first object that can't be read alone; Arrow itself names none.
    fn misfit(&self, texts: &[(Place, String)], e: ArrowError) -> Error {
        for (place, text) in texts {
            let alone = self.decoder().and_then(|mut decoder| decoder.decode(text.as_bytes()).and_then(|_| decoder.flush()));
            if let Err(e) = alone {
                return Error::invalid(format!("{}: {place} does not fit", self.path.display())).with_source(e);
            }
        }
        Error::invalid(follows(&self.path, self.rows)).with_source(e)
    }
}

impl Iterator for Reader {
    type Item = Result<RecordBatch>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.over {
            return None;
        }
        let next = self.batch().transpose();
        self.over = !matches!(next, Some(Ok(_)));
        next
    }
}
