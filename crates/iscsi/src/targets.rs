//! Text requests of the full feature phase: which targets there are (RFC 7143, appendix C). Pure.

use crate::login::{PORTAL_GROUP, TargetIdentity};
use crate::pdu::{Header, NO_TAG, Reason, flag};
use crate::text;

/// The answer to the text `request` with `data`.
///
/// # Errors
/// Why it is rejected: it goes on in a further request, is no text, or asks for no targets.
pub(crate) fn answer(request: &Header, data: &[u8], target: &TargetIdentity, address: Option<&str>, discovery: bool) -> Result<Vec<u8>, Reason> {
    if request.has(flag::CONTINUE) || !request.has(flag::FINAL) || request.word5() != NO_TAG {
        return Err(Reason::NotSupported);
    }
    let pairs = text::pairs(data).map_err(|_| Reason::Protocol)?;
    let mut out = Vec::new();
    let mut asked = false;
    for (key, value) in pairs {
        match (key, value) {
            ("SendTargets", "All") => asked = true,
            ("SendTargets", "") if !discovery => asked = true,
            ("SendTargets", name) if name.eq_ignore_ascii_case(&target.name) => asked = true,
            // Another target: there is none.
            ("SendTargets", name) if ["iqn.", "eui.", "naa."].iter().any(|kind| name.starts_with(kind)) => return Ok(out),
            ("SendTargets", _) => return Err(Reason::Protocol),
            _ => text::put(&mut out, key, "NotUnderstood"),
        }
    }
    if !asked {
        return Err(Reason::Protocol);
    }
    text::put(&mut out, "TargetName", &target.name);
    // Without an address, the initiator takes the one that it has asked.
    if let Some(address) = address {
        text::put(&mut out, "TargetAddress", &format!("{address},{PORTAL_GROUP}"));
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pdu::opcode;

    fn ask(data: &[u8]) -> Result<String, Reason> {
        let mut request = Header::new(opcode::TEXT);
        request.set_u32(20, NO_TAG);
        let target = TargetIdentity { name: "iqn.2024-01.x:t".to_owned(), alias: String::new(), secrets: None };
        answer(&request, data, &target, Some("127.0.0.1:3260"), true).map(|text| String::from_utf8(text).unwrap())
    }

    #[test]
    fn targets_are_told_to_those_who_ask() {
        let all = "TargetName=iqn.2024-01.x:t\0TargetAddress=127.0.0.1:3260,1\0";
        assert_eq!(ask(b"SendTargets=All\0").as_deref(), Ok(all));
        assert_eq!(ask(b"SendTargets=iqn.2024-01.X:t\0").as_deref(), Ok(all));
        assert_eq!(ask(b"SendTargets=iqn.other\0").as_deref(), Ok(""));
        for wrong in ["SendTargets=Alle\0", "SendTargets=\0", "sENDtARGETS=All\0", "X=1\0", "junk"] {
            assert_eq!(ask(wrong.as_bytes()), Err(Reason::Protocol), "{wrong}");
        }
    }
}
