//! Targets for stored indexes: a definition, a head, and a page of a segment of a thousand rows and two columns. The
//! first byte of the input says which.

use std::sync::Arc;

use arrow::array::{ArrayRef, Float32Array, Int64Array, RecordBatch};
use arrow::datatypes::DataType;
use skytether_common::Kind;
use skytether_common::checksum::crc32c;
use skytether_index::page::Page;
use skytether_index::segment::Source;
use skytether_index::{Building, Built, Definition, Head, Interval, Order};

const ROWS: u32 = 1000;

fn built() -> Option<Built> {
    let a: ArrayRef = Arc::new(Int64Array::from_iter((0..i64::from(ROWS)).map(|n| (n % 7 != 0).then_some(n * 7919 % 1000))));
    let b: ArrayRef = Arc::new(Float32Array::from_iter_values((0..ROWS).map(|n| n as f32 / 3.0)));
    let columns = vec![("a".to_owned(), Order::of(&DataType::Int64, None)?), ("b".to_owned(), Order::of(&DataType::Float32, None)?)];
    let mut building = Building::new(columns, vec!["a".into()]);
    let batch = RecordBatch::try_from_iter_with_nullable([("a", Arc::clone(&a), true), ("b", b, true)]).ok()?;
    building.push(&batch, RecordBatch::try_from_iter_with_nullable([("a", a, true)]).ok()).ok()?;
    building.finish(Source { len: 10, crc32c: 20 }, 3).ok()
}

/// One of each.
pub(crate) fn indexes() -> Vec<Vec<u8>> {
    let behind = |mark: u8, bytes: &[u8]| [&[mark], bytes].concat();
    let definition = Definition::new(vec!["a".into(), "b".into()], vec!["c".into()]).encode().unwrap_or_default();
    let mut seeds = vec![behind(0, &definition)];
    if let Some(built) = built() {
        // The bytes that the head's checksum covers; the target computes the checksum again.
        seeds.push(behind(1, &built.bytes));
        seeds.extend(built.files.iter().map(|file| behind(2, file)));
    }
    seeds
}

/// Decodes the bytes after the first one; the first one selects the decoder.
pub(crate) fn index_read(bytes: &[u8]) -> bool {
    let Some((mark, bytes)) = bytes.split_first() else { return false };
    let error = match mark % 3 {
        0 => Definition::decode(bytes).map(|definition| assert!(!definition.columns.is_empty())).err(),
        1 => {
            let mut bytes = bytes.to_vec();
            if let Some(sum) = bytes.get(12..).map(crc32c) {
                bytes[8..12].copy_from_slice(&sum.to_le_bytes());
            }
            match Head::decode(&bytes) {
                Ok(head) => {
                    let all = vec![vec![Interval::ALL; head.columns().count()]];
                    assert!(head.meets(&all).iter().all(|at| head.expects(*at, &all) >= 0.0 && head.page(*at, b"").is_err()));
                    if let Some(last) = head.rows().checked_sub(1) {
                        let (stripe, row) = head.place(last);
                        let rows = head.header.stripes.get((stripe - head.header.first) as usize);
                        assert!(rows.is_some_and(|rows| row < *rows), "a row is in no stripe");
                    }
                    None
                }
                Err(e) => Some(e),
            }
        }
        _ => match Page::decode(bytes, 2, ROWS) {
            Ok(page) => {
                assert!(page.rows.iter().all(|row| *row < ROWS) && page.numbers.iter().all(|of| of.len() == page.rows.len()) && page.values <= bytes.len());
                assert_eq!(page.within(&[vec![Interval::ALL; 2]]).len(), page.rows.len());
                None
            }
            Err(e) => Some(e),
        },
    };
    if let Some(e) = &error {
        assert!(matches!(e.kind(), Kind::Corrupt | Kind::Unsupported), "{}", e.report());
    }
    error.is_none()
}
