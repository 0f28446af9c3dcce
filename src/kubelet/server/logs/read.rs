//! Reading a container's log out: from the right place, filtered, and on and on
//! while it is followed. A rotated log is read to its end and then the new one.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use nix::sys::inotify::AddWatchFlags;
use tokio::fs::File;
use tokio::io::{AsyncReadExt, AsyncSeekExt, SeekFrom};
use tokio::sync::mpsc::Sender;

use super::{Ended, entry};
use crate::file_watch::FolderWatch;
use crate::k8s::Timestamp;
use crate::pod::view::Nanos;

/// Bytes read at a time.
const CHUNK: usize = 64 * 1024;
/// A line without an end longer than this is passed on in pieces.
const MAX_LINE: usize = 1 << 20;
/// A log whose container has just been started may not exist yet for so long.
const APPEARANCE: Duration = Duration::from_secs(5);

/// What is asked for.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Go on until the container ends.
    pub follow: bool,
    /// Put each line's time before it.
    pub timestamps: bool,
    /// Leave out what is older.
    pub since: Option<Nanos>,
    /// Only so many of the last lines.
    pub tail: Option<usize>,
    /// Stop after so many bytes.
    pub limit: Option<usize>,
    /// Only `stdout` or `stderr`.
    pub stream: Option<String>,
}

type Output = Sender<io::Result<Bytes>>;

/// Reads until the log, the limit or the reader's patience ends.
pub async fn read(path: PathBuf, options: Options, ended: Ended, output: Output) {
    let mut reader = Reader {
        path,
        left: options.limit,
        options,
        ended,
        output,
    };
    if let Err(Stop::Failed(error)) = reader.run().await {
        let message = format!("failed to read the log: {error}");
        // Nobody is there to read it if this fails.
        let _ = reader
            .output
            .send(Err(io::Error::new(error.kind(), message)))
            .await;
    }
}

/// Why reading ends early.
enum Stop {
    Failed(io::Error),
    Limit,
    Unread,
}

impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Self {
        Self::Failed(error)
    }
}

struct Reader {
    path: PathBuf,
    options: Options,
    ended: Ended,
    output: Output,
    /// Bytes that may still be sent.
    left: Option<usize>,
}

impl Reader {
    async fn run(&mut self) -> Result<(), Stop> {
        let changes = watch(&self.path)?;
        let mut file = self.open(&changes).await?;
        let start = match self.options.tail {
            Some(lines) => tail_start(&mut file, lines).await?,
            None => 0,
        };
        file.seek(SeekFrom::Start(start)).await?;
        let mut pending = Vec::new();
        loop {
            self.drain(&mut file, &mut pending).await?;
            if !self.options.follow {
                return self.finish(&pending).await;
            }
            if self.is_replaced(&file).await {
                // What was written between the last read and the rotation.
                self.drain(&mut file, &mut pending).await?;
                file = self.open(&changes).await?;
                continue;
            }
            tokio::select! {
                biased;
                changed = changes.changed() => changed?,
                () = self.ended.wait() => {
                    self.drain(&mut file, &mut pending).await?;
                    return self.finish(&pending).await;
                }
                () = self.output.closed() => return Err(Stop::Unread),
            }
        }
    }

    /// Opens the log; waits a little for one that is followed and not there yet.
    async fn open(&self, changes: &FolderWatch) -> io::Result<File> {
        let appeared = async {
            loop {
                match File::open(&self.path).await {
                    Err(error)
                        if error.kind() == io::ErrorKind::NotFound && self.options.follow =>
                    {
                        changes.changed().await?;
                    }
                    other => return other,
                }
            }
        };
        match tokio::time::timeout(APPEARANCE, appeared).await {
            Ok(opened) => opened,
            Err(_) => Err(io::Error::from(io::ErrorKind::NotFound)),
        }
    }

    async fn is_replaced(&self, file: &File) -> bool {
        let ours = file.metadata().await.map(|metadata| metadata.ino());
        let named = tokio::fs::metadata(&self.path)
            .await
            .map(|metadata| metadata.ino());
        matches!((ours, named), (Ok(ours), Ok(named)) if ours != named)
    }

