//! [`ReadOptions`]: what a caller says about files besides their names.

use arrow::datatypes::{DataType, TimeUnit};
use skytether_common::{Error, Result};

use super::format::Format;

/// How files are read as one table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReadOptions {
    /// The format of all files, whatever their names end in; `None`: their endings say it.
    pub format: Option<Format>,
    /// Whether files with other columns than the first are taken.
    pub schema: SchemaMode,
    /// Whether directories called `key=value` give columns.
    pub hive: bool,
    /// How separated values are written.
    pub text: TextOptions,
}

impl Default for ReadOptions {
    fn default() -> Self {
        Self { format: None, schema: SchemaMode::Strict, hive: true, text: TextOptions::default() }
    }
}

/// Which columns files of one table may have.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum SchemaMode {
    /// The columns of all files are equal, in any order. A column without a type (all nulls) fits any.
    #[default]
    Strict,
    /// All columns of all files, by name. Types are widened to one that holds every value, and what a file lacks is
    /// null.
    Union,
}

impl SchemaMode {
    /// The modes as callers name them.
    pub const NAMES: [&str; 2] = ["strict", "union"];
}

impl std::str::FromStr for SchemaMode {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "strict" => Ok(SchemaMode::Strict),
            "union" => Ok(SchemaMode::Union),
            _ => Err(Error::invalid(format!("there is no schema mode {text:?}: use {}", SchemaMode::NAMES.join(" or ")))),
        }
    }
}

/// How separated values are written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TextOptions {
    /// What separates values; `None`: the format says it.
    pub delimiter: Option<u8>,
    /// Whether the first line names the columns. Without it they are `column_1` and so on.
    pub header: bool,
    /// What encloses values that contain separators; [`NO_QUOTE`]: nothing does.
    pub quote: u8,
    /// Texts that mean no value, besides the empty text.
    pub null: Vec<String>,
    /// Types of some columns, instead of inferred ones.
    pub types: Vec<(String, TextType)>,
    /// Whether all other columns are text.
    pub all_text: bool,
}

/// No UTF-8 text has this byte, so that as a quote it means none.
pub const NO_QUOTE: u8 = 0xff;

impl Default for TextOptions {
    fn default() -> Self {
        Self { delimiter: None, header: true, quote: b'"', null: Vec::new(), types: Vec::new(), all_text: false }
    }
}

impl TextOptions {
    /// Sets the separator from `text`: one character of ASCII, or `tab` or `\t`.
    ///
    /// # Errors
    /// `Invalid` for another text.
    pub fn set_delimiter(&mut self, text: &str) -> Result<()> {
        self.delimiter = Some(match text {
            "tab" | "\\t" => b'\t',
            _ => one_byte("delimiter", text)?,
        });
        Ok(())
    }

    /// Sets the quote from `text`: one character of ASCII, or nothing where no value is quoted.
    ///
    /// # Errors
    /// `Invalid` for another text.
    pub fn set_quote(&mut self, text: &str) -> Result<()> {
        self.quote = if text.is_empty() { NO_QUOTE } else { one_byte("quote", text)? };
        Ok(())
    }

    /// Whether anything differs from what files are read by unasked.
    #[must_use]
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// The type that is asked for `column`.
    pub(crate) fn asked(&self, column: &str) -> Option<&TextType> {
        self.types.iter().find(|(name, _)| name == column).map(|(_, of)| of).or(self.all_text.then_some(&TextType::Text))
    }

    /// # Errors
    /// `Invalid` where the separator is the quote.
    pub(crate) fn check(&self) -> Result<()> {
        if self.delimiter == Some(self.quote) {
            return Err(Error::invalid("the delimiter and the quote are the same character: choose another for one of them"));
        }
        Ok(())
    }
}

