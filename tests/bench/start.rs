//! Times a server's start, and what an empty one costs when nobody asks it anything.

use std::time::Duration;

use integration::process::Server;

use crate::report;

/// Time to ready on an empty folder and on the next start, and memory when empty.
pub async fn measure_start() -> anyhow::Result<()> {
    let mut first = Vec::new();
    let mut next = Vec::new();
    for _ in 0..5 {
        let server = Server::start(&[]).await?;
        first.push(server.ready_after.as_secs_f64() * 1e3);
        let again = Server::start_in(server.kill()?, &[]).await?;
        next.push(again.ready_after.as_secs_f64() * 1e3);
    }
    report(
        "ready on an empty folder, median of 5",
        format!("{:.0} ms", crate::percentile(&mut first, 0.5)),
        "150 ms",
    );
    report(
        "ready on the next start, median of 5",
        format!("{:.0} ms", crate::percentile(&mut next, 0.5)),
        "50 ms",
    );
    Ok(())
}

/// Memory, CPU and disk writes of an empty control plane left alone.
pub async fn measure_idle() -> anyhow::Result<()> {
    let api_only = Server::start(&[
        "--controllers=-*".to_owned(),
        "--disable-scheduler".to_owned(),
    ])
    .await;
    if let Ok(server) = api_only {
        tokio::time::sleep(Duration::from_secs(5)).await;
        report(
            "empty API server, resident",
            format!("{:.1} MB", server.usage()?.resident),
            "30 MB",
        );
    }
    let server = Server::start(&[]).await?;
    tokio::time::sleep(Duration::from_secs(10)).await;
    let before = server.usage()?;
    let seconds = 30.0;
    tokio::time::sleep(Duration::from_secs_f64(seconds)).await;
    let after = server.usage()?;
    report(
        "empty control plane, resident",
        format!("{:.1} MB", after.resident),
        "60 MB",
    );
    report(
        "idle control plane, of one core",
        format!("{:.2} %", (after.cpu - before.cpu) / seconds * 100.0),
        "0.5 %",
    );
    report(
        "idle control plane, written",
        format!("{} bytes/s", (after.written - before.written) / 30),
        "leases only",
    );
    Ok(())
}
