//! Tells the one who supervises this process that it is ready: sd_notify(3), on the socket that `$NOTIFY_SOCKET` names.

use std::os::unix::net::UnixDatagram;

/// Sends `READY=1`. Without a supervisor it does nothing.
pub fn ready() {
    let Some(path) = std::env::var_os("NOTIFY_SOCKET") else {
        return;
    };
    let sent = UnixDatagram::unbound().and_then(|socket| socket.send_to(b"READY=1\n", &path));
    if let Err(error) = sent {
        tracing::warn!(%error, "Cannot tell the supervisor that this is ready");
    }
}