fn one_byte(what: &str, text: &str) -> Result<u8> {
    match text.as_bytes() {
        [byte] if byte.is_ascii() && !matches!(byte, b'\n' | b'\r' | 0) => Ok(*byte),
        _ => Err(Error::invalid(format!("the {what} {text:?} is not one character of ASCII"))),
    }
}

/// A type that a caller may ask for a column of text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TextType {
    /// The text as it is.
    Text,
    /// A type that a value is parsed as.
    Plain(DataType),
    /// Exact decimals: a value with more digits is refused.
    Decimal(u8, i8),
    /// Times in the finest unit that the values have.
    Timestamp,
}

impl std::str::FromStr for TextType {
    type Err = Error;

    /// A type by one of its names in SQL or Arrow.
    fn from_str(text: &str) -> Result<Self> {
        use DataType as T;
        let name = text.trim().to_ascii_lowercase();
        Ok(match name.as_str() {
            "text" | "string" | "str" | "varchar" | "utf8" => TextType::Text,
            "int8" | "tinyint" => TextType::Plain(T::Int8),
            "int16" | "smallint" => TextType::Plain(T::Int16),
            "int32" | "int" | "integer" => TextType::Plain(T::Int32),
            "int64" | "bigint" => TextType::Plain(T::Int64),
            "uint8" => TextType::Plain(T::UInt8),
            "uint16" => TextType::Plain(T::UInt16),
            "uint32" => TextType::Plain(T::UInt32),
            "uint64" => TextType::Plain(T::UInt64),
            "float32" | "real" => TextType::Plain(T::Float32),
            "float64" | "double" | "float" => TextType::Plain(T::Float64),
            "bool" | "boolean" => TextType::Plain(T::Boolean),
            "date" | "date32" => TextType::Plain(T::Date32),
            "time" => TextType::Plain(T::Time64(TimeUnit::Nanosecond)),
            "timestamp" => TextType::Timestamp,
            _ => decimal(&name).ok_or_else(|| {
                Error::invalid(format!(
                    "there is no type {text:?} for separated values: use text, int8 to int64, uint8 to uint64, float32, float64, decimal(P,S), bool, date, time or timestamp"
                ))
            })?,
        })
    }
}

fn decimal(name: &str) -> Option<TextType> {
    let within = name.strip_prefix("decimal").or_else(|| name.strip_prefix("numeric"))?.trim().strip_prefix('(')?.strip_suffix(')')?;
    let (precision, scale) = within.split_once(',').unwrap_or((within, "0"));
    let (precision, scale): (u8, i8) = (precision.trim().parse().ok()?, scale.trim().parse().ok()?);
    let right = (1..=38).contains(&precision) && scale >= 0 && scale.unsigned_abs() <= precision;
    right.then_some(TextType::Decimal(precision, scale))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_read_from_words_and_wrong_ones_refused() {
        let mut text = TextOptions::default();
        text.set_delimiter(";").and_then(|()| text.set_quote("")).unwrap();
        assert_eq!((text.delimiter, text.quote), (Some(b';'), NO_QUOTE));
        for wrong in ["", ";;", "\n", "ä"] {
            assert!(text.set_delimiter(wrong).unwrap_err().to_string().contains("delimiter"), "{wrong:?}");
        }
        assert!(text.set_quote("\"\"").unwrap_err().to_string().contains("quote"));
        for (word, of) in [("DECIMAL(10, 2)", TextType::Decimal(10, 2)), ("numeric(5)", TextType::Decimal(5, 0)), ("BIGINT", TextType::Plain(DataType::Int64))]
        {
            assert_eq!(word.parse::<TextType>().unwrap(), of);
        }
        for wrong in ["decimal(39,0)", "decimal(2,3)", "decimal", "list", ""] {
            assert!(wrong.parse::<TextType>().unwrap_err().to_string().contains("decimal(P,S)"), "{wrong}");
        }
        assert!("unite".parse::<SchemaMode>().unwrap_err().to_string().contains("strict or union"));
    }
}
