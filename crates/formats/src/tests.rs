//! Files as tables: types, errors that name file and place, compression.

use super::*;
use arrow::record_batch::RecordBatch;
use skytether_common::Result;
use std::fs;
use std::path::PathBuf;

fn write(name: &str, bytes: &[u8]) -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(name);
    fs::write(&path, bytes).unwrap();
    (dir, path)
}

fn rows(table: TableFile) -> Result<usize> {
    table.batches.map(|b| b.map(|b| b.num_rows())).sum()
}

#[test]
fn csv_has_types_and_says_which_line_is_wrong() {
    let (_d, path) = write("a.csv", b"name,n,x\nb,1,0.5\nc,2,\n");
    let table = open(&[&path]).unwrap();
    let types: Vec<_> = table.schema.fields().iter().map(|f| f.data_type().to_string()).collect();
    assert_eq!(types, ["Utf8", "Int64", "Float64"]);
    assert_eq!(rows(table).unwrap(), 2);
    let (_d, path) = write("b.csv", b"name,n\nb,1\nc,2,3\n");
    let error = open(&[&path]).and_then(rows).unwrap_err();
    assert!(error.to_string().contains("b.csv") && error.to_string().contains('3'), "{error}");
}

#[test]
fn another_separator_is_named_in_hint_and_error() {
    for (text, told) in [
        ("a;b\n1;2\n", "separated by ';': say so (delimiter=\";\", in the shell --delimiter ';')"),
        ("a\tb\n1\t2\n", "separated by tabs: call it .tsv, or say so (delimiter=\"tab\", in the shell --delimiter tab)"),
        ("a|b\n1|2\n", "separated by '|': say so (delimiter=\"|\", in the shell --delimiter '|')"),
    ] {
        let (_d, path) = write("a.csv", text.as_bytes());
        let hint = open(&[&path]).unwrap().hint.unwrap_or_default();
        assert!(hint.contains("has one column") && hint.ends_with(told), "{hint}");
        // Decimal commas.
        let (_d, path) = write("b.csv", text.replace('2', "2,5").as_bytes());
        let error = open(&[&path]).unwrap_err().to_string();
        assert!(error.contains(told) && error.contains("Expected 1 fields, found 2 fields at line 2"), "{error}");
    }
    let (_d, path) = write("c.csv", b"a,b\n1,2,3\n");
    let error = open(&[&path]).unwrap_err().to_string();
    assert!(!error.contains("seems") && error.contains("Expected 2 fields, found 3 fields at line 2"), "{error}");
}

#[test]
fn json_lines_are_read_and_wrong_ones_named() {
    let (_d, path) = write("a.jsonl", b"{\"a\": 1, \"b\": \"x\"}\n{\"a\": 2}\n");
    assert_eq!(rows(open(&[&path]).unwrap()).unwrap(), 2);
    let (_d, path) = write("b.jsonl", b"{\"a\": 1}\n{\"a\": \n");
    let error = open(&[&path]).and_then(rows).unwrap_err();
    assert!(error.to_string().contains("b.jsonl"), "{error}");
}

fn column(table: TableFile, at: usize) -> (String, Vec<String>) {
    let kind = table.schema.field(at).data_type().to_string();
    let options = arrow::util::display::FormatOptions::default().with_null("-");
    let mut values = Vec::new();
    for batch in table.batches.map(Result::unwrap) {
        let column = arrow::util::display::ArrayFormatter::try_new(batch.column(at).as_ref(), &options).unwrap();
        values.extend((0..batch.num_rows()).map(|row| column.value(row).to_string()));
    }
    (kind, values)
}

