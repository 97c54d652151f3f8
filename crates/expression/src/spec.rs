//! The spec of grouped moments: data set, matrix, groups of cells, transform. It travels as a JSON literal in the
//! query.
//!
//! ```json
//! {"dataset": "blood.pbmc3k", "matrix": "x", "groups": {"obs": "cell_type"}, "transform": "log1p_cp10k"}
//! {"dataset": "blood.pbmc3k", "matrix": "x", "groups": {"names": ["a", "b"], "codes": "KLUv..."}, "transform": null}
//! ```

use std::io::Read;

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use skytether_common::{DatasetName, Error, Result};

pub(crate) use crate::shorten::shorten;
pub use crate::transform::Transform;

/// The most groups that one query can have.
pub const MAX_GROUPS: usize = 65_534;

/// In [`Groups::Codes`]: a cell that is in no group.
pub const NO_GROUP: u16 = u16::MAX;

/// The longest literal, in bytes; codes of some hundred million cells fit.
pub const MAX_LITERAL: usize = 1 << 28;

/// The literal argument of `moments`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MomentsSpec {
    /// The data set whose obs and totals are meant.
    pub dataset: DatasetName,
    /// The matrix: `x`, `raw_x` or `layer_<name>`. Decides which totals apply.
    pub matrix: String,
    /// The groups of cells.
    pub groups: Groups,
    /// What is done to each value before it counts; `None`: nothing.
    #[serde(default)]
    pub transform: Option<Transform>,
    /// In which precision values are squared.
    #[serde(default, skip_serializing_if = "Squares::is_exact")]
    pub squares: Squares,
    /// The cells' totals for the transform, where they are others than those of the matrix: those of some genes. Make
    /// the text with [`pack`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub totals: Option<String>,
}

/// In which precision a value is squared before it is added up (in doubles, always).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Squares {
    /// In doubles, which is exact for float32 values.
    #[default]
    Float64,
    /// In float32, as scanpy squares float32 values (`value * value` in `sparse_mean_var_minor_axis`): in groups of few
    /// cells its scores can only be met so.
    Float32,
}

impl Squares {
    fn is_exact(&self) -> bool {
        *self == Self::Float64
    }
}

/// Which cell is in which group; a cell is in at most one.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(untagged, try_from = "GroupsText")]
pub enum Groups {
    /// By a column of obs: a group per distinct value, cells without a value in none. Each node reads its own copy.
    Obs {
        /// The column's name.
        #[serde(rename = "obs")]
        column: String,
    },
    /// Cell by cell. Make one with [`Groups::codes`].
    Codes {
        /// The groups' names; they differ from each other.
        names: Vec<String>,
        /// Base64 of the ZSTD-compressed group numbers, u16 little-endian, one per cell,
        /// [`NO_GROUP`] for cells in none. Empty where there are no names: no cell is in a group.
        codes: String,
    },
}

/// [`Groups`] as they are read: one shape for both kinds, so that a wrong key is refused by its name
/// instead of being overlooked.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct GroupsText {
    obs: Option<String>,
    names: Option<Vec<String>>,
    codes: Option<String>,
}

impl TryFrom<GroupsText> for Groups {
    type Error = &'static str;

    fn try_from(text: GroupsText) -> std::result::Result<Self, Self::Error> {
        match text {
            GroupsText { obs: Some(column), names: None, codes: None } => Ok(Groups::Obs { column }),
            GroupsText { obs: None, names: Some(names), codes: Some(codes) } => Ok(Groups::Codes { names, codes }),
            _ => Err("groups are either {\"obs\": column} or {\"names\": [...], \"codes\": \"...\"}"),
        }
    }
}

impl Groups {
    /// No groups, for aggregates that need none.
    #[must_use]
    pub fn none() -> Self {
        Groups::Codes { names: Vec::new(), codes: String::new() }
    }

