//! A segment: an index over the rows of some consecutive stripes.
//!
//! Its rows are divided as in a k-d tree: at the median of one column, the halves at that of the next, down to pages.
//! So a page's rows are close to one another in all columns, ranges of several columns meet few pages, and with one
//! column pages are its values in order. Readers need no tree: the head has the bounds of all pages, some 0.1% of the
//! rows' bytes.
//!
//! A head's bytes:
//! 1. `"SKYINDX\0"`, u32 LE CRC-32C of all that follows, u32 LE length of the header.
//! 2. The header: JSON ([`Header`]).
//! 3. Per page, u32 LE each: its file, its offset there, its length, its CRC-32C, its rows.
//! 4. For the same page, per column, u64 LE each: the lowest and the highest number in it.

use arrow::array::RecordBatch;
use arrow::compute::interleave_record_batch;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use skytether_common::checksum::crc32c;
use skytether_common::{Error, Result};
use skytether_slice::metadata::ipc;

use crate::lean::lean;
use crate::order::{Interval, Order};
use crate::page::{self, Page};
use crate::{FORMAT, MAX_COLUMNS};

const MAGIC: &[u8; 8] = b"SKYINDX\0";

/// Rows of a page: what is read at least for a row that is looked for.
pub const PAGE_ROWS: usize = 2048;

/// Bytes of a file of pages, about.
const FILE: usize = 1 << 20;

/// A build ends if pages take this many times the memory that was counted for them: the count must be wrong.
const TOO_MUCH: usize = 2;

/// Memory of a page in addition to its rows and the schema of their values, in bytes.
const PAGE_BYTES: usize = 4 << 10;

/// Rows of a segment at most.
pub const MAX_ROWS: usize = 1 << 24;

/// The content of a partition from which an index was built, as its metadata slice identifies it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Source {
    /// Bytes of the metadata slice.
    pub len: u64,
    /// Its CRC-32C.
    pub crc32c: u32,
}

/// The header of a head; its pages follow.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    format: u32,
    /// The columns that it finds rows by, with the order of each.
    pub columns: Vec<(String, Order)>,
    /// The columns whose values are in its pages.
    pub held: Vec<String>,
    /// The partition's content.
    pub source: Source,
    /// Its first stripe.
    pub first: u32,
    /// The rows of each of its stripes.
    pub stripes: Vec<u32>,
    /// Bytes of each of its files.
    pub files: Vec<u32>,
}

/// The place of a page in its segment's files, and its checksum.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The number of its file.
    pub file: u32,
    /// Where it begins in it.
    pub start: u32,
    /// Its bytes.
    pub len: u32,
    crc32c: u32,
    /// Its rows.
    pub rows: u32,
}

/// A segment's head.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Head {
    /// The header.
    pub header: Header,
    /// The pages, in the order of their places.
    pub pages: Vec<Place>,
    /// For each page the bounds of each column.
    bounds: Vec<Interval>,
    /// Rows before each stripe, and of all.
    before: Vec<u32>,
}

/// A segment that was built.
#[derive(Debug)]
pub struct Built {
    /// Its head, as it is read again.
    pub head: Head,
    /// The head's bytes.
    pub bytes: Bytes,
    /// Its pages, several in each file.
    pub files: Vec<Bytes>,
}

/// Collects the rows of a segment.
#[derive(Debug)]
pub struct Building {
    columns: Vec<(String, Order)>,
    held: Vec<String>,
    numbers: Vec<Vec<u64>>,
    values: Vec<RecordBatch>,
    stripes: Vec<u32>,
    bytes: usize,
    /// Bytes of the largest stripe.
    largest: usize,
}

impl Building {
    /// A builder of an index over `columns`, with the values of the columns `held`, if any.
    #[must_use]
    pub fn new(columns: Vec<(String, Order)>, held: Vec<String>) -> Self {
        let numbers = vec![Vec::new(); columns.len()];
        Self { columns, held, numbers, values: Vec::new(), stripes: Vec::new(), bytes: 0, largest: 0 }
    }

