//! Results on stdout: tables, CSV, JSON lines, Arrow.

use std::io::{BufWriter, Write};

use arrow::datatypes::SchemaRef;
use arrow::record_batch::RecordBatch;
use arrow::util::pretty::pretty_format_batches_with_options;
use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use skytether_common::{Error, Result};

use crate::common_args::Format;

/// Rows that a printed table shows at most; the rest is counted.
const TABLE_ROWS: usize = 1000;

/// Writes batches to a stream in one of the formats. A reader that went away is no error: see [`Sink::gone`].
pub(crate) struct Sink<W: Write> {
    inner: Inner<W>,
    /// The reader has closed the pipe: stop, successfully.
    pub(crate) gone: bool,
}

enum Inner<W: Write> {
    Table { out: W, schema: SchemaRef, kept: Vec<RecordBatch>, shown: usize, total: usize },
    Text { out: W, encode: fn(&RecordBatch, bool, &mut Vec<u8>) -> Result<()>, schema: SchemaRef, begun: bool },
    Arrow(Box<arrow::ipc::writer::StreamWriter<BufWriter<W>>>),
}

/// Rows as CSV; `first` is where the header goes.
fn csv(batch: &RecordBatch, first: bool, out: &mut Vec<u8>) -> Result<()> {
    arrow::csv::WriterBuilder::new().with_header(first).build(out).write(batch).map_err(printing)
}

/// Rows as JSON, an object a line; every column has its key in every line, also where the value is null.
fn json(batch: &RecordBatch, _first: bool, out: &mut Vec<u8>) -> Result<()> {
    let mut writer = arrow::json::WriterBuilder::new().with_explicit_nulls(true).build::<_, arrow::json::writer::LineDelimited>(out);
    writer.write(batch).and_then(|()| writer.finish()).map_err(printing)
}

impl<W: Write> Sink<W> {
    /// A sink for rows of `schema`.
    pub(crate) fn new(out: W, schema: &SchemaRef, format: Format) -> Result<Self> {
        let inner = match format {
            Format::Table => Inner::Table { out, schema: schema.clone(), kept: Vec::new(), shown: 0, total: 0 },
            Format::Csv => {
                if let Some(nested) = schema.fields().iter().find(|f| f.data_type().is_nested()) {
                    let (name, kind) = (nested.name(), nested.data_type());
                    return Err(Error::unsupported(format!("column {name:?} is of the type {kind}, which CSV can't hold: use --format json or arrow")));
                }
                Inner::Text { out, encode: csv, schema: schema.clone(), begun: false }
            }
            Format::Json => Inner::Text { out, encode: json, schema: schema.clone(), begun: false },
            Format::Arrow => Inner::Arrow(Box::new(arrow::ipc::writer::StreamWriter::try_new_buffered(out, schema).map_err(printing)?)),
        };
        Ok(Self { inner, gone: false })
    }

    /// Writes or keeps `batch`.
    pub(crate) fn write(&mut self, batch: &RecordBatch) -> Result<()> {
        let done = match &mut self.inner {
            Inner::Table { kept, shown, total, .. } => {
                *total += batch.num_rows();
                let take = batch.num_rows().min(TABLE_ROWS - *shown);
                if take > 0 {
                    kept.push(batch.slice(0, take));
                    *shown += take;
                }
                Ok(())
            }
            Inner::Text { out, encode, begun, .. } => {
                let mut text = Vec::new();
                let encoded = encode(batch, !*begun, &mut text);
                *begun = true;
                encoded.and_then(|()| out.write_all(&text).map_err(|e| Error::io("write", "standard output", e)))
            }
            Inner::Arrow(w) => w.write(batch).map_err(printing),
        };
        self.settle(done)
    }

    /// Writes what is left and flushes.
    pub(crate) fn finish(&mut self) -> Result<()> {
        let done = match &mut self.inner {
            Inner::Table { out, schema, kept, shown, total } => {
                if kept.is_empty() {
                    kept.push(RecordBatch::new_empty(schema.clone()));
                }
                let options = arrow::util::display::FormatOptions::default().with_null("NULL").with_display_error(true);
                pretty_format_batches_with_options(kept, &options).map_err(printing).and_then(|text| {
                    let more = if *total > *shown { format!("\n({} of {} rows; --format csv prints all)", *shown, *total) } else { String::new() };
                    writeln!(out, "{text}{more}").map_err(|e| Error::io("write", "standard output", e))
                })
            }
            Inner::Text { out, encode, schema, begun } => {
                let mut text = Vec::new();
                // The header is written even if no row came.
                let encoded = if *begun { Ok(()) } else { encode(&RecordBatch::new_empty(schema.clone()), true, &mut text) };
                encoded.and_then(|()| out.write_all(&text).and_then(|()| out.flush()).map_err(|e| Error::io("write", "standard output", e)))
            }
            Inner::Arrow(w) => w.finish().and_then(|()| w.flush()).map_err(printing),
        };
        self.settle(done)
    }

