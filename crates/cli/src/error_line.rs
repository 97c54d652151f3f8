//! An error as a line on stderr.

use skytether_common::Error;

/// Prints `error` in one line and gives `status`.
pub(crate) fn fail(error: &Error, status: u8) -> u8 {
    eprintln!("skytether: {}", one_line(&error.to_string()));
    status
}

/// `text` in one line: errors of the planner come in several, with indents.
fn one_line(text: &str) -> String {
    let mut line = String::new();
    for part in text.lines().map(str::trim).filter(|part| !part.is_empty()) {
        if !line.is_empty() {
            // A line that ends like a sentence or a list goes on; any other becomes an item.
            line.push_str(if line.ends_with(['.', ':', ',', ';', '(']) { " " } else { "; " });
        }
        line.push_str(part);
    }
    line
}

#[cfg(test)]
mod tests {
    #[test]
    fn an_error_is_one_line() {
        let text = "no function matches 'f(Utf8)'. You might need a cast.\n\tCandidate functions:\n\tf(Int64)\n\tf(Float64)\n";
        assert_eq!(super::one_line(text), "no function matches 'f(Utf8)'. You might need a cast. Candidate functions: f(Int64); f(Float64)");
    }
}