    /// Adds the rows of the next stripe: the index's columns in order, and those that are held.
    ///
    /// # Errors
    /// Internal where these are other columns; Exhausted where there are too many rows for one segment.
    pub fn push(&mut self, columns: &RecordBatch, held: Option<RecordBatch>) -> Result<()> {
        let rows = columns.num_rows();
        if columns.num_columns() != self.columns.len() || held.is_some() == self.held.is_empty() || held.as_ref().is_some_and(|held| held.num_rows() != rows) {
            return Err(Error::internal("an index was given other columns than it is of"));
        }
        if self.rows() + rows > MAX_ROWS {
            return Err(Error::exhausted("a segment of an index has too many rows"));
        }
        for ((numbers, (_, order)), column) in self.numbers.iter_mut().zip(&self.columns).zip(columns.columns()) {
            numbers.extend(order.numbers(column)?);
        }
        self.stripes.push(rows as u32);
        // Numbers, in vectors that may be twice as large, an order of them, and both numbers and values a second time
        // in the pages: all is there until the last page is.
        let bytes = rows * (3 * 8 * self.columns.len() + 8) + 2 * held.as_ref().map_or(0, RecordBatch::get_array_memory_size);
        (self.bytes, self.largest) = (self.bytes + bytes, self.largest.max(bytes));
        self.values.extend(held);
        Ok(())
    }

    /// Its rows.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.numbers.first().map_or(0, Vec::len)
    }

    /// Its stripes.
    #[must_use]
    pub fn stripes(&self) -> u32 {
        self.stripes.len() as u32
    }

    /// Bytes of its memory, and of the segment that follows from it.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The same with another stripe like the largest.
    #[must_use]
    pub fn bytes_with_another(&self) -> usize {
        self.bytes.saturating_add(self.largest)
    }

    /// The segment, which begins with stripe `first` of the partition `source`.
    ///
    /// # Errors
    /// Internal where values can't be put together; Unsupported where they take far more bytes in
    /// pages than in the table.
    pub fn finish(self, source: Source, first: u32) -> Result<Built> {
        let mut order: Vec<u32> = (0..self.rows() as u32).collect();
        divide(&mut order, &self.numbers, 0);
        let before = before(&self.stripes)?;
        let batches: Vec<&RecordBatch> = self.values.iter().collect();
        let schema = batches.first().map(|batch| batch.schema());
        let each = PAGE_BYTES + 2 * schema.map_or(Ok(0), |schema| ipc::write(&schema, None).map(|bytes| bytes.len()))?;
        let most = TOO_MUCH.saturating_mul(self.bytes).saturating_add(each.saturating_mul(order.len().div_ceil(PAGE_ROWS)));
        let mut written = 0;
        let (mut files, mut file, mut pages, mut bounds) = (Vec::<Bytes>::new(), Vec::new(), Vec::new(), Vec::new());
        for rows in order.chunks_mut(PAGE_ROWS) {
            rows.sort_unstable();
            let numbers: Vec<Vec<u64>> = self.numbers.iter().map(|of| rows.iter().map(|row| of[*row as usize]).collect()).collect();
            let values = if batches.is_empty() {
                Vec::new()
            } else {
                let places: Vec<(usize, usize)> = rows.iter().map(|row| place(&before, *row)).map(|(stripe, row)| (stripe, row as usize)).collect();
                let batch = interleave_record_batch(&batches, &places).and_then(|batch| lean(&batch));
                let batch = batch.map_err(|e| Error::internal("cannot put the values of an index together").with_source(e))?;
                ipc::write(&batch.schema(), Some(&batch))?
            };
            bounds.extend(numbers.iter().map(|of| Interval { low: of.iter().copied().min().unwrap_or(0), high: of.iter().copied().max().unwrap_or(0) }));
            let page = Page::encode(&numbers, rows, &values);
            pages.push(Place { file: files.len() as u32, start: file.len() as u32, len: page.len() as u32, crc32c: crc32c(&page), rows: rows.len() as u32 });
            file.extend_from_slice(&page);
            written += page.len();
            if written > most {
                return Err(Error::unsupported(format!(
                    "the values of {} take more than {most} bytes in the index, {TOO_MUCH} times the memory that they take: include fewer columns",
                    self.held.join(", ")
                )));
            }
            if file.len() >= FILE {
                files.push(std::mem::take(&mut file).into_boxed_slice().into());
            }
        }
        if !file.is_empty() {
            files.push(file.into_boxed_slice().into());
        }
        let lengths = files.iter().map(|file| file.len() as u32).collect();
        let header = Header { format: FORMAT, columns: self.columns, held: self.held, source, first, stripes: self.stripes, files: lengths };
        let head = Head { header, pages, bounds, before };
        Ok(Built { bytes: head.encode()?.into(), head, files })
    }
}