    async fn drain(&mut self, file: &mut File, pending: &mut Vec<u8>) -> Result<(), Stop> {
        let mut chunk = vec![0; CHUNK];
        loop {
            let read = file.read(&mut chunk).await?;
            if read == 0 {
                return Ok(());
            }
            pending.extend_from_slice(&chunk[..read]);
            let Some(end) = pending.iter().rposition(|byte| *byte == b'\n') else {
                if pending.len() > MAX_LINE {
                    self.send(std::mem::take(pending)).await?;
                }
                continue;
            };
            let lines: Vec<u8> = pending.drain(..=end).collect();
            let text = self.render(&String::from_utf8_lossy(&lines));
            self.send(text.into_bytes()).await?;
        }
    }

    /// The last line of a log may lack its newline.
    async fn finish(&mut self, pending: &[u8]) -> Result<(), Stop> {
        let text = self.render(&String::from_utf8_lossy(pending));
        self.send(text.into_bytes()).await
    }

    fn render(&self, lines: &str) -> String {
        let mut out = String::with_capacity(lines.len());
        for line in lines.split_terminator('\n') {
            let Some(entry) = entry::parse(line) else {
                continue;
            };
            let other = self
                .options
                .stream
                .as_ref()
                .is_some_and(|stream| stream != entry.stream);
            if other
                || self
                    .options
                    .since
                    .is_some_and(|since| is_before(entry.time, since))
            {
                continue;
            }
            if self.options.timestamps {
                out.push_str(entry.time);
                out.push(' ');
            }
            out.push_str(entry.content);
            if !entry.partial {
                out.push('\n');
            }
        }
        out
    }

    async fn send(&mut self, mut bytes: Vec<u8>) -> Result<(), Stop> {
        if bytes.is_empty() {
            return Ok(());
        }
        if let Some(left) = &mut self.left {
            bytes.truncate(*left);
            *left -= bytes.len();
        }
        self.output
            .send(Ok(Bytes::from(bytes)))
            .await
            .map_err(|_| Stop::Unread)?;
        if self.left == Some(0) {
            Err(Stop::Limit)
        } else {
            Ok(())
        }
    }
}

fn is_before(time: &str, since: Nanos) -> bool {
    let time = time.parse::<Timestamp>();
    time.is_ok_and(|time| time.as_nanosecond() < i128::from(since))
}

/// Where the last `lines` lines begin.
async fn tail_start(file: &mut File, lines: usize) -> io::Result<u64> {
    let mut end = file.metadata().await?.len();
    if lines == 0 {
        return Ok(end);
    }
    let mut found = 0;
    let mut chunk = vec![0; CHUNK];
    let mut last = true;
    while end > 0 {
        let start = end.saturating_sub(CHUNK as u64);
        let length = usize::try_from(end - start).unwrap_or(CHUNK);
        file.seek(SeekFrom::Start(start)).await?;
        file.read_exact(&mut chunk[..length]).await?;
        for (at, byte) in chunk[..length].iter().enumerate().rev() {
            // The newline at the very end ends the last line and begins none.
            if *byte == b'\n' && !std::mem::take(&mut last) {
                found += 1;
                if found == lines {
                    return Ok(start + at as u64 + 1);
                }
            }
            last = false;
        }
        end = start;
    }
    Ok(0)
}

