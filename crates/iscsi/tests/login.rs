//! Logins: negotiation, CHAP, discovery, identifiers of sessions.

use skytether_iscsi::chap::Algorithm;
use skytether_iscsi::pdu::{Header, NO_TAG, flag, opcode};
use skytether_iscsi::{Options, Secrets, text};

use crate::initiator::{Initiator, Unit};
use crate::serving::{NAME, Serving, serve};

const WHO: [(&str, &str); 3] = [("InitiatorName", "iqn.2024-01.test:i"), ("TargetName", NAME), ("SessionType", "Normal")];

#[tokio::test]
async fn all_keys_of_a_login_are_answered() {
    let serving = serve(Options::default()).await;
    let offers = [
        ("HeaderDigest", "CRC32C,None"),
        ("DataDigest", "CRC32C"),
        ("InitialR2T", "No"),
        ("ImmediateData", "Yes"),
        ("MaxBurstLength", "262144"),
        ("FirstBurstLength", "262144"),
        ("MaxConnections", "4"),
        ("MaxOutstandingR2T", "1"),
        ("ErrorRecoveryLevel", "2"),
        ("DefaultTime2Wait", "2"),
        ("DefaultTime2Retain", "0"),
        ("MaxRecvDataSegmentLength", "262144"),
        ("X-org.example", "1"),
    ];
    let (_, reply) = Initiator::log_in_as(serving.address, [0x80, 1, 2, 3, 4, 5], &offers).await;
    let expected = [
        ("TargetPortalGroupTag", "1"),
        ("TargetAlias", "drive-0"),
        ("HeaderDigest", "CRC32C"),
        ("DataDigest", "CRC32C"),
        ("InitialR2T", "No"),
        ("ImmediateData", "Yes"),
        ("MaxBurstLength", "262144"),
        ("FirstBurstLength", "65536"),
        ("MaxConnections", "1"),
        ("MaxOutstandingR2T", "1"),
        ("ErrorRecoveryLevel", "0"),
        ("DefaultTime2Wait", "2"),
        ("DefaultTime2Retain", "0"),
        ("X-org.example", "NotUnderstood"),
        ("MaxRecvDataSegmentLength", "262144"),
    ];
    assert_eq!(reply.pairs(), expected.map(|(key, value)| (key.to_owned(), value.to_owned())));
    assert_ne!(reply.header.u16(14), 0, "a session has a handle");
    assert_eq!(reply.header.0[8..14], [0x80, 1, 2, 3, 4, 5]);
}

#[tokio::test]
async fn wrong_logins_are_refused_with_their_status() {
    let serving = serve(Options::default()).await;
    let name = ("InitiatorName", "iqn.2024-01.test:i");
    let cases: [(&[(&str, &str)], u16); 7] = [
        (&[name, ("TargetName", "iqn.2024-01.io.skytether:other")], 0x0203),
        (&[("TargetName", NAME)], 0x0207),
        (&[name], 0x0207),
        (&[name, ("SessionType", "Other")], 0x0209),
        (&[name, ("TargetName", NAME), ("MaxBurstLength", "1")], 0x0200),
        (&[name, ("TargetName", NAME), ("InitialR2T", "Perhaps")], 0x0200),
        (&[name, name, ("TargetName", NAME)], 0x0200),
    ];
    for (keys, status) in cases {
        let mut initiator = Initiator::connect(serving.address).await;
        assert_eq!(initiator.login(1, 3, true, keys).await.login_status(), status, "{keys:?}");
        assert!(initiator.receive().await.is_none(), "the connection ends");
    }
}

