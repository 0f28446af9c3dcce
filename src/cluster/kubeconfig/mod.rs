//! Kubeconfig files: whole ones for the components, and skiff's entry in the user's own.
//!
//! `Entry` is one cluster, one user and the context that joins them. `render` writes a file of its own with
//! everything embedded. `merge` and `remove` edit the user's file and keep all else in it (see `edit`), under
//! client-go's lock (see `lock`).

mod edit;
mod lock;

use std::path::{Path, PathBuf};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

pub use edit::EditError;
pub use lock::LockError;

use crate::files::{self, FileError};

/// Why the user's kubeconfig could not be changed.
#[derive(Debug, thiserror::Error)]
pub enum KubeconfigError {
    #[error(transparent)]
    File(#[from] FileError),
    #[error(transparent)]
    Lock(#[from] LockError),
    #[error("{path}: {source}")]
    Edit { path: PathBuf, source: EditError },
}

/// One cluster, its user and the context that joins them. All three have the context's name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub name: String,
    /// Such as `https://127.0.0.1:6443`.
    pub server: String,
    /// The authority of the server's certificate, PEM.
    pub authority: String,
    /// The client's certificate and key, PEM.
    pub certificate: String,
    pub key: String,
}

impl Entry {
    fn cluster(&self) -> Value {
        json!({"name": self.name, "cluster": {
            "certificate-authority-data": STANDARD.encode(&self.authority),
            "server": self.server,
        }})
    }

    fn context(&self) -> Value {
        json!({"name": self.name, "context": {"cluster": self.name, "user": self.name}})
    }

    fn user(&self) -> Value {
        json!({"name": self.name, "user": {
            "client-certificate-data": STANDARD.encode(&self.certificate),
            "client-key-data": STANDARD.encode(&self.key),
        }})
    }
}

/// A whole kubeconfig with `entry` as its only and current context.
pub fn render(entry: &Entry) -> String {
    let list = |item: &Value| edit::render_item(item, "");
    format!(
        "apiVersion: v1\nclusters:\n{}contexts:\n{}current-context: {}\nkind: Config\nusers:\n{}",
        list(&entry.cluster()),
        list(&entry.context()),
        entry.name,
        list(&entry.user()),
    )
}

/// Writes a kubeconfig that only its owner reads; tells whether anything changed.
pub fn write(path: &Path, entry: &Entry) -> Result<bool, FileError> {
    files::write_if_changed(path, render(entry).as_bytes(), 0o600)
}

/// The client certificate and key embedded in a kubeconfig's first user, PEM.
pub fn embedded_identity(path: &Path) -> Option<(String, String)> {
    let value: Value = serde_saphyr::from_str(&std::fs::read_to_string(path).ok()?).ok()?;
    let user = &value["users"][0]["user"];
    let decoded =
        |field: &str| String::from_utf8(STANDARD.decode(user[field].as_str()?).ok()?).ok();
    Some((
        decoded("client-certificate-data")?,
        decoded("client-key-data")?,
    ))
}

/// The file that `kubectl config` would change: `explicit`, else the first of `$KUBECONFIG` that exists (else
/// its last), else `~/.kube/config`. As client-go's `PathOptions.GetDefaultFilename`.
pub fn user_file(explicit: Option<&Path>) -> PathBuf {
    if let Some(path) = explicit {
        return path.into();
    }
    let listed: Vec<PathBuf> = std::env::var_os("KUBECONFIG")
        .map(|list| {
            std::env::split_paths(&list)
                .filter(|path| !path.as_os_str().is_empty())
                .collect()
        })
        .unwrap_or_default();
    choose(&listed).unwrap_or_else(|| {
        let home = std::env::var_os("HOME")
            .filter(|home| !home.is_empty())
            .unwrap_or_else(|| "/root".into());
        Path::new(&home).join(".kube/config")
    })
}

fn choose(listed: &[PathBuf]) -> Option<PathBuf> {
    listed
        .iter()
        .find(|path| path.exists())
        .or(listed.last())
        .cloned()
}

/// What `merge` did to the file, to be undone by `remove`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Merged {
    /// The file was not there before.
    pub created: bool,
    /// The context that was current before, when it was another one.
    pub previous_context: Option<String>,
}

/// Whether `merge` could be done: the file is not there, or is a kubeconfig.
pub fn check(path: &Path) -> Result<(), KubeconfigError> {
    let Some(text) = files::read_optional(path)? else {
        return Ok(());
    };
    edit::current_context(&text)
        .map(drop)
        .map_err(|source| KubeconfigError::Edit {
            path: path.into(),
            source,
        })
}

/// Puts `entry` into the user's kubeconfig, replacing one of the same name, and makes it the current context.
pub fn merge(path: &Path, entry: &Entry) -> Result<Merged, KubeconfigError> {
    let path = &resolve(path);
    if let Some(parent) = path.parent() {
        files::create_directory(parent, 0o700)?;
    }
    let _lock = lock::acquire(path)?;
    let present = files::read_optional(path)?;
    let text = present.as_deref().unwrap_or_default();
    let failed = |source| KubeconfigError::Edit {
        path: path.clone(),
        source,
    };
    let previous = edit::current_context(text).map_err(failed)?;
    let merged = if text.trim().is_empty() {
        render(entry)
    } else {
        edit::merge(text, entry).map_err(failed)?
    };
    if present.as_deref() != Some(merged.as_str()) {
        files::write(path, merged.as_bytes(), mode_of(path))?;
    }
    Ok(Merged {
        created: present.is_none(),
        previous_context: previous.filter(|name| *name != entry.name && !name.is_empty()),
    })
}

