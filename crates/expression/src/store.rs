//! Running moments: for each row of an aggregate (a gene) and each group of cells n, number of nonzeros, mean and M2
//! (the sum of squared differences from the mean), merged by Chan's update with exact counts.
//!
//! As state a row is two columns: `groups` (Utf8View: JSON with the groups' names and n, which is the same text for
//! nearly all genes, so its views share one buffer) and `moments` (Binary: the bytes of [`crate::state`], which hold
//! only the groups in which the gene occurs).

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use arrow::array::{
    Array, ArrayRef, AsArray, BinaryArray, BooleanBufferBuilder, Float64Array, ListArray, StringViewArray, StringViewBuilder, StructArray, UInt64Array,
};
use arrow::buffer::{Buffer, NullBuffer, OffsetBuffer, ScalarBuffer};
use arrow::datatypes::{DataType, Field, FieldRef, Fields, Float64Type};
/// Which rows to take out.
pub use datafusion::logical_expr::EmitTo;
use serde::{Deserialize, Serialize};
use skytether_common::{Error, Result};

use crate::aggregate::Store;
use crate::spec::{MAX_GROUPS, check_names, shorten};
use crate::state;
use crate::ttest::GroupMoments;

/// The fields of an entry of the result: group, n, nnz, mean, m2.
pub static RESULT_FIELDS: LazyLock<Fields> = LazyLock::new(|| {
    Fields::from(vec![
        Field::new("group", DataType::Utf8View, true),
        Field::new("n", DataType::UInt64, false),
        Field::new("nnz", DataType::UInt64, false),
        Field::new("mean", DataType::Float64, false),
        Field::new("m2", DataType::Float64, false),
    ])
});

fn item(of: DataType) -> FieldRef {
    Arc::new(Field::new("item", of, false))
}

/// The type of the result: an entry per group of cells, the last (group NULL) for the cells in none.
#[must_use]
pub fn result_type() -> DataType {
    DataType::List(item(DataType::Struct(RESULT_FIELDS.clone())))
}

/// Names and types of the state's columns.
#[must_use]
pub fn state_types() -> [(&'static str, DataType); 2] {
    [("groups", DataType::Utf8View), ("moments", DataType::Binary)]
}

impl Store for MomentStore {
    fn result_type() -> DataType {
        result_type()
    }

    fn state_types() -> Vec<(&'static str, DataType)> {
        state_types().into()
    }

    fn result(&mut self, emit: EmitTo, rows: usize) -> Result<ArrayRef> {
        MomentStore::result(self, emit, rows)
    }

    fn state(&mut self, emit: EmitTo, rows: usize) -> Result<Vec<ArrayRef>> {
        MomentStore::state(self, emit, rows)
    }

    fn merge(&mut self, states: &[ArrayRef], groups: &[usize], rows: usize) -> Result<()> {
        self.merge_states(states, groups, rows)
    }

    fn size(&self) -> usize {
        MomentStore::size(self)
    }
}

/// The most moments of a store: 4 GiB of them. All are allocated at once, before the memory pool reserves them.
const MAX_ENTRIES: usize = 1 << 27;

/// What the state's column `groups` holds. `n` has one more entry than `groups`: the cells in no group.
#[derive(Serialize)]
struct HeaderText<'a> {
    groups: &'a [String],
    n: &'a [u64],
}

/// The same, read.
struct Header {
    names: Arc<[String]>,
    n: Vec<u64>,
}

impl Header {
    /// Reads the text; `None` where it is that of a row without groups, which had no input.
    fn read(text: &str) -> Result<Option<Self>> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Read {
            groups: Vec<String>,
            n: Vec<u64>,
        }
        let Read { groups, n } = serde_json::from_str(text).map_err(|e| bad("has no readable groups").with_source(e))?;
        if n.is_empty() && groups.is_empty() {
            return Ok(None);
        }
        if n.len() != groups.len() + 1 {
            return Err(bad("counts other groups than it names"));
        }
        check_names(&groups)?;
        Ok(Some(Self { names: groups.into(), n }))
    }
}

fn bad(what: &str) -> Error {
    Error::invalid(format!("the state of moments {what}"))
}

/// The moments of all rows of an aggregate.
#[derive(Debug, Default)]
pub struct MomentStore {
    /// `None` until the first rows or states came.
    names: Option<Arc<[String]>>,
    rows: usize,
    n: Vec<u64>,
    nnz: Vec<u64>,
    mean: Vec<f64>,
    m2: Vec<f64>,
}

