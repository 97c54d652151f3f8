//! The login of a connection: stages, authentication, negotiation (RFC 7143, sections 6.3 and 12). Pure: requests go
//! in, responses come out.

use std::sync::Arc;

use crate::chap::Algorithm;
use crate::parameters::{Answer, MAX_SEGMENT, Parameters};
use crate::pdu::{Header, flag, opcode};
use crate::secrets::Secrets;
use crate::text;

/// The longest data segment of a login request, in bytes.
pub const MAX_LOGIN_SEGMENT: usize = 8192;

/// The longest text of one negotiation step, in bytes: what several requests may carry together.
const MAX_TEXT: usize = 64 << 10;

/// Requests of one login. Standard initiators send two to six.
const MAX_REQUESTS: u32 = 32;

/// The longest name of an initiator or target in bytes.
pub const MAX_NAME: usize = 223;

/// The group of the portals of a target: all its portals are one.
pub const PORTAL_GROUP: u16 = 1;

/// What is known of the target before a login.
#[derive(Debug)]
pub struct TargetIdentity {
    /// Its iSCSI name.
    pub name: String,
    /// For people.
    pub alias: String,
    /// Who may log in; `None`: any initiator.
    pub secrets: Option<Secrets>,
}

/// Why a login fails (RFC 7143, 11.13.5): status class and detail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u16)]
pub enum Status {
    /// The initiator broke a rule.
    Initiator = 0x0200,
    /// It did not prove who it is.
    Authentication = 0x0201,
    /// There is no such target.
    NotFound = 0x0203,
    /// It speaks another version.
    Version = 0x0205,
    /// The session has its one connection.
    TooManyConnections = 0x0206,
    /// A name is missing.
    MissingParameter = 0x0207,
    /// An unknown type of session.
    SessionType = 0x0209,
    /// It wants to join a session that is not there.
    NoSession = 0x020a,
    /// The target can't serve it now.
    Unavailable = 0x0301,
    /// The target has no room for it.
    Resources = 0x0302,
}

/// Who has logged in, and what was agreed on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Established {
    /// The initiator's name.
    pub initiator: String,
    /// The initiator's part of the session identifier.
    pub isid: [u8; 6],
    /// The session that it wants to join; 0: a new one.
    pub tsih: u16,
    /// The connection's number.
    pub cid: u16,
    /// Whether it can only ask for targets.
    pub discovery: bool,
    /// The values of the session.
    pub parameters: Parameters,
    /// The number of the next command.
    pub cmd_sn: u32,
    /// The number of the next status.
    pub stat_sn: u32,
}

/// A response.
#[derive(Debug)]
pub struct Reply {
    /// Its header.
    pub header: Header,
    /// Its text.
    pub text: Vec<u8>,
}

/// What follows from a request.
#[derive(Debug)]
pub enum Step {
    /// This response, and a further request.
    Continue(Reply),
    /// The login is complete once the session is made. The reply lacks its handle and the window of commands.
    Complete(Reply, Box<Established>),
    /// This response, and the end of the connection.
    Refuse(Reply),
}

#[derive(Debug, PartialEq, Eq)]
enum Chap {
    /// Not agreed on yet.
    Absent,
    Chosen,
    Challenged {
        algorithm: Algorithm,
        id: u8,
        challenge: Vec<u8>,
    },
    Proved,
}

/// A login under way.
#[derive(Debug)]
pub struct Login {
    target: Arc<TargetIdentity>,
    requests: u32,
    stage: u8,
    identity: Option<(Header, String, bool)>,
    parameters: Parameters,
    chap: Chap,
    text: Vec<u8>,
    declared: bool,
    stat_sn: u32,
}

const SECURITY: u8 = 0;
const OPERATIONAL: u8 = 1;
const FULL_FEATURE: u8 = 3;

impl Login {
    /// A login at `target`.
    #[must_use]
    pub fn new(target: Arc<TargetIdentity>) -> Self {
        Self {
            target,
            requests: 0,
            stage: SECURITY,
            identity: None,
            parameters: Parameters::default(),
            chap: Chap::Absent,
            text: Vec::new(),
            declared: false,
            stat_sn: 1,
        }
    }

    /// Takes a request.
    pub fn step(&mut self, request: &Header, data: &[u8]) -> Step {
        self.try_step(request, data).unwrap_or_else(|status| Step::Refuse(self.refusal(request, status)))
    }

