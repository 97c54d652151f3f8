//! Statistics of a physical operator, in the terms that hosts and drives share.
//!
//! The struct is plain data: a drive's protocol carries it without a query engine. `skytether_plan::operator_metrics`
//! fills it in.

/// The longest [`OperatorStats::detail`], in characters.
pub const MAX_DETAIL: usize = 400;

/// One operator as it ran.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct OperatorStats {
    /// The physical operator, for example `AggregateExec`.
    pub name: String,
    /// Its groups, keys or conditions, at most [`MAX_DETAIL`] characters.
    pub detail: String,
    /// Whether it counts rows at all; if not, `rows_out` and `seconds` say nothing.
    pub counted: bool,
    /// Rows that it gave, over all its threads.
    pub rows_out: u64,
    /// Seconds of processor time that it took without its inputs, over all its threads.
    pub seconds: f64,
    /// Peak bytes of memory, where the operator records them: the sum of the peaks of its threads, which need not
    /// coincide.
    pub peak_memory: u64,
    /// Bytes that it spilled to disk.
    pub bytes_spilled: u64,
}

/// `text` without line breaks and other control characters, at most `longest` characters; dots replace the
/// last three of a longer text.
#[must_use]
pub fn shortened(text: &str, longest: usize) -> String {
    let mut plain = text.chars().map(|c| if c.is_control() { ' ' } else { c });
    let mut short: String = plain.by_ref().take(longest).collect();
    if plain.next().is_some() {
        short = short.chars().take(longest.saturating_sub(3)).chain("...".chars()).collect();
    }
    short
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_texts_are_cut_between_characters() {
        assert_eq!(shortened("ab\ncd", 5), "ab cd");
        assert_eq!(shortened("Größenordnung", 8), "Größe...");
        assert_eq!(shortened("äöü", 3), "äöü");
    }
}
