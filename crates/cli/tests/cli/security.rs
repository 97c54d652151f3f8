//! TLS, certificates and tokens, between processes on loopback.

use std::path::Path;

use serde_json::Value;

use crate::util::{Served, file, fleet, parquet, rows, run, run_with, text};

/// The files of `skytether pki init`, and options that name them.
struct Pki {
    ca: String,
    host: [String; 2],
    drive: [String; 2],
}

impl Pki {
    fn init(dir: &Path, more: &[&str]) -> Self {
        let at = |name: &str| text(&dir.join(name)).to_owned();
        let mut args = vec!["pki", "init", text(dir)];
        args.extend(more);
        let done = run(&args).code(0);
        assert!(done.out.lines().count() == 6 && done.err.contains("host serve"), "{done:?}");
        Self { ca: at("ca.pem"), host: [at("host.pem"), at("host.key")], drive: [at("drive.pem"), at("drive.key")] }
    }

    fn of_host(&self) -> [&str; 4] {
        ["--tls-cert", &self.host[0], "--tls-key", &self.host[1]]
    }
}

/// A mutual-TLS drive over `data`, at `listen`, with `more` options.
fn mutual_drive(data: &Path, listen: &str, pki: &Pki, more: &[&str]) -> Served {
    let mut args = vec!["drive", "serve", "--data", text(data), "--listen", listen];
    args.extend(["--tls-cert", &pki.drive[0], "--tls-key", &pki.drive[1], "--tls-client-ca", &pki.ca]);
    args.extend(more);
    Served::start(&args)
}

/// Any port of loopback, over TLS.
const ANY: &str = "grpc+tls://127.0.0.1:0";

/// A host over the embedded fleet at `at`, with `more` options.
fn host(at: &str, more: &[&str]) -> Served {
    let mut args = vec!["host", "serve", "--fleet", at];
    args.extend(more);
    Served::start_with(&args, &[("SKYTETHER_LOG", "warn,skytether::calls=debug")], 1)
}

fn create(name: &str, place: &[&str]) -> String {
    let mut args = vec!["token", "create", name];
    args.extend(place);
    let token = run(&args).code(0).out.trim_end().to_owned();
    assert!(token.starts_with("sky_") && token.len() == 47, "{token}");
    token
}

#[test]
fn query_reaches_a_mutual_tls_drive_through_a_tls_host() {
    let dir = tempfile::tempdir().unwrap();
    let pki = Pki::init(&dir.path().join("pki"), &[]);
    let drive = mutual_drive(&dir.path().join("drive-0"), ANY, &pki, &[]);
    assert!(drive.banner[0].contains("(mutual TLS, no authentication) at grpc+tls://"), "{:?}", drive.banner);
    let mut args = vec!["host", "serve", "--drives", &drive.url, "--tls-ca", &pki.ca, "--listen", ANY];
    args.extend(pki.of_host());
    let host = Served::start(&args);
    let at = ["--fleet", host.url.as_str(), "--tls-ca", &pki.ca];
    let csv = file(dir.path(), "t.csv", "v\n1\n2\n");
    run(&["ingest", &csv, "--to", "d.t", at[0], at[1], at[2], at[3]]).code(0);
    let sum = |environment: &[(&str, &str)], more: &[&str]| {
        let mut args = vec!["sql", "SELECT sum(v) AS s FROM d.t", "--format", "csv", at[0], at[1]];
        args.extend(more);
        run_with(&args, environment)
    };
    assert_eq!(sum(&[], &at[2..]).code(0).out, "s\n3\n");
    assert_eq!(sum(&[("SKYTETHER_TLS_CA", &pki.ca)], &[]).code(0).out, "s\n3\n");

    // Another authority, none, and no TLS at all.
    let other = Pki::init(&dir.path().join("other"), &[]);
    assert!(sum(&[], &["--tls-ca", &other.ca]).fails(1).contains("not trusted here"));
    assert!(sum(&[], &[]).fails(1).contains("--tls-ca"));
    let said = run(&["ls", "--fleet", host.address()]).fails(1);
    assert!(said.contains(&format!("if it uses TLS, write grpc+tls://{}", host.address())) && !said.contains("no Skytether host"), "{said}");

    // The drive wants a certificate, of its authority, that may be a client's: a drive's own may not.
    let refused = |more: &[&str]| {
        let mut args = vec!["host", "serve", "--drives", &drive.url, "--tls-ca", &pki.ca];
        args.extend(more);
        run(&args).fails(1)
    };
    for more in [&[][..], &other.of_host(), &["--tls-cert", &pki.drive[0], "--tls-key", &pki.drive[1]]] {
        let said = refused(more);
        assert!(said.contains("client certificate") && said.contains(drive.address()), "{said}");
    }
    host.stop().code(0);
    drive.stop().code(0);
}