#[test]
fn types_hold_the_values_of_all_files() {
    let dir = tempfile::tempdir().unwrap();
    let both = |ending: &str, one: &str, two: &str| {
        let paths = [dir.path().join(format!("1.{ending}")), dir.path().join(format!("2.{ending}"))];
        fs::write(&paths[0], one).unwrap();
        fs::write(&paths[1], two).unwrap();
        open(&paths).unwrap()
    };
    for (one, two, kind, values) in [
        ("1", "2.5", "Float64", ["1.0", "2.5"]),
        ("1", "x", "Utf8", ["1", "x"]),
        ("true", "2", "Utf8", ["true", "2"]),
        ("", "2", "Int64", ["-", "2"]),
        ("2024-02-29", "2024-03-01T12:00:00.5", "Timestamp(ms)", ["2024-02-29T00:00:00", "2024-03-01T12:00:00.500"]),
    ] {
        let table = both("csv", &format!("k,v\na,{one}\n"), &format!("k,v\nb,{two}\n"));
        assert_eq!((table.rows, column(table, 1)), (Some(2), (kind.into(), values.map(String::from).to_vec())), "{one:?} {two:?}");
    }
    for (one, two, kind, values) in [
        ("{\"v\": 1}", "{\"v\": 2.5}", "Float64", ["1.0", "2.5"]),
        ("{\"v\": 1}", "{\"v\": \"x\"}", "Utf8", ["1", "x"]),
        ("{\"v\": null}", "{\"v\": true}", "Boolean", ["-", "true"]),
        ("{\"k\": 1}", "{\"v\": 2, \"k\": 1}", "Int64", ["-", "2"]),
    ] {
        let table = both("jsonl", one, two);
        let at = table.schema.index_of("v").unwrap();
        assert_eq!((table.rows, column(table, at)), (Some(2), (kind.into(), values.map(String::from).to_vec())), "{one:?} {two:?}");
    }
    let other = [dir.path().join("1.csv"), dir.path().join("o.csv")];
    fs::write(&other[1], "k,w\nb,2\n").unwrap();
    assert!(open(&other).unwrap_err().to_string().contains("o.csv has other columns than"));
}

#[test]
fn whole_numbers_in_json_stay_exact() {
    let list = "List(UInt64)";
    for (lines, kind, values) in [
        (["{\"v\": 18446744073709551615}", "{\"v\": 18446744073709551614}"], "UInt64", ["18446744073709551615", "18446744073709551614"]),
        (["{\"v\": 1}", "{\"v\": 9223372036854775808}"], "UInt64", ["1", "9223372036854775808"]),
        (["{\"v\": 9223372036854775807}", "{\"v\": -9223372036854775808}"], "Int64", ["9223372036854775807", "-9223372036854775808"]),
        (["{\"v\": -1}", "{\"v\": 9223372036854775808}"], "Utf8", ["-1", "9223372036854775808"]),
        (["{\"v\": 1}", "{\"v\": 18446744073709551616}"], "Utf8", ["1", "18446744073709551616"]),
        (["{\"v\": 0.5}", "{\"v\": 9223372036854775808}"], "Float64", ["0.5", "9.223372036854776e18"]),
        (["{\"v\": \"x\"}", "{\"v\": 18446744073709551615}"], "Utf8", ["x", "18446744073709551615"]),
        (["{\"v\": [1]}", "{\"v\": [18446744073709551615, null]}"], list, ["[1]", "[18446744073709551615, -]"]),
        (["{\"v\": {\"w\": 1}}", "{\"v\": {\"w\": 18446744073709551615}}"], "Struct(\"w\": UInt64)", ["{w: 1}", "{w: 18446744073709551615}"]),
    ] {
        let (_d, path) = write("n.jsonl", lines.join("\n").as_bytes());
        assert_eq!(column(open(&[&path]).unwrap(), 0), (kind.into(), values.map(String::from).to_vec()), "{lines:?}");
    }
}

#[test]
fn blank_lines_of_one_column_are_nulls() {
    let (_d, path) = write("one.csv", b"v\n1\n\n3\n");
    let table = open(&[&path]).unwrap();
    assert_eq!((table.rows, column(table, 0)), (Some(3), ("Int64".into(), vec!["1".into(), "-".into(), "3".into()])));
    let (_d, path) = write("two.csv", b"v,w\n1,2\n\n3,4\n");
    assert_eq!(rows(open(&[&path]).unwrap()).unwrap(), 2);
}

