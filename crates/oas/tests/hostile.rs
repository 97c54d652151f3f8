//! Targets that answer anything: errors are typed, nothing hangs, nothing is believed.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use oas::path::{Caller, Path};
use oas::session::local_operations;
use oas::{Digest, Input, Order, Pattern, Session, Settings};
use skytether_common::{Error, Kind, Result};
use skytether_iscsi::pdu::{self, HEADER, Header};
use skytether_offload::codes::{item_flag, opcode};
use skytether_offload::{Capabilities, Descriptor, ExecResult, Failure, Item};
use skytether_volume::ExecLimits;

use crate::mounted::{Mounted, noise};

/// What a target answers to a descriptor.
type Answer = dyn Fn(Descriptor) -> Result<Bytes> + Send + Sync;

struct Lying {
    answer: Box<Answer>,
    asked: AtomicU64,
}

impl std::fmt::Debug for Lying {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Lying")
    }
}

impl Path for Lying {
    fn name(&self) -> String {
        "liar".to_owned()
    }

    fn capabilities(&self, _: Caller) -> BoxFuture<'_, Result<Capabilities>> {
        let mut capabilities = Capabilities::new(ExecLimits { descriptor: 1 << 20, result: 1 << 20 });
        capabilities.operations = vec![opcode::MD5, opcode::VERIFY_FRAMED, opcode::SEARCH, opcode::WORD_COUNT, opcode::SORT_LINES];
        async move { Ok(capabilities) }.boxed()
    }

    fn exec(&self, descriptor: Bytes, _: usize, _: Caller) -> BoxFuture<'_, Result<Bytes>> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        async move { (self.answer)(Descriptor::decode(&descriptor)?) }.boxed()
    }
}

fn session(here: bool, answer: impl Fn(Descriptor) -> Result<Bytes> + Send + Sync + 'static) -> (Session, Arc<Lying>) {
    let path = Arc::new(Lying { answer: Box::new(answer), asked: AtomicU64::new(0) });
    let settings = Settings { here, time: Duration::from_secs(20), ..Settings::default() };
    (Session::with(Some(path.clone()), local_operations().unwrap(), settings).unwrap(), path)
}

fn fixture() -> Option<(Mounted, Vec<Input>)> {
    let mounted = Mounted::new("ext4", 16, 0)?;
    std::fs::write(mounted.file("a"), noise(1, 20_000)).unwrap();
    let inputs = vec![Input::open(mounted.file("a")).unwrap()];
    Some((mounted, inputs))
}

fn items(descriptor: &Descriptor, items: Vec<Item>) -> Result<Bytes> {
    ExecResult { opcode: descriptor.opcode, items, ..ExecResult::default() }.encode()
}

#[test]
fn answers_that_do_not_fit_are_no_damage() {
    let Some((_mounted, inputs)) = fixture() else { return };
    let answers: Vec<(&str, Box<Answer>)> = vec![
        ("nothing", Box::new(|_| Ok(Bytes::new()))),
        ("noise", Box::new(|_| Ok(noise(2, 500).into()))),
        ("no items", Box::new(|d| items(&d, vec![]))),
        ("two items", Box::new(|d| items(&d, vec![Item::default(), Item::default()]))),
        ("no digest", Box::new(|d| items(&d, vec![Item::default()]))),
        ("a long digest", Box::new(|d| items(&d, vec![Item::of_data(vec![0; 17])]))),
        ("another operation", Box::new(|_| ExecResult { opcode: opcode::SHA256, items: vec![Item::of_data(vec![0; 16])], ..ExecResult::default() }.encode())),
        (
            "an output",
            Box::new(|d| ExecResult { opcode: d.opcode, items: vec![Item::of_data(vec![0; 16])], outputs: vec![1], ..ExecResult::default() }.encode()),
        ),
    ];
    for (what, answer) in answers {
        let (strict, _) = session(false, answer);
        let done = strict.sum(Digest::Md5, &inputs).pop().unwrap();
        assert_eq!(done.value.unwrap_err().kind(), Kind::Unavailable, "{what}");
    }
}

#[test]
fn what_a_target_does_not_answer_is_done_here() {
    let Some((_mounted, inputs)) = fixture() else { return };
    let right = Session::local(Settings::default()).unwrap().sum(Digest::Md5, &inputs).pop().unwrap().value.unwrap();
    let answers: [Box<Answer>; 3] =
        [Box::new(|_| Ok(noise(2, 500).into())), Box::new(|d| items(&d, vec![])), Box::new(|d| items(&d, vec![Item::default(); 2]))];
    for answer in answers {
        let (lenient, _) = session(true, answer);
        let done = lenient.sum(Digest::Md5, &inputs).pop().unwrap();
        assert!(done.value.unwrap() == right && !done.ran.is_there());
    }
}

