//! What initiator and target agree on about a session (RFC 7143, section 13). Pure.

use crate::decoder::Digests;
use crate::text::number;

/// The longest data segment that this target takes, in bytes.
pub const MAX_SEGMENT: u32 = 256 << 10;

/// The most that an initiator may send without being asked, in bytes per command. It bounds what a session may send
/// before the target has room for it, together with the number of commands.
pub const MAX_FIRST_BURST: u32 = 64 << 10;

/// The longest sequence of data segments, in bytes.
const MAX_BURST: u32 = 1 << 20;

/// Requests for data of one command at the same time.
const MAX_READY: u32 = 4;

/// The length of data segments before anything was declared (RFC 7143, 13.12).
const DEFAULT_SEGMENT: u32 = 8192;

/// The values of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Parameters {
    /// What is protected once the login is complete.
    pub digests: Digests,
    /// Whether an initiator waits for the target's request before it sends data apart from the command.
    pub initial_r2t: bool,
    /// Whether commands carry data themselves.
    pub immediate_data: bool,
    /// The longest data segment that the initiator takes, in bytes.
    pub segment: u32,
    /// The longest sequence of data, in bytes.
    pub burst: u32,
    /// The most data without a request, in bytes.
    pub first_burst: u32,
    /// Requests for data of one command at the same time.
    pub ready: u32,
}

impl Default for Parameters {
    /// What holds where nothing is negotiated.
    fn default() -> Self {
        Self {
            digests: Digests::default(),
            initial_r2t: true,
            immediate_data: true,
            segment: DEFAULT_SEGMENT,
            burst: 256 << 10,
            first_burst: MAX_FIRST_BURST,
            ready: 1,
        }
    }
}

/// The answer to an offer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// This value.
    Value(String),
    /// A declaration needs none.
    None,
    /// The value is none for its key.
    Invalid,
}

/// Whether the initiator may say this in the stage of operational parameters of a `discovery` session.
///
/// Keys of the session's data have no meaning in discovery sessions.
fn is_irrelevant(key: &str, discovery: bool) -> bool {
    discovery
        && matches!(
            key,
            "MaxConnections"
                | "InitialR2T"
                | "ImmediateData"
                | "MaxBurstLength"
                | "FirstBurstLength"
                | "MaxOutstandingR2T"
                | "DataPDUInOrder"
                | "DataSequenceInOrder"
        )
}

impl Parameters {
    /// Takes the offer `value` for `key`.
    pub fn negotiate(&mut self, key: &str, value: &str, discovery: bool) -> Answer {
        let irrelevant = is_irrelevant(key, discovery);
        if irrelevant {
            return Answer::Value("Irrelevant".to_owned());
        }
        match key {
            "HeaderDigest" => digest(value, &mut self.digests.header),
            "DataDigest" => digest(value, &mut self.digests.data),
            "MaxConnections" => ranged(value, 1, 65_535, |_| 1),
            "InitialR2T" => {
                let answer = boolean(value, |offered| offered);
                self.initial_r2t = answer != Answer::Value("No".to_owned());
                answer
            }
            "ImmediateData" => {
                let answer = boolean(value, |offered| offered);
                self.immediate_data = answer == Answer::Value("Yes".to_owned());
                answer
            }
            "MaxRecvDataSegmentLength" => match number(value) {
                Some(length @ 512..=0x00ff_ffff) => {
                    self.segment = length;
                    Answer::None
                }
                _ => Answer::Invalid,
            },
            "MaxBurstLength" => {
                let answer = ranged(value, 512, 0x00ff_ffff, |offered| offered.min(MAX_BURST));
                self.burst = agreed(&answer).unwrap_or(self.burst);
                answer
            }
            "FirstBurstLength" => {
                let answer = ranged(value, 512, 0x00ff_ffff, |offered| offered.min(MAX_FIRST_BURST));
                self.first_burst = agreed(&answer).unwrap_or(self.first_burst);
                answer
            }
            "DefaultTime2Wait" => ranged(value, 0, 3600, |offered| offered.max(2)),
            "DefaultTime2Retain" => ranged(value, 0, 3600, |_| 0),
            "MaxOutstandingR2T" => {
                let answer = ranged(value, 1, 65_535, |offered| offered.min(MAX_READY));
                self.ready = agreed(&answer).unwrap_or(self.ready);
                answer
            }
            "DataPDUInOrder" | "DataSequenceInOrder" => boolean(value, |_| true),
            "ErrorRecoveryLevel" => ranged(value, 0, 2, |_| 0),
            // Obsolete since RFC 7143, section 13.25.
            "IFMarker" | "OFMarker" => boolean(value, |_| false),
            "IFMarkInt" | "OFMarkInt" => Answer::Value("Reject".to_owned()),
            "TaskReporting" if value.split(',').any(|way| way == "RFC3720") => Answer::Value("RFC3720".to_owned()),
            "TaskReporting" => Answer::Value("Reject".to_owned()),
            "iSCSIProtocolLevel" => ranged(value, 0, 31, |offered| offered.min(1)),
            "InitiatorAlias" => Answer::None,
            _ => Answer::Value("NotUnderstood".to_owned()),
        }
    }