    /// The response that refuses `request`.
    pub fn refusal(&mut self, request: &Header, status: Status) -> Reply {
        let mut reply = self.reply(request, Vec::new());
        reply.header.0[1] = 0;
        reply.header.set_u16(36, status as u16);
        reply
    }

    fn try_step(&mut self, request: &Header, data: &[u8]) -> Result<Step, Status> {
        self.requests += 1;
        if request.opcode() != opcode::LOGIN || self.requests > MAX_REQUESTS {
            return Err(Status::Initiator);
        }
        // The lowest version that the initiator speaks; there is only 0.
        if request.0[3] > 0 {
            return Err(Status::Version);
        }
        let (transit, goes_on) = (request.has(flag::TRANSIT), request.has(flag::CONTINUE));
        let (stage, next) = (request.flags() >> 2 & 3, request.flags() & 3);
        if self.text.len() + data.len() > MAX_TEXT || transit && goes_on {
            return Err(Status::Initiator);
        }
        self.text.extend_from_slice(data);
        if goes_on {
            return Ok(Step::Continue(self.reply(request, Vec::new())));
        }
        let text = std::mem::take(&mut self.text);
        let pairs = text::pairs(&text).map_err(|_| Status::Initiator)?;
        let mut out = Vec::new();
        match &self.identity {
            None => {
                self.identify(request, &pairs, &mut out)?;
                self.stage = stage;
            }
            // The identifiers of session and connection stay.
            Some((first, ..)) if first.0[8..16] != request.0[8..16] || first.0[20..22] != request.0[20..22] => return Err(Status::Initiator),
            Some(_) => {}
        }
        if stage != self.stage || !matches!(stage, SECURITY | OPERATIONAL) {
            return Err(Status::Initiator);
        }
        let proved = self.target.secrets.is_none() || self.chap == Chap::Proved;
        if stage == OPERATIONAL && !proved {
            return Err(Status::Authentication);
        }
        let discovery = self.identity.as_ref().is_some_and(|(.., discovery)| *discovery);
        for (key, value) in &pairs {
            match *key {
                "InitiatorName" | "TargetName" | "SessionType" | "InitiatorAlias" => {}
                "AuthMethod" | "CHAP_A" | "CHAP_N" | "CHAP_R" | "CHAP_I" | "CHAP_C" if stage == SECURITY => {}
                // An answer to what the target declared.
                _ if matches!(*value, "NotUnderstood" | "Irrelevant" | "Reject") => {}
                _ => match self.parameters.negotiate(key, value, discovery) {
                    Answer::Value(answer) => text::put(&mut out, key, &answer),
                    Answer::None => {}
                    Answer::Invalid => return Err(Status::Initiator),
                },
            }
        }
        if stage == SECURITY {
            self.authenticate(&pairs, &mut out)?;
        } else if !self.declared {
            self.declared = true;
            text::put(&mut out, "MaxRecvDataSegmentLength", &MAX_SEGMENT.to_string());
        }
        let proved = self.target.secrets.is_none() || self.chap == Chap::Proved;
        let mut reply = self.reply(request, out);
        if !transit || !proved {
            return Ok(Step::Continue(reply));
        }
        if next <= stage || next == 2 {
            return Err(Status::Initiator);
        }
        reply.header.0[1] = flag::TRANSIT | stage << 2 | next;
        self.stage = next;
        if next != FULL_FEATURE {
            return Ok(Step::Continue(reply));
        }
        let Some((_, initiator, discovery)) = self.identity.clone() else { return Err(Status::MissingParameter) };
        self.parameters.settle();
        let mut isid = [0; 6];
        isid.copy_from_slice(&request.0[8..14]);
        let (tsih, cid) = (request.u16(14), request.u16(20));
        let established = Established { initiator, isid, tsih, cid, discovery, parameters: self.parameters, cmd_sn: request.cmd_sn(), stat_sn: self.stat_sn };
        Ok(Step::Complete(reply, Box::new(established)))
    }

    /// A response without text that leads anywhere.
    fn reply(&mut self, request: &Header, text: Vec<u8>) -> Reply {
        let mut header = Header::new(opcode::LOGIN_RESPONSE);
        header.0[1] = request.flags() & 0x0c;
        header.0[8..16].copy_from_slice(&request.0[8..16]);
        header.set_u32(16, request.tag());
        header.set_u32(24, self.stat_sn);
        self.stat_sn = self.stat_sn.wrapping_add(1);
        header.set_u32(28, request.cmd_sn());
        header.set_u32(32, request.cmd_sn());
        Reply { header, text }
    }

