//! The second mutating pass: what was changed late is shown again to those who asked for it (`admission.ReinvocationContext`).
//!
//! A plugin that calls others (policies, webhooks) notes what it has run. When one of them changes the object, those
//! before it that want to be asked again are, in a second pass over all plugins, and nothing else is. There is no third.

use std::collections::HashMap;

use apimachinery::Value;
use parking_lot::Mutex;

use crate::kinds::tree::semantically_equal;

/// Notes of one write.
#[derive(Debug, Default)]
pub struct Reinvocation(Mutex<Notes>);

#[derive(Debug, Default)]
struct Notes {
    wanted: bool,
    second: bool,
    plugins: HashMap<&'static str, Memory>,
}

/// What a plugin remembers.
#[derive(Debug, Default)]
struct Memory {
    /// The object as the plugin left it.
    last: Option<Value>,
    /// Ran since the last change, and wants to hear of the next.
    ran: Vec<String>,
    /// To be asked in the second pass.
    again: Vec<String>,
}

impl Memory {
    fn require(&mut self) {
        self.again.append(&mut self.ran);
    }
}

impl Reinvocation {
    /// A plugin begins its pass with this object.
    pub fn begin(&self, plugin: &'static str, object: &Value) {
        let mut notes = self.0.lock();
        let second = notes.second;
        let memory = notes.plugins.entry(plugin).or_default();
        let differs = |last: &Value| !semantically_equal(last, object);
        if second && memory.last.as_ref().is_some_and(differs) {
            memory.require();
        }
    }

    /// It leaves the object like this.
    pub fn end(&self, plugin: &'static str, object: &Value) {
        let mut notes = self.0.lock();
        notes.plugins.entry(plugin).or_default().last = Some(object.clone());
    }

    /// Whether `key` has a say in this pass.
    pub fn may_run(&self, plugin: &'static str, key: &str) -> bool {
        let mut notes = self.0.lock();
        !notes.second
            || notes
                .plugins
                .entry(plugin)
                .or_default()
                .again
                .iter()
                .any(|again| again == key)
    }

    /// One of a plugin's has changed the object.
    pub fn changed(&self, plugin: &'static str) {
        let mut notes = self.0.lock();
        notes.plugins.entry(plugin).or_default().require();
        notes.wanted = true;
    }

    /// `key` has run, and wants to run again when the object changes after it.
    pub fn ran(&self, plugin: &'static str, key: &str) {
        let mut notes = self.0.lock();
        let memory = notes.plugins.entry(plugin).or_default();
        if !memory.ran.iter().any(|ran| ran == key) {
            memory.ran.push(key.to_owned());
        }
    }

    /// Whether a second pass is wanted; it begins by asking.
    pub fn begin_second(&self) -> bool {
        let mut notes = self.0.lock();
        let begins = notes.wanted && !notes.second;
        notes.second |= begins;
        begins
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const PLUGIN: &str = "plugin";

    #[test]
    fn what_ran_before_a_change_runs_again_once() {
        let notes = Reinvocation::default();
        notes.begin(PLUGIN, &json!({}));
        assert!(notes.may_run(PLUGIN, "first"));
        notes.ran(PLUGIN, "first");
        notes.changed(PLUGIN);
        notes.ran(PLUGIN, "second");
        notes.end(PLUGIN, &json!({"a": 1}));
        assert!(notes.begin_second());
        notes.begin(PLUGIN, &json!({"a": 1}));
        assert!(notes.may_run(PLUGIN, "first"));
        assert!(!notes.may_run(PLUGIN, "second"), "nothing changed after it");
        assert!(!notes.begin_second(), "there is no third pass");
    }

    #[test]
    fn a_change_by_others_concerns_all_who_asked() {
        let notes = Reinvocation::default();
        notes.ran(PLUGIN, "one");
        notes.end(PLUGIN, &json!({"a": 1}));
        notes.changed("another");
        assert!(notes.begin_second());
        notes.begin(PLUGIN, &json!({"a": 2}));
        assert!(notes.may_run(PLUGIN, "one"));
        assert!(!notes.may_run(PLUGIN, "never"));
    }

    #[test]
    fn without_a_change_there_is_one_pass() {
        let notes = Reinvocation::default();
        notes.ran(PLUGIN, "one");
        assert!(!notes.begin_second());
    }
}
