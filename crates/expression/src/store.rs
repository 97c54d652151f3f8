//! Running moments: for each row of an aggregate (a gene) and each group of cells n, number of nonzeros, mean and M2 (the sum of squared
//! differences from the mean), merged by Chan's update with exact counts.
//!
//! As state a row is four columns: `groups` (Utf8View: JSON with the groups' names and n, which is the same text for nearly all genes, so its
//! views share one buffer), `nnz` (List<UInt32>), `mean` and `m2` (List<Float64>). 20,000 genes of 13 groups take 6 MB.

use std::sync::{Arc, LazyLock};

use arrow::array::{Array, ArrayRef, AsArray, Float64Array, ListArray, StringViewBuilder, StructArray, UInt32Array, UInt64Array};
use arrow::buffer::{OffsetBuffer, ScalarBuffer};
use arrow::datatypes::{DataType, Field, FieldRef, Fields, Float64Type, UInt32Type};
use datafusion::logical_expr::EmitTo;
use serde::{Deserialize, Serialize};
use skytether_common::{Error, Result};

use crate::spec::{MAX_GROUPS, check_names};
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
pub fn state_types() -> [(&'static str, DataType); 4] {
    [
        ("groups", DataType::Utf8View),
        ("nnz", DataType::List(item(DataType::UInt32))),
        ("mean", DataType::List(item(DataType::Float64))),
        ("m2", DataType::List(item(DataType::Float64))),
    ]
}

/// What the state's column `groups` holds. `n` has one more entry than `groups`: the cells in no group.
#[derive(Debug, Default, Clone, PartialEq, Serialize, Deserialize)]
struct Header {
    groups: Vec<String>,
    n: Vec<u64>,
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

    /// Makes room for `rows` rows of groups named `names`. Rows that are there keep their moments; groups that they don't know are added.
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
        self.set_rows(rows);
        Ok(())
    }

    fn set_rows(&mut self, rows: usize) {
        self.rows = self.rows.max(rows);
        let len = self.rows * self.width();
        self.n.resize(len, 0);
        self.nnz.resize(len, 0);
        self.mean.resize(len, 0.0);
        self.m2.resize(len, 0.0);
    }

    /// Adds groups before the last, which stays that of the cells in none.
    fn widen(&mut self, new: Vec<String>) -> Result<()> {
        let (old, added) = (self.width(), new.len());
        if old + added > MAX_GROUPS + 1 {
            return Err(Error::invalid(format!("more than {MAX_GROUPS} groups of cells came together")));
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
        let bad = |what: &str| Error::invalid(format!("the state of moments {what}"));
        let [groups, nnz, mean, m2] = columns else { return Err(bad("needs four columns")) };
        let groups = groups.as_string_view_opt().ok_or_else(|| bad("has no column of groups"))?;
        let (nnz, mean, m2) = match (nnz.as_list_opt::<i32>(), mean.as_list_opt::<i32>(), m2.as_list_opt::<i32>()) {
            (Some(a), Some(b), Some(c)) => (a, b, c),
            _ => return Err(bad("needs lists")),
        };
        let (nnz_of, mean_of, m2_of) = match (
            nnz.values().as_primitive_opt::<UInt32Type>(),
            mean.values().as_primitive_opt::<Float64Type>(),
            m2.values().as_primitive_opt::<Float64Type>(),
        ) {
            (Some(a), Some(b), Some(c)) => (a.values(), b.values(), c.values()),
            _ => return Err(bad("holds lists of the wrong type")),
        };
        let mut known: Option<(usize, Header, Vec<usize>)> = None;
        self.set_rows(rows);
        for (i, &row) in to.iter().enumerate() {
            if groups.is_null(i) {
                continue;
            }
            // Nearly all rows share one header; equal views are equal texts, so that most need not be read.
            let same = known.as_ref().is_some_and(|(at, ..)| groups.views()[*at] == groups.views()[i] || groups.value(*at) == groups.value(i));
            if !same {
                let header: Header = serde_json::from_str(groups.value(i)).map_err(|e| bad("has no readable groups").because(e))?;
                if header.n.is_empty() && header.groups.is_empty() {
                    continue;
                }
                if header.n.len() != header.groups.len() + 1 {
                    return Err(bad("counts other groups than it names"));
                }
                check_names(&header.groups)?;
                let names: Arc<[String]> = header.groups.clone().into();
                self.reserve(&names, rows)?;
                let mine = self.names.clone().unwrap_or_default();
                let place: std::collections::HashMap<&str, usize> = mine.iter().enumerate().map(|(i, n)| (n.as_str(), i)).collect();
                let map = header
                    .groups
                    .iter()
                    .map(|n| place.get(n.as_str()).copied().ok_or_else(|| Error::internal("a group was not added")))
                    .chain([Ok(mine.len())])
                    .collect::<Result<Vec<_>>>()?;
                known = Some((i, header, map));
            }
            let Some((_, header, map)) = &known else { continue };
            let (from_nnz, from_mean, from_m2) = (nnz.value_offsets()[i] as usize, mean.value_offsets()[i] as usize, m2.value_offsets()[i] as usize);
            if [nnz.value_length(i), mean.value_length(i), m2.value_length(i)].iter().any(|&l| l as usize != map.len()) {
                return Err(bad("has lists of the wrong length"));
            }
            for (k, &group) in map.iter().enumerate() {
                let m = GroupMoments { n: header.n[k], nnz: u64::from(nnz_of[from_nnz + k]), mean: mean_of[from_mean + k], m2: m2_of[from_m2 + k] };
                self.merge(row, group, &m);
            }
        }
        Ok(())
    }

    fn emit(&mut self, emit: EmitTo) -> (usize, Self) {
        let rows = match emit {
            EmitTo::All => self.rows,
            EmitTo::First(n) => n.min(self.rows),
        };
        let len = rows * self.width();
        let taken = EmitTo::First(len);
        let all = rows == self.rows;
        let part = Self {
            names: self.names.clone(),
            rows,
            n: if all { std::mem::take(&mut self.n) } else { taken.take_needed(&mut self.n) },
            nnz: if all { std::mem::take(&mut self.nnz) } else { taken.take_needed(&mut self.nnz) },
            mean: if all { std::mem::take(&mut self.mean) } else { taken.take_needed(&mut self.mean) },
            m2: if all { std::mem::take(&mut self.m2) } else { taken.take_needed(&mut self.m2) },
        };
        self.rows -= rows;
        (rows, part)
    }

    /// Takes rows out as the columns of [`state_types`]. `rows` is the number of rows of the aggregate, some of which may have had no input.
    ///
    /// # Errors
    /// Invalid where a number of nonzeros exceeds 32 bits.
    pub fn state(&mut self, emit: EmitTo, rows: usize) -> Result<Vec<ArrayRef>> {
        self.set_rows(rows);
        let (rows, part) = self.emit(emit);
        let width = part.width();
        let mut headers = StringViewBuilder::with_capacity(rows);
        let mut last: Option<(&[u64], u32, u32)> = None;
        for n in part.n.chunks_exact(width.max(1)) {
            let (block, len) = match last {
                Some((same, block, len)) if same == n => (block, len),
                _ => {
                    let text = header_text(part.names.as_deref().unwrap_or_default(), n)?;
                    let len = text.len() as u32;
                    (headers.append_block(text.into_bytes().into()), len)
                }
            };
            headers.try_append_view(block, 0, len).map_err(|e| Error::internal("cannot write the state of moments").because(e))?;
            last = Some((n, block, len));
        }
        if width == 0 {
            for _ in 0..rows {
                headers.append_value(r#"{"groups":[],"n":[]}"#);
            }
        }
        let nnz = part
            .nnz
            .iter()
            .map(|&n| u32::try_from(n))
            .collect::<std::result::Result<Vec<_>, _>>()
            .map_err(|_| Error::invalid("a group has more nonzeros than there can be cells"))?;
        Ok(vec![
            Arc::new(headers.finish()),
            lists(Arc::new(UInt32Array::from(nnz)), rows, width)?,
            lists(Arc::new(Float64Array::from(part.mean)), rows, width)?,
            lists(Arc::new(Float64Array::from(part.m2)), rows, width)?,
        ])
    }

    /// Takes rows out as a column of [`result_type`]. `rows` as in [`MomentStore::state`].
    ///
    /// # Errors
    /// Exhausted where the lists grow beyond what one array can hold.
    pub fn result(&mut self, emit: EmitTo, rows: usize) -> Result<ArrayRef> {
        self.set_rows(rows);
        let (rows, part) = self.emit(emit);
        let names = part.names.clone().unwrap_or_default();
        let width = part.width();
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
        .map_err(|e| Error::internal("cannot build moments").because(e))?;
        lists(Arc::new(entries), rows, width)
    }

    /// Bytes of memory.
    #[must_use]
    pub fn size(&self) -> usize {
        (self.n.capacity() + self.nnz.capacity() + self.mean.capacity() + self.m2.capacity()) * 8
            + self.names.as_ref().map_or(0, |n| n.iter().map(|n| n.len() + 24).sum())
    }
}

fn header_text(names: &[String], n: &[u64]) -> Result<String> {
    serde_json::to_string(&Header { groups: names.to_vec(), n: n.to_vec() }).map_err(|e| Error::internal("cannot write the state of moments").because(e))
}

/// Lists of `width` entries each.
fn lists(values: ArrayRef, rows: usize, width: usize) -> Result<ArrayRef> {
    let len = i32::try_from(rows * width)
        .map_err(|_| Error::exhausted(format!("{rows} rows of {width} groups are more than one batch can hold: ask for fewer groups")))?;
    let offsets: ScalarBuffer<i32> = if width == 0 { vec![0; rows + 1].into() } else { (0..=len).step_by(width).collect::<Vec<_>>().into() };
    let list = ListArray::try_new(item(values.data_type().clone()), OffsetBuffer::new(offsets), values, None)
        .map_err(|e| Error::internal("cannot build moments").because(e))?;
    Ok(Arc::new(list))
}

/// The names and a NULL, `times` over, with one copy of each text.
fn repeated_names(names: &[String], times: usize) -> Result<ArrayRef> {
    let failed = |e: arrow::error::ArrowError| Error::internal("cannot build moments").because(e);
    let mut builder = StringViewBuilder::with_capacity((names.len() + 1) * times);
    let text: String = names.concat();
    let block = builder.append_block(text.into_bytes().into());
    for _ in 0..times {
        let mut at = 0u32;
        for name in names {
            let len = name.len() as u32;
            builder.try_append_view(block, at, len).map_err(failed)?;
            at += len;
        }
        builder.append_null();
    }
    Ok(Arc::new(builder.finish()))
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

    /// Where row `row`'s entries lie.
    #[must_use]
    pub fn range(&self, row: usize) -> std::ops::Range<usize> {
        self.offsets[row] as usize..self.offsets[row + 1] as usize
    }

    /// The name of the group of entry `at`; `None` for the cells in no group.
    #[must_use]
    pub fn name(&self, at: usize) -> Option<&'a str> {
        (!self.names.is_null(at)).then(|| self.names.value(at))
    }

    /// Whether the entries `a` and `b` are of the same group.
    #[must_use]
    pub fn same_name(&self, a: usize, b: usize) -> bool {
        // Equal views (length and place, or length and text) are equal texts.
        (self.names.is_null(a) == self.names.is_null(b) && self.names.views()[a] == self.names.views()[b]) || self.name(a) == self.name(b)
    }

    /// The moments of entry `at`.
    #[must_use]
    pub fn moments(&self, at: usize) -> GroupMoments {
        GroupMoments { n: self.n[at], nnz: self.nnz[at], mean: self.mean[at], m2: self.m2[at] }
    }
}
