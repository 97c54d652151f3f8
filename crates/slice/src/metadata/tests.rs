use super::*;
use crate::{MetadataBuilder, SliceOptions, TableSlicer};
use arrow::array::{AsArray, DictionaryArray, Float32Array, Int64Array};
use arrow::datatypes::{Int32Type, Int64Type};
use skytether_common::Kind;

fn sample() -> Metadata {
    let words = DataType::Dictionary(Box::new(DataType::Int32), Box::new(DataType::Utf8));
    let list = DataType::List(Arc::new(Field::new("item", DataType::Int64, true)));
    let schema = Arc::new(Schema::new_with_metadata(
        vec![
            Field::new("n", DataType::Int64, false).with_metadata([("unit".to_owned(), "s".to_owned())].into()),
            Field::new("w", words, true),
            Field::new("l", list, true),
            Field::new("f", DataType::Float32, true),
        ],
        [("of".to_owned(), "table".to_owned())].into(),
    ));
    let mut builder = MetadataBuilder::new(Layout::Table, Arc::clone(&schema), [("key".to_owned(), "wert ä".to_owned())].into());
    for i in 0..5i64 {
        let words: DictionaryArray<Int32Type> = vec![Some("b"), None, Some("a")].into_iter().collect();
        let lists = arrow::array::ListArray::from_iter_primitive::<Int64Type, _, _>([Some(vec![Some(i)]), None, Some(vec![])]);
        let floats = Float32Array::from(vec![Some(1.0), if i == 2 { Some(f32::NAN) } else { None }, Some(2.0)]);
        let batch = RecordBatch::try_new(
            Arc::clone(&schema),
            vec![Arc::new(Int64Array::from(vec![i, i + 1, i * 10])), Arc::new(words), Arc::new(lists), Arc::new(floats)],
        )
        .unwrap();
        let mut slicer = TableSlicer::new(Arc::clone(&schema), SliceOptions::default());
        let mut slices = slicer.push(&batch).unwrap();
        slices.extend(slicer.finish().unwrap());
        slices.iter().for_each(|s| builder.add(s).unwrap());
    }
    builder.finish().unwrap()
}

#[test]
fn metadata_round_trips() {
    let metadata = sample();
    let read = Metadata::decode(&metadata.encode().unwrap()).unwrap();
    assert_eq!(read, metadata);
    assert_eq!((read.rows, read.stripes()), (15, 5));
    assert_eq!(read.stats.max("n").unwrap().as_primitive::<Int64Type>().values(), &[1, 10, 20, 30, 40]);
    assert_eq!(read.stats.min("w").unwrap().data_type(), read.schema.field(1).data_type());
    assert_eq!(read.stats.nulls("w").unwrap().values(), &[1; 5]);
    assert!(read.stats.min("l").is_none() && read.stats.min("absent").is_none());
    let floats = read.stats.max("f").unwrap();
    assert_eq!((0..5).map(|i| floats.is_null(i)).collect::<Vec<_>>(), [false, false, true, false, false]);
}

/// A table of 300 columns, which are three groups, in two stripes.
fn grouped() -> Metadata {
    let schema = Arc::new(Schema::new((0..300).map(|i| Field::new(format!("c{i}"), DataType::Int64, i % 2 == 0)).collect::<Vec<_>>()));
    let mut builder = MetadataBuilder::new(Layout::Table, Arc::clone(&schema), BTreeMap::new());
    for stripe in 0..2i64 {
        let columns = (0..300).map(|c| Arc::new(Int64Array::from(vec![stripe * 100 + c, c])) as ArrayRef).collect();
        let mut slicer = TableSlicer::new(Arc::clone(&schema), SliceOptions::default());
        slicer.push(&RecordBatch::try_new(Arc::clone(&schema), columns).unwrap()).unwrap();
        slicer.finish().unwrap().iter().for_each(|s| builder.add(s).unwrap());
    }
    builder.finish().unwrap()
}

#[test]
fn column_groups_are_recorded() {
    let metadata = grouped();
    let bytes = metadata.encode().unwrap();
    let read = Metadata::decode(&bytes).unwrap();
    assert_eq!(read, metadata);
    assert_eq!((read.groups.len(), read.stripes(), read.slices.len(), read.rows), (3, 2, 6, 4));
    assert_eq!((read.stripe_rows(1), read.stripe_rows(2), read.slice_of(1, 2)), (Some(2), None, 5));
    assert_eq!(read.stats.max("c299").unwrap().as_primitive::<Int64Type>().values(), &[299, 399]);
    // The slices of a stripe differ, and each has its own length and checksum.
    assert!(read.slices.windows(2).all(|s| s[0].crc32c != s[1].crc32c));
    assert!(!String::from_utf8_lossy(&sample().encode().unwrap()).contains("group_columns"));
    for wrong in ["299", "300", "999", "0", "1"] {
        let text = String::from_utf8_lossy(&bytes[PREFIX..PREFIX + 200]).into_owned();
        let at = PREFIX + text.find("\"group_columns\":128").unwrap() + 16;
        let mut other = bytes.to_vec();
        other[at..at + 3].copy_from_slice(format!("{wrong:>3}").as_bytes());
        let crc = crc32c(&other[16..]);
        other[12..16].copy_from_slice(&crc.to_le_bytes());
        let error = Metadata::decode(&other).unwrap_err();
        assert_eq!(error.kind(), Kind::Corrupt, "{wrong}: {error}");
    }
}

