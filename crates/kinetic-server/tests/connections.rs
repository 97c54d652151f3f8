//! Connections: their order of writes, and those that say nothing.

use bytes::Bytes;
use futures::future::join_all;
use skytether_kinetic::Put;
use skytether_kinetic_protocol::kinds::Synchronization;
use skytether_kinetic_server::Profile;
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;

use crate::{open, put, serve};

/// Two connections, so that values of 1 MiB fill the store's queue while small ones are on their way.
#[tokio::test(flavor = "multi_thread")]
async fn writes_of_one_connection_keep_their_order() {
    let dir = tempfile::tempdir().unwrap();
    let served = serve(dir.path(), Profile::Java).await;
    let write = |connection: usize, number: usize| {
        let length = if number.is_multiple_of(3) { 1 << 20 } else { 8 };
        let mut value = vec![0; length];
        value[..8].copy_from_slice(&(number as u64).to_be_bytes());
        let key = Bytes::from(format!("key-{connection}"));
        Put { synchronization: Synchronization::WriteBack, ..Put::new(key, value.into(), None, Bytes::new()) }
    };
    let of_one = |connection: usize| {
        let served = &served;
        async move {
            let on = open(&served.plain, &served.options).await;
            // The client sends them in this order.
            let all = join_all((0..150).map(|number| on.put(write(connection, number)))).await;
            all.into_iter().for_each(|done| done.unwrap());
            let last = on.get(Bytes::from(format!("key-{connection}")), false).await.unwrap().value;
            u64::from_be_bytes(last[..8].try_into().unwrap())
        }
    };
    assert_eq!(join_all([of_one(0), of_one(1)]).await, [149, 149]);
}

#[tokio::test(flavor = "multi_thread")]
async fn connection_without_a_request_is_ended() {
    let dir = tempfile::tempdir().unwrap();
    let served = serve(dir.path(), Profile::Drive).await;
    let mut silent = TcpStream::connect(served.plain.authority()).await.unwrap();
    let busy = open(&served.plain, &served.options).await;
    busy.put(put("a", "1")).await.unwrap();
    let mut said = Vec::new();
    silent.read_to_end(&mut said).await.unwrap();
    let why = b"came in time";
    assert!(said.windows(why.len()).any(|text| text == why), "{said:?}");
    // One that has asked for something may be idle as long as it likes.
    busy.put(put("a", "2")).await.unwrap();
}