#[test]
fn pages_without_an_end_are_refused() {
    let Some((_mounted, inputs)) = fixture() else { return };
    for values in [vec![0, 0, 0], vec![0], vec![0, 100, 50], vec![0, u64::MAX, u64::MAX]] {
        let shown = values.clone();
        let (session, path) = session(false, move |d| items(&d, vec![Item { flags: item_flag::MORE, values: values.clone(), ..Item::default() }]));
        let done = session.search(&Pattern::string("x"), true, &inputs, |_, _| Ok(())).unwrap().pop().unwrap();
        let asked = path.asked.load(Ordering::Relaxed);
        assert!(done.value.is_err() && asked <= 2, "{shown:?}: asked {asked} times");
    }
}

#[test]
fn matches_outside_of_the_file_are_refused() {
    let Some((_mounted, inputs)) = fixture() else { return };
    let (session, _) =
        session(false, |d| items(&d, vec![Item { values: vec![2], data: [9u64.to_le_bytes(), 3u64.to_le_bytes()].concat().into(), ..Item::default() }]));
    let done = session.search(&Pattern::string("x"), false, &inputs, |_, _| Ok(())).unwrap().pop().unwrap();
    assert_eq!(done.value.unwrap_err().kind(), Kind::Unavailable);
}

#[test]
fn failures_of_a_target_keep_their_kind() {
    let Some((_mounted, inputs)) = fixture() else { return };
    for kind in Kind::ALL {
        let failure = move || Some(Failure { kind, text: "so it is".to_owned() });
        let whole = move |d: Descriptor| ExecResult { opcode: d.opcode, failure: failure(), ..ExecResult::default() }.encode();
        let one = move |d: Descriptor| items(&d, vec![Item { failure: failure(), ..Item::default() }]);
        let refused = move |_: Descriptor| Err(Error::new(kind, "so it is"));
        let answers: [Box<Answer>; 3] = [Box::new(whole), Box::new(one), Box::new(refused)];
        for answer in answers {
            let (strict, _) = session(false, answer);
            let done = strict.sum(Digest::Md5, &inputs).pop().unwrap();
            let error = done.value.unwrap_err();
            assert!(error.kind() == kind && error.mentions("so it is"), "{error:?}");
        }
        // Damage of the medium is never hidden by a cache; all else is done here.
        let (lenient, _) = session(true, whole);
        let done = lenient.sum(Digest::Md5, &inputs).pop().unwrap();
        assert_eq!(done.value.is_ok(), kind != Kind::Corrupt);
        assert_eq!(lenient.sort(&Order::LINES, &inputs).value.is_ok(), kind != Kind::Corrupt);
    }
}

#[test]
fn a_file_that_keeps_changing_is_done_here() {
    let Some((mounted, inputs)) = fixture() else { return };
    let path = mounted.file("a");
    let change = AtomicU64::new(0);
    let (session, asked) = session(true, move |d| {
        let n = change.fetch_add(1, Ordering::Relaxed);
        std::fs::write(&path, noise(n, 20_000 + n as usize)).unwrap();
        items(&d, vec![Item::of_data(vec![0; 16])])
    });
    let done = session.sum(Digest::Md5, &inputs).pop().unwrap();
    assert!(done.value.unwrap() != vec![0; 16] && !done.ran.is_there());
    assert_eq!(asked.asked.load(Ordering::Relaxed), 3);
}

/// A server that answers each connection with the same bytes, after it read some.
fn server(answer: Vec<u8>) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        // A test asks at most a few times.
        for stream in listener.incoming().take(64) {
            let Ok(mut stream) = stream else { continue };
            let _ = stream.set_read_timeout(Some(Duration::from_secs(5)));
            let mut space = [0; 4096];
            let _ = stream.read(&mut space);
            let _ = stream.write_all(&answer);
        }
    });
    port
}

#[test]
fn units_that_are_none_end_the_login() {
    let Some((_mounted, inputs)) = fixture() else { return };
    for seed in 0..24 {
        let mut answer = noise(seed, 2000);
        if seed % 2 == 0 {
            // A login response with anything in it.
            answer[..8].copy_from_slice(&[0x23, 0x81, 0, 0, 0, 0, 1, 0]);
            answer[36..38].copy_from_slice(&[0, 0]);
        }
        let settings = Settings { here: false, time: Duration::from_secs(5), ..Settings::default() };
        let session = Session::open(&format!("iscsi://127.0.0.1:{}/iqn.x/0", server(answer)), settings).unwrap();
        let begin = std::time::Instant::now();
        let error = session.sum(Digest::Md5, &inputs).pop().unwrap().value.unwrap_err();
        assert!(begin.elapsed() < Duration::from_secs(60), "it took {:?}", begin.elapsed());
        assert!(!matches!(error.kind(), Kind::Internal), "{error}");
    }
}

