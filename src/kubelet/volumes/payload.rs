//! The files of a volume made of keys: which key becomes which file, with which
//! mode and owner. Pure.

use std::collections::BTreeMap;

use super::VolumeError;
use crate::k8s::KeyToPath;

/// The mode of files when neither file nor volume says one.
pub const DEFAULT_MODE: u32 = 0o644;

/// One file of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct File {
    /// What is in it.
    pub content: Vec<u8>,
    /// Permission bits.
    pub mode: u32,
    /// Its owner, if not root.
    pub user: Option<i64>,
}

/// Files by path relative to the volume.
pub type Payload = BTreeMap<String, File>;

/// Defaults of a volume's files.
#[derive(Clone, Copy, Debug, Default)]
pub struct Defaults {
    /// defaultMode.
    pub mode: Option<i32>,
    /// defaultUser.
    pub user: Option<i64>,
}

impl Defaults {
    /// A file with these defaults where it says nothing itself.
    pub fn file(self, content: Vec<u8>, mode: Option<i32>, user: Option<i64>) -> File {
        let mode = mode.or(self.mode).and_then(|mode| u32::try_from(mode).ok());
        File {
            content,
            mode: mode.unwrap_or(DEFAULT_MODE),
            user: user.or(self.user),
        }
    }
}

/// Chooses from `data`: everything, or just `items` under their paths.
/// `kind` is how the object is called in an error.
pub fn select(
    data: BTreeMap<String, Vec<u8>>,
    items: Option<&Vec<KeyToPath>>,
    defaults: Defaults,
    optional: bool,
    kind: &'static str,
) -> Result<Payload, VolumeError> {
    let Some(items) = items.filter(|items| !items.is_empty()) else {
        let all = data.into_iter();
        return Ok(all
            .map(|(key, content)| (key, defaults.file(content, None, None)))
            .collect());
    };
    let mut payload = Payload::new();
    for item in items {
        match data.get(&item.key) {
            Some(content) => {
                let file = defaults.file(content.clone(), item.mode, item.user);
                payload.insert(checked(&item.path)?, file);
            }
            None if optional => {}
            None => {
                return Err(VolumeError::Key {
                    kind,
                    key: item.key.clone(),
                });
            }
        }
    }
    Ok(payload)
}

/// A path that stays in the volume and is not one of the writer's own names.
pub fn checked(path: &str) -> Result<String, VolumeError> {
    let components = path
        .split('/')
        .filter(|part| !part.is_empty() && *part != ".");
    let cleaned: Vec<_> = components.collect();
    let bad = path.starts_with('/')
        || cleaned.is_empty()
        || cleaned.contains(&"..")
        || cleaned[0].starts_with("..")
        || path.contains('\0');
    if bad {
        return Err(VolumeError::Path(path.to_owned()));
    }
    Ok(cleaned.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mk_item(key: &str, path: &str, mode: Option<i32>) -> KeyToPath {
        KeyToPath {
            key: key.to_owned(),
            path: path.to_owned(),
            mode,
            user: None,
        }
    }

    fn mk_data() -> BTreeMap<String, Vec<u8>> {
        BTreeMap::from([
            ("a".to_owned(), b"1".to_vec()),
            ("b".to_owned(), b"2".to_vec()),
        ])
    }

    #[test]
    fn all_keys_become_files_or_only_the_chosen_ones() {
        let all = select(mk_data(), None, Defaults::default(), false, "config").expect("all");
        assert_eq!(all.keys().collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!(all["a"].mode, 0o644);
        let items = vec![mk_item("a", "x/y", Some(0o400))];
        let defaults = Defaults {
            mode: Some(0o600),
            user: Some(7),
        };
        let some = select(mk_data(), Some(&items), defaults, false, "config").expect("some");
        assert_eq!(some.keys().collect::<Vec<_>>(), ["x/y"]);
        assert_eq!((some["x/y"].mode, some["x/y"].user), (0o400, Some(7)));
    }

    #[test]
    fn a_missing_key_is_an_error_unless_optional() {
        let items = vec![mk_item("z", "z", None)];
        let error = select(
            mk_data(),
            Some(&items),
            Defaults::default(),
            false,
            "config",
        );
        assert_eq!(
            error.expect_err("missing").to_string(),
            "references non-existent config key: z"
        );
        assert!(select(mk_data(), Some(&items), Defaults::default(), true, "config").is_ok());
    }

    #[test]
    fn paths_cannot_leave_the_volume() {
        for path in ["../x", "/x", "a/../b", "", "..data", "."] {
            assert!(checked(path).is_err(), "{path}");
        }
        assert_eq!(checked("a//b/./c").expect("fine"), "a/b/c");
        assert_eq!(checked("a/..b").expect("fine"), "a/..b");
    }
}
