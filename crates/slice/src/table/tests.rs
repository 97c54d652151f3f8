use super::*;
use crate::layout::Layout;
use arrow::array::{Int64Array, StringArray};
use arrow::datatypes::{DataType, Field, Schema};

fn text(n: usize, len: usize, seed: u64) -> StringArray {
    let mut random = fastrand::Rng::with_seed(seed);
    StringArray::from_iter_values((0..n).map(|_| (0..len).map(|_| random.char('!'..='z')).collect::<String>()))
}

fn schema() -> SchemaRef {
    Arc::new(Schema::new(vec![Field::new("n", DataType::Int64, false), Field::new("t", DataType::Utf8, false)]))
}

fn batch(from: i64, n: usize, len: usize) -> RecordBatch {
    let n64 = Int64Array::from_iter_values(from..from + n as i64);
    RecordBatch::try_new(schema(), vec![Arc::new(n64), Arc::new(text(n, len, from as u64))]).unwrap()
}

#[test]
fn slices_come_close_to_the_target_and_not_above() {
    let options = SliceOptions { target_bytes: 100_000, ..SliceOptions::default() };
    for sizes in [vec![30_000], vec![1000; 30], vec![7; 4000]] {
        let mut slicer = TableSlicer::new(schema(), options.clone());
        let (mut slices, mut at) = (Vec::new(), 0);
        for n in sizes {
            slices.extend(slicer.push(&batch(at, n, 50)).unwrap());
            at += n as i64;
        }
        slices.extend(slicer.finish().unwrap());
        assert!(slices.len() > 5);
        let (last, full) = slices.split_last().unwrap();
        for slice in full {
            assert!((75_000..=100_000).contains(&slice.bytes.len()), "{}", slice.bytes.len());
        }
        assert!(last.bytes.len() <= 100_000);
        let rows = slices.iter().flat_map(|s| crate::decode(s.bytes.clone(), &Layout::Table, &schema(), &[0], 8192).unwrap());
        let numbers: Vec<i64> = rows.flat_map(|b| b.unwrap().column(0).as_any().downcast_ref::<Int64Array>().unwrap().values().to_vec()).collect();
        assert_eq!(numbers, (0..at).collect::<Vec<_>>());
    }
}

#[test]
fn a_row_that_is_larger_than_the_target_is_a_slice_of_its_own() {
    let mut slicer = TableSlicer::new(schema(), SliceOptions { target_bytes: 20_000, ..SliceOptions::default() });
    let mut slices = slicer.push(&batch(0, 3, 40_000)).unwrap();
    slices.extend(slicer.push(&batch(3, 100, 10)).unwrap());
    slices.extend(slicer.finish().unwrap());
    assert_eq!(slices.iter().map(|s| s.stats.rows).collect::<Vec<_>>(), [1, 1, 1, 100]);
}

#[test]
fn data_that_grows_is_split_again() {
    let mut slicer = TableSlicer::new(schema(), SliceOptions { target_bytes: 50_000, ..SliceOptions::default() });
    let mut slices = Vec::new();
    for (i, len) in [4, 4, 4, 2000, 2000, 4].into_iter().enumerate() {
        slices.extend(slicer.push(&batch(i as i64 * 200, 200, len)).unwrap());
    }
    slices.extend(slicer.finish().unwrap());
    assert!(slices.iter().all(|s| s.bytes.len() <= 50_000));
    assert_eq!(slices.iter().map(|s| s.stats.rows).sum::<u64>(), 1200);
}

#[test]
fn rows_that_compress_to_nothing_are_still_bounded() {
    let mut slicer = TableSlicer::new(schema(), SliceOptions { target_bytes: 16_384, ..SliceOptions::default() });
    let same = RecordBatch::try_new(schema(), vec![Arc::new(Int64Array::from(vec![7; 200_000])), Arc::new(StringArray::from(vec!["x"; 200_000]))]).unwrap();
    let mut slices = slicer.push(&same).unwrap();
    slices.extend(slicer.finish().unwrap());
    // 13 bytes a row in memory, 32 * 16 KiB at most.
    assert!(slices.len() >= 4 && slices.iter().all(|s| s.stats.rows <= 16_384 * 32 / 12), "{}", slices.len());
    assert_eq!(slices.iter().map(|s| s.stats.rows).sum::<u64>(), 200_000);
}

/// `columns` columns of `rows` numbers that nothing makes smaller.
fn noise(columns: usize, rows: usize) -> RecordBatch {
    let mut random = fastrand::Rng::with_seed(7);
    let mut next = || random.i64(..);
    let fields: Vec<_> = (0..columns).map(|i| Field::new(format!("c{i}"), DataType::Int64, false)).collect();
    let columns = (0..columns).map(|_| Arc::new(Int64Array::from_iter_values((0..rows).map(|_| next()))) as Arc<dyn Array>).collect();
    RecordBatch::try_new(Arc::new(Schema::new(fields)), columns).unwrap()
}

