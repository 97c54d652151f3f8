//! Files of a mounted image, computed on by a target that has the image, over iSCSI.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use oas::{Codec, Digest, Framed, Input, Order, OutputFile, Pattern, Pool, Ran, Ring, Session, Settings};
use skytether_common::Kind;

use crate::mounted::{Mounted, noise, system, text};
use crate::target::{Target, operations};

fn fixture(exec: bool) -> Option<(Mounted, Target)> {
    let mounted = Mounted::new("ext4", 128, 0)?;
    let target = Target::new(&mounted.image(), exec.then(operations), None);
    Some((mounted, target))
}

fn inputs(paths: &[PathBuf]) -> Vec<Input> {
    paths.iter().map(|path| Input::open(path).unwrap()).collect()
}

#[test]
fn sums_of_many_files_come_from_the_target() {
    let Some((mounted, target)) = fixture(true) else { return };
    let paths: Vec<PathBuf> = (0..200).map(|n| mounted.file(&format!("f{n}"))).collect();
    for (n, path) in paths.iter().enumerate() {
        fs::write(path, noise(n as u64, n * 1117 % 70_000)).unwrap();
    }
    let session = target.session();
    let names: Vec<String> = (0..200).map(|n| format!("f{n}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    for (digest, program) in [(Digest::Md5, "md5sum"), (Digest::Sha256, "sha256sum")] {
        let mut ours = Vec::new();
        for (done, name) in session.sum(digest, &inputs(&paths)).into_iter().zip(&names) {
            assert!(done.ran.is_there(), "{:?}", done.ran);
            ours.extend(oas::output::sum_line(&done.value.unwrap(), name.as_bytes()));
        }
        assert_eq!(String::from_utf8(ours).unwrap(), String::from_utf8(system(&mounted.path(), program, &names, "C")).unwrap());
    }
}

#[test]
fn matches_come_in_pages_and_are_those_of_grep() {
    let Some((mounted, target)) = fixture(true) else { return };
    fs::write(mounted.file("a"), text(1, 4 << 20)).unwrap();
    fs::write(mounted.file("b"), text(2, 100_000)).unwrap();
    let expected = system(&mounted.path(), "grep", &["-a", "-o", "-b", "-E", "n[e]+dle|hay", "a", "b"], "C.UTF-8");
    // A small result makes many pages.
    let settings = Settings { here: false, result: 64 << 10, ..Settings::default() };
    let session = Session::open(&target.url, settings).unwrap();
    let (mut ours, mut pages) = (Vec::new(), 0);
    let inputs = inputs(&[mounted.file("a"), mounted.file("b")]);
    let done = session.search(&Pattern::regex("n[e]+dle|hay"), true, &inputs, |number, matches| {
        pages += 1;
        oas::output::grep_lines(&mut ours, Some(["a", "b"][number].as_bytes()), &matches);
        Ok(())
    });
    for done in done.unwrap() {
        assert!(done.ran.is_there() && done.value.unwrap() > 0);
    }
    assert!(ours == expected && pages > 10, "{pages} pages");
}

#[test]
fn words_and_lines_are_counted_in_the_target() {
    let Some((mounted, target)) = fixture(true) else { return };
    fs::write(mounted.file("a"), text(3, 1 << 20)).unwrap();
    let session = target.session();
    let inputs = inputs(&[mounted.file("a")]);
    let counts = session.word_count(true, &inputs).pop().unwrap().value.unwrap();
    let table = oas::output::Columns { characters: true, ..Default::default() }.table(&[(Some(counts), 1 << 20, b"a".to_vec())]);
    assert_eq!(String::from_utf8(table).unwrap(), String::from_utf8(system(&mounted.path(), "wc", &["-lwmc", "a"], "C.UTF-8")).unwrap());
    let lines = session.count(&Pattern::string("needle"), true, &inputs).pop().unwrap().value.unwrap();
    assert_eq!(format!("{lines}\n").into_bytes(), system(&mounted.path(), "grep", &["-a", "-c", "needle", "a"], "C.UTF-8"));
}

#[test]
fn a_flipped_bit_on_the_device_is_found() {
    let Some((mounted, target)) = fixture(true) else { return };
    let (key, block) = ([7; 32], 10_000);
    let mut framed = Vec::new();
    let local = Session::local(Settings::default()).unwrap();
    for block in noise(4, 95_000).chunks(block) {
        let part = oas::Part::default();
        let sum = local.run_bytes(&oas::Request::digest(Digest::Highway256(key)), block.to_vec().into(), part).unwrap();
        framed.extend_from_slice(&sum.data);
        framed.extend_from_slice(block);
    }
    let path = mounted.file("part.1");
    fs::write(&path, &framed).unwrap();
    let session = target.session();
    let check = || session.verify_framed(Digest::Highway256(key), block as u64, &inputs(std::slice::from_ref(&path))).pop().unwrap();
    let done = check();
    assert!(done.ran.is_there() && done.value.unwrap() == Framed::Right);
    // On the device, behind the file system: its cache still has the right bytes.
    let places = oas::OpenFile::open(&path, oas::Access::Read).unwrap().places().unwrap();
    let at = places.object.extents[0].place + 25_000;
    let image = fs::OpenOptions::new().read(true).write(true).open(mounted.image()).unwrap();
    let mut byte = [0];
    std::os::unix::fs::FileExt::read_exact_at(&image, &mut byte, at).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&image, &[byte[0] ^ 4], at).unwrap();
    assert_eq!(check().value.unwrap(), Framed::Bad(2));
    assert!(fs::read(&path).unwrap() == framed);
}