#[test]
fn a_row_that_does_not_fit_is_named_by_file_and_line() {
    for (name, text, says) in [
        ("time.csv", "k,v\na,2024-02-28T25:00:00\n", "time.csv: line 2 does not fit"),
        ("date.csv", "k,v\na,2024-02-28\nb,2024-02-28\nc,2024-02-30\n", "date.csv: line 4 does not fit"),
        ("short.csv", "k,v\na,1\nb\n", "line 3"),
        ("list.jsonl", "{\"v\": 1}\n\n{\"v\": {\"w\": 1}}\n", "list.jsonl: line 3 does not fit"),
        ("big.jsonl", "{\"v\": 1}\n\n{\"v\": 99999999999999999999}\n{\"v\": [1]}\n", "big.jsonl: line "),
        ("no.jsonl", "{\"v\": 1}\n[1]\n", "no.jsonl: line 2 is no JSON object"),
        ("kind.jsonl", "{\"v\": 1}\n{\"v\": [1]}\n", "kind.jsonl: line 2 does not fit: \"v\" is a list and was a plain value in line 1"),
        ("open.csv", "k,v\na,\"1\nb,2\n", "open.csv: line 2 opens a quote that is never closed"),
        ("long.csv", "k,v\na,1\nb,2,3\n", "line 3"),
    ] {
        let (_d, path) = write(name, text.as_bytes());
        match open(&[&path]).and_then(rows) {
            Err(error) => assert!(error.to_string().contains(says) && error.kind() == skytether_common::Kind::Invalid, "{name}: {error}"),
            Ok(rows) => panic!("{name}: {rows} rows"),
        }
    }
}

#[test]
fn texts_may_be_compressed_and_begin_with_a_byte_order_mark() {
    let gzip = |bytes: &[u8]| {
        let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        std::io::Write::write_all(&mut packed, bytes).unwrap();
        packed.finish().unwrap()
    };
    let zstd = |bytes: &[u8]| zstd::encode_all(bytes, 1).unwrap();
    for (name, text) in [("a.csv", "k,v\n1,x\n2,y\n"), ("a.tsv", "k\tv\n1\tx\n2\ty\n"), ("a.jsonl", "{\"k\": 1, \"v\": \"x\"}\n{\"k\": 2, \"v\": \"y\"}")] {
        let marked = ["\u{feff}", text].concat().into_bytes();
        let twice = |pack: &dyn Fn(&[u8]) -> Vec<u8>| [pack(&marked[..9]), pack(&marked[9..])].concat();
        for (ending, bytes) in [("", marked.clone()), (".gz", twice(&gzip)), (".zst", twice(&zstd))] {
            let (_d, path) = write(&format!("{name}{ending}"), &bytes);
            let table = open(&[&path]).unwrap();
            assert_eq!(table.schema.fields().iter().map(|f| f.name().as_str()).collect::<Vec<_>>(), ["k", "v"], "{name}{ending}");
            assert_eq!(column(table, 1), ("Utf8".into(), vec!["x".into(), "y".into()]), "{name}{ending}");
            if !ending.is_empty() {
                fs::write(&path, &bytes[..bytes.len() - 6]).unwrap();
                let error = open(&[&path]).and_then(rows).unwrap_err();
                assert!(error.kind() == skytether_common::Kind::Corrupt && error.to_string().contains("truncated: fetch"), "{name}{ending}: {error}");
                fs::write(&path, [&bytes[..bytes.len() / 2], &[0xff; 40]].concat()).unwrap();
                let error = open(&[&path]).and_then(rows).unwrap_err();
                assert!(error.kind() == skytether_common::Kind::Corrupt && error.to_string().contains(name), "{name}{ending}: {error}");
            }
        }
    }
    let (_d, path) = write("a.parquet.gz", b"");
    assert!(open(&[&path]).unwrap_err().to_string().contains("unpack it first"));
}

#[test]
fn truncated_file_is_reported_with_its_cause() {
    let columns = [("v", std::sync::Arc::new(arrow::array::Int64Array::from_iter_values(0..1000)) as arrow::array::ArrayRef)];
    let batch = RecordBatch::try_from_iter(columns).unwrap();
    let mut whole = Vec::new();
    let mut writer = parquet::arrow::ArrowWriter::try_new(&mut whole, batch.schema(), None).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
    for len in [3, whole.len() / 2, whole.len() - 1] {
        let (_d, path) = write("half.parquet", &whole[..len]);
        let error = open(&[&path]).and_then(rows).unwrap_err();
        let text = error.report();
        assert!(error.kind() == skytether_common::Kind::Corrupt && text.contains("half.parquet is truncated or no Parquet file: "), "{len}: {text}");
    }
}

