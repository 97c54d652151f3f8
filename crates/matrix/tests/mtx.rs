//! The Matrix Market reader: what it accepts, what it rejects, and that no input makes it panic.

use std::io::Write;

use flate2::{Compression, write::GzEncoder};
use skytether_common::{Kind, Result};
use skytether_matrix::{MtxHeader, MtxReader};

const FILE: &str = "%%MatrixMarket matrix coordinate integer general\n%metadata_json: {}\n3 4 5\n1 1 1\n3 1 20\n2 2 300\n1 4 4000\n3 4 50000\n";

type Entries = (MtxHeader, Vec<u32>, Vec<u32>, Vec<f64>);

fn read_by(bytes: &[u8], chunk: usize) -> Result<Entries> {
    let mut reader = MtxReader::new(Box::new(std::io::Cursor::new(bytes.to_vec())), "matrix.mtx")?;
    let (mut rows, mut cols, mut vals) = (Vec::new(), Vec::new(), Vec::new());
    while reader.read_chunk(chunk, &mut rows, &mut cols, &mut vals)? > 0 {}
    Ok((reader.header(), rows, cols, vals))
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut gz = GzEncoder::new(Vec::new(), Compression::fast());
    gz.write_all(bytes).unwrap();
    gz.finish().unwrap()
}

fn fails(text: &str, kind: Kind, message: &str) {
    let error = read_by(text.as_bytes(), 100).unwrap_err();
    assert_eq!(error.kind(), kind, "{error}");
    assert!(error.to_string().contains(message), "{error}\n{message}");
    assert!(error.to_string().starts_with("matrix.mtx, line "), "{error}");
}

#[test]
fn entries_are_read_in_chunks_of_any_size() {
    for chunk in [1, 2, 5, 100] {
        for bytes in [FILE.as_bytes().to_vec(), gzip(FILE.as_bytes()), FILE.replace('\n', "\r\n").into_bytes(), FILE.trim_end().into()] {
            let (header, rows, cols, vals) = read_by(&bytes, chunk).unwrap();
            assert_eq!(header, MtxHeader { rows: 3, cols: 4, entries: 5 });
            assert_eq!((rows, cols), (vec![0, 2, 1, 0, 2], vec![0, 0, 1, 3, 3]));
            assert_eq!(vals, [1.0, 20.0, 300.0, 4000.0, 50000.0]);
        }
    }
}

#[test]
fn white_space_comments_and_kinds_of_numbers_are_taken() {
    let text = "%%matrixmarket MATRIX Coordinate Real General\n%\n\n  \n% x\n 2\t 2  4 \n\n1 1 -1.5e-3\n\t2  1\t+7 \n%late comment\n1 2 .5\n \r\n2 2 12345678901234567890\n\n";
    let (_, _, _, vals) = read_by(text.as_bytes(), 10).unwrap();
    assert_eq!(vals, [-0.0015, 7.0, 0.5, 12_345_678_901_234_567_890.0]);
    let pattern = "%%MatrixMarket matrix coordinate pattern general\n2 2 2\n1 1\n2 2\n";
    assert_eq!(read_by(pattern.as_bytes(), 10).unwrap().3, [1.0, 1.0]);
    let two_members = [gzip(&FILE.as_bytes()[..60]), gzip(&FILE.as_bytes()[60..])].concat();
    assert_eq!(read_by(&two_members, 10).unwrap().1.len(), 5);
    assert_eq!(read_by(b"%%MatrixMarket matrix coordinate integer general\n3 3 0\n", 1).unwrap().1.len(), 0);
}

#[test]
fn whole_numbers_are_exact_or_refused() {
    let of = |field: &str, value: &str| format!("%%MatrixMarket matrix coordinate {field} general\n1 1 1\n1 1 {value}\n");
    for (value, expected) in [
        ("9007199254740992", 9_007_199_254_740_992.0),
        ("9007199254740994", 9_007_199_254_740_994.0),
        ("18446744073709549568", 18_446_744_073_709_549_568.0),
        ("-9007199254740992", -9_007_199_254_740_992.0),
        ("+7", 7.0),
        ("-3", -3.0),
        ("1e+05", 100_000.0),
        ("12.0", 12.0),
    ] {
        assert_eq!(read_by(of("integer", value).as_bytes(), 1).unwrap().3, [expected], "{value}");
    }
    for value in ["9007199254740993", "-9007199254740993", "18446744073709551615", "123456789012345678901", "1.5", "9007199254740993.0", "1e300"] {
        fails(&of("integer", value), Kind::Invalid, "line 3: the value is no whole number that a 64-bit float holds exactly");
        assert_eq!(read_by(of("real", value).as_bytes(), 1).unwrap().3, [value.parse::<f64>().unwrap()]);
    }
    fails(&of("integer", "inf"), Kind::Invalid, "line 3: the value is not a finite number");
}

