//! Damaged and hostile bytes: an error or a table of consistent shape, never a panic that escapes. The same seeds and
//! mutations as in `fuzz/`, cheap enough for every run.

use std::sync::Arc;

use arrow::array::{Int64Array, ListArray, StringArray};
use arrow::datatypes::{DataType, Field, Int64Type, Schema, SchemaRef};
use arrow::record_batch::RecordBatch;
use bytes::Bytes;
use skytether_common::Kind;
use skytether_slice::{Layout, SliceOptions, SparseSlicer, TableSlicer, ValueType, Values, decode, decode_sparse};

fn table() -> (Vec<u8>, SchemaRef) {
    let list = DataType::List(Arc::new(Field::new("item", DataType::Int64, true)));
    let schema = Arc::new(Schema::new(vec![Field::new("n", DataType::Int64, false), Field::new("t", DataType::Utf8, true), Field::new("l", list, true)]));
    let lists = ListArray::from_iter_primitive::<Int64Type, _, _>((0..50).map(|i| (i % 5 != 0).then(|| (0..i % 4).map(Some))));
    let text = StringArray::from_iter((0..50).map(|i| (i % 3 != 0).then(|| format!("word {}", i % 7))));
    let batch = RecordBatch::try_new(Arc::clone(&schema), vec![Arc::new(Int64Array::from_iter_values(0..50)), Arc::new(text), Arc::new(lists)]).unwrap();
    let mut slicer = TableSlicer::new(Arc::clone(&schema), SliceOptions::default());
    slicer.push(&batch).unwrap();
    (slicer.finish().unwrap().remove(0).bytes.to_vec(), schema)
}

fn sparse() -> (Vec<u8>, Layout) {
    let mut slicer = SparseSlicer::new(1000, 8, ValueType::UInt16, SliceOptions::default());
    for gene in 0..8u32 {
        let idx: Vec<u32> = (0..1000).step_by(1 + 9 * gene as usize).filter(|_| gene != 3).collect();
        let val: Vec<u16> = idx.iter().map(|i| (i * 7 % 90) as u16).collect();
        slicer.push(gene, 0, &idx, Values::U16(&val)).unwrap();
    }
    (slicer.finish().unwrap().unwrap().bytes.to_vec(), Layout::sparse(1000, 8, ValueType::UInt16))
}

/// An error of a kind that means wrong bytes, or batches of the right shape.
fn try_table(bytes: &[u8], schema: &SchemaRef) {
    for projection in [&[2, 0, 1][..], &[]] {
        match decode(Bytes::copy_from_slice(bytes), &Layout::Table, schema, projection, 16).and_then(|b| b.collect::<Result<Vec<_>, _>>()) {
            Ok(batches) => assert!(batches.iter().all(|b| b.num_columns() == projection.len() && b.num_rows() <= 16)),
            Err(error) => assert_eq!(error.kind(), Kind::Corrupt, "{error}"),
        }
    }
}

fn try_sparse(bytes: &[u8], layout: &Layout) {
    use arrow::array::AsArray;
    match decode_sparse(&Bytes::copy_from_slice(bytes), layout, &[2, 3, 4]) {
        Ok(batch) => {
            let (idx, val) = (batch.column(1).as_list::<i32>(), batch.column(2).as_list::<i32>());
            assert_eq!(idx.offsets(), val.offsets());
            // What a kernel relies on when it indexes by cell.
            let cells = idx.values().as_primitive::<arrow::datatypes::UInt32Type>();
            assert!(cells.values().iter().all(|&c| c < 1000));
        }
        Err(error) => assert_eq!(error.kind(), Kind::Corrupt, "{error}"),
    }
}

/// Panics inside the wall print nothing, so that thousands of mutations do not flood the output.
fn quietly(run: impl FnOnce()) {
    std::panic::set_hook(Box::new(|info| {
        if info.location().is_some_and(|l| l.file().contains("slice")) && !info.location().is_some_and(|l| l.file().contains("registry")) {
            eprintln!("{info}");
        }
    }));
    run();
}

#[test]
fn truncated_slices() {
    quietly(|| {
        let ((table, schema), (sparse, layout)) = (table(), sparse());
        for len in 0..table.len() {
            let read = decode(Bytes::copy_from_slice(&table[..len]), &Layout::Table, &schema, &[0], 16).and_then(|b| b.collect::<Result<Vec<_>, _>>());
            assert!(read.is_err(), "{len}");
        }
        for len in 0..sparse.len() {
            assert!(decode_sparse(&Bytes::copy_from_slice(&sparse[..len]), &layout, &[3]).is_err(), "{len}");
        }
    });
}

#[test]
fn every_flipped_bit() {
    quietly(|| {
        let ((mut table, schema), (mut sparse, layout)) = (table(), sparse());
        for bit in 0..table.len() * 8 {
            table[bit / 8] ^= 1 << (bit % 8);
            try_table(&table, &schema);
            table[bit / 8] ^= 1 << (bit % 8);
        }
        for bit in 0..sparse.len() * 8 {
            sparse[bit / 8] ^= 1 << (bit % 8);
            try_sparse(&sparse, &layout);
            sparse[bit / 8] ^= 1 << (bit % 8);
        }
    });
}

#[test]
fn thousands_of_mutations() {
    let mut rng = fastrand::Rng::with_seed(7);
    let mut random = move |n: usize| rng.usize(..n.max(1));
    quietly(|| {
        let ((table, schema), (sparse, layout)) = (table(), sparse());
        for _ in 0..4000 {
            for (seed, is_table) in [(&table, true), (&sparse, false)] {
                let mut bytes = seed.clone();
                for _ in 0..1 + random(4) {
                    let at = random(bytes.len());
                    match random(5) {
                        0 => bytes[at] = [0, 0xff, 0x7f, 0x80][random(4)],
                        1 => bytes[at] = random(256) as u8,
                        2 => drop(bytes.drain(at..(at + random(40)).min(bytes.len()))),
                        3 => {
                            let piece = seed[random(seed.len())..].iter().copied().take(random(30)).collect::<Vec<_>>();
                            bytes.splice(at..at, piece);
                        }
                        _ => {
                            let from = random(seed.len());
                            let n = random(20).min(seed.len() - from).min(bytes.len() - at);
                            bytes[at..at + n].copy_from_slice(&seed[from..from + n]);
                        }
                    }
                    if bytes.is_empty() {
                        break;
                    }
                }
                if is_table { try_table(&bytes, &schema) } else { try_sparse(&bytes, &layout) }
            }
        }
    });
}
