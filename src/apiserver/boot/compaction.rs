//! Compaction of the store every five minutes, by one of all servers on it (`storage/etcd3/compact.go`).
//!
//! The servers share a key that counts the compactions: who writes it in a round compacts what was current in the round
//! before, so that watchers always have at least one interval to catch up. Nothing is done while nothing is written.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use store::{Compare, CompareOp, Op, OpResponse, RangeRequest, Store, StoreError, Txn};

const KEY: &[u8] = b"compact_rev_key";

/// What one server knows of the rounds.
#[derive(Debug, Default)]
struct Round {
    /// Version of the shared key: rounds so far.
    number: i64,
    /// The revision that this round may compact.
    revision: i64,
    /// The store's revision right after this server's last look.
    last_seen: i64,
}

/// Runs for ever.
pub async fn run(store: Arc<dyn Store>, every: Duration) {
    let mut round = Round::default();
    loop {
        tokio::time::sleep(every).await;
        if let Err(error) = once(&*store, &mut round).await {
            tracing::warn!(%error, "compaction is put off to the next round");
        }
    }
}

async fn once(store: &dyn Store, round: &mut Round) -> Result<(), StoreError> {
    if round.last_seen > 0 && store.revision().await? == round.last_seen {
        return Ok(());
    }
    let key = Bytes::from_static(KEY);
    let response = store
        .txn(Txn {
            compare: vec![Compare::Version(
                key.clone(),
                CompareOp::Equal,
                round.number,
            )],
            success: vec![Op::Put {
                key: key.clone(),
                value: round.revision.to_string().into(),
                lease: 0,
            }],
            failure: vec![Op::Range(RangeRequest {
                key,
                ..RangeRequest::default()
            })],
        })
        .await?;
    let compacts = std::mem::replace(&mut round.revision, response.revision);
    round.last_seen = response.revision;
    if !response.succeeded {
        round.number = response
            .responses
            .iter()
            .find_map(|response| match response {
                OpResponse::Range(range) => range.kvs.first().map(|kv| kv.version),
                _ => None,
            })
            .unwrap_or(0);
        return Ok(());
    }
    round.number += 1;
    if compacts == 0 {
        return Ok(());
    }
    match store.compact(compacts).await {
        Err(StoreError::Compacted { .. }) => Ok(()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use store::embedded::Embedded;

    async fn write(store: &Embedded, key: &'static str) -> i64 {
        let put = Op::Put {
            key: Bytes::from_static(key.as_bytes()),
            value: Bytes::from_static(b"x"),
            lease: 0,
        };
        let txn = Txn {
            success: vec![put],
            ..Txn::default()
        };
        store.txn(txn).await.expect("written").revision
    }

    async fn is_compacted(store: &Embedded, revision: i64) -> bool {
        let request = RangeRequest {
            key: Bytes::from_static(b"a"),
            revision,
            ..RangeRequest::default()
        };
        matches!(
            store.range(request).await,
            Err(StoreError::Compacted { .. })
        )
    }

    #[tokio::test]
    async fn a_round_compacts_what_was_current_in_the_one_before() {
        let store = Embedded::in_memory();
        let mut round = Round::default();
        let first = write(&store, "a").await;
        once(&*store, &mut round).await.unwrap();
        assert!(!is_compacted(&store, first).await);
        write(&store, "a").await;
        once(&*store, &mut round).await.unwrap();
        assert!(is_compacted(&store, first).await);
    }

    #[tokio::test]
    async fn an_idle_store_is_left_alone_and_servers_take_turns() {
        let store = Embedded::in_memory();
        let (mut one, mut two) = (Round::default(), Round::default());
        write(&store, "a").await;
        once(&*store, &mut one).await.unwrap();
        let before = store.revision().await.unwrap();
        once(&*store, &mut one).await.unwrap();
        assert_eq!(store.revision().await.unwrap(), before);
        once(&*store, &mut two).await.unwrap();
        assert_eq!(two.number, 1);
        assert_eq!(store.revision().await.unwrap(), before);
    }
}