#[tokio::test]
async fn text_of_a_login_may_come_in_several_requests() {
    let serving = serve(Options::default()).await;
    let mut initiator = Initiator::connect(serving.address).await;
    let mut header = Header::new(opcode::LOGIN | 0x40);
    header.0[1] = flag::CONTINUE | 1 << 2;
    header.0[8..14].copy_from_slice(&initiator.isid);
    header.set_u32(24, initiator.cmd_sn);
    initiator.send(header, b"InitiatorName=iqn.2024-01.te").await;
    let reply = initiator.receive().await.unwrap();
    assert_eq!((reply.login_status(), reply.header.has(flag::TRANSIT), reply.data.len()), (0, false, 0));
    header.0[1] = flag::TRANSIT | 1 << 2 | 3;
    initiator.send(header, format!("st:i\0TargetName={NAME}\0").as_bytes()).await;
    let reply = initiator.receive().await.unwrap();
    assert_eq!(reply.login_status(), 0);
    initiator.begin(&reply);
    initiator.attend(1).await;
}

async fn challenge(serving: &Serving, algorithms: &str) -> (Initiator, Unit) {
    let mut initiator = Initiator::connect(serving.address).await;
    let mut keys = WHO.to_vec();
    keys.push(("AuthMethod", "CHAP,None"));
    let reply = initiator.login(0, 1, true, &keys).await;
    assert_eq!((reply.value("AuthMethod").as_deref(), reply.header.has(flag::TRANSIT)), (Some("CHAP"), false));
    let reply = initiator.login(0, 1, false, &[("CHAP_A", algorithms)]).await;
    (initiator, reply)
}

fn proof(reply: &Unit, secret: &[u8]) -> Vec<u8> {
    let algorithm = Algorithm::choose(&reply.value("CHAP_A").unwrap()).unwrap();
    let id = text::number(&reply.value("CHAP_I").unwrap()).unwrap() as u8;
    algorithm.respond(id, secret, &text::binary(&reply.value("CHAP_C").unwrap()).unwrap())
}

fn secrets() -> Options {
    let secrets = Secrets::parse("initiator alice 0123456789ab\ntarget drive ba9876543210").unwrap();
    Options { secrets: Some(secrets), ..Options::default() }
}

#[tokio::test]
async fn those_who_know_the_secret_are_let_in() {
    let serving = serve(secrets()).await;
    for algorithms in ["5", "7,5", "6,8,7"] {
        let (mut initiator, reply) = challenge(&serving, algorithms).await;
        let proof = text::hexadecimal(&proof(&reply, b"0123456789ab"));
        let reply = initiator.login(0, 1, true, &[("CHAP_N", "alice"), ("CHAP_R", &proof)]).await;
        assert_eq!((reply.login_status(), reply.header.flags()), (0, 0x81));
        let reply = initiator.login(1, 3, true, &[]).await;
        initiator.begin(&reply);
        initiator.attend(1).await;
    }
}

#[tokio::test]
async fn those_who_do_not_know_the_secret_are_refused() {
    let serving = serve(secrets()).await;
    for (name, secret) in [("alice", "ba9876543210"), ("bob", "0123456789ab"), ("", "")] {
        let (mut initiator, reply) = challenge(&serving, "5").await;
        let proof = text::hexadecimal(&proof(&reply, secret.as_bytes()));
        let reply = initiator.login(0, 1, true, &[("CHAP_N", name), ("CHAP_R", &proof)]).await;
        assert_eq!(reply.login_status(), 0x0201, "{name}");
    }
    let (_, reply) = challenge(&serving, "56").await;
    assert_eq!(reply.login_status(), 0x0201);
    // Without any proof, in either stage, and for discovery.
    let no_proof = [(0, "AuthMethod", "None"), (1, "InitialR2T", "No"), (1, "SessionType", "Discovery")];
    for (stage, key, value) in no_proof {
        let mut initiator = Initiator::connect(serving.address).await;
        let mut keys = WHO[..2].to_vec();
        keys.push((key, value));
        let reply = initiator.login(stage, stage + 1 + stage, true, &keys).await;
        assert_eq!(reply.login_status(), 0x0201, "{key}={value}");
    }
    let mut initiator = Initiator::connect(serving.address).await;
    let reply = initiator.login(0, 3, true, &WHO).await;
    assert_eq!((reply.login_status(), reply.header.has(flag::TRANSIT)), (0, false), "security can't be skipped");
    assert_eq!(initiator.login(1, 3, true, &[]).await.login_status(), 0x0200);
}