    /// Groups given cell by cell: `codes[i]` is the position in `names` of cell i's group, -1 where it is in none.
    ///
    /// # Errors
    /// Invalid where a code is out of range, a name repeats or there are more than [`MAX_GROUPS`] names.
    pub fn codes(names: Vec<String>, codes: &[i32]) -> Result<Self> {
        check_names(&names)?;
        let mut bytes = Vec::with_capacity(codes.len() * 2);
        for (cell, &code) in codes.iter().enumerate() {
            let code = match u16::try_from(code) {
                _ if code == -1 => NO_GROUP,
                Ok(c) if usize::from(c) < names.len() => c,
                _ => {
                    return Err(Error::invalid(format!(
                        "cell {cell} has group {code}, but there are {} groups: use 0 to {} or -1",
                        names.len(),
                        names.len().saturating_sub(1)
                    )));
                }
            };
            bytes.extend_from_slice(&code.to_le_bytes());
        }
        let packed = zstd::bulk::compress(&bytes, 3).map_err(|e| Error::internal("cannot compress group codes").with_source(e))?;
        Ok(Groups::Codes { names, codes: BASE64.encode(packed) })
    }

    /// Reads back the text of [`Groups::Codes`]: a group number per cell, `names.len()` for cells in none.
    ///
    /// # Errors
    /// Invalid where the text is no such encoding, is not for `n_cells` cells, or names a group that does not exist.
    pub(crate) fn decode_codes(names: &[String], codes: &str, n_cells: u32) -> Result<Vec<u16>> {
        check_names(names)?;
        if names.is_empty() && codes.is_empty() {
            return Ok(vec![0; n_cells as usize]);
        }
        let bad = |what: &str| Error::invalid(format!("the groups' codes {what}"));
        let len = n_cells as usize * 2;
        let packed = BASE64.decode(codes).map_err(|e| bad("are not base64").with_source(e))?;
        // One byte more than fits, so that codes for more cells are noticed; never more memory than the data
        // set's own cells warrant.
        let bytes = zstd::bulk::decompress(&packed, len + 1).map_err(|e| bad(&format!("do not unpack to {n_cells} cells")).with_source(e))?;
        if bytes.len() != len {
            return Err(bad(&format!("are for {} cells, but the data set has {n_cells}", bytes.len() / 2)));
        }
        let rest = names.len() as u16;
        bytes
            .chunks_exact(2)
            .enumerate()
            .map(|(cell, b)| match u16::from_le_bytes([b[0], b[1]]) {
                NO_GROUP => Ok(rest),
                code if code < rest => Ok(code),
                code => Err(bad(&format!("put cell {cell} into group {code} of {rest}"))),
            })
            .collect()
    }
}

impl MomentsSpec {
    /// Whether it needs the totals that the data set keeps of its cells.
    #[must_use]
    pub fn asks_for_totals(&self) -> bool {
        self.totals.is_none() && self.transform.is_some_and(Transform::needs_totals)
    }

    /// The JSON text, on one line.
    ///
    /// # Errors
    /// Internal, should JSON ever fail to hold it.
    pub fn to_literal(&self) -> Result<String> {
        write_spec("moments", self)
    }

    /// Reads [`MomentsSpec::to_literal`]'s text back.
    ///
    /// # Errors
    /// Invalid where it is anything else.
    pub fn from_literal(text: &str) -> Result<Self> {
        read_spec("moments", text)
    }
}

/// The spec of aggregate `of` as a literal.
///
/// # Errors
/// Internal, should JSON ever fail to hold it.
pub(crate) fn write_spec(of: &str, spec: &impl Serialize) -> Result<String> {
    serde_json::to_string(spec).map_err(|e| Error::internal(format!("cannot write the spec of {of}")).with_source(e))
}