impl MomentStore {
    /// The groups' names, once known.
    #[must_use]
    pub fn names(&self) -> Option<&Arc<[String]>> {
        self.names.as_ref()
    }

    fn width(&self) -> usize {
        self.names.as_ref().map_or(0, |n| n.len() + 1)
    }

    /// Makes room for `rows` rows of groups named `names`. Rows that are there keep their moments; groups that
    /// they don't know are added.
    ///
    /// # Errors
    /// Invalid where there are too many groups.
    pub fn reserve(&mut self, names: &Arc<[String]>, rows: usize) -> Result<()> {
        match &self.names {
            None => self.names = Some(Arc::clone(names)),
            Some(mine) if Arc::ptr_eq(mine, names) || mine == names => {}
            Some(mine) => {
                let known: std::collections::HashSet<&str> = mine.iter().map(String::as_str).collect();
                let new: Vec<String> = names.iter().filter(|n| !known.contains(n.as_str())).cloned().collect();
                if !new.is_empty() {
                    self.widen(new)?;
                }
            }
        }
        self.set_rows(rows)
    }

    /// As [`Self::reserve`], for rows that are read: all of them are of these groups.
    pub(crate) fn reserve_same(&mut self, names: &Arc<[String]>, rows: usize) -> Result<()> {
        self.reserve(names, rows)?;
        if self.names() == Some(names) { Ok(()) } else { Err(Error::internal("rows and states of different groups met in one accumulator")) }
    }

    fn set_rows(&mut self, rows: usize) -> Result<()> {
        let rows = self.rows.max(rows);
        let too_many = || Error::exhausted(format!("{rows} rows of {} groups are more than one query can hold: ask for fewer groups", self.width()));
        let len = rows.checked_mul(self.width()).filter(|&len| len <= MAX_ENTRIES).ok_or_else(too_many)?;
        self.rows = rows;
        self.n.resize(len, 0);
        self.nnz.resize(len, 0);
        self.mean.resize(len, 0.0);
        self.m2.resize(len, 0.0);
        Ok(())
    }

    /// Adds groups before the last, which stays that of the cells in none.
    fn widen(&mut self, new: Vec<String>) -> Result<()> {
        let (old, added) = (self.width(), new.len());
        if old + added > MAX_GROUPS + 1 {
            return Err(Error::invalid(format!("more than {MAX_GROUPS} groups of cells came together")));
        }
        if self.rows.saturating_mul(old + added) > MAX_ENTRIES {
            return Err(Error::exhausted(format!("{} rows of {} groups are more than one query can hold: ask for fewer groups", self.rows, old + added)));
        }
        fn spread<T: Copy + Default>(from: &[T], old: usize, added: usize) -> Vec<T> {
            let mut to = Vec::with_capacity(from.len() / old * (old + added));
            for row in from.chunks_exact(old) {
                to.extend_from_slice(&row[..old - 1]);
                to.extend(std::iter::repeat_n(T::default(), added));
                to.push(row[old - 1]);
            }
            to
        }
        self.n = spread(&self.n, old, added);
        self.nnz = spread(&self.nnz, old, added);
        self.mean = spread(&self.mean, old, added);
        self.m2 = spread(&self.m2, old, added);
        let mine = self.names.take().unwrap_or_default();
        self.names = Some(mine.iter().cloned().chain(new).collect());
        Ok(())
    }

    /// Merges `other` into the moments of `group` in `row`. Both must have been reserved.
    #[inline]
    pub fn merge(&mut self, row: usize, group: usize, other: &GroupMoments) {
        let at = row * self.width() + group;
        let merged = self.get(at).merged(other);
        self.set(at, &merged);
    }

    fn get(&self, at: usize) -> GroupMoments {
        GroupMoments { n: self.n[at], nnz: self.nnz[at], mean: self.mean[at], m2: self.m2[at] }
    }

    fn set(&mut self, at: usize, m: &GroupMoments) {
        (self.n[at], self.nnz[at], self.mean[at], self.m2[at]) = (m.n, m.nnz, m.mean, m.m2);
    }

    /// Adds one value to `group` in `row` (Welford's update). Both must have been reserved.
    #[inline]
    pub fn add(&mut self, row: usize, group: usize, value: f64) {
        let at = row * self.width() + group;
        self.n[at] += 1;
        self.nnz[at] += u64::from(value != 0.0);
        let delta = value - self.mean[at];
        self.mean[at] += delta / self.n[at] as f64;
        self.m2[at] += delta * (value - self.mean[at]);
    }

