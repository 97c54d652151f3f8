//! A spec's groups, resolved against a data set's cells: a small number per cell.

use std::collections::HashMap;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Float32Array, UInt32Array};
use arrow::compute::{SortOptions, cast, sort_to_indices, take};
use arrow::datatypes::DataType;
use skytether_common::{Blocks, Error, Result};

use crate::cells::CellSource;
use crate::kernel::Codes;
use crate::spec::{Groups, MAX_GROUPS, MomentsSpec, Transform, unpack};

pub use crate::prepared::{Prepared, PreparedCache};

/// Cells per block, at most: a sparse row belongs to one gene and one block.
pub use skytether_common::BLOCK;

impl Prepared {
    /// Resolves `spec`.
    ///
    /// # Errors
    /// What `source` answers; invalid where groups or totals do not fit the data set's cells.
    pub fn new(spec: &MomentsSpec, source: &dyn CellSource) -> Result<Self> {
        Self::over(spec, source, source.blocks(&spec.dataset, &spec.matrix)?)
    }

    fn over(spec: &MomentsSpec, source: &dyn CellSource, blocks: Blocks) -> Result<Self> {
        let n_cells = source.n_cells(&spec.dataset)?;
        let (names, codes, column) = match &spec.groups {
            Groups::Obs { column } => {
                let values = source.obs_column(&spec.dataset, column)?;
                if values.len() != n_cells as usize {
                    return Err(Error::corrupt(format!("obs column {column:?} of {} has {} values for {n_cells} cells", spec.dataset, values.len())));
                }
                let (names, codes) = of_column(column, &values)?;
                (names, codes, Some(Arc::downgrade(&values)))
            }
            Groups::Codes { names, codes } => (names.clone(), Groups::decode_codes(names, codes, n_cells)?, None),
        };
        let totals = match (spec.transform, &spec.totals) {
            (None, None) => None,
            (None, Some(_)) => return Err(Error::invalid("totals mean nothing without a transform: leave them out")),
            (Some(transform), Some(_)) if !transform.needs_totals() => {
                return Err(Error::invalid(format!("the transform {transform} scales no cell: leave the totals out")));
            }
            (Some(_), Some(text)) => {
                let totals = unpack(text, n_cells as usize, "the totals of a spec")?;
                if totals.len() != n_cells as usize {
                    return Err(Error::invalid(format!("a spec has {} totals for the {n_cells} cells of {}", totals.len(), spec.dataset)));
                }
                Some(Arc::new(Float32Array::from(totals)))
            }
            (Some(transform), None) if !transform.needs_totals() => Some(Arc::new(Float32Array::from(vec![1.0; n_cells as usize]))),
            (Some(_), None) => {
                let totals = source.totals(&spec.dataset, &spec.matrix)?;
                if totals.len() != n_cells as usize || totals.null_count() > 0 {
                    return Err(Error::corrupt(format!("matrix {} of {} has {} totals for {n_cells} cells", spec.matrix, spec.dataset, totals.len())));
                }
                Some(totals)
            }
        };
        let mut cells = vec![0u64; names.len() + 1];
        codes.iter().for_each(|&code| cells[usize::from(code)] += 1);
        let counts = blocks.each().map(|block| {
            let of = codes.get(block.start as usize..block.end as usize).ok_or_else(|| {
                let text = format!("{}.{} has a block of cells {} to {}, but the data set has {n_cells}", spec.dataset, spec.matrix, block.start, block.end);
                Error::corrupt(text)
            })?;
            let mut counts = vec![0u32; names.len() + 1];
            of.iter().for_each(|&code| counts[usize::from(code)] += 1);
            Ok(counts)
        });
        let counts = counts.collect::<Result<_>>()?;
        Ok(Self { names: names.into(), codes: Codes::new(codes), blocks, counts, cells, totals, formula: spec.transform.map(Transform::formula), column })
    }

    fn still_holds(&self, spec: &MomentsSpec, source: &dyn CellSource) -> Result<bool> {
        let column = match (&spec.groups, &self.column) {
            (Groups::Obs { column }, Some(old)) => std::ptr::addr_eq(Arc::as_ptr(&source.obs_column(&spec.dataset, column)?), old.as_ptr()),
            _ => source.n_cells(&spec.dataset)? == self.n_cells(),
        };
        let totals = match &self.totals {
            Some(old) if spec.asks_for_totals() => Arc::ptr_eq(&source.totals(&spec.dataset, &spec.matrix)?, old),
            _ => true,
        };
        Ok(column && totals)
    }
}

