//! Products of a sparse matrix with itself and with narrow dense matrices, as principal components need them.
//!
//! [`Rows`] is a part of a matrix, row by row. [`Gram`] adds up `X^T X` of such parts: all that is needed for the
//! principal components of few columns, from one look at the matrix. [`project`] multiplies a part with the components.
//!
//! The rejected alternative is a randomised SVD whose products run on the drives. A drive has whole genes, so each
//! product leaves a dense number for every cell and component on every drive, to be added up by the host and sent back:
//! 480 bytes per cell, drive and iteration with 60 components, some ten times. A nonzero of the chosen genes moves as 6
//! bytes: about 1.2 KB per cell that has 200 of 2,000 genes. They move once, or twice where they are many.

use parking_lot::Mutex;
use skytether_common::{Error, Result};

/// Rows of the Gram matrix that one thread adds up at a time: 32 rows of 2,000 doubles stay in the second-level cache.
const TILE: usize = 32;
/// Rows that one thread projects at a time.
const PART: usize = 4096;

/// A sparse matrix by rows, in memory.
#[derive(Debug, Default, Clone, PartialEq)]
pub struct Rows {
    starts: Vec<usize>,
    columns: Vec<u32>,
    values: Vec<f32>,
}

/// Some entries of one column: the rows that they are in, and their values.
#[derive(Debug, Clone, Copy)]
pub struct Chunk<'a> {
    /// The number of the column.
    pub column: u32,
    /// The rows, each below the number of rows.
    pub rows: &'a [u32],
    /// The values.
    pub values: &'a [f32],
}