    fn settle(&mut self, done: Result<()>) -> Result<()> {
        match done {
            Err(e) if broken_pipe(&e) => {
                self.gone = true;
                Ok(())
            }
            other => other,
        }
    }
}

fn printing(e: arrow::error::ArrowError) -> Error {
    Error::internal("cannot print the result").with_source(e)
}

/// A broken pipe anywhere in the chain of causes: the reader of our output has all it wants.
fn broken_pipe(e: &Error) -> bool {
    let mut at: Option<&(dyn std::error::Error + 'static)> = Some(e);
    while let Some(error) = at {
        at = match error.downcast_ref::<std::io::Error>() {
            Some(io) if io.kind() == std::io::ErrorKind::BrokenPipe => return true,
            // Its `source()` leaves out the error that it was made of.
            Some(io) => io.get_ref().map(|within| within as _),
            None => error.source(),
        };
    }
    false
}

/// Lays `rows` out in columns below `header`; numbers-like columns (`right`) are aligned to the right.
pub(crate) fn columns(header: &[&str], right: &[bool], rows: &[Vec<String>]) -> String {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled).set_header(header).add_rows(rows);
    for (column, right) in table.column_iter_mut().zip(right) {
        column.set_padding((0, 2));
        column.set_cell_alignment(if *right { CellAlignment::Right } else { CellAlignment::Left });
    }
    table.trim_fmt() + "\n"
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{Int64Array, StringArray};
    use arrow::datatypes::{DataType, Field, Schema};

    use super::*;

    fn batch() -> RecordBatch {
        let schema = Arc::new(Schema::new(vec![Field::new("n", DataType::Int64, true), Field::new("s", DataType::Utf8, true)]));
        RecordBatch::try_new(schema, vec![Arc::new(Int64Array::from(vec![Some(1), None])), Arc::new(StringArray::from(vec!["a,b", "ü"]))]).unwrap()
    }

    fn printed(format: Format, batches: &[RecordBatch]) -> Vec<u8> {
        let mut out = Vec::new();
        let mut sink = Sink::new(&mut out, &batch().schema(), format).unwrap();
        for b in batches {
            sink.write(b).unwrap();
        }
        sink.finish().unwrap();
        drop(sink);
        out
    }

    #[test]
    fn tables_align_numbers_right_and_trim_their_ends() {
        let row = |cells: [&str; 3]| cells.map(str::to_owned).to_vec();
        let text = columns(&["name", "rows", "state"], &[false, true, false], &[row(["a", "1", ""]), row(["Zähler 細胞", "1,234", "here"])]);
        assert_eq!(text, "name          rows  state\na                1\nZähler 細胞  1,234  here\n");
    }

    #[test]
    fn each_format_prints_rows_and_nulls() {
        let text = |f| String::from_utf8(printed(f, &[batch()])).unwrap();
        assert_eq!(text(Format::Csv), "n,s\n1,\"a,b\"\n,ü\n");
        assert_eq!(text(Format::Json), "{\"n\":1,\"s\":\"a,b\"}\n{\"n\":null,\"s\":\"ü\"}\n");
        assert!(text(Format::Table).contains("| NULL | ü   |"), "{}", text(Format::Table));
        let arrow = printed(Format::Arrow, &[batch()]);
        let back: Vec<_> = arrow::ipc::reader::StreamReader::try_new(arrow.as_slice(), None).unwrap().map(|b| b.unwrap()).collect();
        assert_eq!(back, vec![batch()]);
    }

    #[test]
    fn an_empty_result_still_has_its_header() {
        assert_eq!(String::from_utf8(printed(Format::Csv, &[])).unwrap(), "n,s\n");
        assert!(String::from_utf8(printed(Format::Table, &[])).unwrap().contains("| n | s |"));
    }

    #[test]
    fn a_reader_that_leaves_is_no_error() {
        struct Gone;
        impl Write for Gone {
            fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
                Err(std::io::ErrorKind::BrokenPipe.into())
            }
            fn flush(&mut self) -> std::io::Result<()> {
                Err(std::io::ErrorKind::BrokenPipe.into())
            }
        }
        for format in [Format::Table, Format::Csv, Format::Json, Format::Arrow] {
            let mut sink = Sink::new(Gone, &batch().schema(), format).unwrap();
            sink.write(&batch()).unwrap();
            sink.finish().unwrap();
            assert!(sink.gone, "{format:?}");
        }
    }
}