#[test]
fn token_is_required_from_its_creation_to_its_revocation() {
    let dir = tempfile::tempdir().unwrap();
    let at = fleet(dir.path(), "2");
    let csv = file(dir.path(), "t.csv", "v\n1\n2\n");
    run(&["ingest", &csv, "--to", "d.t", "--fleet", &at]).code(0);
    let host = host(&at, &["--require-auth"]);
    assert!(host.banner[0].contains("(no TLS, authentication required)"), "{:?}", host.banner);
    let sql = |token: Option<&str>| {
        let mut args = vec!["sql", "SELECT sum(v) AS s FROM d.t", "--format", "csv", "--fleet", &host.url];
        args.extend(token.iter().flat_map(|token| ["--token", token]));
        run(&args)
    };
    let said = sql(None).fails(1);
    assert!(said.contains("requires authentication") && said.contains("SKYTETHER_TOKEN") && !said.contains("no Skytether host"), "{said}");
    let said = sql(Some("sky_wrong")).fails(1);
    assert!(said.contains("wrong or was revoked") && !said.contains("no Skytether host"), "{said}");

    // Made while the host runs, in the directory that it has open; then through the host, by a caller that it knows.
    let first = create("laptop", &["--fleet", &at, "--grant", "read:d", "--expires", "30d"]);
    assert_eq!(sql(Some(&first)).code(0).out, "s\n3\n");
    assert_eq!(run_with(&["sql", "SELECT 1 AS x", "--format", "csv", "--fleet", &host.url], &[("SKYTETHER_TOKEN", &first)]).code(0).out, "x\n1\n");
    run(&["token", "create", "thief", "--fleet", &host.url]).fails(1);
    let second = create("nightly.job", &["--fleet", &host.url, "--token", &first]);
    assert!(run(&["token", "create", "laptop", "--fleet", &at]).fails(1).contains("laptop"));
    for place in [&["--fleet", at.as_str()][..], &["--fleet", &host.url, "--token", &second]] {
        let listed = |more: &[&str]| run(&[&["token", "ls"], place, more].concat()).code(0).out;
        let table = listed(&[]);
        assert!(table.contains("laptop") && table.contains("nightly.job") && table.contains("read:d"), "{table}");
        assert!(table.contains("in 30 d") || table.contains("in 29 d"), "{table}");
        let json: Vec<Value> = serde_json::from_str(&listed(&["--format", "json"])).unwrap();
        assert!(json.len() == 2 && json[0]["name"] == "laptop" && json[0]["grants"][0] == "read:d", "{json:?}");
        assert!(!table.contains("sky_") && json.iter().all(|token| token.get("sha256").is_none()));
    }
    run(&["token", "revoke", "laptop", "--fleet", &host.url, "--token", &second]).code(0);
    assert!(sql(Some(&first)).fails(1).contains("revoked"));
    assert_eq!(sql(Some(&second)).code(0).out, "s\n3\n");
    run(&["token", "revoke", "nightly.job", "--fleet", &at]).code(0);
    sql(Some(&second)).fails(1);
    let brief = create("brief", &["--fleet", &at, "--expires", "1s"]);
    while run(&["token", "ls", "--fleet", &at]).code(0).out.contains("in ") {
        std::thread::yield_now();
    }
    assert!(sql(Some(&brief)).fails(1).contains("expired"));

    // The identity reaches the host: its log names who asked.
    let done = host.stop().code(0);
    assert!(done.err.contains("caller=token laptop") && done.err.contains("caller=token nightly.job"), "{}", done.err);
}