    /// Merges states into the rows that `to` names.
    ///
    /// # Errors
    /// Invalid where the columns are no states.
    pub fn merge_states(&mut self, columns: &[ArrayRef], to: &[usize], rows: usize) -> Result<()> {
        let [groups, moments] = columns else { return Err(bad("needs two columns")) };
        let (Some(groups), Some(moments)) = (groups.as_string_view_opt(), moments.as_binary_opt::<i32>()) else {
            return Err(bad("needs a column of groups and one of bytes"));
        };
        if groups.len() != to.len() || moments.len() != to.len() {
            return Err(Error::internal("states do not fit the rows that they are for"));
        }
        self.set_rows(rows)?;
        // Nearly all rows share one header, and equal views are equal texts, so that few need be read.
        let mut headers: HashMap<u128, Option<Arc<Header>>> = HashMap::new();
        let mut last: Option<(u128, Option<Arc<Header>>, Vec<usize>)> = None;
        for (i, &row) in to.iter().enumerate() {
            if groups.is_null(i) {
                continue;
            }
            let view = groups.views()[i];
            if last.as_ref().is_none_or(|(of, ..)| *of != view) {
                let header = match headers.get(&view) {
                    Some(known) => known.clone(),
                    None => {
                        let header = Header::read(groups.value(i))?.map(Arc::new);
                        headers.insert(view, header.clone());
                        header
                    }
                };
                // Afresh each time: where a header brings new groups, places move.
                let places = header.as_ref().map_or(Ok(Vec::new()), |h| self.places(h, rows))?;
                last = Some((view, header, places));
            }
            let Some((_, Some(header), places)) = &last else { continue };
            if moments.is_null(i) {
                return Err(bad("has groups without moments"));
            }
            state::read(moments.value(i), &header.n, |k, m| self.merge(row, places[k], m)).map_err(bad)?;
        }
        Ok(())
    }

    /// Where the header's groups are in this store, which gets those that it lacks.
    fn places(&mut self, header: &Header, rows: usize) -> Result<Vec<usize>> {
        if let Some(mine) = &self.names
            && *mine == header.names
        {
            return Ok((0..=mine.len()).collect());
        }
        self.reserve(&header.names, rows)?;
        let mine = self.names.as_deref().unwrap_or_default();
        let place: HashMap<&str, usize> = mine.iter().enumerate().map(|(i, n)| (n.as_str(), i)).collect();
        let of = |n: &String| place.get(n.as_str()).copied().ok_or_else(|| Error::internal("a group was not added"));
        header.names.iter().map(of).chain([Ok(mine.len())]).collect()
    }

    fn emit(&mut self, emit: EmitTo) -> (usize, Self) {
        let rows = match emit {
            EmitTo::All => self.rows,
            EmitTo::First(n) => n.min(self.rows),
        };
        let len = rows * self.width();
        let taken = EmitTo::First(len);
        let all = rows == self.rows;
        // Without the room to grow: what is emitted may live on as it is.
        fn out<T>(from: &mut Vec<T>, taken: &EmitTo, all: bool) -> Vec<T> {
            let mut out = if all { std::mem::take(from) } else { taken.take_needed(from) };
            out.shrink_to_fit();
            out
        }
        let part = Self {
            names: self.names.clone(),
            rows,
            n: out(&mut self.n, &taken, all),
            nnz: out(&mut self.nnz, &taken, all),
            mean: out(&mut self.mean, &taken, all),
            m2: out(&mut self.m2, &taken, all),
        };
        self.rows -= rows;
        (rows, part)
    }