#[test]
fn metadata_of_older_programs_is_read() {
    for mut metadata in [sample(), grouped()] {
        assert!(metadata.sections.take().is_some());
        let mut bytes = metadata.encode().unwrap().to_vec();
        // Several groups there were before there was a second version.
        assert_eq!(u32::from(bytes[8]), if metadata.groups.len() > 1 { 2 } else { 1 });
        bytes[8] = 1;
        assert_eq!(Metadata::decode(&bytes).unwrap(), metadata);
    }
}

#[test]
fn an_empty_partition_has_metadata_too() {
    let metadata = MetadataBuilder::new(Layout::Table, sample().schema, BTreeMap::new()).finish().unwrap();
    let read = Metadata::decode(&metadata.encode().unwrap()).unwrap();
    assert_eq!(read, metadata);
    assert_eq!(read.stats.max("n").unwrap().len(), 0);
}

#[test]
fn a_newer_version_is_named() {
    let mut bytes = sample().encode().unwrap().to_vec();
    bytes[8..12].copy_from_slice(&7u32.to_le_bytes());
    let error = Metadata::decode(&bytes).unwrap_err();
    assert_eq!(error.kind(), Kind::Unsupported);
    assert!(error.to_string().contains("version 7") && error.to_string().contains("up to 2"), "{error}");
}

#[test]
fn every_flipped_bit_and_every_truncation_is_noticed() {
    let bytes = sample().encode().unwrap().to_vec();
    for bit in 0..bytes.len() * 8 {
        let mut flipped = bytes.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        assert!(Metadata::decode(&flipped).is_err(), "bit {bit}");
    }
    for len in 0..bytes.len() {
        assert!(Metadata::decode(&bytes[..len]).is_err(), "length {len}");
    }
    assert!(Metadata::decode(&[bytes, vec![0]].concat()).is_err());
}

/// Every bit is flipped in turn. What is accepted has consistent rows and encodes again.
#[test]
fn hostile_bytes_with_valid_checksum_never_panic() {
    let bytes = sample().encode().unwrap().to_vec();
    let mut refused = 0;
    for bit in PREFIX * 8..bytes.len() * 8 {
        let mut flipped = bytes.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        let crc = crc32c(&flipped[16..]);
        flipped[12..16].copy_from_slice(&crc.to_le_bytes());
        match Metadata::decode(&flipped) {
            Ok(read) => {
                assert_eq!((0..read.stripes()).filter_map(|n| read.stripe_rows(n)).sum::<u64>(), read.rows);
                let again = Metadata::decode(&read.encode().unwrap()).unwrap();
                // Arrays are compared by their bits, NaN included.
                assert_eq!(again, read, "bit {bit}");
            }
            Err(error) => {
                assert_eq!(error.kind(), Kind::Corrupt, "{error}");
                refused += 1;
            }
        }
    }
    assert!(refused > 0);
}

#[test]
fn statistics_of_another_table_are_refused() {
    let other = Arc::new(Schema::new(vec![Field::new("n", DataType::Utf8, false)]));
    let mut slicer = TableSlicer::new(Arc::clone(&other), SliceOptions::default());
    let batch = RecordBatch::try_new(Arc::clone(&other), vec![Arc::new(arrow::array::StringArray::from(vec!["x"]))]).unwrap();
    slicer.push(&batch).unwrap();
    let slice = slicer.finish().unwrap().remove(0);
    assert!(MetadataBuilder::new(Layout::Table, sample().schema, BTreeMap::new()).add(&slice).is_err());
}

#[test]
fn stripes_of_several_partitions_become_one() {
    for (whole, of) in [(sample(), 5), (grouped(), 2)] {
        let half = |stripes: &[usize]| Metadata::gather(std::slice::from_ref(&whole), &stripes.iter().map(|s| (0, *s)).collect::<Vec<_>>()).unwrap();
        let (even, odd): (Vec<usize>, Vec<usize>) = (0..of).partition(|stripe| stripe % 2 == 0);
        let (even, odd, none) = (half(&even), half(&odd), half(&[]));
        assert_eq!(even.rows + odd.rows, whole.rows);
        let back: Vec<(usize, usize)> = (0..of).map(|stripe| (1 + stripe % 2, stripe / 2)).collect();
        let back = Metadata::gather(&[none.clone(), even, odd.clone()], &back).unwrap();
        assert_eq!(back, whole);
        assert_eq!(Metadata::decode(&back.encode().unwrap()).unwrap(), whole);
        assert_eq!(Metadata::decode(&none.encode().unwrap()).unwrap(), none);
        assert_eq!((none.rows, none.stripes(), none.slices.len()), (0, 0, 0));
        assert_eq!(Metadata::gather(&[odd], &[(0, of / 2)]).unwrap_err().kind(), Kind::Invalid);
    }
    assert_eq!(Metadata::gather(&[], &[]).unwrap_err().kind(), Kind::Invalid);
    assert_eq!(Metadata::gather(&[sample(), grouped()], &[]).unwrap_err().kind(), Kind::Invalid);
}
