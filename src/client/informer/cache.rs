//! The objects of an informer and their indexes. Pure data: no IO, no waiting.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use super::Delta;

type IndexOf<T> = Box<dyn Fn(&T) -> Vec<String> + Send + Sync>;

/// One object with what identifies its state.
pub(super) struct Entry<T> {
    pub key: Arc<str>,
    pub resource_version: Box<str>,
    pub object: Arc<T>,
}

pub(super) struct Cache<T> {
    entries: BTreeMap<Arc<str>, Entry<T>>,
    indexes: HashMap<&'static str, Index<T>>,
    resource_version: String,
}

struct Index<T> {
    of: IndexOf<T>,
    values: HashMap<String, BTreeSet<Arc<str>>>,
}

impl<T> Default for Cache<T> {
    fn default() -> Self {
        Cache {
            entries: BTreeMap::new(),
            indexes: HashMap::new(),
            resource_version: String::new(),
        }
    }
}

impl<T> Cache<T> {
    pub fn get(&self, key: &str) -> Option<Arc<T>> {
        self.entries.get(key).map(|entry| entry.object.clone())
    }

    pub fn list(&self) -> Vec<Arc<T>> {
        self.entries
            .values()
            .map(|entry| entry.object.clone())
            .collect()
    }

    pub fn keys(&self) -> Vec<Arc<str>> {
        self.entries.keys().cloned().collect()
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn resource_version(&self) -> &str {
        &self.resource_version
    }

    pub fn set_resource_version(&mut self, version: &str) {
        version.clone_into(&mut self.resource_version);
    }

    pub fn as_additions(&self) -> Vec<Delta<T>> {
        let addition = |entry: &Entry<T>| Delta {
            key: entry.key.clone(),
            old: None,
            new: Some(entry.object.clone()),
        };
        self.entries.values().map(addition).collect()
    }

    pub fn add_index(&mut self, name: &'static str, of: IndexOf<T>) {
        if self.indexes.contains_key(name) {
            return;
        }
        let mut index = Index {
            of,
            values: HashMap::new(),
        };
        for entry in self.entries.values() {
            index.insert(&entry.key, &entry.object);
        }
        self.indexes.insert(name, index);
    }

    pub fn by_index(&self, name: &str, value: &str) -> Vec<Arc<T>> {
        let keys = self
            .indexes
            .get(name)
            .and_then(|index| index.values.get(value));
        keys.into_iter()
            .flatten()
            .filter_map(|key| self.get(key))
            .collect()
    }

    pub fn count_by_index(&self, name: &str, value: &str) -> usize {
        let keys = self
            .indexes
            .get(name)
            .and_then(|index| index.values.get(value));
        keys.map_or(0, BTreeSet::len)
    }

    /// Puts one object; no delta if this very version is there already.
    pub fn put(&mut self, entry: Entry<T>) -> Option<Delta<T>> {
        let key = entry.key.clone();
        let new = entry.object.clone();
        if let Some(old) = self.entries.get(&key)
            && old.resource_version == entry.resource_version
        {
            return None;
        }
        let old = self.entries.insert(key.clone(), entry);
        for index in self.indexes.values_mut() {
            match &old {
                Some(old) => index.change(&key, &old.object, &new),
                None => index.insert(&key, &new),
            }
        }
        Some(Delta {
            key,
            old: old.map(|entry| entry.object),
            new: Some(new),
        })
    }

    /// Removes one object. `last`, its state as the server last knew it, becomes the delta's `old`.
    pub fn remove(&mut self, key: &str, last: Option<Arc<T>>) -> Option<Delta<T>> {
        let (key, old) = self.entries.remove_entry(key)?;
        for index in self.indexes.values_mut() {
            index.remove(&key, &old.object);
        }
        Some(Delta {
            key,
            old: Some(last.unwrap_or(old.object)),
            new: None,
        })
    }

    /// Makes the cache hold exactly `entries` and returns what differs, deletions first.
    pub fn replace(&mut self, entries: Vec<Entry<T>>, version: &str) -> Vec<Delta<T>> {
        let kept: BTreeSet<&Arc<str>> = entries.iter().map(|entry| &entry.key).collect();
        let gone: Vec<Arc<str>> = self
            .entries
            .keys()
            .filter(|key| !kept.contains(key))
            .cloned()
            .collect();
        let mut deltas: Vec<Delta<T>> = gone
            .iter()
            .filter_map(|key| self.remove(key, None))
            .collect();
        deltas.extend(entries.into_iter().filter_map(|entry| self.put(entry)));
        self.set_resource_version(version);
        deltas
    }
}

impl<T> Index<T> {
    fn insert(&mut self, key: &Arc<str>, object: &T) {
        self.insert_values(key, (self.of)(object));
    }

    fn remove(&mut self, key: &Arc<str>, object: &T) {
        self.remove_values(key, (self.of)(object));
    }

    /// Most changes of an object leave its values as they are, and then nothing is searched for.
    fn change(&mut self, key: &Arc<str>, old: &T, new: &T) {
        let (old, new) = ((self.of)(old), (self.of)(new));
        if old != new {
            self.remove_values(key, old);
            self.insert_values(key, new);
        }
    }

    fn insert_values(&mut self, key: &Arc<str>, values: Vec<String>) {
        for value in values {
            self.values.entry(value).or_default().insert(key.clone());
        }
    }

    fn remove_values(&mut self, key: &Arc<str>, values: Vec<String>) {
        for value in values {
            if let Some(keys) = self.values.get_mut(&value) {
                keys.remove(key);
                if keys.is_empty() {
                    self.values.remove(&value);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(key: &str, version: &str, object: &str) -> Entry<String> {
        Entry {
            key: key.into(),
            resource_version: version.into(),
            object: Arc::new(object.to_string()),
        }
    }

    fn shape(deltas: &[Delta<String>]) -> Vec<String> {
        let side = |side: &Option<Arc<String>>| side.as_ref().map_or("-".into(), |s| s.to_string());
        deltas
            .iter()
            .map(|delta| format!("{}:{}>{}", delta.key, side(&delta.old), side(&delta.new)))
            .collect()
    }

    #[test]
    fn replacing_tells_only_what_differs() {
        let mut cache = Cache::default();
        cache.replace(vec![entry("a", "1", "x"), entry("b", "2", "y")], "2");
        let deltas = cache.replace(
            vec![
                entry("b", "2", "y"),
                entry("c", "3", "z"),
                entry("d", "4", "w"),
            ],
            "4",
        );
        assert_eq!(shape(&deltas), ["a:x>-", "c:->z", "d:->w"]);
        assert_eq!(cache.resource_version(), "4");
    }

    #[test]
    fn an_index_follows_changes_and_removals() {
        let mut cache = Cache::default();
        cache.put(entry("a", "1", "red"));
        cache.add_index("colour", Box::new(|object: &String| vec![object.clone()]));
        cache.put(entry("b", "2", "red"));
        assert_eq!(cache.by_index("colour", "red").len(), 2);
        assert_eq!(cache.count_by_index("colour", "red"), 2);
        cache.put(entry("a", "3", "blue"));
        cache.remove("b", None);
        assert!(cache.by_index("colour", "red").is_empty());
        assert_eq!(cache.by_index("colour", "blue").len(), 1);
        assert!(cache.indexes["colour"].values.len() == 1);
    }
}