    /// Reads who calls whom from the first request.
    fn identify(&mut self, request: &Header, pairs: &[(&str, &str)], out: &mut Vec<u8>) -> Result<(), Status> {
        let value = |key: &str| pairs.iter().find(|(name, _)| *name == key).map(|(_, value)| *value);
        let initiator = value("InitiatorName").ok_or(Status::MissingParameter)?;
        if initiator.is_empty() || initiator.len() > MAX_NAME || initiator.chars().any(|c| c.is_whitespace() || c.is_control()) {
            return Err(Status::Initiator);
        }
        let discovery = match value("SessionType") {
            Some("Discovery") => true,
            None | Some("Normal") => false,
            Some(_) => return Err(Status::SessionType),
        };
        if !discovery {
            let target = value("TargetName").ok_or(Status::MissingParameter)?;
            if !target.eq_ignore_ascii_case(&self.target.name) {
                return Err(Status::NotFound);
            }
            text::put(out, "TargetPortalGroupTag", &PORTAL_GROUP.to_string());
            text::put(out, "TargetAlias", &self.target.alias);
        }
        // Names are equal without regard to case.
        self.identity = Some((*request, initiator.to_ascii_lowercase(), discovery));
        Ok(())
    }

    /// The stage of security.
    fn authenticate(&mut self, pairs: &[(&str, &str)], out: &mut Vec<u8>) -> Result<(), Status> {
        let value = |key: &str| pairs.iter().find(|(name, _)| *name == key).map(|(_, value)| *value);
        if let Some(methods) = value("AuthMethod") {
            let mut methods = methods.split(',');
            let wanted = if self.target.secrets.is_some() { "CHAP" } else { "None" };
            if self.chap != Chap::Absent || !methods.any(|method| method == wanted) {
                return Err(Status::Authentication);
            }
            text::put(out, "AuthMethod", wanted);
            if self.target.secrets.is_some() {
                self.chap = Chap::Chosen;
                return Ok(());
            }
        }
        let Some(secrets) = &self.target.secrets else { return Ok(()) };
        match &self.chap {
            Chap::Chosen => {
                let Some(algorithms) = value("CHAP_A") else { return Ok(()) };
                let algorithm = Algorithm::choose(algorithms).ok_or(Status::Authentication)?;
                let mut random = vec![0; algorithm.length() + 1];
                getrandom::fill(&mut random).map_err(|_| Status::Unavailable)?;
                let id = random.pop().unwrap_or_default();
                text::put(out, "CHAP_A", &algorithm.number().to_string());
                text::put(out, "CHAP_I", &id.to_string());
                text::put(out, "CHAP_C", &text::hexadecimal(&random));
                self.chap = Chap::Challenged { algorithm, id, challenge: random };
                Ok(())
            }
            Chap::Challenged { algorithm, id, challenge } => {
                let name = value("CHAP_N").ok_or(Status::Authentication)?;
                let proof = value("CHAP_R").and_then(text::binary).ok_or(Status::Authentication)?;
                // An unknown name takes as long as a wrong proof.
                let secret = secrets.initiator(name);
                let right = algorithm.verify(*id, secret.unwrap_or_default(), challenge, &proof);
                if secret.is_none() || !right {
                    return Err(Status::Authentication);
                }
                if let Some(theirs) = value("CHAP_C") {
                    let target = secrets.target().ok_or(Status::Authentication)?;
                    let theirs = text::binary(theirs).filter(|theirs| !theirs.is_empty()).ok_or(Status::Authentication)?;
                    let id = value("CHAP_I").and_then(text::number).and_then(|id| u8::try_from(id).ok()).ok_or(Status::Authentication)?;
                    // Our own challenge: it would have us prove what it can't (RFC 7143, 9.2.1).
                    if theirs == *challenge {
                        return Err(Status::Authentication);
                    }
                    text::put(out, "CHAP_N", &target.name);
                    text::put(out, "CHAP_R", &text::hexadecimal(&algorithm.respond(id, &target.secret, &theirs)));
                }
                self.chap = Chap::Proved;
                Ok(())
            }
            Chap::Absent | Chap::Proved => Ok(()),
        }
    }
}
