//! No request harms an OSD: endless loops, aborts, memory without end, bytes that are no request.

use std::time::Duration;

use arrow::array::AsArray;
use arrow::datatypes::Int64Type;
use arrow::ipc::reader::StreamReader;
use skytether_ceph_protocol::{Outcome, Refusal, Response};

use crate::cluster::{Cluster, with_cluster};
use crate::engines::{Engines, ROWS, request};

/// The numbers of a result of one row.
pub(crate) fn numbers(response: &Response) -> Vec<i64> {
    let Outcome::Rows(rows) = &response.outcome else { panic!("{response:?}") };
    let batches: Vec<_> = StreamReader::try_new(rows.as_slice(), None).unwrap().map(Result::unwrap).filter(|batch| batch.num_rows() > 0).collect();
    assert_eq!(batches.iter().map(|batch| batch.num_rows()).sum::<usize>(), 1);
    batches[0].columns().iter().map(|column| column.as_primitive::<Int64Type>().value(0)).collect()
}

pub(crate) fn refusal(response: &Response) -> (Refusal, &str) {
    match &response.outcome {
        Outcome::Refused(why, reason) => (*why, reason),
        Outcome::Rows(_) | Outcome::Wants(_) => panic!("{response:?}"),
    }
}

/// All OSDs are up, none of them was restarted, and each answers.
fn unharmed(cluster: &mut Cluster, engines: &Engines) {
    let told: serde_json::Value = serde_json::from_str(cluster.tell(r#"mon {"prefix": "osd dump", "format": "json"}"#).as_str().unwrap()).unwrap();
    for osd in told["osds"].as_array().unwrap() {
        assert_eq!((osd["up"].as_u64(), osd["down_at"].as_u64()), (Some(1), Some(0)), "{osd}");
    }
    let sum = request("SELECT count(*), sum(x), sum(y) FROM t WHERE y >= 0").encode();
    let due = vec![ROWS as i64, (ROWS * (ROWS - 1) / 2) as i64, (ROWS / 10 * 45) as i64];
    for number in 0..8 {
        let (called, response, _) = engines.call(number, &sum);
        assert_eq!((called.code, numbers(&response)), (0, due.clone()));
        assert!(response.receipt.osd.is_some() && response.receipt.bytes_read > 0, "{response:?}");
    }
}

#[test]
fn poison_requests_harm_no_osd() {
    with_cluster("poison::poison_requests_harm_no_osd", |cluster| {
        let mut engines = Engines::start(cluster);
        unharmed(cluster, &engines);

        // Ten thousand million pairs: hours.
        let endless = request("SELECT count(*) FROM t a JOIN t b ON a.y % 1 = b.y % 1 WHERE sin(a.x * b.x) > 0.9").encode();
        let (called, response, took) = engines.call(0, &endless);
        assert_eq!((called.code.min(0), refusal(&response).0), (called.code, Refusal::Late), "{response:?}");
        assert!(took < Duration::from_secs(4), "{took:?}");

        let sorted = request("SELECT a.x, b.y FROM t a JOIN t b ON a.y = b.y ORDER BY a.x * b.x, b.y").encode();
        let (_, response, _) = engines.call(1, &sorted);
        assert!(matches!(refusal(&response).0, Refusal::Exhausted | Refusal::Late), "{response:?}");

        // Ten gigabytes that no pool accounts for: the process ends, and not the machine.
        let (_, response, _) = engines.call(2, &request("SELECT sum(length(repeat(cast(x + 1000 AS VARCHAR), 300000))) FROM t").encode());
        assert!(matches!(refusal(&response).0, Refusal::NoEngine | Refusal::Exhausted | Refusal::Invalid | Refusal::Internal | Refusal::Late), "{response:?}");

        let (_, response, _) = engines.call(3, b"GET / HTTP/1.1");
        assert_eq!(refusal(&response).0, Refusal::Invalid);

        for osd in 0..3 {
            engines.restart(osd);
        }
        unharmed(cluster, &engines);
    });
}

#[test]
fn aborting_and_stopped_engines_harm_no_osd() {
    with_cluster("poison::aborting_and_stopped_engines_harm_no_osd", |cluster| {
        let mut engines = Engines::start(cluster);
        let endless = request("SELECT count(*) FROM t a JOIN t b ON a.y % 1 = b.y % 1 WHERE sin(a.x * b.x) > 0.9").encode();
        std::thread::scope(|scope| {
            let running = scope.spawn(|| engines.call(0, &endless));
            std::thread::sleep(Duration::from_millis(700));
            engines.signal(libc::SIGABRT);
            let (called, response, took) = running.join().unwrap();
            assert_eq!((called.code, refusal(&response).0), (-libc::EIO, Refusal::NoEngine), "{response:?}");
            assert!(took < Duration::from_secs(2), "{took:?}");
        });
        engines.await_end();
        let (_, response, took) = engines.call(1, &endless);
        assert_eq!(refusal(&response).0, Refusal::NoEngine);
        assert!(refusal(&response).1.contains("skytether ceph engine") && took < Duration::from_secs(1), "{response:?} {took:?}");
        for osd in 0..3 {
            engines.restart(osd);
        }
        engines.signal(libc::SIGSTOP);
        let (called, response, took) = engines.call(2, &request("SELECT count(x) FROM t").encode());
        assert_eq!((called.code, refusal(&response).0), (-libc::ETIMEDOUT, Refusal::Late), "{response:?}");
        assert!(took > Duration::from_secs(1) && took < Duration::from_secs(4), "{took:?}");
        engines.signal(libc::SIGCONT);
        unharmed(cluster, &engines);
    });
}
