//! The way into a session: security, then parameters (RFC 7143, section 6).

use bytes::BytesMut;
use skytether_common::{Error, Result};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use super::wire::{self, Units};
use crate::url::Iscsi;
use skytether_iscsi::chap::Algorithm;
use skytether_iscsi::decoder::Digests;
use skytether_iscsi::pdu::{Header, flag, opcode};
use skytether_iscsi::text;

/// The longest data segment that we take, in bytes.
pub(super) const MAX_SEGMENT: usize = 256 << 10;

/// Exchanges of a login. Ours has four at most.
const MOST_STEPS: usize = 16;

/// The longest data segment of a login.
const LOGIN_SEGMENT: usize = 8192;

const SECURITY: u8 = 0;
const OPERATIONAL: u8 = 1;
const FULL: u8 = 3;

/// What was agreed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Agreed {
    pub(super) digests: Digests,
    /// The longest data segment that the target takes.
    pub(super) segment: usize,
    /// The most data that goes with a command.
    pub(super) immediate: usize,
    pub(super) cmd_sn: u32,
    pub(super) max_cmd_sn: u32,
    pub(super) exp_stat_sn: u32,
}

struct Login<'a> {
    stream: &'a mut TcpStream,
    units: Units,
    isid: [u8; 6],
    tsih: u16,
    stage: u8,
    agreed: Agreed,
}

/// Logs into a session for `url`, on a connection that is new.
///
/// # Errors
/// `Invalid` for a wrong user or secret, `NotFound` for a target that does not exist, `Unsupported` for what this
/// initiator can't, `Unavailable` for the rest.
pub(super) async fn login(stream: &mut TcpStream, url: &Iscsi) -> Result<(Agreed, Units)> {
    let mut random = [0; 5];
    getrandom::fill(&mut random).map_err(|cause| Error::unavailable("there are no random numbers").with_source(std::io::Error::from(cause)))?;
    let [a, b, c, d, e] = random;
    let agreed = Agreed { digests: Digests::default(), segment: LOGIN_SEGMENT, immediate: 0, cmd_sn: 1, max_cmd_sn: 1, exp_stat_sn: 0 };
    // Type 10b: a random identifier, so that each connection is a session of its own.
    let mut login = Login { stream, units: Units::new(LOGIN_SEGMENT), isid: [0x80, a, b, c, d, e], tsih: 0, stage: SECURITY, agreed };
    login.security(url, a).await?;
    login.operational().await?;
    let Login { mut units, agreed, .. } = login;
    units.set(agreed.digests, MAX_SEGMENT);
    Ok((agreed, units))
}

type Pairs = Vec<(String, String)>;

fn value<'a>(pairs: &'a Pairs, key: &str) -> Option<&'a str> {
    pairs.iter().find(|(name, _)| name == key).map(|(_, value)| value.as_str())
}

