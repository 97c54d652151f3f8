//! What programs reach: nothing but what they were given.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::sync::atomic::AtomicBool;

use bytes::Bytes;
use skytether_native::{Call, run};

use crate::{aborted, arguments, call, contains, go, limits, printed, program};

/// Each way out that a program tries is refused. The whole list is compared, so that none is done unnoticed.
#[test]
fn every_way_out_is_closed() {
    if !contains() {
        return;
    }
    let (_ours, theirs) = UnixStream::pair().unwrap();
    let arguments = arguments(&["attempts"]);
    let call = Call { socket: Some(theirs.into()), ..call(program(), &arguments) };
    let outcome = run(call, &limits(), &AtomicBool::new(false)).unwrap();
    assert_eq!(outcome.exit_code, 0, "{outcome:?}");
    let told = String::from_utf8(outcome.stdout.to_vec()).unwrap();
    assert_eq!(told.lines().count(), 35, "{told}");
    for line in told.lines() {
        assert!(line.ends_with(": EPERM"), "{line}\nof\n{told}");
    }
    assert!(!std::path::Path::new("/tmp/native-program-was-here").exists());
}

#[test]
fn program_is_alone_in_its_name_spaces() {
    if !contains() {
        return;
    }
    assert_eq!(printed(&["self"]), "process 2 of 1, user 65534, host drive, root 0");
}

#[test]
fn environment_is_what_the_call_has() {
    if !contains() {
        return;
    }
    assert_eq!(printed(&["environment"]), "");
    let arguments = arguments(&["environment"]);
    let environment = [("ONE", "1".to_owned()), ("TWO", "a=b".to_owned())];
    let call = Call { environment: &environment, ..call(program(), &arguments) };
    assert_eq!(run(call, &limits(), &AtomicBool::new(false)).unwrap().stdout, "ONE=1\nTWO=a=b\n");
}

#[test]
fn descriptors_of_the_drive_are_closed() {
    if !contains() {
        return;
    }
    // As a library in C may open a file: it would be inherited.
    let file = File::open("/etc/passwd").unwrap();
    // SAFETY: system calls on a descriptor that is open; the copies are closed with the process.
    let copies = unsafe { [libc::dup(file.as_raw_fd()), libc::fcntl(file.as_raw_fd(), libc::F_DUPFD, 200)] };
    assert!(copies.iter().all(|copy| *copy > 2));
    assert_eq!(printed(&["descriptors"]), "0 1 2 4 ");
    let (_ours, theirs) = UnixStream::pair().unwrap();
    let arguments = arguments(&["descriptors"]);
    let call = Call { socket: Some(theirs.into()), ..call(program(), &arguments) };
    assert_eq!(run(call, &limits(), &AtomicBool::new(false)).unwrap().stdout, "0 1 2 3 4 ");
}

#[test]
fn standard_input_is_empty() {
    if !contains() {
        return;
    }
    assert_eq!(go(&["input"], &limits()).unwrap().exit_code, 0);
}

/// The number of the process with these arguments, and that of its parent.
fn find(arguments: &[u8]) -> [u32; 2] {
    let numbers = fs::read_dir("/proc").unwrap().filter_map(|entry| entry.unwrap().file_name().to_str()?.parse().ok());
    let of = |number: &u32| fs::read(format!("/proc/{number}/cmdline")).is_ok_and(|found| found == arguments);
    let process = numbers.into_iter().find(of).unwrap();
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let parent = status.lines().find_map(|line| line.strip_prefix("PPid:\t")).unwrap();
    [process, parent.parse().unwrap()]
}

/// What the kernel says of a program that runs: each layer is there, also those that others hide.
#[test]
fn kernel_confirms_each_layer() {
    if !contains() {
        return;
    }
    let trap = aborted(&["ready", "sleep", "layers"], |mut socket| {
        socket.read_exact(&mut [0]).unwrap();
        let [program, first] = find(b"many\0ready\0sleep\0layers\0");
        for process in [first, program] {
            let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap();
            let mut lines = vec!["NoNewPrivs:\t1", "CapInh:\t0000000000000000", "CapPrm:\t0000000000000000", "CapEff:\t0000000000000000"];
            lines.extend(["CapBnd:\t0000000000000000", "CapAmb:\t0000000000000000", "Threads:\t1"]);
            lines.push(if process == program { "Seccomp:\t2" } else { "Seccomp:\t0" });
            for line in lines {
                assert!(status.lines().any(|other| other == line), "{line} of {process}:\n{status}");
            }
            for kind in ["user", "pid", "mnt", "net", "ipc", "uts", "cgroup"] {
                let space = |process: &str| fs::read_link(format!("/proc/{process}/ns/{kind}")).unwrap();
                assert_ne!(space(&process.to_string()), space("self"), "{kind}");
            }
        }
        let limits = fs::read_to_string(format!("/proc/{program}/limits")).unwrap();
        for (limit, most) in
            [("Max address space", "268435456"), ("Max file size", "0"), ("Max processes", "1"), ("Max open files", "16"), ("Max core file size", "0")]
        {
            let line = limits.lines().find(|line| line.starts_with(limit)).unwrap();
            assert!(line[limit.len()..].split_whitespace().take(2).all(|value| value == most), "{line}");
        }
        let mounts = fs::read_to_string(format!("/proc/{program}/mountinfo")).unwrap();
        assert!(mounts.lines().count() == 1 && mounts.contains(" / / ro,nosuid,nodev,noexec"), "{mounts}");
        assert_eq!(fs::read_dir(format!("/proc/{program}/root/")).unwrap().count(), 0);
    });
    assert!(trap.cause.has_run(), "{trap}");
}

/// This test executes itself as a drive, and kills that.
#[test]
fn program_dies_with_its_drive() {
    if !contains() {
        return;
    }
    const DRIVE: &str = "SKYTETHER_TEST_DRIVE";
    let texts = ["ready", "ignore", "orphan"];
    if std::env::var_os(DRIVE).is_some() {
        aborted(&texts, |mut socket| {
            socket.read_exact(&mut [0]).unwrap();
            println!("\nruns");
            std::thread::park();
        });
    }
    let mut drive = Command::new(std::env::current_exe().unwrap());
    drive.args(["--exact", "contained::program_dies_with_its_drive", "--nocapture"]).env(DRIVE, "1").stdout(Stdio::piped());
    let mut drive = drive.spawn().unwrap();
    let mut lines = BufReader::new(drive.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap() == "runs"));
    let [program, _] = find(b"many\0ready\0ignore\0orphan\0");
    drive.kill().unwrap();
    drive.wait().unwrap();
    while fs::read(format!("/proc/{program}/cmdline")).is_ok_and(|left| !left.is_empty()) {}
}

/// Runs at the same time do not hold each other's pipes open, nor mix their outputs.
#[test]
fn runs_at_the_same_time_do_not_mix() {
    if !contains() {
        return;
    }
    std::thread::scope(|scope| {
        for n in 0..4 {
            scope.spawn(move || {
                for round in 0..8 {
                    let arguments = ["hello".to_owned(), format!("{n} {round}")].map(Bytes::from);
                    let outcome = run(call(program(), &arguments), &limits(), &AtomicBool::new(false)).unwrap();
                    assert_eq!((outcome.exit_code, outcome.stdout), (7, Bytes::from(format!("many: {n} {round}"))));
                }
            });
        }
    });
}
