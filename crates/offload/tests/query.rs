//! Queries go to the engine that was given, with whole lines of chunks.

use std::sync::Arc;

use bytes::Bytes;
use futures::StreamExt;
use futures::stream::BoxStream;
use skytether_common::{Error, Kind, Result};
use skytether_offload::codes::{format, item_flag, opcode, tag};
use skytether_offload::operations::query::{Format, QueryFiles, QueryPart, QueryRequest};
use skytether_offload::{Capabilities, Descriptor, Offload, Options, operations};
use skytether_volume::Exec;

use crate::util::{Disk, exec, wait};

/// Answers with all that it was asked, as text.
#[derive(Debug)]
struct Echo;

async fn echo(request: QueryRequest) -> Result<String> {
    let mut said = format!("{:?} {}", request.format, String::from_utf8_lossy(&request.plan));
    for file in &request.files {
        let bytes = file.bytes.read(0..file.bytes.len()).await?;
        said.push_str(&format!(" {}({})={:?}", file.table, file.preceded, String::from_utf8_lossy(&bytes)));
    }
    if request.plan == "fail"[..] {
        return Err(Error::corrupt("the file is damaged"));
    }
    assert!(request.memory > 0 && !request.cancel.is_cancelled() && request.format != Format::Parquet);
    Ok(said)
}

impl QueryFiles for Echo {
    fn query(&self, request: QueryRequest) -> BoxStream<'static, Result<QueryPart>> {
        if request.plan == "hang"[..] {
            return futures::stream::pending().boxed();
        }
        let rows = futures::stream::once(async { echo(request).await.map(|said| QueryPart::Rows(said.into())) });
        rows.chain(futures::stream::iter([Ok(QueryPart::Receipt(Bytes::from_static(b"{}")))])).boxed()
    }
}

fn with_engine(options: Options) -> Offload {
    Offload::new(operations::registry(Some(Arc::new(Echo))).unwrap(), options).unwrap()
}

fn ask(plan: &'static str) -> Descriptor {
    Descriptor::new(opcode::QUERY).number(tag::FORMAT, format::CSV).bytes(tag::PLAN, plan.as_bytes()).text(tag::TABLE, "t")
}

#[test]
fn an_engine_gets_files_and_its_answer_comes_back() {
    wait(async {
        let mut disk = Disk::new(1 << 20);
        let (first, last) = (disk.put(b"a,b\n1,2\n3,").await.chunk(0, false, true), disk.put(b"4\n5,6\n").await.chunk(10, true, false));
        let exec = with_engine(Options::default());
        let items = disk.items(&exec, &ask("plan").input(first.clone()).input(last.clone())).await;
        assert_eq!(items[0].data, "Csv plan t(false)=\"a,b\\n1,2\\n\" t(true)=\"5,6\\n\"");
        assert_eq!(items[0].head, "{}");
        assert_eq!((&items[1].tail[..], &items[2].head[..]), (&b"3,"[..], &b"4\n"[..]));
        let written = disk.output(&exec, ask("plan").input(first), 4096).await;
        assert_eq!(written, b"Csv plan t(false)=\"a,b\\n1,2\\n\"");
    });
}

#[test]
fn without_an_engine_queries_are_unsupported() {
    wait(async {
        let disk = Disk::new(1 << 20);
        assert_eq!(disk.try_exec(&exec(), &ask("plan")).await.unwrap_err().kind(), Kind::Unsupported);
        for (exec, there) in [(exec(), false), (with_engine(Options::default()), true)] {
            assert_eq!(Capabilities::decode(&exec.capabilities()).unwrap().has(opcode::QUERY), there);
        }
    });
}

/// A chunk without a whole line is no file. Its bytes are answered all the same.
#[test]
fn chunks_without_a_line_are_not_asked_for() {
    wait(async {
        let mut disk = Disk::new(1 << 20);
        let within = disk.put(b"3,3,3").await.chunk(10, true, true);
        let cut = disk.put(b"3\n4").await.chunk(15, true, true);
        let file = disk.put(b"a\n").await;
        let exec = with_engine(Options::default());
        let items = disk.items(&exec, &ask("plan").input(within.clone()).input(file).input(cut.clone())).await;
        assert_eq!(items[0].data, "Csv plan t(false)=\"a\\n\"");
        assert!(items[1].has(item_flag::NO_BREAK) && items[1].head == "3,3,3"[..] && items[1].tail.is_empty());
        assert_eq!((&items[3].head[..], &items[3].tail[..]), (&b"3\n"[..], &b"4"[..]));
        let items = disk.items(&exec, &ask("fail").input(within).input(cut)).await;
        assert_eq!((&items[0].data[..], &items[0].values[..], &items[1].head[..]), (&b""[..], &[0][..], &b"3,3,3"[..]));
    });
}

#[test]
fn errors_and_silence_of_an_engine_end_the_query() {
    wait(async {
        let disk = Disk::new(1 << 20);
        let exec = with_engine(Options::default());
        assert_eq!(disk.exec(&exec, &ask("fail")).await.failure.unwrap().kind, Kind::Corrupt);
        let hang = Descriptor { time: 30, ..ask("hang") };
        assert_eq!(disk.exec(&exec, &hang).await.failure.unwrap().kind, Kind::Exhausted);
    });
}