    /// Brings values that depend on each other into agreement. For the end of the negotiation.
    pub fn settle(&mut self) {
        self.first_burst = self.first_burst.min(self.burst);
    }
}

fn agreed(answer: &Answer) -> Option<u32> {
    match answer {
        Answer::Value(value) => value.parse().ok(),
        _ => None,
    }
}

fn ranged(value: &str, low: u32, high: u32, choose: impl Fn(u32) -> u32) -> Answer {
    match number(value) {
        Some(offered) if (low..=high).contains(&offered) => Answer::Value(choose(offered).to_string()),
        _ => Answer::Invalid,
    }
}

fn boolean(value: &str, choose: impl Fn(bool) -> bool) -> Answer {
    let offered = match value {
        "Yes" => true,
        "No" => false,
        _ => return Answer::Invalid,
    };
    Answer::Value(if choose(offered) { "Yes" } else { "No" }.to_owned())
}

/// The first digest of the initiator's list that the target has.
fn digest(value: &str, on: &mut bool) -> Answer {
    match value.split(',').find(|name| matches!(*name, "CRC32C" | "None")) {
        Some(name) => {
            *on = name == "CRC32C";
            Answer::Value(name.to_owned())
        }
        None => Answer::Value("Reject".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(key: &str, value: &str) -> String {
        match Parameters::default().negotiate(key, value, false) {
            Answer::Value(value) => value,
            Answer::None => "-".to_owned(),
            Answer::Invalid => "!".to_owned(),
        }
    }

    #[test]
    fn each_key_has_its_result_function() {
        let cases = [
            ("HeaderDigest", "CRC32C,None", "CRC32C"),
            ("DataDigest", "None,CRC32C", "None"),
            ("DataDigest", "X-other", "Reject"),
            ("MaxConnections", "8", "1"),
            ("InitialR2T", "No", "No"),
            ("InitialR2T", "Yes", "Yes"),
            ("ImmediateData", "No", "No"),
            ("MaxBurstLength", "16776192", "1048576"),
            ("MaxBurstLength", "511", "!"),
            ("FirstBurstLength", "262144", "65536"),
            ("FirstBurstLength", "4096", "4096"),
            ("DefaultTime2Wait", "0", "2"),
            ("DefaultTime2Retain", "20", "0"),
            ("MaxOutstandingR2T", "16", "4"),
            ("DataPDUInOrder", "No", "Yes"),
            ("ErrorRecoveryLevel", "2", "0"),
            ("ErrorRecoveryLevel", "3", "!"),
            ("IFMarker", "Yes", "No"),
            ("OFMarkInt", "1~2", "Reject"),
            ("TaskReporting", "FastAbort,RFC3720", "RFC3720"),
            ("iSCSIProtocolLevel", "2", "1"),
            ("MaxRecvDataSegmentLength", "262144", "-"),
            ("MaxRecvDataSegmentLength", "100", "!"),
            ("InitialR2T", "no", "!"),
            ("X-com.example", "1", "NotUnderstood"),
        ];
        for (key, offer, expected) in cases {
            assert_eq!(answer(key, offer), expected, "{key}={offer}");
        }
    }

    #[test]
    fn first_burst_is_never_above_the_burst() {
        let mut parameters = Parameters::default();
        parameters.negotiate("FirstBurstLength", "65536", false);
        parameters.negotiate("MaxBurstLength", "1024", false);
        parameters.settle();
        assert_eq!((parameters.first_burst, parameters.burst), (1024, 1024));
    }

    #[test]
    fn data_keys_mean_nothing_in_discovery() {
        let mut parameters = Parameters::default();
        let answer = parameters.negotiate("MaxBurstLength", "1024", true);
        assert_eq!((answer, parameters), (Answer::Value("Irrelevant".to_owned()), Parameters::default()));
    }
}