#[test]
fn unsupported_headers_are_named() {
    for banner in ["matrix array real general", "matrix coordinate complex general", "matrix coordinate real symmetric", "vector coordinate real general"] {
        fails(
            &format!("%%MatrixMarket {banner}\n1 1 1\n1 1 1\n"),
            Kind::Unsupported,
            "supported is `%%MatrixMarket matrix coordinate integer|real|pattern general`",
        );
    }
    fails("%%MatrixMarket matrix\n", Kind::Invalid, "line 1: the banner has 2 words");
    fails("gene\tcell\n", Kind::Invalid, "line 1: not a Matrix Market file");
    fails("", Kind::Invalid, "not a Matrix Market file");
}

#[test]
fn damage_is_named_by_file_and_line() {
    let with = |body: &str| format!("%%MatrixMarket matrix coordinate integer general\n{body}");
    fails(&with(""), Kind::Corrupt, "ends before the size line");
    fails(&with("% only this"), Kind::Corrupt, "ends before the size line");
    fails(&with("3 x 1\n"), Kind::Invalid, "line 2: the size line must be three numbers");
    fails(&with("3 3\n"), Kind::Invalid, "line 2: the size line");
    fails(&with("5000000000 3 1\n"), Kind::Invalid, "5000000000 rows are more than the supported");
    fails(&with("2 2 5\n"), Kind::Invalid, "5 entries do not fit");
    fails(&with("2 2 2\n1 1 1\n"), Kind::Corrupt, "the file ends after 1 of 2 entries");
    fails(&with("2 2 1\n1 1 1\n\n2 2 1\n"), Kind::Invalid, "line 5: there are more entries than the 1 announced");
    fails(&with("2 2 1\n0 1 1\n"), Kind::Invalid, "line 3: row 0 does not exist; rows are numbered from 1 to 2");
    fails(&with("2 2 1\n1 3 1\n"), Kind::Invalid, "line 3: column 3 does not exist");
    fails(&with("2 2 1\n-1 1 1\n"), Kind::Invalid, "line 3: expected numbers");
    fails(&with("2 2 1\n1 1 one\n"), Kind::Invalid, "line 3: expected numbers");
    fails(&with("2 2 1\n1 1\n"), Kind::Invalid, "line 3: expected a row, a column");
    fails(&with("2 2 1\n1 1 1 1\n"), Kind::Invalid, "line 3: expected a row, a column");
    fails(&with("2 2 1\n1 1 nan\n"), Kind::Invalid, "line 3: the value is not a finite number");
    fails(&with("2 2 1\n99999999999999999999999 1 1\n"), Kind::Invalid, "line 3: expected");
    fails(&with(&format!("2 2 1\n{}", "1".repeat(3 << 20))), Kind::Invalid, "line 3: the line is too long");
}

#[test]
fn truncated_and_damaged_gzip_is_reported() {
    let body: String = (1..=5000).map(|i| format!("{} 1 {}\n", i, i * 7919 % 1013)).collect();
    let whole = gzip(format!("%%MatrixMarket matrix coordinate integer general\n5000 1 5000\n{body}").as_bytes());
    assert_eq!(read_by(&whole, 1000).unwrap().1.len(), 5000);
    let error = read_by(&whole[..whole.len() / 2], 1000).unwrap_err();
    assert_eq!(error.kind(), Kind::Corrupt);
    assert!(error.to_string().contains("matrix.mtx, line ") && error.to_string().contains("gzip data are truncated"), "{error}");
    let mut damaged = whole.clone();
    let n = damaged.len();
    damaged[n - 6] ^= 0x55;
    assert_eq!(read_by(&damaged, 1000).unwrap_err().kind(), Kind::Corrupt);
}

#[test]
fn mutated_files_never_panic_and_never_read_out_of_range() {
    let mut rng = fastrand::Rng::with_seed(42);
    let mut random = move |n: usize| rng.usize(..n);
    let interesting = b"0123456789 \n\r\t%.-+eEnNiI\0\xff\x1f\x8b";
    let (mut taken, gz) = (0, gzip(FILE.as_bytes()));
    for round in 0..20_000 {
        let mut bytes = if round % 4 == 3 { gz.clone() } else { FILE.as_bytes().to_vec() };
        for _ in 0..=random(3) {
            let at = random(bytes.len());
            match random(4) {
                0 => bytes[at] = interesting[random(interesting.len())],
                1 => bytes.insert(at, interesting[random(interesting.len())]),
                2 if bytes.len() > 1 => drop(bytes.remove(at)),
                _ => bytes.truncate(at.max(1)),
            }
        }
        if let Ok((header, rows, cols, vals)) = read_by(&bytes, 1 + random(4)) {
            taken += 1;
            assert!(rows.len() as u64 == header.entries && cols.len() == rows.len() && vals.len() == rows.len());
            assert!(rows.iter().all(|r| *r < header.rows) && cols.iter().all(|c| *c < header.cols));
            assert!(vals.iter().all(|v| v.is_finite()));
        }
    }
    assert!(taken > 1000, "{taken}");
}

#[test]
fn a_missing_file_is_not_found() {
    let error = MtxReader::open(std::path::Path::new("no-such-folder/matrix.mtx.gz")).unwrap_err();
    assert_eq!(error.kind(), Kind::NotFound);
}