/// Changes of a log: writing to it, and a new file under its name.
fn watch(log: &Path) -> io::Result<FolderWatch> {
    let flags = AddWatchFlags::IN_MODIFY | AddWatchFlags::IN_CREATE | AddWatchFlags::IN_MOVED_TO;
    FolderWatch::new(log.parent().unwrap_or(log), flags)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;
    use tokio::sync::{mpsc, watch};

    use super::*;
    use crate::k8s::Pod;

    const LOG: &str = "2026-01-01T00:00:00.000000001Z stdout F one\n\
                       2026-01-01T00:00:01.000000001Z stderr F two\n\
                       2026-01-01T00:00:02.000000001Z stdout P thr\n\
                       2026-01-01T00:00:02.000000002Z stdout F ee\n";

    struct Log {
        folder: PathBuf,
        path: PathBuf,
        pod: watch::Sender<Arc<Pod>>,
    }

    impl Drop for Log {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.folder);
        }
    }

    fn mk_pod(running: bool) -> Arc<Pod> {
        let state = if running {
            json!({"running": {}})
        } else {
            json!({"terminated": {"exitCode": 0}})
        };
        let status = json!({"name": "c", "image": "", "imageID": "", "ready": true, "restartCount": 0,
            "containerID": "containerd://id", "state": state});
        Arc::new(
            serde_json::from_value(json!({"status": {"containerStatuses": [status]}}))
                .expect("a pod"),
        )
    }

    fn mk_log(name: &str) -> Log {
        let folder =
            std::env::temp_dir().join(format!("kubelet-read-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let path = folder.join("0.log");
        std::fs::write(&path, LOG).expect("written");
        Log {
            folder,
            path,
            pod: watch::Sender::new(mk_pod(true)),
        }
    }

    fn start(log: &Log, options: Options) -> mpsc::Receiver<io::Result<Bytes>> {
        let (sender, receiver) = mpsc::channel(8);
        let ended = Ended {
            published: log.pod.subscribe(),
            container: "c".into(),
            id: "id".into(),
        };
        tokio::spawn(read(log.path.clone(), options, ended, sender));
        receiver
    }

    async fn all(mut receiver: mpsc::Receiver<io::Result<Bytes>>) -> String {
        let mut text = String::new();
        while let Some(piece) = receiver.recv().await {
            text.push_str(&String::from_utf8_lossy(&piece.expect("read")));
        }
        text
    }

    #[tokio::test]
    async fn options_choose_what_is_read() {
        let log = mk_log("options");
        let read = |options: Options| all(start(&log, options));
        assert_eq!(read(Options::default()).await, "one\ntwo\nthree\n");
        assert_eq!(
            read(Options {
                tail: Some(2),
                ..Options::default()
            })
            .await,
            "three\n"
        );
        assert_eq!(
            read(Options {
                tail: Some(0),
                ..Options::default()
            })
            .await,
            ""
        );
        assert_eq!(
            read(Options {
                limit: Some(5),
                ..Options::default()
            })
            .await,
            "one\nt"
        );
        let stderr = Options {
            stream: Some("stderr".into()),
            ..Options::default()
        };
        assert_eq!(read(stderr).await, "two\n");
        let since = Some(1_767_225_601 * 1_000_000_000);
        assert_eq!(
            read(Options {
                since,
                ..Options::default()
            })
            .await,
            "two\nthree\n"
        );
        let timestamps = Options {
            timestamps: true,
            tail: Some(1),
            ..Options::default()
        };
        assert_eq!(
            read(timestamps).await,
            "2026-01-01T00:00:02.000000002Z ee\n"
        );
    }

    #[tokio::test]
    async fn following_goes_on_over_a_rotation_and_ends_with_the_container() {
        let log = mk_log("follow");
        let follow = Options {
            follow: true,
            tail: Some(1),
            ..Options::default()
        };
        let mut receiver = start(&log, follow);
        let next = async |receiver: &mut mpsc::Receiver<io::Result<Bytes>>| {
            let piece = receiver.recv().await.expect("more").expect("read");
            String::from_utf8_lossy(&piece).into_owned()
        };
        assert_eq!(next(&mut receiver).await, "ee\n");
        let append = |text: &str| {
            let mut file = std::fs::OpenOptions::new()
                .append(true)
                .create(true)
                .open(&log.path)
                .expect("open");
            io::Write::write_all(&mut file, text.as_bytes()).expect("written");
        };
        append("2026-01-01T00:00:03Z stdout F four\n");
        assert_eq!(next(&mut receiver).await, "four\n");
        std::fs::rename(&log.path, log.folder.join("0.log.old")).expect("moved");
        append("2026-01-01T00:00:04Z stdout F five\n");
        assert_eq!(next(&mut receiver).await, "five\n");
        log.pod.send_replace(mk_pod(false));
        assert!(receiver.recv().await.is_none());
    }
}