impl PreparedCache {
    /// `spec` resolved.
    ///
    /// # Errors
    /// As [`Prepared::new`].
    pub fn get(&self, spec: &MomentsSpec, source: &dyn CellSource) -> Result<Arc<Prepared>> {
        let blocks = source.blocks(&spec.dataset, &spec.matrix)?;
        self.get_or_resolve(spec, &blocks, |prepared| prepared.still_holds(spec, source), || Prepared::over(spec, source, blocks.clone()))
    }
}

/// Whether values of this type can name groups: others have no order, or no text that distinguishes them.
fn names_groups(data_type: &DataType) -> bool {
    match data_type {
        DataType::Dictionary(_, values) => names_groups(values) && !matches!(**values, DataType::Dictionary(..)),
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View | DataType::Boolean => true,
        other => other.is_numeric() || (other.is_temporal() && !matches!(other, DataType::Interval(_))),
    }
}

/// The distinct values of an obs column in ascending order (numbers by value, texts by bytes), as text, and each
/// cell's group. Cells without a value are in none, and neither are those with NaN, which is how tables of
/// numbers write "no value".
fn of_column(column: &str, values: &ArrayRef) -> Result<(Vec<String>, Vec<u16>)> {
    let refused = || {
        Error::invalid(format!(
            "obs column {column:?} of type {} can't be a grouping: use one of text, categories, numbers, booleans, dates or times",
            values.data_type()
        ))
    };
    let failed = |e: arrow::error::ArrowError| refused().with_source(e);
    if values.data_type() == &DataType::Null {
        return Ok((Vec::new(), vec![0; values.len()]));
    }
    if !names_groups(values.data_type()) {
        return Err(refused());
    }
    // With a dictionary a value is known by its key.
    let (keys, distinct): (Option<Vec<Option<usize>>>, ArrayRef) = match values.data_type() {
        DataType::Dictionary(_, _) => {
            let dictionary = values.as_any_dictionary();
            let normalised = if dictionary.values().is_empty() { vec![0; values.len()] } else { dictionary.normalized_keys() };
            let keys = normalised.into_iter().enumerate().map(|(i, k)| (!values.is_null(i) && !dictionary.values().is_null(k)).then_some(k)).collect();
            (Some(keys), Arc::clone(dictionary.values()))
        }
        _ => (None, Arc::clone(values)),
    };
    let text = cast(&distinct, &DataType::Utf8).map_err(failed)?;
    let text = text.as_string::<i32>();
    let float = distinct.data_type().is_floating();
    // A value without a text is none either.
    let is_value = |at: &usize| !(text.is_null(*at) || float && text.value(*at) == "NaN");

    // Positions in `distinct` of the values that occur, each text once; a dictionary may repeat a
    // value and hold unused ones.
    let mut number_of: HashMap<&str, u32> = HashMap::new();
    let mut first: Vec<u32> = Vec::new();
    let mut raw = Vec::with_capacity(values.len());
    let mut by_key: Vec<u32> = vec![u32::MAX; if keys.is_some() { distinct.len() } else { 0 }];
    for cell in 0..values.len() {
        let at = match &keys {
            None => Some(cell),
            Some(keys) => keys[cell],
        };
        let Some(at) = at.filter(is_value) else {
            raw.push(u32::MAX);
            continue;
        };
        if let Some(&known) = by_key.get(at)
            && known != u32::MAX
        {
            raw.push(known);
            continue;
        }
        let next = first.len() as u32;
        let number = *number_of.entry(text.value(at)).or_insert(next);
        if number == next {
            if first.len() >= MAX_GROUPS {
                return Err(Error::invalid(format!("obs column {column:?} has more than {MAX_GROUPS} distinct values: it is no grouping of cells")));
            }
            first.push(at as u32);
        }
        if let Some(slot) = by_key.get_mut(at) {
            *slot = number;
        }
        raw.push(number);
    }

    let occurring = take(&distinct, &UInt32Array::from(first.clone()), None).map_err(failed)?;
    let order = sort_to_indices(&occurring, Some(SortOptions::default()), None).map_err(failed)?;
    let mut rank = vec![0u16; first.len()];
    let mut names = Vec::with_capacity(first.len());
    for (place, &number) in order.values().iter().enumerate() {
        rank[number as usize] = place as u16;
        names.push(text.value(first[number as usize] as usize).to_owned());
    }
    let rest = names.len() as u16;
    Ok((names, raw.into_iter().map(|n| if n == u32::MAX { rest } else { rank[n as usize] }).collect()))
}