/// The spec of aggregate `of` that is a literal.
///
/// # Errors
/// Invalid where it is anything else.
pub(crate) fn read_spec<S: DeserializeOwned>(of: &str, text: &str) -> Result<S> {
    if text.len() > MAX_LITERAL {
        return Err(Error::invalid(format!("the spec of {of} is longer than {MAX_LITERAL} bytes")));
    }
    serde_json::from_str(text).map_err(|e| Error::invalid(format!("{:?} is no spec of {of}", shorten(text))).with_source(e))
}

/// Numbers as a text: Base64 of ZSTD-compressed float32, little-endian.
///
/// # Errors
/// Internal, should compression ever fail.
pub fn pack(numbers: &[f32]) -> Result<String> {
    pack_bytes(&numbers.iter().flat_map(|n| n.to_le_bytes()).collect::<Vec<u8>>())
}

/// Reads [`pack`]'s text back, of at most `most` numbers; errors call it `what`.
///
/// # Errors
/// Invalid where it is no such text, or has more numbers.
pub(crate) fn unpack(text: &str, most: usize, what: &str) -> Result<Vec<f32>> {
    Ok(unpack_chunks::<4>(text, most, what)?.into_iter().map(f32::from_le_bytes).collect())
}

/// Doubles as a text: Base64 of ZSTD-compressed float64, little-endian.
///
/// # Errors
/// Internal, should compression ever fail.
pub fn pack_doubles(numbers: &[f64]) -> Result<String> {
    pack_bytes(&numbers.iter().flat_map(|n| n.to_le_bytes()).collect::<Vec<u8>>())
}

/// Reads [`pack_doubles`]' text back, of at most `most` numbers; errors call it `what`.
///
/// # Errors
/// Invalid where it is no such text, or has more numbers.
pub(crate) fn unpack_doubles(text: &str, most: usize, what: &str) -> Result<Vec<f64>> {
    Ok(unpack_chunks::<8>(text, most, what)?.into_iter().map(f64::from_le_bytes).collect())
}

fn pack_bytes(bytes: &[u8]) -> Result<String> {
    let packed = zstd::bulk::compress(bytes, 3).map_err(|e| Error::internal("cannot compress numbers").with_source(e))?;
    Ok(BASE64.encode(packed))
}

fn unpack_chunks<const N: usize>(text: &str, most: usize, what: &str) -> Result<Vec<[u8; N]>> {
    let bad = |says: &str| Error::invalid(format!("{what} {says}"));
    let packed = BASE64.decode(text).map_err(|e| bad("are not base64").with_source(e))?;
    let mut bytes = Vec::new();
    let reader = zstd::stream::read::Decoder::new(packed.as_slice()).map_err(|e| bad("do not unpack").with_source(e))?;
    // Never more memory than that many numbers take, whatever the text claims.
    reader.take((most * N) as u64 + 1).read_to_end(&mut bytes).map_err(|e| bad("do not unpack").with_source(e))?;
    if bytes.len() > most * N {
        return Err(bad(&format!("are more than {most}")));
    }
    let (numbers, rest) = bytes.as_chunks::<N>();
    if rest.is_empty() { Ok(numbers.to_vec()) } else { Err(bad("end within a number")) }
}

