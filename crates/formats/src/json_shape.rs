//! The shapes in JSON lines: a key must have lists, objects or plain values throughout. Also notes ranges of numbers
//! that inference ignores.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use arrow::datatypes::{DataType, Field, Fields, Schema};
use serde_json::{Number, Value};
use skytether_common::{Error, Result};

use super::json_objects::Place;

/// The most keys at all places of all objects together.
const MAX_KEYS: usize = 200_000;

/// The values at one place of the objects so far.
#[derive(Default)]
pub(super) struct Shape {
    first: Option<Seen>,
    numbers: Numbers,
    fields: HashMap<String, Shape>,
    items: Option<Box<Shape>>,
    /// At the root: the keys at all places so far.
    keys: usize,
}

/// The numbers at one place.
#[derive(Default)]
struct Numbers {
    negative: bool,
    /// Whole numbers that only unsigned integers of 64 bits hold.
    long: bool,
    other: bool,
}

impl Numbers {
    fn add(&mut self, number: &Number) {
        match (number.as_i64(), number.as_u64()) {
            (Some(n), _) => self.negative |= n < 0,
            (None, Some(_)) => self.long = true,
            (None, None) => self.other = true,
        }
    }
}

/// A kind of value, and the file and place of its first value.
type Seen = (JsonKind, PathBuf, Place);

/// A contradiction: the place within the object, the kind there, and the kind before.
type Clash = (String, JsonKind, Seen);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum JsonKind {
    Plain,
    List,
    Object,
}

impl JsonKind {
    fn of(value: &Value) -> Option<Self> {
        Some(match value {
            Value::Null => return None,
            Value::Array(_) => JsonKind::List,
            Value::Object(_) => JsonKind::Object,
            _ => JsonKind::Plain,
        })
    }

    fn name(self) -> &'static str {
        match self {
            JsonKind::Plain => "a plain value",
            JsonKind::List => "a list",
            JsonKind::Object => "an object",
        }
    }
}

impl Shape {
    /// Adds the object at `place` of `path`.
    ///
    /// # Errors
    /// `Invalid` where a key has another kind of value than before, naming the key and both places; `Exhausted` for too
    /// many keys.
    pub(super) fn add(&mut self, value: &Value, path: &Path, place: Place) -> Result<()> {
        let mut keys = self.keys;
        let added = self.visit(value, path, place, &mut keys);
        self.keys = keys;
        if keys > MAX_KEYS {
            return Err(Error::exhausted(format!(
                "{}: up to {place} the objects have more than {MAX_KEYS} different keys: are the keys values? Write them as lists of keys and values",
                path.display()
            )));
        }
        added.map_err(|(key, now, before)| {
            let (kind, earlier, at) = before;
            let earlier = if earlier == path { at.to_string() } else { format!("{}: {at}", earlier.display()) };
            Error::invalid(format!("{}: {place} does not fit: {key:?} is {} and was {} in {earlier}", path.display(), now.name(), kind.name()))
        })
    }

    fn visit(&mut self, value: &Value, path: &Path, place: Place, keys: &mut usize) -> Result<(), Clash> {
        let Some(now) = JsonKind::of(value) else { return Ok(()) };
        match &self.first {
            None => self.first = Some((now, path.to_path_buf(), place)),
            Some(before) if before.0 != now => return Err((String::new(), now, before.clone())),
            Some(_) => {}
        }
        match value {
            Value::Array(items) => {
                let shape = self.items.get_or_insert_default();
                items.iter().try_for_each(|item| shape.visit(item, path, place, keys)).map_err(|(key, now, before)| (joined("[]", &key), now, before))
            }
            Value::Object(fields) => fields.iter().try_for_each(|(name, field)| {
                // A known key needs no text of its own.
                let shape = match self.fields.contains_key(name) {
                    true => self.fields.get_mut(name),
                    false => {
                        *keys += 1;
                        Some(self.fields.entry(name.clone()).or_default())
                    }
                };
                let Some(shape) = shape else { return Ok(()) };
                shape.visit(field, path, place, keys).map_err(|(key, now, before)| (joined(name, &key), now, before))
            }),
            Value::Number(number) => {
                self.numbers.add(number);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// The inferred `schema` with exact types. Inference makes doubles of whole numbers above `Int64`; these columns
    /// become `UInt64`, or text if they have negative numbers too.
    pub(super) fn exact(&self, schema: &Schema) -> Schema {
        Schema::new(self.exact_fields(schema.fields()))
    }

    fn exact_fields(&self, fields: &Fields) -> Fields {
        let exact = |field: &Field| match self.fields.get(field.name()) {
            Some(shape) => field.clone().with_data_type(shape.exact_type(field.data_type())),
            None => field.clone(),
        };
        fields.iter().map(|field| exact(field)).collect()
    }

    fn exact_type(&self, t: &DataType) -> DataType {
        match (t, &self.items) {
            (DataType::Float64, _) if self.numbers.long && !self.numbers.other => {
                if self.numbers.negative {
                    DataType::Utf8
                } else {
                    DataType::UInt64
                }
            }
            (DataType::List(item), Some(shape)) => DataType::new_list(shape.exact_type(item.data_type()), item.is_nullable()),
            (DataType::Struct(fields), _) => DataType::Struct(self.exact_fields(fields)),
            _ => t.clone(),
        }
    }
}

/// The path of `key` within the value at the path `name`.
fn joined(name: &str, key: &str) -> String {
    let dot = if key.is_empty() || key.starts_with('[') { "" } else { "." };
    format!("{name}{dot}{key}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn change_of_value_kind_is_reported_with_both_lines() {
        for (lines, says) in [
            (&["{\"a\": 1}", "{\"a\": [1]}"][..], Some("f: line 2 does not fit: \"a\" is a list and was a plain value in line 1")),
            (
                &["{\"a\": null}", "{\"a\": {\"b\": {}}}", "{\"a\": {\"b\": \"x\"}}"],
                Some("f: line 3 does not fit: \"a.b\" is a plain value and was an object in line 2"),
            ),
            (&["{\"a\": [[1], 2]}"], Some("f: line 1 does not fit: \"a[]\" is a plain value and was a list in line 1")),
            (&["{\"a\": [{\"b\": 1}, {\"b\": [2]}]}"], Some("\"a[].b\" is a list")),
            (&["{\"a\": 1}", "{\"a\": \"x\"}", "{\"a\": null, \"b\": [null, 1]}", "{}"], None),
        ] {
            let mut shape = Shape::default();
            let added =
                lines.iter().enumerate().try_for_each(|(at, line)| shape.add(&serde_json::from_str(line).unwrap(), Path::new("f"), Place::Line(at + 1)));
            match says {
                None => added.unwrap(),
                Some(says) => assert!(added.as_ref().unwrap_err().to_string().contains(says), "{added:?}"),
            }
        }
    }

    #[test]
    fn keys_without_an_end_are_refused() {
        let mut shape = Shape::default();
        let line = |at: usize| (0..1000).map(|i| (format!("{at}-{i}"), Value::Null)).collect::<serde_json::Map<_, _>>();
        let added = (0..=MAX_KEYS / 1000).try_for_each(|at| shape.add(&Value::Object(line(at)), Path::new("f"), Place::Line(at + 1)));
        assert!(added.unwrap_err().to_string().contains("up to line 201 the objects have more than 200000 different keys"));
    }
}