/// Puts rows in the order of their pages: those of a page are close to one another in all columns.
fn divide(rows: &mut [u32], numbers: &[Vec<u64>], depth: usize) {
    let pages = rows.len().div_ceil(PAGE_ROWS);
    if pages < 2 {
        return;
    }
    // The next column in which any of them differ.
    let apart = |of: &&Vec<u64>| rows.iter().any(|row| of[*row as usize] != of[rows[0] as usize]);
    let Some(of) = (0..numbers.len()).filter_map(|at| numbers.get((depth + at) % numbers.len())).find(apart) else { return };
    let (left, right) = {
        let middle = pages / 2 * PAGE_ROWS;
        rows.select_nth_unstable_by_key(middle, |row| of[*row as usize]);
        rows.split_at_mut(middle)
    };
    divide(left, numbers, depth + 1);
    divide(right, numbers, depth + 1);
}

fn before(stripes: &[u32]) -> Result<Vec<u32>> {
    let mut before = vec![0u32];
    for rows in stripes {
        let all = before.last().and_then(|all| all.checked_add(*rows)).filter(|all| *all as usize <= MAX_ROWS);
        before.push(all.ok_or_else(|| Error::corrupt("a segment of an index has too many rows"))?);
    }
    Ok(before)
}

/// In which of the stripes a row is, and where in it.
fn place(before: &[u32], row: u32) -> (usize, u32) {
    let stripe = before.partition_point(|first| *first <= row).saturating_sub(1);
    (stripe, row - before.get(stripe).copied().unwrap_or(0))
}

fn damaged(what: &str) -> Error {
    Error::corrupt(format!("the head of an index {what}"))
}

impl Head {
    fn encode(&self) -> Result<Vec<u8>> {
        let header = serde_json::to_vec(&self.header).map_err(|e| Error::internal("cannot write the head of an index").with_source(e))?;
        let mut out = Vec::with_capacity(16 + header.len() + self.pages.len() * (20 + 16 * self.header.columns.len()));
        out.extend_from_slice(MAGIC);
        out.extend([0; 4]);
        out.extend_from_slice(&(header.len() as u32).to_le_bytes());
        out.extend_from_slice(&header);
        for (page, bounds) in self.pages.iter().zip(self.bounds.chunks(self.header.columns.len())) {
            for number in [page.file, page.start, page.len, page.crc32c, page.rows] {
                out.extend_from_slice(&number.to_le_bytes());
            }
            for bound in bounds {
                out.extend_from_slice(&bound.low.to_le_bytes());
                out.extend_from_slice(&bound.high.to_le_bytes());
            }
        }
        let sum = crc32c(&out[12..]);
        out[8..12].copy_from_slice(&sum.to_le_bytes());
        Ok(out)
    }

