use arrow::array::{ArrayRef, Float32Array};
use arrow::datatypes::{DataType, Field, Schema};
use datafusion::logical_expr::{cast, col, lit};
use skytether_common::Generation;
use skytether_index::segment::Source;
use skytether_index::{Building, Order};

use super::*;

/// Stripes of the table, and rows of each in the index.
const STRIPES: u32 = 100;
const EACH: u32 = 500;

/// A disk of 261 MB/s that takes 8 ms to be elsewhere, and processors that are not what is waited for.
const DISK: Costs = Costs { seek_s: 0.008, bytes_per_s: 261e6, speed: 10.0 };

fn schema() -> SchemaRef {
    Arc::new(Schema::new(vec![Field::new("ke", DataType::Float32, false), Field::new("x", DataType::Float32, false)]))
}

fn of() -> PartitionName {
    PartitionName { dataset: "lab.p".parse().unwrap(), generation: Generation(7), table: "data".into(), slot: 0 }
}

/// An index on `ke` over all stripes, whose values are 0 to 49,999 in no order; with all columns, or without.
fn index(holds: bool) -> Arc<Ready> {
    let held = if holds { vec!["ke".to_owned(), "x".to_owned()] } else { Vec::new() };
    let mut building = Building::new(vec![("ke".into(), Order::of(&DataType::Float32, None).unwrap())], held);
    for stripe in 0..STRIPES {
        let rows = stripe * EACH..(stripe + 1) * EACH;
        let ke: ArrayRef = Arc::new(Float32Array::from_iter_values(rows.map(|row| (row * 7919 % (STRIPES * EACH)) as f32)));
        let both = RecordBatch::try_new(schema(), vec![Arc::clone(&ke), ke]).unwrap();
        building.push(&both.project(&[0]).unwrap(), holds.then_some(both)).unwrap();
    }
    let head = building.finish(Source { len: 1, crc32c: 2 }, 0).unwrap().head;
    Arc::new(Ready { of: of(), name: "ke".into(), at: skytether_index::partition(&of(), "ke"), segments: vec![Arc::new(head)] })
}

/// A scan of both columns, over stripes of `bytes` bytes.
fn scan(kept: &[bool], bytes: u64, costs: Costs) -> Scan<'_> {
    let stripe = |number| Stripe { number, disk: costs.slice(std::slice::from_ref(&(0..bytes))), rows: 47_500.0 };
    let stripes = (0..STRIPES).filter(|n| kept[*n as usize]).map(stripe).collect();
    Scan { kept, columns: &[0, 1], reading: ReadCost { costs, stripes, reach: reach(1, 0, 0), columns: 2, first: Some(1) } }
}

/// Whether the scan searches an index for rows with `ke` above `above`, over stripes of `bytes` bytes.
fn asked(holds: bool, above: f64, bytes: u64) -> bool {
    let kept = [true; STRIPES as usize];
    let filter = cast(col("ke"), DataType::Float64).gt(lit(above));
    Asked::new(index(holds), &[filter], &schema(), &scan(&kept, bytes, DISK)).unwrap().pays()
}

/// An index that has the values as well needs no slice, and pays earlier.
#[test]
fn index_without_values_pays_where_it_skips_most_slices() {
    // Some six rows of each stripe: all of them are read whole either way.
    assert!(!asked(false, 49_399.5, 1 << 20));
    assert!(asked(true, 49_399.5, 1 << 20), "an index that has the values reads no slice");
    // One of each stripe: two thirds of them have some.
    assert!(!asked(false, 49_899.5, 1 << 20));
    assert!(asked(false, 49_989.5, 1 << 20), "ten rows");
    // One row in all.
    let (kept, filter) = ([true; STRIPES as usize], cast(col("ke"), DataType::Float64).eq(lit(123.0)));
    assert!(Asked::new(index(false), std::slice::from_ref(&filter), &schema(), &scan(&kept, 1 << 20, DISK)).unwrap().pays());
    // Statistics have left over a single stripe, which has it.
    let mut kept = [false; STRIPES as usize];
    kept[7] = true;
    assert!(!Asked::new(index(false), &[filter], &schema(), &scan(&kept, 1 << 20, DISK)).unwrap().pays(), "a search takes as long as the stripe");
}

