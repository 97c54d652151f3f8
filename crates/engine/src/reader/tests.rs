use std::collections::BTreeMap;
use std::os::unix::fs::FileExt;

use arrow::array::{Int64Array, StringArray};
use arrow::datatypes::SchemaRef;
use skytether_common::{Generation, Kind};
use skytether_slice::{Encoded, MetadataBuilder, SliceOptions, TableSlicer};
use skytether_store::disk::{DiskStore, DriveIdentity, OpenOptions, Sync};
use skytether_store::fault::{Fault, FaultStore, Operation, Rule, When};
use skytether_store::memory::MemoryStore;
use skytether_store::{Expect, Op};
use tempfile::TempDir;

use super::*;

fn name() -> PartitionName {
    PartitionName { dataset: "shop.sales".parse().unwrap(), generation: Generation(7), table: "data".into(), slot: 0 }
}

/// Numbers that do not compress, and a text.
fn rows(rows: i64) -> RecordBatch {
    let numbers =
        |seed: i64| Arc::new(Int64Array::from_iter_values((0..rows).map(|i| (i * 8 + seed).wrapping_mul(0x9e37_79b9_7f4a_7c15_u64 as i64)))) as ArrayRef;
    let mut columns: Vec<(String, ArrayRef)> = (0..7).map(|c| (format!("c{c}"), numbers(c))).collect();
    columns.push(("t".into(), Arc::new(StringArray::from_iter_values((0..rows).map(|i| format!("word {}", i % 7))))));
    RecordBatch::try_from_iter(columns).unwrap()
}

/// Stores `batch` in slices of `target_bytes`; `told` means that the metadata lists their sections.
fn fill(store: &dyn SliceStore, batch: &RecordBatch, target_bytes: usize, told: bool) {
    let mut slicer = TableSlicer::new(batch.schema(), SliceOptions { target_bytes, ..SliceOptions::default() });
    let mut stripes: Vec<Encoded> = slicer.push(batch).unwrap();
    stripes.extend(slicer.finish().unwrap());
    let mut builder = MetadataBuilder::new(Layout::Table, batch.schema(), BTreeMap::new());
    let mut ops = Vec::new();
    for (n, stripe) in stripes.iter().enumerate() {
        let ends = stripe.ends.clone().filter(|_| told);
        builder.add(&Encoded { ends, ..stripe.clone() }).unwrap();
        ops.push(Op::Put { key: name().slice_key(n as u32).unwrap(), value: stripe.bytes.clone(), expect: Expect::Any });
    }
    ops.push(Op::Put { key: name().key().unwrap(), value: builder.finish().unwrap().encode().unwrap(), expect: Expect::Any });
    store.apply(ops).unwrap();
}

/// The columns of all stripes, one batch each.
fn read(reader: &Reader, columns: &[usize]) -> Result<Vec<RecordBatch>> {
    let partition = reader.partition(&name())?;
    let mut all = Vec::new();
    for stripe in 0..partition.metadata.stripes() {
        for part in reader.stripe(&partition, stripe as u32, columns)? {
            all.extend(Reader::decode(&partition, part, usize::MAX)?.collect::<Result<Vec<_>>>()?);
        }
    }
    Ok(all)
}

fn disk() -> (TempDir, Arc<DiskStore>) {
    let dir = tempfile::tempdir().unwrap();
    let identity = DriveIdentity { id: uuid::Uuid::from_u128(7), name: "drive-0".into() };
    let store = DiskStore::open(dir.path(), OpenOptions { create: Some(identity), sync: Sync::None, ..OpenOptions::default() }).unwrap();
    (dir, Arc::new(store))
}

/// Every subset of the columns gives equal rows, and sections read fewer bytes.
#[test]
fn columns_are_equal_from_whole_slices_and_from_sections() {
    let batch = rows(20_000);
    let ((_old, whole), (_new, parts)) = (disk(), disk());
    fill(whole.as_ref(), &batch, 400 << 10, false);
    fill(parts.as_ref(), &batch, 400 << 10, true);
    let (whole, parts) = (Reader::new(whole), Reader::new(parts));
    // The metadata is counted once.
    assert_eq!(read(&whole, &[]).unwrap().len(), read(&parts, &[]).unwrap().len());
    let schema: SchemaRef = batch.schema();
    let mut less = 0;
    for wanted in 0..1u32 << schema.fields().len() {
        let columns: Vec<usize> = (0..schema.fields().len()).filter(|c| wanted >> c & 1 == 1).collect();
        let before = (whole.bytes_read(), parts.bytes_read());
        let (due, got) = (read(&whole, &columns).unwrap(), read(&parts, &columns).unwrap());
        assert!(due.len() > 2 && due == got, "{columns:?}");
        let (all, some) = (whole.bytes_read() - before.0, parts.bytes_read() - before.1);
        let share = some as f64 / all as f64;
        // Numbers are all of the same length, the text takes next to nothing.
        let numbers = columns.iter().filter(|&&c| c < 7).count();
        match numbers {
            0..=4 => assert!((share - numbers as f64 / 7.0).abs() < 0.02, "{columns:?}: {share}"),
            _ => assert_eq!(some, all, "{columns:?}"),
        }
        less += usize::from(some < all);
    }
    assert!(less > 100, "{less}");
}