#[cfg(test)]
mod tests {
    use arrow::array::{
        BinaryArray, BooleanArray, Date32Array, DictionaryArray, Float64Array, Int32Array, Int64Array, ListArray, NullArray, StringArray, StringViewArray,
        StructArray,
    };
    use arrow::datatypes::Int32Type;
    use skytether_common::{DatasetName, Kind};

    use parking_lot::Mutex;

    use super::*;

    fn groups(array: impl Array + 'static) -> (Vec<String>, Vec<u16>) {
        of_column("c", &(Arc::new(array) as ArrayRef)).unwrap()
    }

    /// Cells whose column may be replaced, without totals.
    #[derive(Debug)]
    struct Cells(Mutex<Option<ArrayRef>>, Arc<PreparedCache>);

    impl CellSource for Cells {
        fn n_cells(&self, dataset: &DatasetName) -> Result<u32> {
            self.obs_column(dataset, "c").map(|column| column.len() as u32)
        }

        fn obs_column(&self, dataset: &DatasetName, _: &str) -> Result<ArrayRef> {
            self.0.lock().clone().ok_or_else(|| Error::not_found(format!("{dataset} is gone")))
        }

        fn cell_names(&self, dataset: &DatasetName) -> Result<ArrayRef> {
            self.obs_column(dataset, "cell")
        }

        fn totals(&self, dataset: &DatasetName, _: &str) -> Result<Arc<Float32Array>> {
            Err(Error::not_found(format!("{dataset} has no totals")))
        }

        fn prepared(&self) -> Arc<PreparedCache> {
            Arc::clone(&self.1)
        }
    }

    /// Cells whose column comes from a task of the runtime, as that of a remote drive does.
    #[derive(Debug)]
    struct Remote(Cells, tokio::runtime::Handle);

    impl CellSource for Remote {
        fn n_cells(&self, dataset: &DatasetName) -> Result<u32> {
            self.0.n_cells(dataset)
        }

        fn obs_column(&self, dataset: &DatasetName, column: &str) -> Result<ArrayRef> {
            let (sender, receiver) = std::sync::mpsc::channel();
            self.1.spawn(async move {
                // The other partitions come to the cache meanwhile.
                tokio::time::sleep(std::time::Duration::from_millis(100)).await;
                let _ = sender.send(());
            });
            skytether_runtime::waiting(|| receiver.recv()).unwrap();
            self.0.obs_column(dataset, column)
        }

        fn cell_names(&self, dataset: &DatasetName) -> Result<ArrayRef> {
            self.0.cell_names(dataset)
        }

        fn totals(&self, dataset: &DatasetName, matrix: &str) -> Result<Arc<Float32Array>> {
            self.0.totals(dataset, matrix)
        }

        fn prepared(&self) -> Arc<PreparedCache> {
            self.0.prepared()
        }
    }