impl Rows {
    /// Number of rows.
    #[must_use]
    pub fn len(&self) -> usize {
        self.starts.len().saturating_sub(1)
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Number of entries.
    #[must_use]
    pub fn entries(&self) -> usize {
        self.columns.len()
    }

    fn row(&self, i: usize) -> (&[u32], &[f32]) {
        let range = self.starts[i]..self.starts[i + 1];
        (&self.columns[range.clone()], &self.values[range])
    }

    /// The rows whose columns are these chunks. A column's chunks come in any order among the others', and its rows
    /// ascend from chunk to chunk.
    ///
    /// # Errors
    /// Internal where a chunk has a row that is not below `rows`.
    pub fn of_columns(rows: usize, chunks: &mut [Chunk<'_>]) -> Result<Self> {
        let outside = || Error::internal("an entry lies outside its matrix");
        // In ascending columns, so that rows have theirs in order.
        chunks.sort_by_key(|chunk| (chunk.column, chunk.rows.first().copied()));
        let mut starts = vec![0usize; rows + 1];
        for &row in chunks.iter().flat_map(|chunk| chunk.rows) {
            *starts.get_mut(row as usize + 1).ok_or_else(outside)? += 1;
        }
        for i in 1..starts.len() {
            starts[i] += starts[i - 1];
        }
        let total = starts.last().copied().unwrap_or_default();
        let (mut columns, mut values, mut next) = (vec![0u32; total], vec![0f32; total], starts.clone());
        for chunk in chunks.iter() {
            for (&row, &value) in chunk.rows.iter().zip(chunk.values) {
                let at = next[row as usize];
                (columns[at], values[at]) = (chunk.column, value);
                next[row as usize] += 1;
            }
        }
        Ok(Self { starts, columns, values })
    }

    /// The same chunks with columns as rows: `columns` rows, each with the entries of one column.
    ///
    /// # Errors
    /// Internal where a chunk has a column that is not below `columns`.
    pub fn by_columns(columns: usize, chunks: &mut [Chunk<'_>]) -> Result<Self> {
        chunks.sort_by_key(|chunk| (chunk.column, chunk.rows.first().copied()));
        if chunks.last().is_some_and(|last| last.column as usize >= columns) {
            return Err(Error::internal("an entry lies outside its matrix"));
        }
        let (mut made, mut at) = (Self { starts: vec![0], ..Self::default() }, 0);
        for column in 0..columns {
            while let Some(chunk) = chunks.get(at).filter(|chunk| chunk.column as usize == column) {
                made.columns.extend_from_slice(chunk.rows);
                made.values.extend_from_slice(chunk.values);
                at += 1;
            }
            made.starts.push(made.columns.len());
        }
        Ok(made)
    }
}

/// `X^T X` and the sums of the columns, of all rows that were added; both in doubles.
#[derive(Debug)]
pub struct Gram {
    width: usize,
    /// Row by row; only what is on and right of the diagonal is used.
    products: Vec<f64>,
    sums: Vec<f64>,
}

impl Gram {
    /// Of a matrix with `width` columns, before any row.
    #[must_use]
    pub fn new(width: usize) -> Self {
        Self { width, products: vec![0.0; width * width], sums: vec![0.0; width] }
    }

    /// Adds rows. The sums of one entry are added in the order of the rows, whatever the number of threads.
    ///
    /// # Errors
    /// Internal where a row has a column that there is not.
    pub fn add(&mut self, rows: &Rows, threads: usize) -> Result<()> {
        let width = self.width;
        if rows.columns.iter().any(|&column| column as usize >= width) {
            return Err(Error::internal("an entry lies outside its matrix"));
        }
        for (&column, &value) in rows.columns.iter().zip(&rows.values) {
            self.sums[column as usize] += f64::from(value);
        }
        if width == 0 {
            return Ok(());
        }
        // Tiles with the most work come first: the first rows of the upper triangle are the longest.
        let tiles = Mutex::new(self.products.chunks_mut(TILE * width).enumerate());
        let work = || {
            loop {
                let Some((tile, products)) = tiles.lock().next() else { return };
                add_tile(rows, tile * TILE, width, products);
            }
        };
        on_threads(threads, work);
        Ok(())
    }

    /// The products as a full matrix, row by row; and the sums.
    #[must_use]
    pub fn finish(mut self) -> (Vec<f64>, Vec<f64>) {
        for i in 0..self.width {
            for j in 0..i {
                self.products[i * self.width + j] = self.products[j * self.width + i];
            }
        }
        (self.products, self.sums)
    }
}

/// Adds to the rows `first..` of the Gram matrix that are in `products`.
fn add_tile(rows: &Rows, first: usize, width: usize, products: &mut [f64]) {
    let end = first + products.len() / width;
    for i in 0..rows.len() {
        let (columns, values) = rows.row(i);
        let from = columns.partition_point(|&column| (column as usize) < first);
        for at in from..columns.len() {
            let row = columns[at] as usize;
            if row >= end {
                break;
            }
            let out = &mut products[(row - first) * width..][..width];
            let value = f64::from(values[at]);
            for (&column, &other) in columns[at..].iter().zip(&values[at..]) {
                out[column as usize] += value * f64::from(other);
            }
        }
    }
}

/// `rows * by - shift`, row by row: `by` has `k` numbers for each column, `shift` has `k`.
///
/// # Errors
/// Internal where `by` has no numbers for a column.
pub fn project(rows: &Rows, by: &[f64], shift: &[f64], threads: usize) -> Result<Vec<f32>> {
    let k = shift.len();
    if rows.columns.iter().any(|&column| by.len() < (column as usize + 1) * k) {
        return Err(Error::internal("an entry lies outside its matrix"));
    }
    let mut out = vec![0f32; rows.len() * k];
    if k == 0 {
        return Ok(out);
    }
    let parts = Mutex::new(out.chunks_mut(PART * k).enumerate());
    let work = || {
        let mut sums = vec![0f64; k];
        loop {
            let Some((part, out)) = parts.lock().next() else { return };
            for (i, out) in out.chunks_exact_mut(k).enumerate() {
                let (columns, values) = rows.row(part * PART + i);
                sums.fill(0.0);
                for (&column, &value) in columns.iter().zip(values) {
                    let by = &by[column as usize * k..][..k];
                    let value = f64::from(value);
                    sums.iter_mut().zip(by).for_each(|(sum, by)| *sum += value * by);
                }
                out.iter_mut().zip(&sums).zip(shift).for_each(|((out, sum), shift)| *out = (sum - shift) as f32);
            }
        }
    };
    on_threads(threads, work);
    Ok(out)
}

/// Runs `work` on `threads` threads, this one among them. Where the system gives no more threads, fewer do all of it.
fn on_threads(threads: usize, work: impl Fn() + Sync) {
    std::thread::scope(|scope| {
        for _ in 1..threads.max(1) {
            if std::thread::Builder::new().spawn_scoped(scope, &work).is_err() {
                break;
            }
        }
        work();
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 5 rows x 3 columns, in chunks of columns.
    fn chunks() -> [(u32, Vec<u32>, Vec<f32>); 4] {
        [(2, vec![0, 4], vec![1.0, -2.0]), (0, vec![3], vec![4.0]), (0, vec![0, 1], vec![2.0, 3.0]), (1, vec![1], vec![0.5])]
    }

    fn dense() -> [[f64; 3]; 5] {
        [[2.0, 0.0, 1.0], [3.0, 0.5, 0.0], [0.0; 3], [4.0, 0.0, 0.0], [0.0, 0.0, -2.0]]
    }

    fn rows() -> Rows {
        let owned = chunks();
        let mut chunks: Vec<Chunk<'_>> = owned.iter().map(|(column, rows, values)| Chunk { column: *column, rows, values }).collect();
        Rows::of_columns(5, &mut chunks).unwrap()
    }

    #[test]
    fn gram_of_sparse_rows_equals_the_dense_one() {
        for threads in [1, 3] {
            let mut gram = Gram::new(3);
            gram.add(&rows(), threads).unwrap();
            gram.add(&rows(), threads).unwrap();
            let (products, sums) = gram.finish();
            for i in 0..3 {
                for j in 0..3 {
                    let expected: f64 = dense().iter().map(|row| 2.0 * row[i] * row[j]).sum();
                    assert_eq!(products[i * 3 + j], expected, "{i} {j}");
                }
                assert_eq!(sums[i], dense().iter().map(|row| 2.0 * row[i]).sum::<f64>());
            }
        }
    }

    #[test]
    fn wide_gram_has_all_tiles() {
        let width = 2 * TILE + 5;
        let (all, values) = ((0..width as u32).collect::<Vec<_>>(), vec![1f32; width]);
        let mut chunks: Vec<Chunk<'_>> = (0..width).map(|i| Chunk { column: i as u32, rows: &[0, 1], values: &[1.0, 2.0] }).collect();
        let rows = Rows::of_columns(2, &mut chunks).unwrap();
        assert_eq!(rows.row(0), (&all[..], &values[..]));
        let mut gram = Gram::new(width);
        gram.add(&rows, 2).unwrap();
        assert!(gram.finish().0.iter().all(|&p| p == 5.0));
    }

    #[test]
    fn projection_equals_the_dense_product() {
        let (by, shift) = ([1.0, 10.0, 2.0, 20.0, 3.0, 30.0], [0.5, 1.0]);
        let expected: Vec<f32> =
            dense().iter().flat_map(|row| (0..2).map(move |k| ((0..3).map(|j| row[j] * by[j * 2 + k]).sum::<f64>() - shift[k]) as f32)).collect();
        assert_eq!(project(&rows(), &by, &shift, 2).unwrap(), expected);
    }

    #[test]
    fn columns_as_rows_keep_all_entries() {
        let owned = chunks();
        let mut chunks: Vec<Chunk<'_>> = owned.iter().map(|(column, rows, values)| Chunk { column: *column, rows, values }).collect();
        let by_columns = Rows::by_columns(4, &mut chunks).unwrap();
        assert_eq!(by_columns.len(), 4);
        assert_eq!(by_columns.row(0), (&[0u32, 1, 3][..], &[2.0f32, 3.0, 4.0][..]));
        assert_eq!(by_columns.row(3), (&[][..], &[][..]));
        assert!(Rows::by_columns(2, &mut chunks).is_err());
    }

    #[test]
    fn entries_outside_are_refused() {
        let mut chunks = [Chunk { column: 0, rows: &[7], values: &[1.0] }];
        assert!(Rows::of_columns(7, &mut chunks).is_err());
        assert!(Gram::new(2).add(&rows(), 1).is_err());
        assert!(project(&rows(), &[1.0], &[0.0], 1).is_err());
    }
}
