//! Durable writes of 2 KB values on the embedded store, without an API server.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use store::{Op, Store, Txn};

use crate::report;

const ROUND: Duration = Duration::from_secs(5);

/// Puts a second with one client and with 128.
pub async fn measure() -> anyhow::Result<()> {
    for (clients, budget) in [(1, "2,000/s"), (128, "15,000/s")] {
        let folder = tempfile::tempdir_in("target")?;
        let store = store::embedded::Embedded::open(folder.path(), Default::default())?;
        let rate = puts_a_second(store, clients).await?;
        report(
            &format!("durable puts of 2 KB, {clients} client(s)"),
            format!("{rate:.0}/s"),
            budget,
        );
    }
    Ok(())
}

async fn puts_a_second(
    store: Arc<store::embedded::Embedded>,
    clients: usize,
) -> anyhow::Result<f64> {
    let started = Instant::now();
    let mut tasks = Vec::new();
    for client in 0..clients {
        let store = store.clone();
        tasks.push(tokio::spawn(async move {
            let mut done = 0_u64;
            while started.elapsed() < ROUND {
                let key = Bytes::from(format!("/registry/bench/{client}/{}", done % 1_000));
                let value = Bytes::from(vec![b'x'; 2_048]);
                let put = Txn {
                    success: vec![Op::Put {
                        key,
                        value,
                        lease: 0,
                    }],
                    ..Txn::default()
                };
                store.txn(put).await?;
                done += 1;
            }
            Ok::<u64, store::StoreError>(done)
        }));
    }
    let mut done = 0;
    for task in tasks {
        done += task.await??;
    }
    Ok(done as f64 / started.elapsed().as_secs_f64())
}
