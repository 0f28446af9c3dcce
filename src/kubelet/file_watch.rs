//! Waiting for changes in a folder, by the kernel's inotify.

use std::io;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::path::Path;

use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use tokio::io::unix::AsyncFd;

/// A watched folder. Changes while nobody waits are not lost.
pub struct FolderWatch(AsyncFd<Owned>);

struct Owned(Inotify);

impl AsRawFd for Owned {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_fd().as_raw_fd()
    }
}

impl FolderWatch {
    /// Watches `folder` for what `flags` name. Must be called in a Tokio runtime.
    pub fn new(folder: &Path, flags: AddWatchFlags) -> io::Result<Self> {
        let inotify = Inotify::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC)?;
        inotify.add_watch(folder, flags)?;
        // SAFETY: the Inotify owns its descriptor, which `as_raw_fd` always
        // answers, and lives in the AsyncFd until that deregisters it.
        #[allow(
            unsafe_code,
            reason = "Tokio has no safe registration of a foreign descriptor"
        )]
        let registered = unsafe { AsyncFd::register(Owned(inotify)) };
        Ok(Self(registered.map_err(|error| error.into_parts().1)?))
    }

    /// Waits for the next change. Cancel-safe.
    pub async fn changed(&self) -> io::Result<()> {
        let mut ready = self.0.readable().await?;
        while self
            .0
            .get_ref()
            .0
            .read_events()
            .is_ok_and(|events| !events.is_empty())
        {}
        ready.clear_ready();
        Ok(())
    }
}