/// Takes the entry `name` out of the user's kubeconfig. When it was the current context, `merged.previous_context`
/// becomes current again if it is still there. A file that `merge` created and that holds nothing else goes too.
pub fn remove(path: &Path, name: &str, merged: &Merged) -> Result<(), KubeconfigError> {
    let path = &resolve(path);
    if !path.exists() {
        return Ok(());
    }
    let _lock = lock::acquire(path)?;
    let Some(text) = files::read_optional(path)? else {
        return Ok(());
    };
    let failed = |source| KubeconfigError::Edit {
        path: path.clone(),
        source,
    };
    let removed = edit::remove(&text, name, merged.previous_context.as_deref()).map_err(failed)?;
    if merged.created && edit::is_empty(&removed) {
        files::remove(path)?;
    } else if removed != text {
        files::write(path, removed.as_bytes(), mode_of(path))?;
    }
    Ok(())
}

/// Follows a symbolic link, so that the link stays and its target changes.
fn resolve(path: &Path) -> PathBuf {
    std::fs::canonicalize(path).unwrap_or_else(|_| path.into())
}

/// The file holds a private key: others lose their access, the owner's stays as it was.
fn mode_of(path: &Path) -> u32 {
    use std::os::unix::fs::PermissionsExt;
    std::fs::metadata(path).map_or(0o600, |metadata| {
        metadata.permissions().mode() & 0o700 | 0o600
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry() -> Entry {
        Entry {
            name: "skiff-lab".into(),
            server: "https://127.0.0.1:6443".into(),
            authority: "ca".into(),
            certificate: "certificate".into(),
            key: "key".into(),
        }
    }

    #[test]
    fn a_file_of_its_own_has_everything_embedded() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("admin.kubeconfig");
        assert!(write(&path, &entry()).expect("written"));
        assert!(!write(&path, &entry()).expect("kept"));
        assert_eq!(
            embedded_identity(&path),
            Some(("certificate".into(), "key".into()))
        );
        let value: Value = serde_saphyr::from_str(&render(&entry())).expect("YAML");
        assert_eq!(value["current-context"], "skiff-lab");
        assert_eq!(
            value["clusters"][0]["cluster"]["server"],
            "https://127.0.0.1:6443"
        );
        assert_eq!(value["contexts"][0]["context"]["user"], "skiff-lab");
    }

    #[test]
    fn a_file_that_cannot_be_merged_into_is_known_before() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("config");
        assert!(check(&path).is_ok(), "it will be made");
        for (text, good) in [
            ("", true),
            ("apiVersion: v1\nkind: Config\n", true),
            ("foo: [bar\n", false),
            ("- a\n", false),
        ] {
            std::fs::write(&path, text).expect("written");
            assert_eq!(check(&path).is_ok(), good, "{text}");
            assert_eq!(merge(&path, &entry()).is_ok(), good, "{text}");
        }
        assert!(check(folder.path()).is_err(), "a folder");
    }

    #[test]
    fn merging_and_removing_leaves_the_file_as_it_was() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("config");
        let other = render(&Entry {
            name: "other".into(),
            ..entry()
        });
        std::fs::write(&path, &other).expect("written");
        let merged = merge(&path, &entry()).expect("merged");
        assert_eq!(
            merged,
            Merged {
                created: false,
                previous_context: Some("other".into())
            }
        );
        assert!(
            std::fs::read_to_string(&path)
                .expect("there")
                .contains("current-context: skiff-lab")
        );
        remove(&path, "skiff-lab", &merged).expect("removed");
        assert_eq!(std::fs::read_to_string(&path).expect("there"), other);
        assert!(!folder.path().join("config.lock").exists());
    }

    #[test]
    fn a_file_that_was_not_there_goes_again() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("deep/config");
        let merged = merge(&path, &entry()).expect("merged");
        assert!(merged.created);
        remove(&path, "skiff-lab", &merged).expect("removed");
        assert!(!path.exists());
        remove(&path, "skiff-lab", &merged).expect("a second time is fine");
    }

    #[test]
    fn a_link_stays_a_link_and_others_lose_access() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().expect("a folder");
        let (target, link) = (folder.path().join("target"), folder.path().join("config"));
        std::fs::write(&target, "").expect("written");
        std::os::unix::fs::symlink(&target, &link).expect("linked");
        merge(&link, &entry()).expect("merged");
        assert!(
            std::fs::symlink_metadata(&link)
                .expect("there")
                .is_symlink()
        );
        let mode = std::fs::metadata(&target)
            .expect("there")
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn of_a_list_the_first_file_that_exists_is_changed() {
        let folder = tempfile::tempdir().expect("a folder");
        let (first, second) = (folder.path().join("a"), folder.path().join("b"));
        let list = [first.clone(), second.clone()];
        assert_eq!(choose(&list), Some(second.clone()));
        std::fs::write(&second, "").expect("written");
        assert_eq!(choose(&list), Some(second));
        std::fs::write(&first, "").expect("written");
        assert_eq!(choose(&list), Some(first));
        assert_eq!(choose(&[]), None);
    }
}
