//! A program in C uses `oas.h` and `liboas.so`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::mounted::{Mounted, system, text};
use crate::target::{Target, operations};

const PROGRAM: &str = r#"
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include "oas.h"

static int print(void *context, uint64_t offset, const uint8_t *text, size_t length) {
    ++*(int *)context;
    printf("%llu:%.*s\n", (unsigned long long)offset, (int)length, (const char *)text);
    return 0;
}

static int stop(void *context, uint64_t offset, const uint8_t *text, size_t length) {
    (void)context, (void)offset, (void)text, (void)length;
    return 7;
}

#define CHECK(what) do { if (!(what)) { fprintf(stderr, "line %d: %s: %s (%s)\n", __LINE__, #what, oas_error(), oas_reason()); return 1; } } while (0)

int main(int argc, char **argv) {
    const char *target = argc > 3 ? argv[3] : NULL;
    int there = target ? OAS_THERE : OAS_HERE, ran = -1;
    oas_session *session = NULL;
    CHECK(oas_open(target, target ? OAS_NOT_HERE : 0, &session) == 0 && session);

    uint8_t digest[OAS_MOST_DIGEST];
    size_t length = 0;
    CHECK(oas_sum(session, argv[1], OAS_MD5, NULL, digest, &length, &ran) == 0 && length == 16 && ran == there);
    for (size_t n = 0; n < length; n++)
        printf("%02x", digest[n]);
    printf("\n");

    oas_counts counts;
    CHECK(oas_word_count(session, argv[1], 0, &counts, NULL) == 0);
    printf("%llu %llu %llu %llu\n", (unsigned long long)counts.lines, (unsigned long long)counts.words, (unsigned long long)counts.characters,
           (unsigned long long)counts.bytes);

    int found = 0;
    uint64_t matches = 0;
    CHECK(oas_search(session, argv[1], "n[e]+dle", 0, print, &found, &ran) == 0 && ran == there);
    CHECK(oas_count(session, argv[1], "needle", OAS_FIXED, &matches, NULL) == 0 && matches == (uint64_t)found);
    CHECK(oas_search(session, argv[1], "needle", OAS_FIXED, stop, NULL, NULL) == 7);

    const char *paths[] = {argv[1], "/nowhere", argv[1]};
    uint8_t digests[3 * OAS_MOST_DIGEST];
    int results[3];
    CHECK(oas_sum_files(session, paths, 3, OAS_SHA256, NULL, digests, results) == 0);
    CHECK(results[0] == 0 && results[1] == -ENOENT && results[2] == 0);
    CHECK(memcmp(digests, digests + 2 * OAS_MOST_DIGEST, OAS_MOST_DIGEST) == 0);

    CHECK(oas_sort(session, paths, 1, argv[2], &ran) == 0 && ran == there);

    int64_t bad = -2;
    uint8_t key[32] = {0};
    CHECK(oas_verify_framed(session, argv[1], OAS_HIGHWAY256, key, 4096, &bad, NULL) == 0 && bad == 0);

    /* What is wrong has its number and a text. */
    CHECK(oas_sum(session, "/nowhere", OAS_MD5, NULL, digest, &length, NULL) == -ENOENT && strstr(oas_error(), "/nowhere"));
    CHECK(oas_sum(session, argv[1], 999, NULL, digest, &length, NULL) == -EINVAL);
    CHECK(oas_sum(session, argv[1], OAS_HIGHWAY256, NULL, digest, &length, NULL) == -EINVAL);
    CHECK(oas_sum(NULL, argv[1], OAS_MD5, NULL, digest, &length, NULL) == -EINVAL);
    CHECK(oas_count(session, argv[1], "(", 0, &matches, NULL) == -EINVAL);
    oas_session *none = NULL;
    CHECK(oas_open("http://x", 0, &none) == -EINVAL && !none);
    oas_close(session);
    oas_close(NULL);
    return 0;
}
"#;

/// `liboas.so`, which cargo puts next to the test program or above it.
fn library() -> PathBuf {
    let program = std::env::current_exe().unwrap();
    let deps = program.parent().unwrap();
    let places = [deps.to_owned(), deps.parent().unwrap().to_owned()];
    places.into_iter().find(|place| place.join("liboas.so").exists()).expect("cargo made no liboas.so")
}

fn compile(dir: &Path) -> PathBuf {
    let (source, program, library) = (dir.join("program.c"), dir.join("program"), library());
    fs::write(&source, PROGRAM).unwrap();
    let include = Path::new(env!("CARGO_MANIFEST_DIR")).join("include");
    let output = Command::new("cc")
        .args(["-std=c99", "-Wall", "-Wextra", "-Werror", "-D_GNU_SOURCE", "-I"])
        .arg(include)
        .arg("-o")
        .args([&program, &source])
        .arg("-L")
        .arg(&library)
        .arg("-loas")
        .arg(format!("-Wl,-rpath,{}", library.display()))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    program
}

fn check(program: &Path, file: &Path, sorted: &Path, target: Option<&str>) {
    let output = Command::new(program).arg(file).arg(sorted).args(target).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let directory = file.parent().unwrap();
    let name = file.file_name().unwrap().to_str().unwrap();
    let digest = system(directory, "md5sum", &[name], "C");
    let counts = String::from_utf8(system(directory, "wc", &["-lwmc", name], "C.UTF-8")).unwrap();
    let counts: Vec<&str> = counts.split_whitespace().take(4).collect();
    let matches = system(directory, "grep", &["-aobE", "n[e]+dle", name], "C.UTF-8");
    let expected = [&digest[..32], b"\n", counts.join(" ").as_bytes(), b"\n", &matches].concat();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), String::from_utf8(expected).unwrap());
    assert!(fs::read(sorted).unwrap() == system(directory, "sort", &[name], "C"));
}

#[test]
fn a_c_program_computes_here() {
    let dir = tempfile::tempdir().unwrap();
    let program = compile(dir.path());
    fs::write(dir.path().join("a"), text(1, 100_000)).unwrap();
    check(&program, &dir.path().join("a"), &dir.path().join("sorted"), None);
}

#[test]
fn a_c_program_computes_in_the_target() {
    let Some(mounted) = Mounted::new("ext4", 32, 0) else { return };
    let target = Target::new(&mounted.image(), Some(operations()), None);
    let program = compile(mounted.outside("").as_path());
    fs::write(mounted.file("a"), text(2, 100_000)).unwrap();
    check(&program, &mounted.file("a"), &mounted.file("sorted"), Some(&target.url));
}