    /// The partitions of a query take all threads of the runtime, and its tasks must run all the same.
    #[test]
    fn partitions_that_wait_for_groups_hold_no_thread() {
        let (done, ended) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_time().build().unwrap();
            let column = Arc::new(StringArray::from(vec!["a", "b"])) as ArrayRef;
            let cells = Arc::new(Remote(Cells(Mutex::new(Some(column)), Arc::default()), runtime.handle().clone()));
            let partition = |_| {
                let cells = Arc::clone(&cells);
                runtime.spawn(async move {
                    let groups = Groups::Obs { column: "c".into() };
                    let spec =
                        MomentsSpec { dataset: "a.b".parse().unwrap(), matrix: "x".into(), groups, transform: None, squares: Default::default(), totals: None };
                    cells.prepared().get(&spec, cells.as_ref()).unwrap().names.len()
                })
            };
            let partitions: Vec<_> = (0..8).map(partition).collect();
            for partition in partitions {
                assert_eq!(runtime.block_on(partition).unwrap(), 2);
            }
            done.send(()).unwrap();
        });
        ended.recv_timeout(std::time::Duration::from_secs(60)).expect("the partitions wait for each other");
    }

    #[test]
    fn resolved_groups_hold_for_the_identical_column_only() {
        let column = || Arc::new(StringArray::from(vec!["a", "b", "a"])) as ArrayRef;
        let cells = Cells(Mutex::new(Some(column())), Arc::default());
        let of = |groups: Groups| MomentsSpec {
            dataset: "a.b".parse().unwrap(),
            matrix: "x".into(),
            groups,
            transform: None,
            squares: Default::default(),
            totals: None,
        };
        let spec = of(Groups::Obs { column: "c".into() });
        let first = cells.prepared().get(&spec, &cells).unwrap();
        assert!(Arc::ptr_eq(&first, &cells.prepared().get(&spec, &cells).unwrap()));
        // Replaced by an equal column, whose content the cache does not compare, and by a different one.
        *cells.0.lock() = Some(column());
        assert!(!Arc::ptr_eq(&first, &cells.prepared().get(&spec, &cells).unwrap()));
        *cells.0.lock() = Some(Arc::new(StringArray::from(vec!["b", "c"])));
        assert_eq!(cells.prepared().get(&spec, &cells).unwrap().names[..], ["b", "c"]);
        // A query that may not see the cells does not get their groups either.
        *cells.0.lock() = None;
        assert_eq!(cells.prepared().get(&spec, &cells).unwrap_err().kind(), Kind::NotFound);
    }

    #[test]
    fn values_become_groups_in_order_and_nulls_none() {
        let expected = (vec!["B".to_owned(), "NK".to_owned(), "ü".to_owned()], vec![1, 3, 0, 2, 0]);
        let values = [Some("NK"), None, Some("B"), Some("ü"), Some("B")];
        assert_eq!(groups(StringArray::from(values.to_vec())), expected);
        assert_eq!(groups(StringViewArray::from(values.to_vec())), expected);
        assert_eq!(groups(values.into_iter().collect::<DictionaryArray<Int32Type>>()), expected);
    }

    #[test]
    fn dictionaries_with_repeated_unused_and_null_values() {
        let values = Arc::new(StringArray::from(vec![Some("x"), None, Some("unused"), Some("x"), Some("a")]));
        let array = DictionaryArray::<Int32Type>::new(Int32Array::from(vec![Some(3), Some(1), Some(0), None, Some(4)]), values);
        assert_eq!(groups(array), (vec!["a".to_owned(), "x".to_owned()], vec![1, 2, 1, 2, 0]));
        let empty = DictionaryArray::<Int32Type>::new(Int32Array::from(vec![None, None]), Arc::new(StringArray::from(Vec::<&str>::new())));
        assert_eq!(groups(empty), (vec![], vec![0, 0]));
    }

    #[test]
    fn numbers_sort_as_numbers() {
        assert_eq!(groups(Int64Array::from(vec![10, 9, 10])), (vec!["9".to_owned(), "10".to_owned()], vec![1, 0, 1]));
        assert_eq!(groups(BooleanArray::from(vec![true, false])).0, ["false", "true"]);
    }

    #[test]
    fn cells_with_nan_are_in_no_group() {
        let expected = (vec!["-1.5".to_owned(), "2.0".to_owned()], vec![1, 2, 0, 2, 1]);
        let values = [Some(2.0), Some(f64::NAN), Some(-1.5), None, Some(2.0)];
        assert_eq!(groups(Float64Array::from(values.to_vec())), expected);
        let categories = Arc::new(Float64Array::from(vec![f64::NAN, -1.5, 2.0]));
        let keys = Int32Array::from(vec![Some(2), Some(0), Some(1), None, Some(2)]);
        assert_eq!(groups(DictionaryArray::<Int32Type>::new(keys, categories)), expected);
        // A text is a text.
        assert_eq!(groups(StringArray::from(vec!["NaN"])).0, ["NaN"]);
        assert_eq!(groups(NullArray::new(2)), (vec![], vec![0, 0]));
        assert_eq!(groups(Date32Array::from(vec![Some(0), None])), (vec!["1970-01-01".to_owned()], vec![0, 1]));
    }

    #[test]
    fn unsupported_groupings_are_refused_by_name() {
        let many = Int64Array::from_iter_values(0..=MAX_GROUPS as i64);
        let error = of_column("barcode", &(Arc::new(many) as ArrayRef)).unwrap_err();
        assert!(error.to_string().contains("\"barcode\"") && error.to_string().contains("65534"), "{error}");
        let lists = || ListArray::from_iter_primitive::<Int32Type, _, _>([Some([Some(1)])]);
        let structs = StructArray::try_from(vec![("n", Arc::new(Int32Array::from(vec![1])) as ArrayRef)]).unwrap();
        let in_categories = DictionaryArray::<Int32Type>::new(Int32Array::from(vec![0]), Arc::new(lists()));
        let nested: [ArrayRef; 4] = [Arc::new(lists()), Arc::new(structs), Arc::new(in_categories), Arc::new(BinaryArray::from(vec![&b"\xff"[..]]))];
        for array in nested {
            let error = of_column("tags", &array).unwrap_err();
            assert_eq!(error.kind(), Kind::Invalid);
            let text = error.to_string();
            let taken = ["text", "categories", "numbers", "booleans", "dates", "times"];
            assert!(text.contains("\"tags\"") && taken.iter().all(|t| text.contains(t)), "{text}");
        }
    }
}