    /// Reads a head.
    ///
    /// # Errors
    /// Corrupt for anything that is none; Unsupported for a newer format.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let number = |at: usize| bytes.get(at..at + 4).and_then(|b| b.try_into().ok()).map(u32::from_le_bytes).ok_or_else(|| damaged("is cut short"));
        if bytes.get(..8) != Some(MAGIC) {
            return Err(damaged("is none"));
        }
        if number(8)? != crc32c(bytes.get(12..).unwrap_or_default()) {
            return Err(damaged("does not match its checksum"));
        }
        let (json, mut rest) = bytes.get(16..).and_then(|rest| rest.split_at_checked(number(12).ok()? as usize)).ok_or_else(|| damaged("is cut short"))?;
        let header: Header = serde_json::from_slice(json).map_err(|e| damaged("has a header that is none").with_source(e))?;
        if header.format > FORMAT {
            return Err(Error::unsupported(format!("the head of an index has format {}, this version reads up to {FORMAT}", header.format)));
        }
        let columns = header.columns.len();
        if columns == 0 || columns > MAX_COLUMNS {
            return Err(damaged("has no columns, or too many"));
        }
        if header.first.checked_add(header.stripes.len() as u32).is_none() {
            return Err(damaged("has more stripes than there can be"));
        }
        let before = before(&header.stripes)?;
        let width = 20 + 16 * columns;
        if !rest.len().is_multiple_of(width) {
            return Err(damaged("is cut short"));
        }
        let (mut pages, mut bounds, mut rows) = (Vec::with_capacity(rest.len() / width), Vec::with_capacity(rest.len() / width * columns), 0u64);
        let mut end = (0, 0u64);
        while let Some((page, after)) = rest.split_at_checked(width).filter(|(page, _)| !page.is_empty()) {
            let small = |at: usize| page.get(4 * at..4 * at + 4).and_then(|b| b.try_into().ok()).map_or(0, u32::from_le_bytes);
            let large = |at: usize| page.get(at..at + 8).and_then(|b| b.try_into().ok()).map_or(0, u64::from_le_bytes);
            let place = Place { file: small(0), start: small(1), len: small(2), crc32c: small(3), rows: small(4) };
            let stop = u64::from(place.start) + u64::from(place.len);
            let within = header.files.get(place.file as usize).is_some_and(|len| stop <= u64::from(*len));
            if !within || place.rows as usize > page::MAX_ROWS || (place.file, u64::from(place.start)) < end {
                return Err(damaged("has a page that is not in its files, or too large"));
            }
            end = (place.file, stop);
            rows += u64::from(place.rows);
            pages.push(place);
            bounds.extend((0..columns).map(|column| Interval { low: large(20 + 16 * column), high: large(28 + 16 * column) }));
            rest = after;
        }
        if before.last().map(|all| u64::from(*all)) != Some(rows) {
            return Err(damaged("has other rows in its pages than in its stripes"));
        }
        Ok(Self { header, pages, bounds, before })
    }

    /// The columns that it finds rows by.
    pub fn columns(&self) -> impl Iterator<Item = &str> {
        self.header.columns.iter().map(|(name, _)| name.as_str())
    }

    /// Its rows.
    #[must_use]
    pub fn rows(&self) -> u32 {
        self.before.last().copied().unwrap_or(0)
    }

    /// The stripe of the partition that a row is in, and where in it.
    #[must_use]
    pub fn place(&self, row: u32) -> (u32, u32) {
        let (stripe, row) = place(&self.before, row);
        (self.header.first + stripe as u32, row)
    }

    /// The pages that may have rows in any of `boxes`, each an interval per column.
    #[must_use]
    pub fn meets(&self, boxes: &[Vec<Interval>]) -> Vec<usize> {
        let meets = |bounds: &[Interval]| boxes.iter().any(|one| bounds.iter().zip(one).all(|(bound, interval)| bound.and(*interval).is_some()));
        self.bounds.chunks(self.header.columns.len()).enumerate().filter(|(_, bounds)| meets(bounds)).map(|(at, _)| at).collect()
    }

    /// About how many rows of page `at` are in any of `boxes`, if they are spread evenly between its bounds.
    #[must_use]
    pub fn expects(&self, at: usize, boxes: &[Vec<Interval>]) -> f64 {
        let columns = self.header.columns.len();
        let (Some(page), Some(bounds)) = (self.pages.get(at), self.bounds.get(at * columns..(at + 1) * columns)) else { return 0.0 };
        let width = |interval: Interval| (interval.high - interval.low) as f64 + 1.0;
        let share = |one: &Vec<Interval>| {
            bounds.iter().zip(one).map(|(bound, interval)| bound.and(*interval).map_or(0.0, |both| width(both) / width(*bound))).product::<f64>()
        };
        f64::from(page.rows) * boxes.iter().map(share).sum::<f64>().min(1.0)
    }

    /// Page `at` of these bytes, verified.
    ///
    /// # Errors
    /// Corrupt where these are other bytes.
    pub fn page(&self, at: usize, bytes: &[u8]) -> Result<Page> {
        let place = self.pages.get(at).ok_or_else(|| Error::internal("there is no such page of an index"))?;
        if bytes.len() != place.len as usize || crc32c(bytes) != place.crc32c {
            return Err(Error::corrupt("a page of an index does not match its checksum"));
        }
        let page = Page::decode(bytes, self.header.columns.len(), self.rows())?;
        if page.rows.len() != place.rows as usize {
            return Err(Error::corrupt("a page of an index has other rows than its head says"));
        }
        Ok(page)
    }
}