/// Refuses too many names and names that repeat.
pub(crate) fn check_names(names: &[String]) -> Result<()> {
    if names.len() > MAX_GROUPS {
        return Err(Error::invalid(format!("there are {} groups of cells: at most {MAX_GROUPS} are possible", names.len())));
    }
    let mut seen = std::collections::HashSet::with_capacity(names.len());
    match names.iter().find(|n| !seen.insert(n.as_str())) {
        Some(twice) => Err(Error::invalid(format!("two groups are named {:?}: give each its own name", shorten(twice)))),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use skytether_common::Kind;

    use super::*;

    fn spec(groups: Groups) -> MomentsSpec {
        MomentsSpec {
            dataset: "blood.pbmc3k".parse().unwrap(),
            matrix: "x".into(),
            groups,
            transform: Some(Transform::LOG1P_CP10K),
            squares: Squares::default(),
            totals: None,
        }
    }

    #[test]
    fn the_literal_is_the_documented_json() {
        let by_obs = spec(Groups::Obs { column: "cell_type".into() });
        let text = by_obs.to_literal().unwrap();
        assert_eq!(text, r#"{"dataset":"blood.pbmc3k","matrix":"x","groups":{"obs":"cell_type"},"transform":"log1p_cp10k"}"#);
        assert_eq!(MomentsSpec::from_literal(&text).unwrap(), by_obs);
    }

    #[test]
    fn codes_survive() {
        let groups = Groups::codes(vec!["a".into(), "ü".into()], &[0, -1, 1, 1]).unwrap();
        let back = MomentsSpec::from_literal(&spec(groups.clone()).to_literal().unwrap()).unwrap();
        assert_eq!(back.groups, groups);
        let Groups::Codes { names, codes } = &back.groups else { unreachable!() };
        assert_eq!(Groups::decode_codes(names, codes, 4).unwrap(), [0, 2, 1, 1]);
        for cells in [0, 3, 5] {
            assert_eq!(Groups::decode_codes(names, codes, cells).unwrap_err().kind(), Kind::Invalid);
        }
    }

    #[test]
    fn wrong_codes_and_names_are_refused() {
        let names = || vec!["a".to_owned(), "b".to_owned()];
        for bad in [2, -2, 70_000] {
            let error = Groups::codes(names(), &[0, bad]).unwrap_err();
            assert!(error.to_string().contains("cell 1"), "{error}");
        }
        assert!(Groups::codes(vec!["a".into(), "a".into()], &[]).unwrap_err().to_string().contains("\"a\""));
        assert!(Groups::codes((0..=MAX_GROUPS).map(|i| i.to_string()).collect(), &[]).is_err());
    }

    #[test]
    fn hostile_codes_give_errors_and_little_memory() {
        let names = vec!["a".to_owned()];
        let bomb = BASE64.encode(zstd::bulk::compress(&vec![0u8; 1 << 24], 19).unwrap());
        let outside = BASE64.encode(zstd::bulk::compress(&[1, 0], 1).unwrap());
        for codes in ["", "!!!", "AAAA", bomb.as_str(), outside.as_str()] {
            assert_eq!(Groups::decode_codes(&names, codes, 1).unwrap_err().kind(), Kind::Invalid, "{}", shorten(codes));
        }
    }

    #[test]
    fn groups_with_keys_that_mean_nothing_are_refused_by_name() {
        let cause = |text: &str| serde_json::from_str::<Groups>(text).unwrap_err().to_string();
        for key in ["transform", "squares", "name"] {
            for known in [r#""obs":"cell_type""#, r#""names":["a"],"codes":"KLUv""#] {
                assert!(cause(&format!("{{{known},{key:?}:\"log1p_cp10k\"}}")).contains(key), "{known} {key}");
            }
        }
        for mixed in ["{}", r#"{"names":[]}"#, r#"{"codes":""}"#, r#"{"obs":"c","names":["a"],"codes":""}"#, r#"{"obs":null}"#] {
            assert!(cause(mixed).contains("either"), "{mixed}");
        }
        // The same within a whole spec.
        let text = r#"{"dataset":"a.b","matrix":"x","groups":{"obs":"c","transform":"log1p_cp10k"}}"#;
        assert_eq!(MomentsSpec::from_literal(text).unwrap_err().kind(), Kind::Invalid);
    }

    #[test]
    fn hostile_literals_give_errors() {
        for text in ["", "{}", "[]", "null", r#"{"dataset":"nodot","matrix":"x","groups":{"obs":"c"}}"#, r#"{"dataset":"a.b","matrix":"x","groups":{"obs":1}}"#]
        {
            assert_eq!(MomentsSpec::from_literal(text).unwrap_err().kind(), Kind::Invalid, "{text}");
        }
    }
}
