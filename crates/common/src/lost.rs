//! What is said of lost drives: each thing once.
//!
//! The reason why a drive is lost comes from the part that noticed, which names the drive and says what to do. Where
//! several drives are named together, neither needs to be said again for each.

/// `reason` without the drive's name, which the sentence has already: `drive drive-1 at HOST:PORT does not answer`
/// becomes `HOST:PORT does not answer`.
#[must_use]
pub fn without_name<'r>(name: &str, reason: &'r str) -> &'r str {
    let bare = reason.strip_prefix("drive ").unwrap_or(reason);
    let rest = bare.strip_prefix(name).and_then(|rest| rest.strip_prefix(" at ").or_else(|| rest.strip_prefix(": ")));
    rest.unwrap_or(reason)
}

/// The drives `lost` (names and reasons) in one phrase, and what to do for all of them, where that is the same for
/// each: `("drive-1 (HOST:PORT does not answer), drive-2 (...)", Some("start it again ..."))`.
#[must_use]
pub fn phrase<'a>(lost: impl IntoIterator<Item = (&'a str, &'a str)>) -> (String, Option<&'a str>) {
    let lost: Vec<_> = lost.into_iter().map(|(name, reason)| (name, without_name(name, reason))).collect();
    let advice = |reason: &'a str| reason.rsplit_once(": ").map(|(_, advice)| advice);
    let shared = lost.first().and_then(|(_, reason)| advice(reason)).filter(|first| lost.iter().all(|(_, reason)| advice(reason) == Some(first)));
    let told = lost.iter().map(|(name, reason)| {
        let why = if shared.is_some() { reason.rsplit_once(": ").map_or(*reason, |(why, _)| why) } else { reason };
        if why.is_empty() { (*name).to_owned() } else { format!("{name} ({why})") }
    });
    (told.collect::<Vec<_>>().join(", "), shared)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_advice_are_said_once() {
        let away = |n: u32| format!("drive drive-{n} at 127.0.0.1:{n} does not answer: start it again with `x`");
        let (one, two) = (away(1), away(2));
        let (told, advice) = phrase([("drive-1", one.as_str()), ("drive-2", two.as_str())]);
        assert_eq!(told, "drive-1 (127.0.0.1:1 does not answer), drive-2 (127.0.0.1:2 does not answer)");
        assert_eq!(advice, Some("start it again with `x`"));
        let (told, advice) = phrase([("drive-1", one.as_str()), ("drive-2", "it is missing: there is no drive in f/2")]);
        assert_eq!((told.matches("start it again").count(), advice), (1, None));
        assert!(told.ends_with("drive-2 (it is missing: there is no drive in f/2)"), "{told}");
        assert_eq!(without_name("drive-1", "drive-1: broken"), "broken");
        assert_eq!(without_name("drive-1", "drive-11 at x"), "drive-11 at x");
    }
}