impl Login<'_> {
    async fn security(&mut self, url: &Iscsi, name: u8) -> Result<()> {
        let method = if url.login.is_some() { "CHAP" } else { "None" };
        let initiator = format!("iqn.2026-01.net.skytether:oas-{}-{name:02x}", std::process::id());
        let first = [("InitiatorName", initiator.as_str()), ("TargetName", &url.target), ("SessionType", "Normal"), ("AuthMethod", method)];
        let pairs = self.step(&first, url.login.is_none(), OPERATIONAL).await?;
        let Some((user, secret)) = &url.login else {
            if self.stage == SECURITY {
                return Err(Error::invalid(format!("{url} wants authentication; give user%secret@ in the URL")));
            }
            return Ok(());
        };
        if value(&pairs, "AuthMethod") != Some("CHAP") {
            return Err(Error::unsupported(format!("{url} has no CHAP; leave user and secret out of the URL")));
        }
        let pairs = self.step(&[("CHAP_A", "7,5")], false, OPERATIONAL).await?;
        let wrong = || Error::unavailable(format!("{url}: the target's challenge is none"));
        let algorithm = value(&pairs, "CHAP_A").and_then(Algorithm::choose).ok_or_else(wrong)?;
        let id = value(&pairs, "CHAP_I").and_then(text::number).and_then(|id| u8::try_from(id).ok()).ok_or_else(wrong)?;
        let challenge = value(&pairs, "CHAP_C").and_then(text::binary).ok_or_else(wrong)?;
        let proof = text::hexadecimal(&algorithm.respond(id, secret.as_bytes(), &challenge));
        self.step(&[("CHAP_N", user), ("CHAP_R", &proof)], true, OPERATIONAL).await?;
        if self.stage == SECURITY { Err(Error::unsupported(format!("{url}: the target asks for more than CHAP of the initiator"))) } else { Ok(()) }
    }

    async fn operational(&mut self) -> Result<()> {
        let segment = MAX_SEGMENT.to_string();
        let offer = [
            ("HeaderDigest", "None,CRC32C"),
            ("DataDigest", "None,CRC32C"),
            ("MaxConnections", "1"),
            ("InitialR2T", "Yes"),
            ("ImmediateData", "Yes"),
            ("MaxRecvDataSegmentLength", &segment),
            ("MaxBurstLength", "1048576"),
            ("FirstBurstLength", "65536"),
            ("MaxOutstandingR2T", "1"),
            ("DefaultTime2Wait", "2"),
            ("DefaultTime2Retain", "0"),
            ("DataPDUInOrder", "Yes"),
            ("DataSequenceInOrder", "Yes"),
            ("ErrorRecoveryLevel", "0"),
        ];
        let mut pairs = self.step(&offer, true, FULL).await?;
        for _ in 0..MOST_STEPS {
            if self.stage == FULL {
                return self.agree(&pairs);
            }
            pairs.extend(self.step(&[], true, FULL).await?);
        }
        Err(Error::unavailable("the target does not come to an end with its parameters"))
    }

    fn agree(&mut self, pairs: &Pairs) -> Result<()> {
        let number = |key: &str, otherwise: u32| match value(pairs, key) {
            Some(text) => text::number(text)
                .filter(|number| (512..=0x00ff_ffff).contains(number))
                .ok_or_else(|| Error::unavailable(format!("the target's {key} is wrong"))),
            None => Ok(otherwise),
        };
        let segment = number("MaxRecvDataSegmentLength", LOGIN_SEGMENT as u32)? as usize;
        let first = number("FirstBurstLength", 65_536)? as usize;
        let immediate = value(pairs, "ImmediateData") == Some("Yes");
        let digest = |key: &str| value(pairs, key) == Some("CRC32C");
        self.agreed.digests = Digests { header: digest("HeaderDigest"), data: digest("DataDigest") };
        self.agreed.segment = segment.min(1 << 20);
        self.agreed.immediate = if immediate { segment.min(first) } else { 0 };
        Ok(())
    }

    /// Sends pairs, and collects the target's. `to` is the stage that the next exchange may be of.
    async fn step(&mut self, pairs: &[(&str, &str)], transit: bool, to: u8) -> Result<Pairs> {
        let mut data = Vec::new();
        for (key, value) in pairs {
            text::put(&mut data, key, value);
        }
        let mut received = Vec::new();
        for _ in 0..MOST_STEPS {
            let (header, bytes) = self.exchange(&data, transit, to).await?;
            received.extend_from_slice(&bytes);
            if header.has(flag::CONTINUE) {
                data.clear();
                continue;
            }
            if header.has(flag::TRANSIT) {
                if header.flags() & 3 != to || !transit {
                    return Err(Error::unavailable("the target goes to another stage of the login than it was asked to"));
                }
                self.stage = to;
            }
            let malformed = |_| Error::unavailable("the target's login text is malformed");
            let pairs = text::pairs(&received).map_err(malformed)?;
            return Ok(pairs.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect());
        }
        Err(Error::unavailable("the target's login text has no end"))
    }

    async fn exchange(&mut self, data: &[u8], transit: bool, to: u8) -> Result<(Header, BytesMut)> {
        let mut header = Header::new(opcode::LOGIN | 0x40);
        header.0[1] = self.stage << 2 | if transit { flag::TRANSIT | to } else { 0 };
        header.0[8..14].copy_from_slice(&self.isid);
        header.set_u16(14, self.tsih);
        header.set_u32(24, self.agreed.cmd_sn);
        header.set_u32(28, self.agreed.exp_stat_sn);
        let mut out = BytesMut::new();
        wire::put(&mut out, header, data, Digests::default());
        self.stream.write_all(&out).await.map_err(|cause| Error::unavailable("the connection to the target broke").with_source(cause))?;
        let (answer, bytes) = loop {
            if let Some(unit) = self.units.next()? {
                break unit;
            }
            self.units.fill(self.stream).await?;
        };
        if answer.opcode() != opcode::LOGIN_RESPONSE {
            return Err(Error::unavailable(format!("the target answers a login with opcode {:#04x}", answer.opcode())));
        }
        refused(answer.0[36], answer.0[37])?;
        self.tsih = answer.u16(14);
        self.agreed.exp_stat_sn = answer.u32(24).wrapping_add(1);
        self.agreed.cmd_sn = answer.u32(28);
        self.agreed.max_cmd_sn = answer.u32(32);
        Ok((answer, bytes))
    }
}

/// The status of a login (RFC 7143, 11.13.5).
fn refused(class: u8, detail: u8) -> Result<()> {
    Err(match (class, detail) {
        (0, _) => return Ok(()),
        (1, _) => Error::unsupported("the target moved to another address; give that one"),
        (2, 1) => Error::invalid("the target refused user or secret"),
        (2, 2) => Error::invalid("the target does not let this initiator in"),
        (2, 3) => Error::not_found("there is no target of that name"),
        (2, _) => Error::unsupported(format!("the target refused the login, status 2/{detail}")),
        _ => Error::unavailable(format!("the target can't serve now, status {class}/{detail}")),
    })
}