#[tokio::test]
async fn the_target_proves_itself_to_those_who_ask() {
    let serving = serve(secrets()).await;
    let (mut initiator, reply) = challenge(&serving, "5").await;
    let theirs = reply.value("CHAP_C").unwrap();
    let answer = text::hexadecimal(&proof(&reply, b"0123456789ab"));
    let mine = [7; 16];
    let keys = [("CHAP_N", "alice"), ("CHAP_R", answer.as_str()), ("CHAP_I", "9"), ("CHAP_C", &text::hexadecimal(&mine))];
    let reply = initiator.login(0, 1, true, &keys).await;
    let expected = text::hexadecimal(&Algorithm::Md5.respond(9, b"ba9876543210", &mine));
    assert_eq!((reply.value("CHAP_N").as_deref(), reply.value("CHAP_R")), (Some("drive"), Some(expected)));
    // It does not answer its own challenge.
    drop(theirs);
    let (mut initiator, reply) = challenge(&serving, "5").await;
    let (answer, own) = (text::hexadecimal(&proof(&reply, b"0123456789ab")), reply.value("CHAP_C").unwrap());
    let keys = [("CHAP_N", "alice"), ("CHAP_R", answer.as_str()), ("CHAP_I", "9"), ("CHAP_C", own.as_str())];
    assert_eq!(initiator.login(0, 1, true, &keys).await.login_status(), 0x0201);
}

#[tokio::test]
async fn a_discovery_session_tells_of_the_target_alone() {
    let serving = serve(Options::default()).await;
    let mut initiator = Initiator::connect(serving.address).await;
    let reply = initiator.login(1, 3, true, &[("InitiatorName", "iqn.2024-01.test:i"), ("SessionType", "Discovery")]).await;
    initiator.begin(&reply);
    let mut ask = Header::new(opcode::TEXT | 0x40);
    ask.set_u32(20, NO_TAG);
    let ask = initiator.number(ask);
    initiator.send(ask, b"SendTargets=All\0").await;
    let reply = initiator.receive().await.unwrap();
    let address = format!("{},1", serving.address);
    assert_eq!(reply.pairs(), [("TargetName".to_owned(), NAME.to_owned()), ("TargetAddress".to_owned(), address)]);
    let command = initiator.command(1, &[0; 6], flag::FINAL, 0);
    initiator.send(command, &[]).await;
    assert_eq!(initiator.receive().await.unwrap().header.opcode(), opcode::REJECT);
    assert!(initiator.receive().await.is_none());
}

#[tokio::test]
async fn a_login_of_the_same_name_ends_the_former_session() {
    let serving = serve(Options::default()).await;
    let mut first = Initiator::log_in(serving.address, &[]).await;
    first.attend(1).await;
    let mut other = Initiator::log_in_as(serving.address, [0x80, 0, 0, 2, 0, 0], &[]).await.0;
    let mut second = Initiator::log_in(serving.address, &[]).await;
    assert!(first.receive().await.is_none());
    second.attend(1).await;
    other.attend(1).await;
}

#[tokio::test]
async fn a_second_connection_of_a_session_is_refused() {
    let serving = serve(Options::default()).await;
    let (mut first, reply) = Initiator::log_in_as(serving.address, [0x80, 0, 0, 1, 0, 0], &[]).await;
    let tsih = reply.header.u16(14);
    for (tsih, status) in [(tsih, 0x0206), (tsih + 1, 0x020a)] {
        let mut second = Initiator::connect(serving.address).await;
        second.send_login(1, 3, true, tsih, &[("InitiatorName", "iqn.2024-01.test:initiator"), ("TargetName", NAME)]).await;
        assert_eq!(second.receive().await.unwrap().login_status(), status);
    }
    first.attend(1).await;
}