    /// Takes rows out as the columns of [`state_types`]. `rows` is the number of rows of the aggregate, some of
    /// which may have had no input.
    ///
    /// # Errors
    /// Exhausted where the bytes grow beyond what one array can hold.
    pub fn state(&mut self, emit: EmitTo, rows: usize) -> Result<Vec<ArrayRef>> {
        let failed = |e: arrow::error::ArrowError| Error::internal("cannot write the state of moments").with_source(e);
        self.set_rows(rows)?;
        let (rows, part) = self.emit(emit);
        let width = part.width();
        // Each header once, and which of them is each row's.
        let mut headers = StringViewBuilder::new();
        let mut add = |groups: &[String], n: &[u64]| -> Result<usize> {
            let text = header_text(groups, n)?;
            let len = text.len() as u32;
            let block = headers.append_block(text.into_bytes().into());
            headers.try_append_view(block, 0, len).map_err(failed)?;
            Ok(block as usize)
        };
        let mut of_row = Vec::with_capacity(rows);
        if width == 0 && rows > 0 {
            of_row.resize(rows, add(&[], &[])?);
        }
        let present = part.nnz.iter().filter(|n| **n > 0).count();
        let mut bytes: Vec<u8> = Vec::with_capacity(rows * state::bound(width, 0) + present * (state::bound(width, 1) - state::bound(width, 0)));
        let mut offsets = Vec::with_capacity(rows + 1);
        offsets.push(0i32);
        let mut written: HashMap<&[u64], usize> = HashMap::new();
        let mut last: Option<(&[u64], usize)> = None;
        for row in 0..rows {
            if width > 0 {
                let range = row * width..(row + 1) * width;
                let n = &part.n[range.clone()];
                let header = match last {
                    Some((same, header)) if same == n => header,
                    _ => match written.get(n) {
                        Some(&header) => header,
                        None => {
                            let header = add(part.names.as_deref().unwrap_or_default(), n)?;
                            written.insert(n, header);
                            header
                        }
                    },
                };
                last = Some((n, header));
                of_row.push(header);
                state::put(&mut bytes, n, &part.nnz[range.clone()], &part.mean[range.clone()], &part.m2[range]);
            }
            offsets.push(i32::try_from(bytes.len()).map_err(|_| {
                Error::exhausted(format!("the states of {rows} rows of {width} groups are more than one batch can hold: ask for fewer groups"))
            })?);
        }
        bytes.shrink_to_fit();
        let moments = BinaryArray::try_new(OffsetBuffer::new(offsets.into()), Buffer::from_vec(bytes), None).map_err(failed)?;
        let headers = headers.finish();
        let views = of_row.into_iter().map(|header| headers.views()[header]).collect();
        Ok(vec![Arc::new(with_views(views, &headers, None)), Arc::new(moments)])
    }

    /// Takes rows out as a column of [`result_type`]. `rows` as in [`MomentStore::state`].
    ///
    /// # Errors
    /// Exhausted where the lists grow beyond what one array can hold; Invalid where moments that were each finite are
    /// not any more once merged.
    pub fn result(&mut self, emit: EmitTo, rows: usize) -> Result<ArrayRef> {
        self.set_rows(rows)?;
        let (rows, part) = self.emit(emit);
        let names = part.names.clone().unwrap_or_default();
        let width = part.width();
        if let Some(at) = part.mean.iter().zip(&part.m2).position(|(mean, m2)| !(mean.is_finite() && m2.is_finite())) {
            let group = names.get(at % width).map_or_else(|| "the cells in no group".to_owned(), |name| format!("group {:?}", shorten(name)));
            return Err(Error::invalid(format!("the moments of {group} are beyond the largest number: scale the values")));
        }
        let groups = repeated_names(&names, if width == 0 { 0 } else { rows })?;
        let entries = StructArray::try_new(
            RESULT_FIELDS.clone(),
            vec![
                groups,
                Arc::new(UInt64Array::from(part.n)),
                Arc::new(UInt64Array::from(part.nnz)),
                Arc::new(Float64Array::from(part.mean)),
                Arc::new(Float64Array::from(part.m2)),
            ],
            None,
        )
        .map_err(|e| Error::internal("cannot build moments").with_source(e))?;
        lists(Arc::new(entries), rows, width)
    }

    /// Bytes of memory.
    #[must_use]
    pub fn size(&self) -> usize {
        (self.n.capacity() + self.nnz.capacity() + self.mean.capacity() + self.m2.capacity()) * 8
            + self.names.as_ref().map_or(0, |n| n.iter().map(|n| n.len() + 24).sum())
    }
}

fn header_text(groups: &[String], n: &[u64]) -> Result<String> {
    serde_json::to_string(&HeaderText { groups, n }).map_err(|e| Error::internal("cannot write the state of moments").with_source(e))
}

/// Lists of `width` entries each.
fn lists(values: ArrayRef, rows: usize, width: usize) -> Result<ArrayRef> {
    let len = i32::try_from(rows * width)
        .map_err(|_| Error::exhausted(format!("{rows} rows of {width} groups are more than one batch can hold: ask for fewer groups")))?;
    let offsets: ScalarBuffer<i32> = if width == 0 { vec![0; rows + 1].into() } else { (0..=len).step_by(width).collect::<Vec<_>>().into() };
    let list = ListArray::try_new(item(values.data_type().clone()), OffsetBuffer::new(offsets), values, None)
        .map_err(|e| Error::internal("cannot build moments").with_source(e))?;
    Ok(Arc::new(list))
}