#[test]
fn unreadable_file_is_not_corrupt() {
    for name in ["a.parquet", "a.arrow", "a.csv", "a.jsonl"] {
        let dir = tempfile::tempdir().unwrap();
        // Opens, and fails when it is read.
        let path = dir.path().join(name);
        fs::create_dir(&path).unwrap();
        let error = open(&[&path]).and_then(rows).unwrap_err();
        assert!(error.kind() == skytether_common::Kind::Invalid && error.to_string().contains("irectory"), "{name}: {error:?}");
    }
}

#[test]
fn truncated_and_foreign_files_are_errors_that_name_the_file() {
    for name in ["a.parquet", "a.arrow", "a.feather"] {
        for bytes in [&b""[..], b"PAR1", b"ARROW1", b"something else altogether, and not short either"] {
            let (_d, path) = write(name, bytes);
            let error = open(&[&path]).and_then(rows).unwrap_err();
            assert!(error.to_string().contains(name), "{name} {bytes:?}: {error}");
        }
    }
}

#[test]
fn unknown_extension_is_refused_with_the_known_ones() {
    let (_d, path) = write("a.xlsx", b"");
    assert!(open(&[&path]).unwrap_err().to_string().contains(".parquet"));
    let (_d, path) = write("a.h5ad", b"");
    assert!(open(&[&path]).unwrap_err().to_string().contains("msgx ingest"));
}

/// Bytes in memory, read in pieces of a few.
struct Slow(Vec<u8>);

impl super::Object for Slow {
    fn len(&self) -> u64 {
        self.0.len() as u64
    }

    fn read_at(&self, at: u64, into: &mut [u8]) -> std::io::Result<usize> {
        let rest = &self.0[(at as usize).min(self.0.len())..];
        let n = rest.len().min(into.len()).min(7);
        into[..n].copy_from_slice(&rest[..n]);
        Ok(n)
    }
}

#[test]
fn objects_are_read_as_files_of_the_same_bytes() {
    use std::sync::Arc;
    let batch = RecordBatch::try_from_iter([("n", Arc::new(arrow::array::Int64Array::from_iter_values(0..5000)) as arrow::array::ArrayRef)]).unwrap();
    let (mut parquet, mut ipc) = (Vec::new(), Vec::new());
    let mut writer = parquet::arrow::ArrowWriter::try_new(&mut parquet, batch.schema(), None).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
    let mut writer = arrow::ipc::writer::FileWriter::try_new(&mut ipc, &batch.schema()).unwrap();
    writer.write(&batch).unwrap();
    writer.finish().unwrap();
    drop(writer);
    let csv = b"gene,count\nCD3D,7\n\"MS\n4\",\n".to_vec();
    let json = b"{\"a\": 1, \"b\": [1.5]}\n{\"a\": null}\n".to_vec();
    for (name, bytes) in [("t.parquet", parquet), ("t.arrow", ipc), ("t.csv", csv), ("t.jsonl", json)] {
        let (_dir, path) = write(name, &bytes);
        let object = super::Location::object(name, Arc::new(Slow(bytes)));
        let (file, object) = (super::open(&[path]).unwrap(), super::open_locations(&[object], &super::ReadOptions::default()).unwrap());
        assert_eq!((&object.schema, object.rows, object.bytes), (&file.schema, file.rows, file.bytes), "{name}");
        assert_eq!(object.batches.collect::<Result<Vec<_>>>().unwrap(), file.batches.collect::<Result<Vec<_>>>().unwrap(), "{name}");
    }
    let broken = super::Location::object("x.parquet", Arc::new(Slow(b"PAR1 no".to_vec())));
    let error = super::open_locations(&[broken], &super::ReadOptions::default()).unwrap_err();
    assert!(error.kind() == skytether_common::Kind::Corrupt && error.to_string().contains("x.parquet"), "{error}");
}
