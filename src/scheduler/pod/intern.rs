//! Holds the templates of pods once each: of a hundred thousand pods most are one of a few thousand kinds, and what a
//! kind says takes ten times the room of what tells its pods apart.

use std::{
    collections::{HashMap, hash_map::DefaultHasher},
    hash::{Hash, Hasher},
    sync::{Arc, LazyLock, Weak},
};

use parking_lot::Mutex;

use super::Template;

/// Templates looked through for dead ones at the earliest; then again whenever there are twice as many as were alive.
const FIRST_SWEEP: usize = 1024;

#[derive(Default)]
struct Table {
    by_hash: HashMap<u64, Vec<Weak<Template>>>,
    len: usize,
    /// Sweep when there are so many.
    limit: usize,
}

/// Templates in use, of all schedulers of the process. Its size is bounded by twice the pods' templates.
static TABLE: LazyLock<Mutex<Table>> = LazyLock::new(|| {
    Mutex::new(Table {
        limit: FIRST_SWEEP,
        ..Table::default()
    })
});

/// The same template as others have it, if any has.
pub(super) fn intern(template: Template) -> Arc<Template> {
    let mut hasher = DefaultHasher::new();
    // What most often differs; the rest is compared.
    (
        &template.namespace,
        &template.labels,
        &template.owner,
        template.priority,
        template.scored_cpu,
    )
        .hash(&mut hasher);
    let hash = hasher.finish();
    let mut table = TABLE.lock();
    let same = table
        .by_hash
        .get(&hash)
        .into_iter()
        .flatten()
        .filter_map(Weak::upgrade);
    if let Some(found) = same.into_iter().find(|other| **other == template) {
        return found;
    }
    if table.len >= table.limit {
        table.sweep();
    }
    let template = Arc::new(template);
    table
        .by_hash
        .entry(hash)
        .or_default()
        .push(Arc::downgrade(&template));
    table.len += 1;
    template
}

impl Table {
    fn sweep(&mut self) {
        self.by_hash.retain(|_, all| {
            all.retain(|one| one.strong_count() > 0);
            !all.is_empty()
        });
        self.len = self.by_hash.values().map(Vec::len).sum();
        self.limit = (2 * self.len).max(FIRST_SWEEP);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_templates_are_held_once_and_others_apart() {
        let of = |namespace: &str, image: &str| {
            intern(Template {
                namespace: namespace.into(),
                images: vec![image.into()],
                ..Template::default()
            })
        };
        let first = of("interned", "a");
        assert!(Arc::ptr_eq(&first, &of("interned", "a")));
        assert!(!Arc::ptr_eq(&first, &of("interned", "b")));
        assert!(!Arc::ptr_eq(&first, &of("other", "a")));
        // Those that nobody holds are forgotten.
        for number in 0..5 * FIRST_SWEEP {
            of(&number.to_string(), "a");
        }
        assert!(TABLE.lock().len <= 2 * FIRST_SWEEP);
        assert!(Arc::ptr_eq(&first, &of("interned", "a")));
    }
}
