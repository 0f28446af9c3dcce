//! The values nodes have for the labels in use as topologies, as numbers, so that a decision compares no text.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

/// Labels kept at a time; one more in use takes the place of all (a cluster has a handful).
const MAX_COLUMNS: usize = 64;
const NONE: u32 = u32::MAX;

/// One label over all nodes.
#[derive(Clone, Debug, Default)]
pub struct Column {
    /// Tells it from another of the same label, whose numbers are others.
    pub serial: u64,
    /// By the node's index.
    of_node: Vec<u32>,
    ids: HashMap<String, u32>,
    /// How many nodes have each value.
    nodes: Vec<u32>,
    /// How many nodes have none.
    lacking: usize,
}

impl Column {
    /// The number of the node's value; `None` if it has none.
    #[inline]
    pub fn at(&self, node: usize) -> Option<usize> {
        let id = self.of_node.get(node).copied().unwrap_or(NONE);
        (id != NONE).then_some(id as usize)
    }

    /// One more than the highest number.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Whether any node has the value.
    pub fn is_in_use(&self, value: usize) -> bool {
        self.nodes.get(value).is_some_and(|nodes| *nodes > 0)
    }

    /// Whether every node has some value.
    pub fn is_complete(&self) -> bool {
        self.lacking == 0
    }

    fn put(&mut self, node: usize, value: Option<&str>) {
        if self.of_node.len() <= node {
            self.of_node.resize(node + 1, NONE);
        }
        let id = match value {
            None => NONE,
            Some(value) => match self.ids.get(value) {
                Some(id) => *id,
                None => {
                    let id = u32::try_from(self.nodes.len()).unwrap_or(NONE);
                    self.ids.insert(value.into(), id);
                    self.nodes.push(0);
                    id
                }
            },
        };
        self.of_node[node] = id;
        match self.nodes.get_mut(id as usize) {
            Some(nodes) => *nodes += 1,
            None => self.lacking += 1,
        }
    }

    fn take(&mut self, node: usize) {
        match self.at(node) {
            Some(id) => self.nodes[id] -= 1,
            None => self.lacking = self.lacking.saturating_sub(1),
        }
        if let Some(id) = self.of_node.get_mut(node) {
            *id = NONE;
        }
    }
}

/// The labels in use.
#[derive(Default)]
pub(super) struct Columns {
    by_label: HashMap<String, Arc<Column>>,
    serial: u64,
}

impl Columns {
    pub fn find(&self, key: &str) -> Option<Arc<Column>> {
        self.by_label.get(key).cloned()
    }

    /// Begins to keep a label, given the labels of all known nodes.
    pub fn add<'a>(
        &mut self,
        key: &str,
        nodes: impl Iterator<Item = (usize, &'a BTreeMap<String, String>)>,
    ) -> Arc<Column> {
        if self.by_label.len() >= MAX_COLUMNS {
            self.by_label.clear();
        }
        self.serial += 1;
        let mut column = Column {
            serial: self.serial,
            ..Column::default()
        };
        for (index, labels) in nodes {
            column.put(index, labels.get(key).map(String::as_str));
        }
        let column = Arc::new(column);
        self.by_label.insert(key.into(), column.clone());
        column
    }

    /// A node came.
    pub fn put(&mut self, node: usize, labels: &BTreeMap<String, String>) {
        for (key, column) in &mut self.by_label {
            Arc::make_mut(column).put(node, labels.get(key).map(String::as_str));
        }
    }

    /// A node went.
    pub fn take(&mut self, node: usize) {
        for column in self.by_label.values_mut() {
            Arc::make_mut(column).take(node);
        }
    }
}