#[test]
fn wide_tables_become_slices_of_some_columns_near_the_target() {
    for (columns, rows, stripes) in [(128, 3000, 23..40), (129, 3000, 23..40), (600, 1200, 9..16)] {
        let batch = noise(columns, rows);
        let mut slicer = TableSlicer::new(batch.schema(), SliceOptions { target_bytes: 128 << 10, ..SliceOptions::default() });
        let mut done = slicer.push(&batch).unwrap();
        done.extend(slicer.finish().unwrap());
        assert!(stripes.contains(&done.len()), "{columns} columns: {}", done.len());
        let groups = Groups::of(columns);
        let mut at = 0;
        for (n, stripe) in done.iter().enumerate() {
            assert_eq!(stripe.slices().count(), groups.len());
            let rows = stripe.stats.rows as usize;
            let sizes: Vec<usize> = stripe.slices().map(Bytes::len).collect();
            assert!(sizes.iter().all(|&size| size <= 128 << 10), "{columns} columns: {sizes:?}");
            assert!(n + 1 == done.len() || sizes[0] >= 80 << 10, "{columns} columns: {sizes:?}");
            for (group, bytes) in stripe.slices().enumerate() {
                let of: Vec<usize> = groups.columns(group).collect();
                let (schema, all) = (groups.schema(&batch.schema(), group), (0..of.len()).collect::<Vec<_>>());
                let read = crate::decode(bytes.clone(), &Layout::Table, &schema, &all, usize::MAX).unwrap().next().unwrap().unwrap();
                assert_eq!(read, batch.project(&of).unwrap().slice(at, rows));
            }
            at += rows;
        }
        assert_eq!(at, rows);
    }
}

#[test]
fn a_stripe_of_a_very_wide_table_is_bounded_in_memory() {
    let batch = noise(2000, 700);
    let mut slicer = TableSlicer::new(batch.schema(), SliceOptions { target_bytes: 64 << 10, ..SliceOptions::default() });
    let mut done = slicer.push(&batch).unwrap();
    done.extend(slicer.finish().unwrap());
    // 16,000 bytes a row in memory, 64 * 64 KiB at most, which is less than fills the slices.
    assert!(done.iter().all(|stripe| (1..=262).contains(&stripe.stats.rows) && stripe.slices().all(|s| s.len() <= 300 << 10)));
    assert_eq!(done.iter().map(|stripe| stripe.stats.rows).sum::<u64>(), 700);
}

#[test]
fn a_batch_of_another_schema_is_refused() {
    let other = Arc::new(Schema::new(vec![Field::new("n", DataType::Int64, true)]));
    let batch = RecordBatch::try_new(other, vec![Arc::new(Int64Array::from(vec![None]))]).unwrap();
    assert!(TableSlicer::new(schema(), SliceOptions::default()).push(&batch).is_err());
    let strict = Arc::new(Schema::new(vec![Field::new("n", DataType::Int64, false)]));
    assert!(TableSlicer::new(strict, SliceOptions::default()).push(&batch).is_err());
}

#[test]
fn a_slice_has_no_more_rows_than_it_may() {
    for (max_rows, sizes, wanted) in [(1, vec![3, 1], vec![1; 4]), (100, vec![250, 10], vec![100, 100, 60]), (0, vec![2], vec![1, 1])] {
        let mut slicer = TableSlicer::new(schema(), SliceOptions { max_rows, ..SliceOptions::default() });
        let (mut slices, mut at) = (Vec::new(), 0);
        for n in sizes {
            slices.extend(slicer.push(&batch(at, n, 10)).unwrap());
            at += n as i64;
        }
        slices.extend(slicer.finish().unwrap());
        assert_eq!(slices.iter().map(|s| s.stats.rows).collect::<Vec<_>>(), wanted, "{max_rows}");
    }
}