#[test]
fn sorted_output_is_read_back_as_it_was_written() {
    let Some((mounted, target)) = fixture(true) else { return };
    for (name, seed) in [("a", 5), ("b", 6)] {
        fs::write(mounted.file(name), text(seed, 700_000)).unwrap();
    }
    let session = target.session();
    let sources = inputs(&[mounted.file("a"), mounted.file("b")]);
    let done = oas::tools::sort_into(&session, &Order::LINES, &sources, &mounted.file("sorted"));
    assert!(done.ran.is_there(), "{:?} {:?}", done.ran, done.value);
    done.value.unwrap();
    let expected = system(&mounted.path(), "sort", &["a", "b"], "C");
    assert!(fs::read(mounted.file("sorted")).unwrap() == expected);
    assert_eq!(fs::read_dir(mounted.path()).unwrap().count(), 4, "files were left over");
}

#[test]
fn a_pool_gives_rooms_to_compressed_files() {
    let Some((mounted, target)) = fixture(true) else { return };
    fs::write(mounted.file("a"), text(7, 2 << 20)).unwrap();
    let pool = Pool::open(mounted.file("pool")).unwrap();
    pool.grow(2, 3 << 20).unwrap();
    let session = target.session();
    let output = pool.take(2 << 20).unwrap();
    let input = Input::open(mounted.file("a")).unwrap();
    let done = session.compress_to(Codec::Zstd, None, &input, &output);
    assert!(done.ran.is_there(), "{:?}", done.ran);
    let written = done.value.unwrap();
    pool.keep(output, written, mounted.file("a.zst")).unwrap();
    assert!(written < 2 << 20 && pool.rooms() == [3 << 20]);
    // Back, in the target as well.
    let back = pool.take(2 << 20).unwrap();
    let done = session.decompress_to(Codec::Zstd, &Input::open(mounted.file("a.zst")).unwrap(), &back);
    assert!(done.ran.is_there(), "{:?}", done.ran);
    pool.keep(back, done.value.unwrap(), mounted.file("b")).unwrap();
    assert!(fs::read(mounted.file("a")).unwrap() == fs::read(mounted.file("b")).unwrap());
    // What a crash left of the pool is used again.
    pool.grow(1, 8192).unwrap();
    assert_eq!(Pool::open(mounted.file("pool")).unwrap().rooms(), [8192]);
}

#[test]
fn results_in_a_ring_are_read_from_the_device() {
    let Some((mounted, target)) = fixture(true) else { return };
    fs::write(mounted.file("a"), text(8, 100_000)).unwrap();
    let ring = Ring::open(mounted.file("ring"), 1 << 20).unwrap();
    let session = target.session();
    let input = oas::OpenFile::open(mounted.file("a"), oas::Access::Read).unwrap().places().unwrap().object;
    let expected = system(&mounted.path(), "sort", &["a"], "C");
    for _ in 0..15 {
        let slot = ring.take(100_001).unwrap();
        let mut descriptor = skytether_offload::Descriptor::new(skytether_offload::codes::opcode::SORT_LINES);
        descriptor.flags = skytether_offload::codes::descriptor_flag::TO_OUTPUT;
        let result = session.exec(&descriptor.input(input.clone()).output(slot.object().unwrap())).unwrap();
        result.done().unwrap();
        assert!(slot.read(result.outputs[0]).unwrap() == expected);
    }
}

#[test]
fn what_the_target_can_not_is_done_here_with_the_reason() {
    let Some((mounted, target)) = fixture(false) else { return };
    fs::write(mounted.file("a"), b"").unwrap();
    let inputs = inputs(&[mounted.file("a")]);
    let session = Session::open(&target.url, Settings::default()).unwrap();
    let done = session.sum(Digest::Md5, &inputs).pop().unwrap();
    assert_eq!(oas::output::hexadecimal(&done.value.unwrap()), "d41d8cd98f00b204e9800998ecf8427e");
    let Ran::Here { why: Some(why) } = done.ran else { panic!("{:?}", done.ran) };
    assert_eq!(why.kind(), Kind::Unsupported, "{why}");
    // Not wanted: an error.
    let done = target.session().sum(Digest::Md5, &inputs).pop().unwrap();
    assert_eq!(done.value.unwrap_err().kind(), Kind::Unsupported);
}