#[test]
fn every_damaged_byte_is_found_and_named_or_not_needed() {
    let (dir, store) = disk();
    fill(store.as_ref(), &rows(100), 1 << 20, true);
    let reader = Reader::new(store.clone());
    let len = store.stat(&name().slice_key(0).unwrap()).unwrap().unwrap().len;
    let mut files: Vec<_> = std::fs::read_dir(dir.path().join("slices"))
        .unwrap()
        .flat_map(|hh| std::fs::read_dir(hh.unwrap().path()).unwrap())
        .map(|f| f.unwrap().path())
        .collect();
    files.retain(|path| path.metadata().unwrap().len() == len);
    let [file] = files.as_slice() else { panic!("{files:?}") };
    let good = std::fs::read(file).unwrap();
    let open = std::fs::File::options().write(true).open(file).unwrap();
    for (columns, part) in [(&[5][..], true), (&[6, 7], true), (&[0, 1, 2, 3, 4, 5, 6, 7], false)] {
        let due = read(&reader, columns).unwrap();
        let (before, mut found) = (reader.bytes_read(), 0);
        read(&reader, columns).unwrap();
        let needed = (reader.bytes_read() - before) as usize;
        assert_eq!(needed < good.len(), part);
        for at in 0..good.len() {
            open.write_all_at(&[good[at] ^ 1 << (at % 8)], at as u64).unwrap();
            match read(&reader, columns) {
                Ok(rows) => assert_eq!(rows, due, "byte {at}"),
                Err(error) => {
                    assert_eq!(error.kind(), Kind::Corrupt, "{error}");
                    let text = error.to_string();
                    let (slice, partition) = (name().slice_key(0).unwrap(), name().key().unwrap());
                    assert!(text.contains(slice.as_str()) || text.contains(&format!("slice 0 of partition {partition}")), "{text}");
                    assert!(text.contains("ingest it again"), "{text}");
                    found += 1;
                }
            }
            open.write_all_at(&good[at..=at], at as u64).unwrap();
        }
        // The gap between column 5 and the footer is small, and is read as well.
        assert!(found > 0 && (found < needed) == (columns == [5]) && found <= needed, "{columns:?}: {found} of {needed}");
    }
    // Cut off, and gone.
    std::fs::write(file, &good[..good.len() - 1]).unwrap();
    assert_eq!(read(&reader, &[6]).unwrap_err().kind(), Kind::Corrupt);
    std::fs::remove_file(file).unwrap();
    assert_eq!(read(&reader, &[6]).unwrap_err().kind(), Kind::Corrupt);
}

#[test]
fn damage_to_parts_of_slices_in_the_store_is_found() {
    let store = Arc::new(FaultStore::new(MemoryStore::new()));
    fill(store.as_ref(), &rows(20_000), 400 << 10, true);
    let reader = Reader::new(store.clone());
    let due = read(&reader, &[1, 5]).unwrap();
    let slices = due.len() as u64;
    // Columns 1 and 5 are apart, and nothing between is read along: every flip is in what is needed.
    store.add(Rule::new(Operation::Get, When::Every(slices), Fault::FlipBit).under(format!("{};", name().key().unwrap())));
    for _ in 0..50 {
        let error = read(&reader, &[1, 5]).unwrap_err();
        assert_eq!(error.kind(), Kind::Corrupt);
        assert!(error.to_string().contains(&format!("slice {} of partition {}", slices - 1, name().key().unwrap())), "{error}");
    }
    assert_eq!(store.injected(), 50);
    store.heal();
    store.add(Rule::new(Operation::Get, When::Nth(1), Fault::Fail(Kind::Unavailable)));
    assert_eq!(read(&reader, &[1, 5]).unwrap_err().kind(), Kind::Unavailable);
    assert_eq!(read(&reader, &[1, 5]).unwrap(), due);
}