#[test]
fn file_of_tokens_protects_a_host_over_drives() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("drive-0");
    let drive = Served::start(&["drive", "serve", "--data", text(&data)]);
    let tokens = text(&dir.path().join("tokens.json")).to_owned();
    let token = create("laptop", &["--tokens", &tokens]);
    let said = run(&["host", "serve", "--drives", &drive.url, "--require-auth"]).fails(2);
    assert!(said.contains("--tokens FILE"), "{said}");
    let host = Served::start(&["host", "serve", "--drives", &drive.url, "--require-auth", "--tokens", &tokens]);
    run(&["ls", "--fleet", &host.url]).fails(1);
    run(&["ls", "--fleet", &host.url, "--token", &token]).code(0);
    run(&["token", "revoke", "laptop", "--tokens", &tokens]).code(0);
    run(&["ls", "--fleet", &host.url, "--token", &token]).fails(1);
    // A drive may take tokens as well; a host then shows its own.
    let data = dir.path().join("drive-1");
    let drive = Served::start(&["drive", "serve", "--data", text(&data), "--require-auth", "--tokens", &tokens]);
    let token = create("host", &["--tokens", &tokens]);
    assert!(run(&["host", "serve", "--drives", &drive.url]).fails(1).contains("requires authentication"));
    Served::start(&["host", "serve", "--drives", &drive.url, "--token", &token]).stop().code(0);
}

#[test]
fn server_beyond_loopback_needs_tls_or_insecure() {
    let dir = tempfile::tempdir().unwrap();
    let (data, at) = (dir.path().join("drive-0"), fleet(dir.path(), "1"));
    for serve in [&["drive", "serve", "--data", text(&data)][..], &["host", "serve", "--fleet", &at]] {
        let listening = |more: &[&'static str]| [serve, more].concat();
        let said = run(&listening(&["--listen", "0.0.0.0:0"])).fails(2);
        assert!(said.contains("0.0.0.0:0") && said.contains("--tls-cert") && said.contains("--insecure"), "{said}");
        assert!(!data.exists(), "a refused drive is not made");
        assert!(run(&listening(&["--listen", "grpc+tls://0.0.0.0:0"])).fails(2).contains("--tls-cert"));
        let said = run(&listening(&["--listen", "smoke://127.0.0.1:0"])).fails(2);
        assert!(said.contains("\"smoke\"") && said.contains("grpc+tls://"), "{said}");
        Served::start(&listening(&["--listen", "0.0.0.0:0", "--insecure"])).stop().code(0);
        if data.exists() {
            std::fs::remove_dir_all(&data).unwrap();
        }
    }
    let pki = Pki::init(&dir.path().join("pki"), &[]);
    let mut args = vec!["host", "serve", "--fleet", &at, "--listen", "grpc+tls://0.0.0.0:0"];
    args.extend(pki.of_host());
    Served::start(&args).stop().code(0);
}

#[test]
fn several_listen_options_serve_one_fleet() {
    let dir = tempfile::tempdir().unwrap();
    let (at, pki) = (fleet(dir.path(), "1"), Pki::init(&dir.path().join("pki"), &[]));
    let mut args = vec!["host", "serve", "--fleet", &at, "--listen", "127.0.0.1:0", "--listen", "grpc+tls://127.0.0.1:0", "--listen", "grpc://127.0.0.1:0"];
    args.extend(pki.of_host());
    let host = Served::start_with(&args, &[], 3);
    run(&["ingest", &file(dir.path(), "t.csv", "v\n7\n"), "--to", "d.t", "--fleet", &host.url]).code(0);
    for (line, security) in host.banner.iter().zip(["no TLS", "TLS", "no TLS"]) {
        let url = line.split_whitespace().last().unwrap();
        assert!(line.contains(&format!("({security}, ")), "{line}");
        assert_eq!(run(&["sql", "SELECT v FROM d.t", "--format", "csv", "--fleet", url, "--tls-ca", &pki.ca]).code(0).out, "v\n7\n");
    }
    host.stop().code(0);
}

#[test]
fn renewed_certificates_are_used_without_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let (at, place) = (fleet(dir.path(), "1"), dir.path().join("pki"));
    let pki = Pki::init(&place, &[]);
    let former = file(dir.path(), "former.pem", &std::fs::read_to_string(&pki.ca).unwrap());
    let host = host(&at, &pki.of_host());
    assert!(host.url.starts_with("grpc+tls://"), "with a certificate, TLS is the default: {}", host.url);
    let ls = |ca: &str| run(&["ls", "--fleet", &host.url, "--tls-ca", ca]);
    ls(&former).code(0);
    assert!(run(&["pki", "init", text(&place)]).fails(1).contains("--force"));
    Pki::init(&place, &["--force"]);
    ls(&pki.ca).code(0);
    assert!(ls(&former).fails(1).contains("not trusted here"));
    std::fs::write(&pki.host[0], "no certificate").unwrap();
    ls(&pki.ca).code(0);
    assert!(host.stop().code(0).err.contains("kept the former TLS certificate"));
}

