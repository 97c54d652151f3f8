//! Texts of callers in messages.

/// Enough of a text to recognise it in a message.
pub(crate) fn shorten(text: &str) -> String {
    const ENOUGH: usize = 120;
    if text.chars().count() <= ENOUGH { text.to_owned() } else { text.chars().take(ENOUGH).chain("...".chars()).collect() }
}