/// The names and a NULL, `times` over, with one copy of each text.
fn repeated_names(names: &[String], times: usize) -> Result<ArrayRef> {
    let failed = |e: arrow::error::ArrowError| Error::internal("cannot build moments").with_source(e);
    let mut builder = StringViewBuilder::with_capacity(names.len() + 1);
    let block = builder.append_block(names.concat().into_bytes().into());
    let mut at = 0u32;
    for name in names {
        let len = name.len() as u32;
        builder.try_append_view(block, at, len).map_err(failed)?;
        at += len;
    }
    builder.append_null();
    let once = builder.finish();
    let len = once.len() * times;
    let mut views = Vec::with_capacity(len);
    (0..times).for_each(|_| views.extend_from_slice(once.views()));
    let mut valid = BooleanBufferBuilder::new(len);
    valid.append_n(len, true);
    (names.len()..len).step_by(once.len()).for_each(|null| valid.set_bit(null, false));
    Ok(Arc::new(with_views(views, &once, (times > 0).then(|| NullBuffer::new(valid.finish())))))
}

/// An array of copies of views that `of` has: Arrow would check again that each names a text.
fn with_views(views: Vec<u128>, of: &StringViewArray, nulls: Option<NullBuffer>) -> StringViewArray {
    // SAFETY: every view is one of `of`, and so are the buffers; where there are nulls, they are one for each view.
    unsafe { StringViewArray::new_unchecked(views.into(), of.data_buffers().to_vec(), nulls) }
}

/// The results of a list column, opened.
#[derive(Debug)]
pub struct Results<'a> {
    offsets: &'a [i32],
    names: &'a arrow::array::StringViewArray,
    n: &'a [u64],
    nnz: &'a [u64],
    mean: &'a [f64],
    m2: &'a [f64],
}

impl<'a> Results<'a> {
    /// Opens a column of [`result_type`].
    ///
    /// # Errors
    /// Invalid where it is of another type.
    pub fn open(column: &'a dyn Array) -> Result<Self> {
        let wrong = || Error::invalid(format!("expected grouped moments, the result of moments() or cell_moments(), but found {}", column.data_type()));
        let list = column.as_list_opt::<i32>().ok_or_else(wrong)?;
        let entries = list.values().as_struct_opt().ok_or_else(wrong)?;
        let [names, n, nnz, mean, m2] = entries.columns() else { return Err(wrong()) };
        use arrow::datatypes::UInt64Type;
        match (
            names.as_string_view_opt(),
            n.as_primitive_opt::<UInt64Type>(),
            nnz.as_primitive_opt::<UInt64Type>(),
            mean.as_primitive_opt::<Float64Type>(),
            m2.as_primitive_opt::<Float64Type>(),
        ) {
            (Some(names), Some(n), Some(nnz), Some(mean), Some(m2)) => {
                Ok(Self { offsets: list.value_offsets(), names, n: n.values(), nnz: nnz.values(), mean: mean.values(), m2: m2.values() })
            }
            _ => Err(wrong()),
        }
    }

    /// The entries of row `row`.
    #[inline]
    #[must_use]
    pub fn range(&self, row: usize) -> std::ops::Range<usize> {
        self.offsets[row] as usize..self.offsets[row + 1] as usize
    }

    /// The name of the group of entry `at`; `None` for the cells in no group.
    #[inline]
    #[must_use]
    pub fn name(&self, at: usize) -> Option<&'a str> {
        (!self.names.is_null(at)).then(|| self.names.value(at))
    }

    /// Whether the entries `a` and `b` are of the same group.
    #[inline]
    #[must_use]
    pub fn same_name(&self, a: usize, b: usize) -> bool {
        // Equal views (length and place, or length and text) are equal texts.
        (self.names.is_null(a) == self.names.is_null(b) && self.names.views()[a] == self.names.views()[b]) || self.name(a) == self.name(b)
    }

    /// The moments of entry `at`.
    #[inline]
    #[must_use]
    pub fn moments(&self, at: usize) -> GroupMoments {
        GroupMoments { n: self.n[at], nnz: self.nnz[at], mean: self.mean[at], m2: self.m2[at] }
    }
}

#[cfg(test)]
mod tests;