#[test]
fn empty_variables_mean_no_token_and_no_authority() {
    let dir = tempfile::tempdir().unwrap();
    let host = host(&fleet(dir.path(), "1"), &[]);
    let empty = [("SKYTETHER_TOKEN", ""), ("SKYTETHER_TLS_CA", "")];
    run_with(&["ls", "--fleet", &host.url], &empty).code(0);
    host.stop().code(0);
}

#[test]
fn replacement_address_is_refused_before_it_is_connected_to() {
    let dir = tempfile::tempdir().unwrap();
    let host = host(&fleet(dir.path(), "1"), &[]);
    // Nothing listens there: a connection would be the failure.
    let said = run(&["repair", "--replace", "drive-0", "--replacement", "127.0.0.1:1", "--fleet", &host.url]).fails(1);
    assert!(said.contains("makes its blank drives itself"), "{said}");
    host.stop().code(0);
    let data = dir.path().join("drive");
    let drive = Served::start(&["drive", "serve", "--data", text(&data)]);
    let host = Served::start(&["host", "serve", "--drives", &drive.url]);
    let said = run(&["repair", "--replace", "drive-0", "--replacement", "127.0.0.1:1", "--fleet", &host.url]).fails(1);
    assert!(said.contains("no drive is missing"), "{said}");
    host.stop().code(0);
    drive.stop().code(0);
}

/// Three mutual-TLS drives, and their hosts; any one drive may be lost.
struct Redundant {
    dir: tempfile::TempDir,
    pki: Pki,
    drives: Vec<Option<Served>>,
    urls: Vec<String>,
}

