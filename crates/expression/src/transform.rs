//! What is done to each value of a matrix before it counts: scaling of its cell to a target sum, a logarithm, and its
//! inverse.
//!
//! In JSON a transform is a name or its parts. Parts that are left out or null do nothing:
//!
//! ```json
//! "log1p_cp10k"
//! {"target": 10000.0, "log": "e"}
//! {"target": 2000.0, "log": 2.0}
//! {"exp": "e"}
//! ```

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use skytether_common::{Error, Result};

use crate::log1p::Formula;
use crate::shorten::shorten;

/// The most significant digits of a base, so that its text reads back as the same number everywhere.
const DIGITS: usize = 15;

/// What is done to a value before it counts. All arithmetic is that of scanpy on float32 values, each step rounded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "Value", into = "Value")]
pub struct Transform {
    /// The bits of the sum that each cell is scaled to: `x / (total / target)`, as `scanpy.pp.normalize_total`.
    target: Option<u32>,
    /// Then `log1p` to this base, as `scanpy.pp.log1p`: the natural logarithm, divided by that of the base.
    log: Option<Base>,
    /// Then `expm1` to this base, as scanpy's highly variable genes take logarithms back.
    exp: Option<Base>,
}

/// The base of a logarithm.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Base {
    Natural,
    /// The bits of a number above 1 other than e.
    Other(u64),
}

impl Base {
    fn of(base: f64) -> Result<Self> {
        if base == std::f64::consts::E {
            return Ok(Base::Natural);
        }
        let digits = format!("{base}").trim_start_matches(['0', '.']).chars().filter(char::is_ascii_digit).count();
        if !(base.is_finite() && base > 1.0) || digits > DIGITS {
            return Err(Error::invalid(format!("{base} is no base of logarithms here: give a number above 1 of at most {DIGITS} digits, or \"e\"")));
        }
        Ok(Base::Other(base.to_bits()))
    }

    fn read(value: &Value) -> Result<Option<Self>> {
        match value {
            Value::Null => Ok(None),
            Value::String(e) if e == "e" => Ok(Some(Base::Natural)),
            other => match other.as_f64() {
                Some(base) => Base::of(base).map(Some),
                None => Err(Error::invalid(format!("{} is no base of logarithms: give \"e\", a number or null", shorten(&other.to_string())))),
            },
        }
    }

    fn write(self) -> Value {
        match self {
            Base::Natural => "e".into(),
            Base::Other(bits) => f64::from_bits(bits).into(),
        }
    }