#[test]
fn seeks_across_skipped_slices_are_counted() {
    // Ten rows: nine seeks of 8 ms take longer than a hundred stripes of a quarter of a millisecond.
    assert!(!asked(false, 49_989.5, 64 << 10));
    assert!(asked(true, 49_989.5, 64 << 10));
}

/// A search that found a row in each of these stripes.
fn found(stripes: impl Iterator<Item = u32>) -> Found {
    let pool: Arc<dyn MemoryPool> = Arc::new(GreedyMemoryPool::new(1000));
    let room = SearchMemory(std::array::from_fn(|_| MemoryConsumer::new("a test").register(&pool)));
    let rows = stripes.map(|stripe| (stripe, vec![3])).collect();
    Found { rows, known: vec![true; STRIPES as usize], values: None, note: IndexNote::default(), _room: room }
}

#[test]
fn found_rows_are_used_only_where_they_save_slices() {
    let kept = [true; STRIPES as usize];
    let scan = scan(&kept, 1 << 20, DISK);
    // Whatever was expected.
    let expected = Asking { seconds: 0.0, without: scan.reading.all(true), few: true };
    assert!(!scan.pays(expected, &found(0..STRIPES)));
    assert!(scan.pays(expected, &found(0..STRIPES / 2)));
    assert!(scan.pays(expected, &found(std::iter::once(5))) && scan.pays(expected, &found(std::iter::empty())));
    // Every third slice is a seek and a slice.
    assert!(!scan.pays(expected, &found((0..STRIPES).step_by(3))));
    assert!(scan.pays(expected, &found((0..STRIPES).step_by(10))));
}

#[test]
fn disk_cost_counts_seeks_and_reads_across_small_gaps() {
    let costs = Costs { seek_s: 0.010, bytes_per_s: 1e6, speed: 1e9 };
    let close = |a: f64, b: f64| (a - b).abs() < 1e-6;
    // 5 ms of bytes, 2 ms of gaps; a seek at most.
    assert!(close(costs.slice(&[1000..3000, 4000..7000]), 0.007));
    assert!(close(costs.slice(std::slice::from_ref(&(500_000..501_000))), 0.011));
    let reading = |numbers: &[u32], reach: u32| {
        let stripe = |number: &u32| Stripe { number: *number, disk: 0.004, rows: 10.0 };
        ReadCost { costs, stripes: numbers.iter().map(stripe).collect(), reach, columns: 1, first: None }.all(false)
    };
    assert!(close(reading(&[0, 1, 2], 2), 0.010 + 3.0 * 0.004));
    assert!(close(reading(&[0, 2, 5], 2), 2.0 * 0.010 + 4.0 * 0.004), "one is passed over, two are not");
    assert!(close(reading(&[0, 1], 0), 2.0 * 0.010 + 2.0 * 0.004));
    // Slices of a wide table: those of a group of columns are far from one another, unless there are two groups.
    assert_eq!([reach(1, 0, 0), reach(2, 0, 0), reach(3, 0, 0), reach(3, 0, 2), reach(8, 2, 3)], [2, 1, 0, 1, 0]);
    assert!(close(costs.way(2), 0.0) && close(costs.way(3), 0.010));
}

#[test]
fn scan_takes_the_slower_of_disk_and_processor() {
    let slow = Costs { speed: 0.01, ..DISK };
    let kept = [true; STRIPES as usize];
    let scan = |costs| scan(&kept, 1 << 20, costs).reading;
    // 47,500 values of one column, or of two where many rows pass.
    let each = |columns: f64| (100e-6 + 2e-9 * 47_500.0 * columns) / 0.01;
    assert!((scan(slow).all(true) - 100.0 * each(1.0)).abs() < 1e-6);
    assert!((scan(slow).all(false) - 100.0 * each(2.0)).abs() < 1e-6);
    let disk = 0.008 + 100.0 * f64::from(1 << 20) / 261e6;
    assert!((scan(DISK).all(true) - disk).abs() < 1e-6);
}