#[test]
fn a_silent_target_ends_with_the_deadline() {
    let Some((_mounted, inputs)) = fixture() else { return };
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("iscsi://{}/iqn.x/0", listener.local_addr().unwrap());
    let settings = Settings { here: false, time: Duration::from_millis(300), ..Settings::default() };
    let session = Session::open(&url, settings).unwrap();
    let error = session.sum(Digest::Md5, &inputs).pop().unwrap().value.unwrap_err();
    assert_eq!(error.kind(), Kind::Unavailable, "{error}");
}

/// A server that logs initiators in, and answers the first command of each with `answer` of its header.
fn server_after_login(answer: impl Fn(&Header) -> Vec<u8> + Send + 'static) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in listener.incoming().take(16) {
            let Ok(mut stream) = stream else { continue };
            let _ = stream.set_read_timeout(Some(Duration::from_secs(5)));
            let mut header = Header([0; HEADER]);
            while stream.read_exact(&mut header.0).is_ok() {
                let mut data = vec![0; header.data_length().next_multiple_of(4)];
                if stream.read_exact(&mut data).is_err() {
                    break;
                }
                if header.opcode() != pdu::opcode::LOGIN {
                    let _ = stream.write_all(&answer(&header));
                    continue;
                }
                let mut reply = Header::new(pdu::opcode::LOGIN_RESPONSE);
                reply.0[1] = header.flags();
                reply.set_u32(16, header.tag());
                reply.set_u32(28, 1);
                reply.set_u32(32, 64);
                let _ = stream.write_all(&reply.0);
            }
        }
    });
    port
}

/// An answer to a command.
fn unit(opcode: u8, command: &Header, words: &[(usize, u32)], data: &[u8]) -> Vec<u8> {
    let mut header = Header::new(opcode);
    header.set_u32(16, command.tag());
    header.set_u32(32, 64);
    words.iter().for_each(|(at, word)| header.set_u32(*at, *word));
    header.set_data_length(data.len());
    let mut out = header.0.to_vec();
    out.extend_from_slice(data);
    out.resize(out.len().next_multiple_of(4), 0);
    out
}

#[test]
fn units_that_break_a_session_are_told() {
    let Some((_mounted, inputs)) = fixture() else { return };
    type Reply = Box<dyn Fn(&Header) -> Vec<u8> + Send>;
    use pdu::opcode as op;
    let answers: Vec<(&str, Reply)> = vec![
        ("more data than was asked for", Box::new(|c| unit(op::DATA_IN, c, &[], &[0; 8000]))),
        ("data at another place", Box::new(|c| unit(op::DATA_IN, c, &[(40, 512)], &[0; 100]))),
        ("a request for data that is not there", Box::new(|c| unit(op::READY_TO_TRANSFER, c, &[(40, 1 << 30), (44, u32::MAX)], &[]))),
        ("a request for no data", Box::new(|c| unit(op::READY_TO_TRANSFER, c, &[(44, 0)], &[]))),
        ("an unknown opcode", Box::new(|c| unit(0x3e, c, &[], &[]))),
        ("a rejection", Box::new(|c| unit(op::REJECT, c, &[], &c.0))),
        ("a rejection of nothing", Box::new(|c| unit(op::REJECT, c, &[], &[1, 2]))),
        ("the session's end", Box::new(|c| unit(op::ASYNCHRONOUS, c, &[(36, 0x0100_0000)], &[]))),
        ("a target failure", Box::new(|c| unit(op::RESPONSE, c, &[(0, 0x2180_0100)], &[]))),
        ("a status without sense data", Box::new(|c| unit(op::RESPONSE, c, &[(0, 0x2180_0002)], &[]))),
        ("a sense length that is too long", Box::new(|c| unit(op::RESPONSE, c, &[(0, 0x2180_0002)], &[0xff, 0xff, 0x70]))),
        ("a page that is cut off", Box::new(|c| [unit(op::DATA_IN, c, &[], &[0, 0xC0, 1]), unit(op::RESPONSE, c, &[], &[])].concat())),
        ("noise", Box::new(|_| noise(1, 3000))),
    ];
    for (what, answer) in answers {
        let settings = Settings { here: false, time: Duration::from_secs(5), ..Settings::default() };
        let url = format!("iscsi://127.0.0.1:{}/iqn.x/0", server_after_login(answer));
        let begin = std::time::Instant::now();
        let error = Session::open(&url, settings).unwrap().sum(Digest::Md5, &inputs).pop().unwrap().value.unwrap_err();
        let known = matches!(error.kind(), Kind::Unavailable | Kind::Unsupported | Kind::Corrupt);
        assert!(known && begin.elapsed() < Duration::from_secs(60), "{what}: {error:?} after {:?}", begin.elapsed());
    }
}