impl Redundant {
    /// The drives, empty, with `more` options each.
    fn new(more: &[&str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let pki = Pki::init(&dir.path().join("pki"), &[]);
        let drives: Vec<_> = (0..3).map(|n| Some(mutual_drive(&dir.path().join(format!("drive-{n}")), ANY, &pki, more))).collect();
        let urls = drives.iter().flatten().map(|drive| drive.url.clone()).collect();
        Self { dir, pki, drives, urls }
    }

    /// A host over them with plain gRPC to its clients, and with `more` options.
    fn host(&self, more: &[&str]) -> Served {
        let drives = self.urls.join(",");
        let mut args = vec!["host", "serve", "--drives", &drives, "--redundancy", "ec:2+1", "--tls-ca", &self.pki.ca, "--listen", "grpc://127.0.0.1:0"];
        args.extend(self.pki.of_host());
        args.extend(more);
        Served::start(&args)
    }

    fn kill(&mut self, n: usize) {
        self.drives[n].take().unwrap().kill();
    }

    /// Starts a killed drive again where it was, with certificates of `pki`.
    fn start_again(&mut self, n: usize, pki: &Pki) {
        self.drives[n] = Some(mutual_drive(&self.dir.path().join(format!("drive-{n}")), &self.urls[n], pki, &[]));
    }
}

const SUM: &str = "SELECT count(*) AS n, sum(v) AS s FROM d.t";

#[test]
fn drive_with_an_untrusted_certificate_counts_as_lost() {
    let mut all = Redundant::new(&[]);
    let host = all.host(&[]);
    let given = parquet(all.dir.path(), "t.parquet", &rows(0, 3000));
    run(&["ingest", &given, "--to", "d.t", "--fleet", &host.url]).code(0);
    let ask = |host: &Served| assert_eq!(run(&["sql", SUM, "--format", "csv", "--fleet", &host.url]).code(0).out, "n,s\n3000,4498500\n");
    ask(&host);
    // Gone, behind TLS; then there, and not to be trusted: the other drives reconstruct what it holds.
    all.kill(1);
    ask(&host);
    let other = Pki::init(&all.dir.path().join("other"), &[]);
    all.start_again(1, &other);
    ask(&host);
    let said = run(&["status", "--fleet", &host.url]);
    assert!(said.code == Some(1) && said.out.contains("lost"), "{said:?}");
    host.stop().code(0);
    let host = all.host(&[]);
    assert!(host.banner[0].contains("3 drives, 1 lost,"), "{:?}", host.banner);
    ask(&host);
    // Trusted again.
    all.kill(1);
    let pki = Pki { ca: all.pki.ca.clone(), host: all.pki.host.clone(), drive: all.pki.drive.clone() };
    all.start_again(1, &pki);
    ask(&host);
    let said = host.stop().code(0).err;
    assert!(said.contains("not trusted here") && said.contains(&all.urls[1]), "{said}");
    // A host that no drive trusts is told so.
    all.pki.host = other.host.clone();
    let drives = all.urls.join(",");
    let mut args = vec!["host", "serve", "--drives", &drives, "--tls-ca", &all.pki.ca];
    args.extend(all.pki.of_host());
    let said = run(&args).fails(1);
    assert!(said.contains("client certificate") && said.contains("3 drives can't be reached"), "{said}");
}

#[test]
fn request_names_a_drive_that_asks_for_a_token() {
    let dir = tempfile::tempdir().unwrap();
    let tokens = text(&dir.path().join("tokens.json")).to_owned();
    let token = create("host", &["--tokens", &tokens]);
    let guarded = ["--require-auth", "--tokens", &tokens];
    let mut all = Redundant::new(&guarded);
    let host = all.host(&["--token", &token]);
    let given = parquet(all.dir.path(), "t.parquet", &rows(0, 3000));
    run(&["ingest", &given, "--to", "d.t", "--fleet", &host.url]).code(0);

    // Another drive joins, by an address that the request names: with TLS only, as the host shows a token.
    let fourth = mutual_drive(&all.dir.path().join("drive-3"), ANY, &all.pki, &guarded);
    let said = run(&["fleet", "add", fourth.address(), "--fleet", &host.url]).fails(1);
    assert!(said.contains("grpc+tls://"), "{said}");
    run(&["fleet", "add", &fourth.url, "--fleet", &host.url]).code(0);

    // A blank drive replaces a lost one, at an address that the request names.
    let status: Value = serde_json::from_str(&run(&["status", "--fleet", &host.url, "--format", "json"]).code(0).out).unwrap();
    let lost = status.as_array().unwrap().iter().find(|drive| drive["info"]["name"] == "drive-1").unwrap();
    let lost = lost["info"]["id"].as_str().unwrap().to_owned();
    host.stop().code(0);
    all.kill(1);
    all.urls.remove(1);
    all.urls.push(fourth.url.clone());
    let host = all.host(&["--token", &token]);
    let blank = mutual_drive(&all.dir.path().join("blank"), ANY, &all.pki, &[&guarded[..], &["--name", "drive-1", "--replace", &lost]].concat());
    run(&["repair", "--replace", "drive-1", "--replacement", &blank.url, "--fleet", &host.url]).code(0);
    assert_eq!(run(&["sql", SUM, "--format", "csv", "--fleet", &host.url]).code(0).out, "n,s\n3000,4498500\n");
    run(&["status", "--fleet", &host.url]).code(0);
    host.stop().code(0);
}
