//! Real initiators: libiscsi's tools and QEMU's. Where they are not installed, the tests say so, and fail if
//! `SKYTETHER_BLOCK=required` is set.

use std::process::{Command, Output, Stdio};

use skytether_iscsi::{Options, Secrets};

use crate::serving::{NAME, serve};

/// SKIPPED lines of libiscsi's suites that are allowed.
const MOST_SKIPPED: usize = 20;

/// Runs a program, for at most three minutes. `None` where it is not installed.
async fn run(program: &str, arguments: &[&str]) -> Option<Output> {
    let mut command = Command::new("timeout");
    command.arg("180").arg(program).args(arguments).stdin(Stdio::null());
    let output = tokio::task::spawn_blocking(move || command.output()).await.unwrap().unwrap();
    // What `timeout` says where there is no such program.
    if output.status.code() != Some(127) {
        return Some(output);
    }
    let text = format!("{program} is not installed: install libiscsi-bin, qemu-utils and qemu-block-extra");
    assert_ne!(std::env::var("SKYTETHER_BLOCK").as_deref(), Ok("required"), "{text}");
    eprintln!("skipped: {text}");
    None
}

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// Tests that ran, and those that failed, of CUnit's summary.
fn counts(text: &str) -> (u32, u32) {
    let line = text.lines().find(|line| line.trim_start().starts_with("tests")).unwrap_or_else(|| panic!("no summary: {text}"));
    let numbers: Vec<u32> = line.split_whitespace().skip(2).filter_map(|word| word.parse().ok()).collect();
    (numbers[0], numbers[2])
}

#[tokio::test(flavor = "multi_thread")]
async fn libiscsi_lists_the_units_of_the_target() {
    let serving = serve(Options::default()).await;
    let Some(output) = run("iscsi-ls", &["-s", &format!("iscsi://{}/", serving.address)]).await else { return };
    let text = text(&output);
    assert!(output.status.success() && text.contains(&format!("Target:{NAME} Portal:{},1", serving.address)), "{text}");
    assert!(text.contains("Lun:1 ") && text.contains("Lun:2 ") && text.matches("DIRECT_ACCESS").count() == 2, "{text}");
    let Some(output) = run("iscsi-inq", &[&serving.url(1)]).await else { return };
    assert!(output.status.success(), "{}", self::text(&output));
}

/// All tests of iSCSI itself pass, without digests of headers and with them; this client has none of data.
#[tokio::test(flavor = "multi_thread")]
async fn libiscsi_finds_the_protocol_conforming() {
    let serving = serve(Options::default()).await;
    for digest in ["?header_digest=none", "?header_digest=crc32c"] {
        let url = format!("{}{digest}", serving.url(1));
        let Some(output) = run("iscsi-test-cu", &["-d", "-S", "-n", "-t", "iSCSI", &url]).await else { return };
        let text = text(&output);
        assert_eq!(counts(&text), (15, 0), "{text}");
    }
}

/// All tests of the command set pass but one. What is not there counts as passed, so that those are counted as well.
///
/// The one is `Sanitize.Reset`: with two URLs, the test before it leaves a reservation of the second session in place
/// (`test_sanitize_reservations.c` of libiscsi 1.19), which its SANITIZE then meets. The next test runs it.
#[tokio::test(flavor = "multi_thread")]
async fn libiscsi_finds_the_commands_conforming() {
    let serving = serve(Options::default()).await;
    let url = serving.url(1);
    let Some(output) = run("iscsi-test-cu", &["-d", "-S", "-n", "-t", "SCSI", &url, &url]).await else { return };
    let text = text(&output);
    let failed: Vec<&str> = text.lines().filter(|line| line.contains("had failures")).collect();
    assert_eq!(failed, ["Suite Sanitize, Test Reset had failures:"], "{text}");
    assert_eq!(counts(&text), (215, 1), "{text}");
    let skipped: Vec<&str> = text.lines().filter(|line| line.contains("SKIPPED")).collect();
    assert!(skipped.len() <= MOST_SKIPPED, "{skipped:#?}");
}

/// It takes more than a minute: libiscsi looks after that time whether the unit is done.
#[tokio::test(flavor = "multi_thread")]
async fn libiscsi_finds_sanitize_conforming() {
    let serving = serve(Options::default()).await;
    let Some(output) = run("iscsi-test-cu", &["-d", "-S", "-n", "-t", "SCSI.Sanitize", &serving.url(1)]).await else { return };
    let text = text(&output);
    assert_eq!(counts(&text), (11, 0), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn libiscsi_logs_in_with_secrets() {
    let secrets = Secrets::parse("initiator alice 0123456789ab\ntarget drive ba9876543210").unwrap();
    let serving = serve(Options { secrets: Some(secrets), ..Options::default() }).await;
    let url = |who: &str, query: &str| format!("iscsi://{who}{}/{NAME}/1{query}", serving.address);
    let mutual = "?target_user=drive&target_password=ba9876543210";
    let cases = [
        ("alice%0123456789ab@", "", true),
        ("alice%0123456789ab@", mutual, true),
        ("alice%0123456789ab@", "?target_user=drive&target_password=wrong9876543", false),
        ("alice%wrong3456789a@", "", false),
        ("bob%0123456789ab@", "", false),
        ("", "", false),
    ];
    for (who, query, right) in cases {
        let Some(output) = run("iscsi-inq", &[&url(who, query)]).await else { return };
        assert_eq!(output.status.success(), right, "{who} {query}: {}", text(&output));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn qemu_copies_an_image_and_finds_it_equal() {
    let serving = serve(Options::default()).await;
    let directory = tempfile::tempdir().unwrap();
    let image = directory.path().join("image");
    let mut state = 1_u32;
    let mut bytes: Vec<u8> = (0..crate::serving::SIZE as usize)
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        })
        .collect();
    // A hole, which arrives as unmapped blocks.
    bytes[10 << 20..20 << 20].fill(0);
    std::fs::write(&image, &bytes).unwrap();
    let image = image.to_str().unwrap();
    let url = serving.url(2);
    for arguments in [&["convert", "-n", "-f", "raw", "-O", "raw", image, &url][..], &["compare", "-f", "raw", "-F", "raw", image, &url][..]] {
        let Some(output) = run("qemu-img", arguments).await else { return };
        assert!(output.status.success(), "{}", text(&output));
    }
    let patterns = ["write -P 0xab 4k 64k", "read -P 0xab 4k 64k", "write -z 1M 1M", "read -P 0 1M 1M", "discard 2M 1M", "read -P 0 2M 1M", "flush"];
    let mut arguments = vec!["-f", "raw"];
    patterns.iter().for_each(|pattern| arguments.extend(["-c", pattern]));
    arguments.push(&url);
    let Some(output) = run("qemu-io", &arguments).await else { return };
    let text = text(&output);
    assert!(output.status.success() && !text.contains("Pattern verification failed"), "{text}");
}