impl Page {
    /// Which of its rows are in any of `boxes`, as their places in the page.
    #[must_use]
    pub fn within(&self, boxes: &[Vec<Interval>]) -> Vec<usize> {
        let has =
            |at: &usize| boxes.iter().any(|one| self.numbers.iter().zip(one).all(|(of, interval)| of.get(*at).is_some_and(|number| interval.has(*number))));
        (0..self.rows.len()).filter(has).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{ArrayRef, AsArray, DictionaryArray, Float32Array, Int64Array, StringArray, StringViewArray};
    use arrow::datatypes::{DataType, Int32Type, Int64Type};
    use proptest::prelude::*;

    use super::*;

    const SOURCE: Source = Source { len: 5, crc32c: 6 };

    fn batch(columns: Vec<(&str, ArrayRef)>) -> RecordBatch {
        RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(name, column)| (name, column, true))).unwrap()
    }

    fn built(stripes: &[Vec<(Option<i64>, f32)>], held: bool) -> Built {
        let columns = vec![("a".to_owned(), Order::of(&DataType::Int64, None).unwrap()), ("b".to_owned(), Order::of(&DataType::Float32, None).unwrap())];
        let mut building = Building::new(columns, if held { vec!["a".into()] } else { Vec::new() });
        for rows in stripes {
            let a: ArrayRef = Arc::new(Int64Array::from_iter(rows.iter().map(|(a, _)| *a)));
            let b: ArrayRef = Arc::new(Float32Array::from_iter_values(rows.iter().map(|(_, b)| *b)));
            building.push(&batch(vec![("a", Arc::clone(&a)), ("b", b)]), held.then(|| batch(vec![("a", a)]))).unwrap();
        }
        building.finish(SOURCE, 10).unwrap()
    }

    /// The rows that it finds.
    fn found(built: &Built, boxes: &[Vec<Interval>]) -> Vec<(u32, u32)> {
        let head = Head::decode(&built.bytes).unwrap();
        assert_eq!(head, built.head);
        let mut rows = Vec::new();
        for at in head.meets(boxes) {
            let place = &head.pages[at];
            let page = head.page(at, &built.files[place.file as usize][place.start as usize..][..place.len as usize]).unwrap();
            rows.extend(page.within(boxes).into_iter().map(|at| head.place(page.rows[at])));
        }
        rows.sort_unstable();
        rows
    }

    fn row() -> impl Strategy<Value = (Option<i64>, f32)> {
        (prop::option::weighted(0.9, -50..50i64), prop_oneof![8 => -5.0..5.0f32, 1 => Just(f32::NAN), 1 => Just(-0.0)])
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(40))]
        #[test]
        fn rows_of_ranges_are_found_and_no_others(stripes in prop::collection::vec(prop::collection::vec(row(), 0..1500), 1..6), low in -60..60i64, span in 0..40i64, b in -6.0..6.0f32) {
            let built = built(&stripes, true);
            let numbers = |column: ArrayRef| Order::of(column.data_type(), None).unwrap().numbers(&column).unwrap();
            let a = numbers(Arc::new(Int64Array::from(vec![low, low + span])));
            let above = Interval { low: numbers(Arc::new(Float32Array::from(vec![b])))[0], high: crate::order::TOP };
            let one = vec![vec![Interval { low: a[0], high: a[1] }, above]];
            let wanted = |n: Option<i64>, f: f32| n.is_some_and(|n| low <= n && n <= low + span) && (f >= b || f.is_nan() || (f == 0.0 && b == 0.0));
            let mut due = Vec::new();
            for (stripe, rows) in stripes.iter().enumerate() {
                due.extend(rows.iter().enumerate().filter(|(_, (n, f))| wanted(*n, *f)).map(|(row, _)| (10 + stripe as u32, row as u32)));
            }
            prop_assert_eq!(found(&built, &one), due);
            let all = stripes.iter().map(Vec::len).sum::<usize>();
            prop_assert_eq!(found(&built, &[vec![Interval::ALL; 2]]).len(), all);
            let nulls = stripes.iter().flatten().filter(|(n, _)| n.is_none()).count();
            prop_assert_eq!(found(&built, &[vec![Interval::NULLS, Interval::ALL], vec![Interval::NULLS, Interval::VALUES]]).len(), nulls);
        }
    }

    #[test]
    fn ranges_of_two_columns_meet_few_pages_and_values_come_along() {
        let rows = (0..200_000i64).map(|n| (Some(n % 1000), ((n * 7919) % 200_000) as f32)).collect::<Vec<_>>();
        let built = built(&[rows[..150_000].to_vec(), rows[150_000..].to_vec()], true);
        let of = |n: i64| (n as u64) ^ (1 << 63);
        let b = Order::of(&DataType::Float32, None).unwrap().numbers(&(Arc::new(Float32Array::from(vec![0.0, 20_000.0])) as ArrayRef)).unwrap();
        let boxes = [vec![Interval { low: of(100), high: of(199) }, Interval { low: b[0], high: b[1] }]];
        let pages = built.head.meets(&boxes);
        // 1% of the rows in the square root of its tenths of the pages to each side.
        assert!(pages.len() <= 12 && built.head.pages.len() == 98, "{} of {}", pages.len(), built.head.pages.len());
        let place = &built.head.pages[pages[0]];
        let bytes = &built.files[place.file as usize][place.start as usize..][..place.len as usize];
        let page = built.head.page(pages[0], bytes).unwrap();
        let (_, values) = ipc::read(&bytes[page.values..]).unwrap();
        let values = values.unwrap();
        let a = values.column(0).as_primitive::<Int64Type>();
        assert!(a.values().iter().zip(&page.numbers[0]).all(|(value, number)| of(*value) == *number) && values.num_rows() == page.rows.len());
    }

    #[test]
    fn pages_have_the_texts_of_their_rows_and_no_others() {
        const ROWS: u64 = 4096;
        let mixed = |n: u64| n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20;
        let columns = vec![("k".to_owned(), Order::of(&DataType::Int64, None).unwrap())];
        let mut building = Building::new(columns, vec!["k".into(), "v".into(), "w".into()]);
        let mut raw = 0;
        for stripe in 0..50 {
            let rows = || (stripe * ROWS..(stripe + 1) * ROWS).map(mixed);
            let k: ArrayRef = Arc::new(Int64Array::from_iter_values(rows().map(|n| (n % 1_000_000) as i64)));
            let v: ArrayRef = Arc::new(rows().map(|n| Some(format!("{n:040}"))).collect::<StringViewArray>());
            let words: Vec<String> = (0..20).map(|n| format!("{n:0900}")).collect();
            let w: DictionaryArray<Int32Type> = rows().map(|n| words[n as usize % 20].as_str()).collect();
            let held = batch(vec![("k", Arc::clone(&k)), ("v", v), ("w", Arc::new(w))]);
            raw += ROWS as usize * (8 + 40 + 4) + 20 * 900;
            building.push(&batch(vec![("k", k)]), Some(held)).unwrap();
        }
        let (bytes, values) = (building.bytes(), building.values.iter().map(RecordBatch::get_array_memory_size).sum::<usize>());
        let numbers = building.numbers.iter().map(|of| 8 * of.capacity()).sum::<usize>();
        let built = building.finish(SOURCE, 0).unwrap();
        let files = built.files.iter().map(Bytes::len).sum::<usize>();
        assert_eq!(built.head.rows(), 50 * ROWS as u32);
        assert!(files < 2 * raw, "{files} of {raw}");
        // All that is there at the end.
        assert!(files + values + numbers + 4 * built.head.rows() as usize <= bytes + built.head.pages.len() * PAGE_BYTES, "{files} {values} {bytes}");
    }

    #[test]
    fn an_index_that_takes_far_more_than_its_columns_is_none() {
        // Each page needs nearly all of the words.
        let words = Arc::new(StringArray::from_iter_values((0..1000).map(|n| format!("{n:03000}"))));
        let columns = vec![("k".to_owned(), Order::of(&DataType::Int64, None).unwrap())];
        let mut building = Building::new(columns, vec!["w".into()]);
        let k: ArrayRef = Arc::new(Int64Array::from_iter_values((0..50_000).map(|n| n * 7919 % 50_000)));
        let keys = (0..50_000).map(|n| n % 1000).collect::<arrow::array::Int32Array>();
        let w: ArrayRef = Arc::new(DictionaryArray::<Int32Type>::new(keys, words));
        building.push(&batch(vec![("k", k)]), Some(batch(vec![("w", w)]))).unwrap();
        let error = building.finish(SOURCE, 0).unwrap_err();
        assert!(error.kind() == skytether_common::Kind::Unsupported && error.message().contains("the values of w take"), "{error}");
    }

    #[test]
    fn damage_is_found() {
        let built = built(&[vec![(Some(1), 2.0), (None, 3.0)]], false);
        for at in 0..built.bytes.len() {
            let mut bytes = built.bytes.to_vec();
            bytes[at] ^= 4;
            assert!(Head::decode(&bytes).is_err(), "byte {at}");
        }
        let mut page = built.files[0].to_vec();
        page[9] ^= 1;
        assert!(built.head.page(0, &page).is_err());
        assert!(built.head.page(0, &built.files[0][1..]).is_err());
        assert!(built.head.page(0, &built.files[0]).is_ok());
        for len in 0..40 {
            let mut short = built.bytes[..len].to_vec();
            if let Some(sum) = short.get(12..).map(crc32c) {
                short[8..12].copy_from_slice(&sum.to_le_bytes());
            }
            assert!(Head::decode(&short).is_err(), "{len} bytes");
        }
    }
}