#[test]
fn only_columns_that_shrink_are_compressed() {
    // Random bytes gain nothing, a repeated long text does.
    let fields = vec![Field::new("noise", DataType::Int64, false), Field::new("text", DataType::Utf8, false)];
    let schema = Arc::new(Schema::new(fields));
    let rows = |from: i64, noisy: bool| {
        let noise = (from..from + 5000).map(|n| if noisy { n.wrapping_mul(0x9e37_79b9_7f4a_7c15_u64 as i64) } else { n / 2 });
        let text = StringArray::from_iter_values((from..from + 5000).map(|n| format!("a text that says nearly the same each time: {n}")));
        RecordBatch::try_new(Arc::clone(&schema), vec![Arc::new(Int64Array::from_iter_values(noise)), Arc::new(text)]).unwrap()
    };
    let mut slicer = TableSlicer::new(Arc::clone(&schema), SliceOptions { target_bytes: 50_000, ..SliceOptions::default() });
    let mut slices = Vec::new();
    for n in 0..400 {
        slices.extend(slicer.push(&rows(n * 5000, n < 100)).unwrap());
    }
    let compressed: Vec<[bool; 2]> = slices
        .iter()
        .map(|slice| {
            let footer = parquet::file::metadata::ParquetMetaDataReader::new().parse_and_finish(&slice.bytes).unwrap();
            [0, 1].map(|column| footer.row_group(0).column(column).compression() != Compression::UNCOMPRESSED)
        })
        .collect();
    assert_eq!(compressed[..3], [[true, true], [false, true], [false, true]]);
    assert!(compressed.len() > 2 * LOOK_AGAIN as usize && compressed.iter().all(|[_, text]| *text));
    assert_eq!(compressed.last(), Some(&[true, true]), "the numbers gain now, and the slicer has seen it");
}

/// A writer of several tables at once bounds the waiting rows of all of them together.
#[test]
fn rows_that_wait_can_be_counted_and_written_at_any_time() {
    let schema: SchemaRef = Arc::new(Schema::new(vec![Field::new("c", DataType::Int64, false)]));
    let batch =
        |from: i64| RecordBatch::try_new(Arc::clone(&schema), vec![Arc::new(Int64Array::from_iter_values(from..from + 1000)) as Arc<dyn Array>]).unwrap();
    let mut slicer = TableSlicer::new(Arc::clone(&schema), SliceOptions::default());
    assert_eq!((slicer.held(), slicer.flush().unwrap().len()), (0, 0));
    assert!(slicer.push(&batch(0)).unwrap().is_empty() && slicer.push(&batch(1000)).unwrap().is_empty());
    assert!((16_000..17_000).contains(&slicer.held()), "{}", slicer.held());
    assert!(slicer.held() < slicer.most_held());
    let written = slicer.flush().unwrap();
    assert_eq!((written.iter().map(|s| s.stats.rows).sum::<u64>(), slicer.held()), (2000, 0));
    // And it goes on.
    assert!(slicer.push(&batch(2000)).unwrap().is_empty());
    assert_eq!(slicer.finish().unwrap().iter().map(|s| s.stats.rows).sum::<u64>(), 1000);
}

#[test]
fn numbers_have_a_dictionary_where_it_makes_them_smaller() {
    let n = 20_000i64;
    let mixed = |i: i64| i.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    let columns: Vec<(&str, Int64Array)> = vec![
        ("few", (0..n).map(|i| Some(mixed(i) >> 60)).collect()),
        ("all_differ", (0..n).map(|i| Some(mixed(i))).collect()),
        ("ascending", (0..n).map(Some).collect()),
        ("null", (0..n).map(|_| None).collect()),
    ];
    let columns = columns.into_iter().map(|(name, column)| (name, Arc::new(column) as Arc<dyn Array>));
    let batch = RecordBatch::try_from_iter(columns.chain([("text", Arc::new(text(n as usize, 9, 7)) as Arc<dyn Array>)])).unwrap();
    let mut slicer = TableSlicer::new(batch.schema(), SliceOptions { target_bytes: 100_000, ..SliceOptions::default() });
    let mut slices = slicer.push(&batch).unwrap();
    slices.extend(slicer.finish().unwrap());
    assert!(slices.len() > 3);
    for (n, slice) in slices.iter().enumerate() {
        let footer = parquet::file::metadata::ParquetMetaDataReader::new().parse_and_finish(&slice.bytes).unwrap();
        let columns = footer.row_groups()[0].columns();
        let with: Vec<_> = columns.iter().filter(|c| c.dictionary_page_offset().is_some()).map(|c| c.column_path().string()).collect();
        assert_eq!(with, ["few", "null", "text"]);
        // What has no dictionary may gain by compression, as numbers do that ascend; the first slice shows what does.
        let compressed: Vec<_> = columns.iter().filter(|c| c.compression() != Compression::UNCOMPRESSED).map(|c| c.column_path().string()).collect();
        assert_eq!((compressed.contains(&"ascending".to_owned()), compressed.contains(&"all_differ".to_owned())), (true, n == 0), "{compressed:?}");
    }
    let all: Vec<usize> = (0..batch.num_columns()).collect();
    let rows =
        slices.iter().flat_map(|s| crate::decode(s.bytes.clone(), &Layout::Table, &batch.schema(), &all, 8192).unwrap()).collect::<Result<Vec<_>>>().unwrap();
    assert_eq!(concat_batches(&batch.schema(), &rows).unwrap(), batch);
}