#[test]
fn a_file_elsewhere_is_done_here_with_the_reason() {
    let Some((mounted, target)) = fixture(true) else { return };
    let session = Session::open(&target.url, Settings::default()).unwrap();
    fs::write(mounted.file("a"), b"abc").unwrap();
    fs::create_dir_all("/dev/shm").unwrap();
    let other = tempfile::NamedTempFile::new_in("/dev/shm").unwrap();
    fs::write(other.path(), b"abc").unwrap();
    let done = session.sum(Digest::Sha256, &inputs(&[mounted.file("a"), other.path().to_owned()]));
    assert_eq!([done[0].ran.is_there(), done[1].ran.is_there()], [true, false]);
    assert_eq!(done[0].value.as_ref().unwrap(), done[1].value.as_ref().unwrap());
}

#[test]
fn a_target_that_is_away_is_no_obstacle() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("a"), b"abc").unwrap();
    // A port that was free a moment ago.
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let settings = Settings { time: Duration::from_secs(20), ..Settings::default() };
    let session = Session::open(&format!("iscsi://127.0.0.1:{port}/iqn.2026-01.none/0"), settings).unwrap();
    let done = session.word_count(true, &inputs(&[dir.path().join("a")])).pop().unwrap();
    assert_eq!(done.value.unwrap().bytes, 3);
    assert!(matches!(done.ran, Ran::Here { why: Some(why) } if why.kind() == Kind::Unavailable));
}

#[test]
fn a_session_goes_on_after_its_target_came_back() {
    let Some(mounted) = Mounted::new("ext4", 16, 0) else { return };
    fs::write(mounted.file("a"), b"abc").unwrap();
    let inputs = inputs(&[mounted.file("a")]);
    let target = Target::new(&mounted.image(), Some(operations()), None);
    let session = target.session();
    assert!(session.sum(Digest::Md5, &inputs)[0].value.is_ok());
    let port: u16 = target.url.split(':').nth(2).and_then(|rest| rest.split('/').next()).unwrap().parse().unwrap();
    drop(target);
    assert_eq!(session.sum(Digest::Md5, &inputs)[0].value.as_ref().unwrap_err().kind(), Kind::Unavailable);
    let _again = Target::at(&mounted.image(), Some(operations()), None, port);
    let done = session.sum(Digest::Md5, &inputs).pop().unwrap();
    assert!(done.ran.is_there() && done.value.is_ok(), "{done:?}");
}

#[test]
fn chap_lets_in_who_has_the_secret() {
    let Some(mounted) = Mounted::new("ext4", 16, 0) else { return };
    fs::write(mounted.file("a"), b"abc").unwrap();
    let target = Target::new(&mounted.image(), Some(operations()), Some("initiator me 0123456789ab\n"));
    let ask = |url: &str| {
        let session = Session::open(url, Settings { here: false, ..Settings::default() }).unwrap();
        session.sum(Digest::Md5, &inputs(&[mounted.file("a")])).pop().unwrap().value
    };
    assert!(ask(&target.url_of("me%0123456789ab")).is_ok());
    for url in [target.url_of("me%0123456789ac"), target.url_of("you%0123456789ab"), target.url.clone()] {
        let error = ask(&url).unwrap_err();
        assert!(error.kind() == Kind::Invalid && !error.mentions("0123456789"), "{error}");
    }
}

#[test]
fn outputs_are_refused_where_they_must_not_be_written() {
    let Some((mounted, _target)) = fixture(true) else { return };
    let reserved = fs::File::create(mounted.file("reserved")).unwrap();
    rustix::fs::fallocate(&reserved, rustix::fs::FallocateFlags::empty(), 0, 8192).unwrap();
    let error = OutputFile::open(mounted.file("reserved")).unwrap().object().unwrap_err();
    assert!(error.kind() == Kind::Unsupported && error.mentions("UNWRITTEN"), "{error}");
    assert!(OutputFile::create(mounted.file("made"), 8192).unwrap().object().is_ok());
    assert!(OutputFile::create(mounted.file("made"), 8192).is_err());
}

