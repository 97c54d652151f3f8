use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array, ListArray, RecordBatch, StringArray};
use arrow::datatypes::{Field, Int64Type, Schema};
use skytether_common::Kind;

use super::*;
use crate::{Layout, Metadata, MetadataBuilder, SliceOptions, TableSlicer, decode};

/// Numbers that do not compress, with their place, a short text, and a nested column in front and behind.
fn batch(rows: i64) -> RecordBatch {
    let lists = || Arc::new(ListArray::from_iter_primitive::<Int64Type, _, _>((0..rows).map(|i| (i % 5 != 0).then(|| (0..i % 4).map(Some))))) as ArrayRef;
    let numbers = |seed: i64| Arc::new(Int64Array::from_iter_values((0..rows).map(|i| (i + seed).wrapping_mul(0x9e37_79b9_7f4a_7c15_u64 as i64)))) as ArrayRef;
    let text = Arc::new(StringArray::from_iter((0..rows).map(|i| (i % 3 != 0).then(|| format!("word {}", i % 7)))));
    let columns: [(&str, ArrayRef); 6] = [("l", lists()), ("a", numbers(1)), ("t", text), ("b", numbers(2)), ("c", numbers(3)), ("m", lists())];
    let fields: Vec<Field> = columns.iter().map(|(name, column)| Field::new(*name, column.data_type().clone(), true)).collect();
    RecordBatch::try_new(Arc::new(Schema::new(fields)), columns.into_iter().map(|(_, column)| column).collect()).unwrap()
}

/// One slice and the metadata of its partition.
fn partition(batch: &RecordBatch) -> (Vec<Bytes>, Metadata) {
    let mut slicer = TableSlicer::new(batch.schema(), SliceOptions::default());
    let mut stripes = slicer.push(batch).unwrap();
    stripes.extend(slicer.finish().unwrap());
    let mut builder = MetadataBuilder::new(Layout::Table, batch.schema(), BTreeMap::new());
    stripes.iter().for_each(|stripe| builder.add(stripe).unwrap());
    let slices = stripes.iter().flat_map(|stripe| stripe.slices().cloned()).collect();
    (slices, Metadata::decode(&builder.finish().unwrap().encode().unwrap()).unwrap())
}

/// What a store gives.
fn read(bytes: &[u8], picked: &Picked) -> Vec<Bytes> {
    picked.ranges().iter().map(|range| Bytes::copy_from_slice(&bytes[range.start as usize..range.end as usize])).collect()
}

fn columns(stored: Pieces, metadata: &Metadata, group: usize, places: &[usize]) -> Result<Vec<RecordBatch>> {
    decode(stored, &Layout::Table, &metadata.groups.schema(&metadata.schema, group), places, 1000)?.collect()
}

#[test]
fn any_columns_come_from_their_sections() {
    let batch = batch(5000);
    let (slices, metadata) = partition(&batch);
    let [bytes] = slices.as_slice() else { panic!("{} slices", slices.len()) };
    let mut partly = 0;
    for wanted in 0..1u32 << 6 {
        let places: Vec<usize> = (0..6).rev().filter(|place| wanted >> place & 1 == 1).collect();
        let picked = metadata.pick(0, &places).unwrap();
        assert!(picked.ranges().windows(2).all(|pair| pair[0].end + GAP < pair[1].start), "{picked:?}");
        assert_eq!(picked.ranges().last().unwrap().end, bytes.len() as u64);
        assert!(wanted + 1 < 1 << 6 || picked.ranges().len() == 1 && picked.bytes() == bytes.len() as u64, "{picked:?}");
        partly += usize::from(picked.bytes() < bytes.len() as u64);
        let pieces = picked.verify(&read(bytes, &picked)).unwrap();
        let (some, whole) = (columns(pieces.clone(), &metadata, 0, &places).unwrap(), columns(bytes.clone().into(), &metadata, 0, &places).unwrap());
        assert_eq!(some, whole, "{places:?}");
        assert_eq!(some.iter().map(RecordBatch::num_rows).sum::<usize>(), 5000);
        // The other columns have no bytes, whether or not they were in a gap that was read.
        for other in (0..6).filter(|other| !places.contains(other)) {
            let error = columns(pieces.clone(), &metadata, 0, &[other]).unwrap_err();
            assert_eq!(error.kind(), Kind::Corrupt, "{error}");
        }
    }
    assert!(partly > 30, "{partly}");
    // A column twice is one section.
    assert_eq!(metadata.pick(0, &[3, 1, 3]), metadata.pick(0, &[1, 3]));
    assert_eq!((metadata.pick(0, &[6]), metadata.pick(1, &[0]), metadata.pick(0, &[usize::MAX])), (None, None, None));
}

#[test]
fn each_group_has_sections_of_its_own() {
    let names = (0..300).map(|c| (format!("c{c}"), Arc::new(Int64Array::from_iter_values((0..40).map(|i| i * c))) as ArrayRef));
    let batch = RecordBatch::try_from_iter(names).unwrap();
    let (slices, metadata) = partition(&batch);
    assert_eq!((slices.len(), metadata.groups.len()), (3, 3));
    for (n, bytes) in slices.iter().enumerate() {
        for place in [0, 7, metadata.groups.columns(n).len() - 1] {
            let picked = metadata.pick(n, &[place]).unwrap();
            let pieces = picked.verify(&read(bytes, &picked)).unwrap();
            let due = batch.project(&[n * 128 + place]).unwrap();
            assert_eq!(columns(pieces, &metadata, n, &[place]).unwrap(), [due]);
        }
    }
    assert_eq!(metadata.pick(2, &[44]), None);
}

