//! The spec of sums per cell. It travels as a JSON literal in the query.
//!
//! ```json
//! {"of": {"dataset": "a.b", "matrix": "x", "groups": {"names": [], "codes": ""}, "transform": null},
//!  "sums": [{"of": "values"}, {"of": "nonzeros"}, {"of": "values", "weights": "KLUv..."}], "top": [50, 100]}
//! ```

use serde::{Deserialize, Serialize};
use skytether_common::{Error, Result};

use super::CELL_SUMS;
use crate::spec::{Groups, MomentsSpec, read_spec, unpack, write_spec};

/// The most sums of one query; a block of cells takes 512 KiB for each.
const MAX_SUMS: usize = 256;
/// The most weights of all sums together: 256 MiB.
const MAX_WEIGHTS: usize = 1 << 26;

/// The literal argument of `cell_sums`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CellSumsSpec {
    /// Cells and transform, as `moments` takes them. The groups are none.
    pub of: MomentsSpec,
    /// The sums, in the order of the result.
    pub sums: Vec<CellSum>,
    /// Numbers n: the sum of each cell's n largest values, for counts without a transform.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub top: Vec<u32>,
}

/// One sum.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CellSum {
    /// What is added up.
    pub of: SumOf,
    /// A weight per gene, from gene 0 on; genes beyond have the weight 0. `None`: all genes, with the weight 1. Make
    /// the text with [`crate::spec::pack`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weights: Option<String>,
}

/// What a sum adds up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SumOf {
    /// The transformed values.
    Values,
    /// The number of those that are not zero.
    Nonzeros,
}

impl CellSumsSpec {
    /// The JSON text, on one line.
    ///
    /// # Errors
    /// Internal, should JSON ever fail to hold it.
    pub fn to_literal(&self) -> Result<String> {
        write_spec(CELL_SUMS, self)
    }

    /// Reads [`CellSumsSpec::to_literal`]'s text back.
    ///
    /// # Errors
    /// Invalid where it is anything else, or asks for too much.
    pub fn from_literal(text: &str) -> Result<Self> {
        let spec: Self = read_spec(CELL_SUMS, text)?;
        spec.check()?;
        Ok(spec)
    }

    fn check(&self) -> Result<()> {
        let wrong = |what: String| Err(Error::invalid(format!("the spec of cell_sums {what}")));
        if self.of.groups != Groups::none() {
            return wrong("has groups of cells: each cell has sums of its own".into());
        }
        let asked = self.sums.len() + self.top.len();
        if asked == 0 || asked > MAX_SUMS {
            return wrong(format!("asks for {asked} sums: ask for 1 to {MAX_SUMS} in one query"));
        }
        if !self.top.is_empty() && self.of.transform.is_some() {
            return wrong("asks for the largest values of a transform: they are those of counts".into());
        }
        if self.top.contains(&0) || !self.top.is_sorted() {
            return wrong("asks for the largest values in numbers that are 0 or do not ascend".into());
        }
        Ok(())
    }

    /// The weights of each sum.
    ///
    /// # Errors
    /// Invalid where they are no numbers, or too many.
    pub fn weights(&self) -> Result<Vec<Option<Vec<f32>>>> {
        let mut left = MAX_WEIGHTS;
        let mut read = |text: &String| {
            let weights = unpack(text, left, "the weights of cell_sums")?;
            left -= weights.len();
            match weights.iter().position(|w| !w.is_finite()) {
                Some(gene) => Err(Error::invalid(format!("gene {gene} has the weight {} in cell_sums: give finite numbers", weights[gene]))),
                None => Ok(weights),
            }
        };
        self.sums.iter().map(|sum| sum.weights.as_ref().map(&mut read).transpose()).collect()
    }
}
