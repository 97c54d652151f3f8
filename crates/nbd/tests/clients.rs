//! Programs that speak NBD: those of QEMU and of libnbd.

use std::fs;

use crate::support::{Server, has, run};

const SIZE: u64 = 64 << 20;

/// An image with data, holes and zeros.
fn image(at: &std::path::Path) {
    let mut bytes = vec![0; SIZE as usize];
    let mut dice = fastrand::Rng::with_seed(8);
    for (from, len) in [(0, 3 << 20), (9 << 20, 4096), ((20 << 20) + 512, 70_000), (SIZE as usize - 4096, 4096)] {
        bytes[from..from + len].iter_mut().for_each(|byte| *byte = dice.u8(..));
    }
    fs::write(at, bytes).unwrap();
}

#[test]
fn qemu_img_copies_compares_and_maps() {
    if !has(&["qemu-img"]) {
        return;
    }
    let (server, scratch) = (Server::of(&[("first", SIZE)]), tempfile::tempdir().unwrap());
    let file = scratch.path().join("image");
    image(&file);
    let (file, uri) = (file.to_str().unwrap(), server.uri("first"));
    run("qemu-img", &["convert", "-n", "-f", "raw", "-O", "raw", file, &uri]);
    assert!(run("qemu-img", &["compare", "-f", "raw", "-F", "raw", file, &uri]).contains("identical"));
    let map = run("qemu-img", &["map", "-f", "raw", "--output=json", &uri]);
    assert!(map.contains(r#""start": 0, "length": 3145728, "depth": 0, "present": true, "zero": false"#), "{map}");
    assert!(map.contains(r#""start": 3145728, "length": 6291456, "depth": 0, "present": true, "zero": true, "data": false"#), "{map}");
    let back = scratch.path().join("back");
    run("qemu-img", &["convert", "-f", "raw", "-O", "raw", &uri, back.to_str().unwrap()]);
    assert!(fs::read(back).unwrap() == fs::read(file).unwrap());
}

#[test]
fn qemu_io_writes_patterns_zeros_and_discards() {
    if !has(&["qemu-io"]) {
        return;
    }
    let server = Server::of(&[("first", SIZE)]);
    let commands = [
        "write -P 7 1000 300000",
        "read -P 7 1000 300000",
        "write -z 4096 64k",
        "read -P 0 4096 64k",
        "write -z -u 128k 64k",
        "read -P 0 128k 64k",
        "read -P 7 200000 50000",
        "discard 0 1M",
        "read -P 0 0 1M",
        "write -f -P 9 512 512",
        "read -P 9 512 512",
        "aio_write -P 5 2M 8M",
        "aio_write -P 6 12M 8M",
        "aio_flush",
        "read -P 5 2M 8M",
        "read -P 6 12M 8M",
        "flush",
    ];
    let mut arguments = vec!["-f", "raw"];
    commands.iter().for_each(|command| arguments.extend(["-c", command]));
    let uri = server.uri("first");
    arguments.push(&uri);
    let out = run("qemu-io", &arguments);
    assert!(!out.contains("failed") && !out.contains("error"), "{out}");
}

#[test]
fn nbdinfo_sees_exports_and_extents() {
    if !has(&["nbdinfo", "qemu-io"]) {
        return;
    }
    let server = Server::of(&[("first", SIZE), ("second", SIZE)]);
    let list = run("nbdinfo", &["--list", &format!("nbd://{}", server.address)]);
    for line in ["export=\"first\":", "export=\"second\":", "using structured packets", "base:allocation", "can_multi_conn: true", "can_fast_zero: true"] {
        assert!(list.contains(line), "{line}: {list}");
    }
    run("qemu-io", &["-f", "raw", "-c", "write -P 1 1M 64k", &server.uri("first")]);
    let map = run("nbdinfo", &["--map", &server.uri("first")]);
    let words: Vec<&str> = map.split_whitespace().collect();
    assert_eq!(words, ["0", "1048576", "3", "hole,zero", "1048576", "65536", "0", "data", "1114112", "65994752", "3", "hole,zero"]);
}

#[test]
fn nbdcopy_copies_over_several_connections() {
    if !has(&["nbdcopy"]) {
        return;
    }
    let (server, scratch) = (Server::of(&[("first", SIZE), ("second", SIZE)]), tempfile::tempdir().unwrap());
    let (file, back) = (scratch.path().join("image"), scratch.path().join("back"));
    image(&file);
    run("nbdcopy", &["--connections=4", file.to_str().unwrap(), &server.uri("first")]);
    run("nbdcopy", &["--connections=4", "--flush", &server.uri("first"), &server.uri("second")]);
    run("nbdcopy", &["--connections=4", &server.uri("second"), back.to_str().unwrap()]);
    assert!(fs::read(back).unwrap() == fs::read(file).unwrap());
}

#[test]
fn nbdsh_writes_single_bytes() {
    if !has(&["nbdsh"]) {
        return;
    }
    let server = Server::of(&[("first", SIZE)]);
    let written = "h.set_strict_mode(0); h.pwrite(b'hello', 3); assert h.pread(10, 0) == b'\\0\\0\\0hello\\0\\0'";
    let zeroed = "h.zero(2, 4); assert h.pread(8, 0) == b'\\0\\0\\0h\\0\\0lo'";
    let cached = "h.cache(1 << 20, 0); h.trim(1 << 20, 0, nbd.CMD_FLAG_FUA); assert h.pread(512, 0) == bytes(512); print(h.can_multi_conn(), h.is_read_only())";
    assert_eq!(run("nbdsh", &["-u", &server.uri("first"), "-c", written, "-c", zeroed, "-c", cached]).trim(), "True False");
}

#[test]
fn client_that_demands_tls_is_refused() {
    if !has(&["nbdsh"]) {
        return;
    }
    let server = Server::of(&[("first", SIZE)]);
    let script = format!(
        "h.set_tls(nbd.TLS_REQUIRE)\ntry:\n    h.connect_uri({:?})\nexcept nbd.Error as e:\n    print(e)",
        server.uri("first").replace("nbd:", "nbds:")
    );
    let said = run("nbdsh", &["-c", &script]);
    assert!(said.contains("TLS"), "{said}");
    let script = format!("h.set_tls(nbd.TLS_ALLOW)\nh.connect_uri({:?})\nprint(h.get_tls_negotiated())", server.uri("first"));
    assert_eq!(run("nbdsh", &["-c", &script]).trim(), "False");
}