#[test]
fn a_damaged_byte_is_found_or_not_used() {
    let batch = batch(40);
    let (slices, metadata) = partition(&batch);
    let bytes = slices[0].to_vec();
    for places in [&[][..], &[1], &[0, 4], &[5], &[0, 1, 2, 3, 4, 5]] {
        let picked = metadata.pick(0, places).unwrap();
        let due = columns(slices[0].clone().into(), &metadata, 0, places).map_err(drop);
        let mut found = 0;
        for at in 0..bytes.len() {
            let mut bad = bytes.clone();
            bad[at] ^= 1 << (at % 8);
            match picked.verify(&read(&bad, &picked)) {
                Ok(pieces) => assert_eq!(columns(pieces, &metadata, 0, places).map_err(drop), due, "byte {at}"),
                Err(error) => {
                    assert_eq!(error.kind(), Kind::Corrupt, "{error}");
                    found += 1;
                }
            }
        }
        // All bytes of the sections, and no other.
        assert_eq!(found, picked.sections.iter().map(|section| section.range.end - section.range.start).sum::<u64>(), "{places:?}");
        assert!(places.len() < 6 || found == bytes.len() as u64);
    }
}

#[test]
fn other_ranges_than_those_picked_are_refused() {
    let (slices, metadata) = partition(&batch(5000));
    let picked = metadata.pick(0, &[1, 4]).unwrap();
    let good = read(&slices[0], &picked);
    assert!(good.len() > 1);
    for wrong in [&good[..1], &[&good[..], &good[..1]].concat(), &[], &good.iter().rev().cloned().collect::<Vec<_>>()] {
        assert_eq!(picked.verify(wrong).unwrap_err().kind(), Kind::Internal);
    }
}

#[test]
fn lists_that_no_slice_has_are_refused() {
    let (_, metadata) = partition(&batch(40));
    let (sections, len) = (metadata.sections.clone().unwrap(), metadata.slices[0].len as u32);
    let list = sections.lists()[0].value(0).to_vec();
    let with = |ends: [u32; 6]| {
        let mut list = list.clone();
        for (place, end) in ends.into_iter().enumerate() {
            list[place * COLUMN..place * COLUMN + 4].copy_from_slice(&end.to_le_bytes());
        }
        let array = FixedSizeBinaryArray::try_new(list.len() as i32, Buffer::from_vec(list), None).unwrap();
        Sections::read(metadata.groups, vec![array], &metadata.slices)
    };
    // Empty sections are no danger.
    for fine in [[0; 6], [len; 6], [1, 2, 3, 4, 5, 6]] {
        let sections = with(fine).unwrap();
        for places in [vec![], vec![0], vec![3, 5], (0..6).collect()] {
            let picked = sections.pick(0, len.into(), &places).unwrap();
            assert!(picked.bytes() <= len.into() && picked.verify(&read(&vec![0; len as usize], &picked)).is_err());
        }
    }
    for wrong in [[1, 2, 3, 2, 5, 6], [0, 0, 0, 0, 0, len + 1], [u32::MAX; 6], [len, 0, 0, 0, 0, 0]] {
        assert_eq!(with(wrong).unwrap_err().kind(), Kind::Corrupt, "{wrong:?}");
    }
    assert_eq!(Sections::read(metadata.groups, vec![], &metadata.slices).unwrap_err().kind(), Kind::Corrupt);
    let stripe = crate::Encoded { ends: Some(vec![9, 8, 8, 8, 8, 8]), ..some_stripe() };
    let mut builder = MetadataBuilder::new(Layout::Table, Arc::clone(&metadata.schema), BTreeMap::new());
    assert_eq!(builder.add(&stripe).unwrap_err().kind(), Kind::Invalid);
    assert_eq!(builder.add(&crate::Encoded { ends: Some(vec![9]), ..some_stripe() }).unwrap_err().kind(), Kind::Invalid);
}

#[test]
fn a_matrix_has_none() {
    let (_, metadata) = partition(&batch(40));
    let bytes = Metadata { layout: Layout::sparse(1, 1, crate::ValueType::UInt16), ..metadata }.encode().unwrap();
    let error = Metadata::decode(&bytes).unwrap_err();
    assert!(error.kind() == Kind::Corrupt && error.to_string().contains("matrix"), "{error}");
}

fn some_stripe() -> crate::Encoded {
    let batch = batch(40);
    let mut slicer = TableSlicer::new(batch.schema(), SliceOptions::default());
    slicer.push(&batch).unwrap();
    slicer.finish().unwrap().remove(0)
}

#[test]
fn one_stripe_without_sections_has_all_read_whole() {
    let stripe = some_stripe();
    let schema = batch(1).schema();
    let mut builder = MetadataBuilder::new(Layout::Table, Arc::clone(&schema), BTreeMap::new());
    for ends in [stripe.ends.clone(), None, stripe.ends.clone()] {
        builder.add(&crate::Encoded { ends, ..stripe.clone() }).unwrap();
    }
    let metadata = builder.finish().unwrap();
    assert_eq!((metadata.stripes(), metadata.pick(0, &[0])), (3, None));
    // What older programs can read, they may.
    let bytes = metadata.encode().unwrap();
    assert_eq!((bytes[8], Metadata::decode(&bytes).unwrap()), (1, metadata));
    let mut builder = MetadataBuilder::new(Layout::Table, schema, BTreeMap::new());
    builder.add(&stripe).unwrap();
    assert_eq!(builder.finish().unwrap().encode().unwrap()[8], 2);
}