    /// Its natural logarithm.
    fn ln(self) -> f64 {
        match self {
            Base::Natural => 1.0,
            Base::Other(bits) => libm::log(f64::from_bits(bits)),
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Parts {
    #[serde(default)]
    target: Option<f64>,
    #[serde(default)]
    log: Value,
    #[serde(default)]
    exp: Value,
}

impl Transform {
    /// `log1p(x / (total of the cell / 10000))`, in float32, as scanpy's `normalize_total(target_sum=1e4)` and `log1p`.
    pub const LOG1P_CP10K: Self = Self { target: Some(10_000f32.to_bits()), log: Some(Base::Natural), exp: None };
    /// The same without the logarithm.
    pub const CP10K: Self = Self { target: Some(10_000f32.to_bits()), log: None, exp: None };

    const NAMED: [(&'static str, Self); 2] = [("log1p_cp10k", Self::LOG1P_CP10K), ("cp10k", Self::CP10K)];

    /// The transform that a query names, or whose parts it gives as JSON.
    ///
    /// # Errors
    /// Invalid, listing those that there are.
    pub fn parse(text: &str) -> Result<Self> {
        if text.trim_start().starts_with('{') {
            let value: Value =
                serde_json::from_str(text).map_err(|e| Error::invalid(format!("{:?} are no parts of a transform", shorten(text))).with_source(e))?;
            return Self::try_from(value);
        }
        Self::try_from(Value::from(text))
    }

    /// Whether it needs the cells' totals.
    #[must_use]
    pub fn needs_totals(self) -> bool {
        self.target.is_some()
    }

    /// What it makes of a value in a cell of a total; not finite where there is no result.
    pub fn function(self) -> impl Fn(f32, f32) -> f32 {
        let formula = self.formula();
        move |x, total| formula.value(x, total)
    }

    /// Its arithmetic.
    pub(crate) fn formula(self) -> Formula {
        if self == Self::LOG1P_CP10K {
            return Formula::Log1pCp10k;
        }
        Formula::Parts { target: self.target.map(f32::from_bits), log: self.log.map(Base::ln), exp: self.exp.map(Base::ln) }
    }
}

impl TryFrom<Value> for Transform {
    type Error = Error;

    fn try_from(value: Value) -> Result<Self> {
        if let Value::String(name) = &value {
            return Self::NAMED
                .iter()
                .find(|(known, _)| known == name)
                .map(|(_, transform)| *transform)
                .ok_or_else(|| Error::invalid(format!("there is no transform {:?}: use 'log1p_cp10k', 'cp10k' or NULL for none", shorten(name))));
        }
        let text = shorten(&value.to_string());
        let parts: Parts = serde_json::from_value(value).map_err(|e| Error::invalid(format!("{text} is no transform")).with_source(e))?;
        let target = match parts.target.map(|t| t as f32) {
            Some(t) if !(t.is_finite() && t > 0.0) => {
                return Err(Error::invalid(format!("{text}: cells can't be scaled to a sum of {t}: give a positive number")));
            }
            target => target.map(f32::to_bits),
        };
        let transform = Self { target, log: Base::read(&parts.log)?, exp: Base::read(&parts.exp)? };
        if transform == (Self { target: None, log: None, exp: None }) {
            return Err(Error::invalid(format!("{text} does nothing to a value: use NULL for no transform")));
        }
        Ok(transform)
    }
}

impl From<Transform> for Value {
    fn from(transform: Transform) -> Self {
        if let Some((name, _)) = Transform::NAMED.iter().find(|(_, known)| *known == transform) {
            return (*name).into();
        }
        let mut parts = serde_json::Map::new();
        if let Some(target) = transform.target {
            parts.insert("target".into(), f64::from(f32::from_bits(target)).into());
        }
        for (part, base) in [("log", transform.log), ("exp", transform.exp)] {
            if let Some(base) = base {
                parts.insert(part.into(), base.write());
            }
        }
        Value::Object(parts)
    }
}

impl fmt::Display for Transform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match Value::from(*self) {
            Value::String(name) => f.write_str(&name),
            parts => write!(f, "{parts}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Transform {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn transforms_read_back_as_written() {
        for (text, canonical) in [
            (r#""log1p_cp10k""#, r#""log1p_cp10k""#),
            (r#"{"target":10000,"log":"e"}"#, r#""log1p_cp10k""#),
            (r#"{"target":1e4,"log":2.718281828459045,"exp":null}"#, r#""log1p_cp10k""#),
            (r#"{"target":10000.0,"log":null}"#, r#""cp10k""#),
            (r#"{"target":2033.5,"log":2.0}"#, r#"{"log":2.0,"target":2033.5}"#),
            (r#"{"exp":10}"#, r#"{"exp":10.0}"#),
        ] {
            let transform = read(text);
            let written = serde_json::to_string(&transform).unwrap();
            // The order of keys depends on the features that serde_json is built with.
            let value = |text: &str| serde_json::from_str::<Value>(text).unwrap();
            assert_eq!(value(&written), value(canonical), "{text}");
            assert_eq!((read(&written), Transform::parse(&transform.to_string()).unwrap()), (transform, transform));
        }
    }

    #[test]
    fn odd_transforms_are_refused() {
        for text in [
            "log2",
            "",
            "{}",
            "{\"target\":null}",
            "{\"target\":0}",
            "{\"target\":-1}",
            "{\"target\":1e60}",
            "{\"target\":\"median\"}",
            "{\"log\":1}",
            "{\"log\":0.5}",
            "{\"log\":\"2\"}",
            "{\"log\":1.2345678901234567}",
            "{\"base\":2}",
            "{\"exp\":[]}",
            "{",
        ] {
            assert_eq!(Transform::parse(text).unwrap_err().kind(), skytether_common::Kind::Invalid, "{text}");
        }
    }

    #[test]
    fn parts_are_applied_in_order() {
        let close = |text: &str, x: f32, total: f32, expected: f64| {
            let y = f64::from(read(text).formula().value(x, total));
            assert!((y - expected).abs() <= expected.abs() * 2e-7, "{text}: {y} {expected}");
        };
        close(r#""cp10k""#, 3.0, 600.0, 50.0);
        close(r#"{"target":100,"log":2}"#, 3.0, 100.0, 2.0);
        close(r#"{"log":10}"#, 99.0, f32::NAN, 2.0);
        close(r#"{"exp":"e"}"#, -1.0, f32::NAN, (-1f64).exp_m1());
        close(r#"{"exp":2}"#, 3.0, f32::NAN, 7.0);
        close(r#"{"target":1e4,"log":"e","exp":"e"}"#, 7.0, 1234.0, 7.0 / 1234.0 * 1e4);
    }

    #[test]
    fn values_without_a_transform_are_not_finite() {
        let of = |text: &str, x: f32, total: f32| read(text).formula().value(x, total);
        for (text, x, total) in [
            (r#""cp10k""#, -1.0, 10.0),
            (r#""cp10k""#, 1.0, 0.0),
            (r#""cp10k""#, 1.0, f32::NAN),
            (r#"{"log":"e"}"#, -0.5, 1.0),
            (r#"{"log":"e"}"#, f32::NAN, 1.0),
            (r#"{"log":"e"}"#, f32::INFINITY, 1.0),
            (r#"{"exp":"e"}"#, 90.0, 1.0),
            (r#"{"exp":"e"}"#, f32::NAN, 1.0),
        ] {
            assert!(!of(text, x, total).is_finite(), "{text} {x} {total}");
        }
        assert_eq!((of(r#""cp10k""#, 0.0, 0.0), of(r#"{"exp":"e"}"#, -100.0, 1.0)), (0.0, -1.0));
    }
}