#[test]
fn a_long_descriptor_is_fetched_in_parts() {
    let Some((mounted, target)) = fixture(true) else { return };
    fs::write(mounted.file("a"), noise(9, 1 << 20)).unwrap();
    let file = Input::open(mounted.file("a")).unwrap();
    // More than goes with a command: the target asks for the rest (R2T).
    let parts: Vec<Input> = (0..3000).map(|n| Input { part: oas::Part { from: n * 300, to: Some(n * 300 + 700), ..file.part }, ..file.clone() }).collect();
    let batch = std::num::NonZeroUsize::new(3000).unwrap();
    let settings = Settings { here: false, batch, ..Settings::default() };
    let local = Session::local(Settings::default()).unwrap();
    let expected = local.sum(Digest::Sha256, &parts);
    let session = Session::open(&target.url, settings).unwrap();
    for (done, expected) in session.sum(Digest::Sha256, &parts).into_iter().zip(expected) {
        assert!(done.ran.is_there());
        assert_eq!(done.value.unwrap(), expected.value.unwrap());
    }
}

#[test]
fn several_threads_share_a_session() {
    let Some((mounted, target)) = fixture(true) else { return };
    for n in 0..8 {
        fs::write(mounted.file(&format!("f{n}")), noise(n, 300_000)).unwrap();
    }
    let session = target.session();
    std::thread::scope(|scope| {
        for n in 0..8u64 {
            let (session, path) = (&session, mounted.file(&format!("f{n}")));
            scope.spawn(move || {
                let input = [Input::open(&path).unwrap()];
                let expected = Session::local(Settings::default()).unwrap().sum(Digest::Blake3, &input).pop().unwrap().value.unwrap();
                for _ in 0..10 {
                    assert_eq!(session.sum(Digest::Blake3, &input).pop().unwrap().value.unwrap(), expected);
                }
            });
        }
    });
}

#[test]
fn a_disk_that_takes_no_commands_is_no_target() {
    let Some(mounted) = Mounted::new("ext4", 16, 0) else { return };
    fs::write(mounted.file("a"), b"abc").unwrap();
    let input = Input::open(mounted.file("a")).unwrap();
    let session = Session::open(mounted.device(), Settings::default()).unwrap();
    let done = session.sum(Digest::Md5, std::slice::from_ref(&input)).pop().unwrap();
    assert!(done.value.is_ok());
    assert!(matches!(done.ran, Ran::Here { why: Some(why) } if why.kind() == Kind::Unsupported));
    let error = Session::of_file(&input.file, Settings::default()).unwrap_err();
    assert!(error.kind() == Kind::Unsupported && error.mentions("image"), "{error}");
}

#[test]
fn a_striped_file_survives_the_loss_of_a_target() {
    let disks: Vec<Mounted> = (0..3).map_while(|_| Mounted::new("ext4", 32, 0)).collect();
    if disks.len() < 3 {
        return;
    }
    let mut targets: Vec<Option<Target>> = disks.iter().map(|disk| Some(Target::new(&disk.image(), Some(operations()), None))).collect();
    let whole = text(10, 1_000_000);
    let chunk = 64 << 10;
    let mut members = vec![Vec::new(); 3];
    for row in whole.chunks(2 * chunk) {
        let data: Vec<&[u8]> = row.chunks(chunk).collect();
        let parity = skytether_erasure::code::encode(skytether_erasure::Code::new(2, 1).unwrap(), &data).unwrap();
        for (member, bytes) in data.into_iter().enumerate() {
            members[member].extend_from_slice(bytes);
        }
        members[2].extend_from_slice(&parity[0]);
    }
    let mut description = format!("length = {}\nchunk = {chunk}\nredundancy = \"ec:2+1\"\n", whole.len());
    for ((disk, target), bytes) in disks.iter().zip(&targets).zip(&members) {
        fs::write(disk.file("part"), bytes).unwrap();
        description += &format!("[[members]]\npath = {:?}\ntarget = {:?}\n", disk.file("part"), target.as_ref().unwrap().url);
    }
    let path = disks[0].outside("whole.toml");
    fs::write(&path, description).unwrap();
    fs::write(disks[0].outside("whole"), &whole).unwrap();
    let expected = system(path.parent().unwrap(), "grep", &["-aobE", "needle [a-z]+", "whole"], "C.UTF-8");
    let settings = Settings { here: false, time: Duration::from_secs(20), ..Settings::default() };
    for lost in [None, Some(0)] {
        if let Some(lost) = lost {
            targets[lost] = None;
        }
        let striped = oas::Striped::open(&path, &settings).unwrap();
        let (matches, report) = striped.search(&Pattern::regex("needle [a-z]+"), true).unwrap();
        let mut ours = Vec::new();
        oas::output::grep_lines(&mut ours, None, &matches);
        assert!(ours == expected);
        assert_eq!((report.chunks, report.decoded), if lost.is_none() { (16, 0) } else { (8, 8) }, "{lost:?}: {report:?}");
        assert_eq!(report.why.is_some(), lost.is_some(), "{report:?}");
    }
}
