//! A data set in memory: cells, a matrix, its sparse rows and its dense view.
#![allow(dead_code, unreachable_pub)]

use std::sync::Arc;

use datafusion::arrow::array::{
    Array, ArrayRef, AsArray, Float32Array, Float64Array, Float64Builder, Int32Array, ListBuilder, RecordBatch, StringViewArray, StructArray, UInt16Builder,
    UInt32Array, UInt32Builder,
};
use datafusion::arrow::datatypes::{DataType, Field, Float64Type, UInt64Type};
use datafusion::prelude::{SessionConfig, SessionContext};
use skytether_common::{DatasetName, Error, Result};
use skytether_expression::{CellSource, register};

#[derive(Debug, Clone)]
pub struct Data {
    /// Genes by cells.
    pub values: Vec<Vec<u32>>,
    /// Group per cell.
    pub groups: Vec<Option<&'static str>>,
    pub names: Vec<String>,
    pub groups_array: ArrayRef,
    pub totals: Arc<Float32Array>,
}

impl Data {
    pub fn new(values: Vec<Vec<u32>>, groups: Vec<Option<&'static str>>) -> Self {
        let cells = groups.len();
        let totals = (0..cells).map(|c| values.iter().map(|g| g[c]).sum::<u32>() as f32).collect::<Vec<_>>();
        let names = (0..cells).map(|c| format!("cell {c}")).collect();
        let groups_array = Arc::new(StringViewArray::from(groups.clone())) as ArrayRef;
        Self { values, groups, names, groups_array, totals: Arc::new(Float32Array::from(totals)) }
    }

    pub fn cells(&self) -> usize {
        self.groups.len()
    }

    /// Sparse rows of the cells `from` to `to`, in batches of `batch` rows, of type `u16` or f64.
    pub fn rows(&self, batch: usize, wide: bool) -> Vec<RecordBatch> {
        let genes: Vec<usize> = (0..self.values.len()).collect();
        genes.chunks(batch.max(1)).map(|genes| self.rows_of(genes, wide)).collect()
    }

    fn rows_of(&self, genes: &[usize], wide: bool) -> RecordBatch {
        let item = |t| Arc::new(Field::new("item", t, false));
        let mut idx = ListBuilder::new(UInt32Builder::new()).with_field(item(DataType::UInt32));
        let mut narrow = ListBuilder::new(UInt16Builder::new()).with_field(item(DataType::UInt16));
        let mut broad = ListBuilder::new(Float64Builder::new()).with_field(item(DataType::Float64));
        for &g in genes {
            for (c, &v) in self.values[g].iter().enumerate().filter(|(_, v)| **v > 0) {
                idx.values().append_value(c as u32);
                narrow.values().append_value(v as u16);
                broad.values().append_value(f64::from(v));
            }
            idx.append(true);
            narrow.append(true);
            broad.append(true);
        }
        let val: ArrayRef = if wide { Arc::new(broad.finish()) } else { Arc::new(narrow.finish()) };
        RecordBatch::try_from_iter([
            ("gene", Arc::new(StringViewArray::from_iter_values(genes.iter().map(|g| format!("gene {g}")))) as ArrayRef),
            ("gene_id", Arc::new(UInt32Array::from_iter_values(genes.iter().map(|g| *g as u32)))),
            ("block", Arc::new(UInt32Array::from(vec![0; genes.len()]))),
            ("nnz", Arc::new(UInt32Array::from_iter_values(genes.iter().map(|g| self.values[*g].iter().filter(|v| **v > 0).count() as u32)))),
            ("idx", Arc::new(idx.finish())),
            ("val", val),
        ])
        .unwrap()
    }

    pub fn dense(&self) -> RecordBatch {
        let pairs: Vec<(usize, usize)> = (0..self.values.len()).flat_map(|g| (0..self.cells()).map(move |c| (g, c))).collect();
        RecordBatch::try_from_iter([
            ("gene", Arc::new(StringViewArray::from_iter_values(pairs.iter().map(|(g, _)| format!("gene {g}")))) as ArrayRef),
            ("cell", Arc::new(StringViewArray::from_iter_values(pairs.iter().map(|(_, c)| self.names[*c].clone())))),
            ("value", Arc::new(Float64Array::from_iter_values(pairs.iter().map(|(g, c)| f64::from(self.values[*g][*c]))))),
        ])
        .unwrap()
    }

    /// n, nnz, mean, m2 of a gene in a group, from the dense values.
    pub fn model(&self, gene: usize, group: Option<&str>, log: bool) -> (u64, u64, f64, f64) {
        let y: Vec<f64> = (0..self.cells())
            .filter(|c| self.groups[*c] == group)
            .map(|c| {
                let x = self.values[gene][c];
                if log && x > 0 { f64::from((x as f32 / (self.totals.value(c) / 1e4)).ln_1p()) } else { f64::from(x) }
            })
            .collect();
        let mean = if y.is_empty() { 0.0 } else { y.iter().sum::<f64>() / y.len() as f64 };
        (y.len() as u64, y.iter().filter(|v| **v != 0.0).count() as u64, mean, y.iter().map(|v| (v - mean) * (v - mean)).sum())
    }
}

impl CellSource for Data {
    fn n_cells(&self, _: &DatasetName) -> Result<u32> {
        Ok(self.cells() as u32)
    }

    fn obs_column(&self, _: &DatasetName, column: &str) -> Result<ArrayRef> {
        match column {
            "cell_type" => Ok(Arc::clone(&self.groups_array)),
            "short" => Ok(Arc::new(Int32Array::from(vec![1]))),
            _ => Err(Error::not_found(format!("there is no obs column {column:?}; there are cell_type, short"))),
        }
    }

    fn cell_names(&self, _: &DatasetName) -> Result<ArrayRef> {
        Ok(Arc::new(StringViewArray::from_iter_values(&self.names)))
    }

    fn totals(&self, _: &DatasetName, _: &str) -> Result<Arc<Float32Array>> {
        Ok(Arc::clone(&self.totals))
    }
}

/// A session with the functions over `source`, several partitions, small batches.
pub fn session(source: Arc<dyn CellSource>, partitions: usize) -> SessionContext {
    let mut context = SessionContext::new_with_config(SessionConfig::new().with_target_partitions(partitions).with_batch_size(3));
    register(&mut context, source).unwrap();
    context
}

/// One entry of a moments list.
pub type Entry = (Option<String>, u64, u64, f64, f64);

/// The moments of each row.
pub fn entries(column: &ArrayRef) -> Vec<Vec<Entry>> {
    let list = column.as_list::<i32>();
    (0..list.len())
        .map(|row| {
            let entry: StructArray = list.value(row).as_struct().clone();
            let group = entry.column(0).as_string_view().clone();
            let (n, nnz) = (entry.column(1).as_primitive::<UInt64Type>().clone(), entry.column(2).as_primitive::<UInt64Type>().clone());
            let (mean, m2) = (entry.column(3).as_primitive::<Float64Type>().clone(), entry.column(4).as_primitive::<Float64Type>().clone());
            (0..entry.len()).map(|i| ((!group.is_null(i)).then(|| group.value(i).to_owned()), n.value(i), nnz.value(i), mean.value(i), m2.value(i))).collect()
        })
        .collect()
}
