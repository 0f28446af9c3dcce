//! Brings the kernel's tables to what `ruleset` wants, through `nft -f -`.
//!
//! Owns the memory of what the kernel holds and the difference written as one transaction. On a start the
//! names in the kernel are read, so that a restart rewrites what is there in one step and never leaves the
//! node without rules; after that only what changed is sent, and nothing when nothing changed. If the kernel
//! refuses a difference (someone else changed the table), the whole table is replaced in one transaction.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::process::Stdio;
use std::time::Duration;

use serde_json::Value;
use tokio::io::AsyncWriteExt;
use tokio::process::Command;

use crate::model::Family;
use crate::ruleset::{Chain, Set, TABLE, Table};

/// Elements in one command: keeps lines of a large map at about 50 kB.
const ELEMENTS_PER_COMMAND: usize = 512;
/// A transaction of 10,000 Services takes about a second; past this something is stuck.
const NFT_TIMEOUT: Duration = Duration::from_secs(60);
/// As much of nft's complaint as goes into a log line.
const ERROR_BYTES: usize = 600;

/// Why the kernel's table could not be read or changed.
#[derive(Debug, thiserror::Error)]
pub enum NftError {
    /// nft is missing or cannot be run.
    #[error("running nft: {0}")]
    Run(#[from] std::io::Error),
    /// nft did not end in time.
    #[error("nft did not finish within {}s", NFT_TIMEOUT.as_secs())]
    Timeout,
    /// nft refused.
    #[error("nft: {0}")]
    Refused(String),
    /// nft's answer is not what its manual says.
    #[error("reading nft's listing: {0}")]
    Listing(#[from] serde_json::Error),
}

/// What the kernel holds of one table. An entry without value exists, but its contents are not known.
#[derive(Debug, Default, PartialEq, Eq)]
struct Known {
    chains: BTreeMap<String, Option<Chain>>,
    sets: BTreeMap<String, Option<Set>>,
}

impl Known {
    fn exactly(table: &Table) -> Self {
        Self {
            chains: table
                .chains
                .iter()
                .map(|(n, c)| (n.clone(), Some(c.clone())))
                .collect(),
            sets: table
                .sets
                .iter()
                .map(|(n, s)| (n.clone(), Some(s.clone())))
                .collect(),
        }
    }
}

/// One family's table in the kernel and what is known of it.
#[derive(Debug)]
pub struct KernelTable {
    family: Family,
    /// None: nothing is known, and the kernel must be asked first. Written by `apply` only.
    known: Option<Known>,
}

impl KernelTable {
    /// A table that has not been looked at yet.
    pub fn new(family: Family) -> Self {
        Self {
            family,
            known: None,
        }
    }

    /// Forgets what is known, so that the next `apply` writes everything again (without interruption).
    pub fn forget(&mut self) {
        self.known = None;
    }

    /// Makes the kernel's table equal to `wanted`. Returns whether anything had to be changed.
    ///
    /// # Errors
    /// What nft said about the replacement of the whole table; the kernel then still has the old rules.
    pub async fn apply(&mut self, wanted: &Table) -> Result<bool, NftError> {
        let known = match self.known.take() {
            Some(known) => known,
            None => list(self.family).await?.unwrap_or_default(),
        };
        let script = difference(&known, wanted);
        if script.is_empty() {
            self.known = Some(known);
            return Ok(false);
        }
        if let Err(error) = run(&["-f", "-"], script).await {
            tracing::warn!(%error, family = self.family.keyword(), "replacing the whole table");
            run(&["-f", "-"], replacement(wanted)).await?;
            self.known = Some(Known::exactly(wanted));
            return Ok(true);
        }
        let mut now = Known::exactly(wanted);
        let removal = removal(&known, wanted);
        if !removal.is_empty() {
            // Apart from the rest: a map's elements hold on to their chains until the transaction is over.
            if let Err(error) = run(&["-f", "-"], removal).await {
                tracing::debug!(%error, "stale chains are removed with the next change");
                let stale_chains = known
                    .chains
                    .into_keys()
                    .filter(|n| !wanted.chains.contains_key(n));
                now.chains.extend(stale_chains.map(|n| (n, None)));
                let stale_sets = known
                    .sets
                    .into_iter()
                    .filter(|(n, _)| !wanted.sets.contains_key(n));
                now.sets.extend(stale_sets);
            }
        }
        self.known = Some(now);
        Ok(true)
    }
}

/// Removes the proxy's tables of both families; that they are not there is no error.
///
/// # Errors
/// What nft said.
pub async fn remove_tables() -> Result<(), NftError> {
    for family in [Family::V4, Family::V6] {
        let table = format!("{} {TABLE}", family.keyword());
        // `delete` of a missing table fails; adding it first makes the pair always succeed.
        run(
            &["-f", "-"],
            format!("add table {table}\ndelete table {table}\n"),
        )
        .await?;
    }
    Ok(())
}

/// Whether the kernel has a table of the proxy for this family.
///
/// # Errors
/// nft cannot be run, or answers what is not JSON.
pub async fn exists(family: Family) -> Result<bool, NftError> {
    Ok(list(family).await?.is_some())
}

async fn list(family: Family) -> Result<Option<Known>, NftError> {
    let output = match run(
        &["-j", "-t", "list", "table", family.keyword(), TABLE],
        String::new(),
    )
    .await
    {
        Ok(output) => output,
        Err(NftError::Refused(why)) if why.contains("No such file or directory") => {
            return Ok(None);
        }
        Err(error) => return Err(error),
    };
    let listing: Value = serde_json::from_slice(&output)?;
    let mut known = Known::default();
    for entry in listing["nftables"].as_array().into_iter().flatten() {
        for (kind, object) in entry.as_object().into_iter().flatten() {
            let Some(name) = object["name"].as_str() else {
                continue;
            };
            match kind.as_str() {
                "chain" => drop(known.chains.insert(name.to_owned(), None)),
                "set" | "map" => drop(known.sets.insert(name.to_owned(), None)),
                _ => {}
            }
        }
    }
    Ok(Some(known))
}

/// The transaction that leads from `known` to `wanted`, short of removing what nothing refers to any more.
fn difference(known: &Known, wanted: &Table) -> String {
    let table = format!("{} {TABLE}", wanted.family.keyword());
    let mut script = String::new();
    for (name, set) in &wanted.sets {
        if !matches!(known.sets.get(name), Some(Some(have)) if have.spec == set.spec) {
            declare_set(&mut script, &table, name, set);
            if known.sets.contains_key(name) && set.elements.is_some() {
                line(
                    &mut script,
                    format_args!("flush {} {table} {name}", kind(set)),
                );
            }
        }
    }
    for (name, chain) in &wanted.chains {
        if !known.chains.contains_key(name) || matches!(known.chains.get(name), Some(None)) {
            declare_chain(&mut script, &table, name, chain);
        }
    }
    for (name, chain) in &wanted.chains {
        match known.chains.get(name) {
            Some(Some(have)) if have == chain => continue,
            Some(_) => line(&mut script, format_args!("flush chain {table} {name}")),
            None => {}
        }
        fill_chain(&mut script, &table, name, chain);
    }
    for (name, set) in &wanted.sets {
        let Some(elements) = &set.elements else {
            continue;
        };
        let none = BTreeMap::new();
        let have = match known.sets.get(name) {
            Some(Some(Set {
                elements: Some(have),
                ..
            })) => have,
            _ => &none,
        };
        let gone = have.iter().filter(|(k, v)| elements.get(*k) != Some(*v));
        change_elements(&mut script, "delete", &table, name, gone);
        let new = elements.iter().filter(|(k, v)| have.get(*k) != Some(*v));
        change_elements(&mut script, "add", &table, name, new);
    }
    let stale = known.chains.iter().filter(|(n, have)| {
        !wanted.chains.contains_key(*n) && have.as_ref().is_none_or(|chain| !chain.rules.is_empty())
    });
    for (name, _) in stale {
        line(&mut script, format_args!("flush chain {table} {name}"));
    }
    for (name, have) in known
        .sets
        .iter()
        .filter(|(n, _)| !wanted.sets.contains_key(*n))
    {
        // A map of verdicts that is not ours holds on to chains.
        if have.is_none() {
            line(&mut script, format_args!("flush set {table} {name}"));
        }
    }
    if !script.is_empty() {
        script.insert_str(0, &format!("add table {table}\n"));
    }
    script
}

/// The transaction that removes what `difference` left without use.
fn removal(known: &Known, wanted: &Table) -> String {
    let table = format!("{} {TABLE}", wanted.family.keyword());
    let mut script = String::new();
    for name in known
        .chains
        .keys()
        .filter(|n| !wanted.chains.contains_key(*n))
    {
        line(&mut script, format_args!("delete chain {table} {name}"));
    }
    for name in known.sets.keys().filter(|n| !wanted.sets.contains_key(*n)) {
        line(&mut script, format_args!("delete set {table} {name}"));
    }
    script
}

/// The transaction that replaces whatever table there is.
fn replacement(wanted: &Table) -> String {
    let table = format!("{} {TABLE}", wanted.family.keyword());
    format!(
        "add table {table}\ndelete table {table}\n{}",
        difference(&Known::default(), wanted)
    )
}

fn kind(set: &Set) -> &'static str {
    if set.is_map { "map" } else { "set" }
}

fn declare_set(script: &mut String, table: &str, name: &str, set: &Set) {
    line(
        script,
        format_args!("add {} {table} {name} {{ {} }}", kind(set), set.spec),
    );
}

fn declare_chain(script: &mut String, table: &str, name: &str, chain: &Chain) {
    match chain.hook {
        Some(hook) => line(
            script,
            format_args!("add chain {table} {name} {{ {hook} }}"),
        ),
        None => line(script, format_args!("add chain {table} {name}")),
    }
}

fn fill_chain(script: &mut String, table: &str, name: &str, chain: &Chain) {
    for rule in &chain.rules {
        line(script, format_args!("add rule {table} {name} {rule}"));
    }
}

fn change_elements<'a>(
    script: &mut String,
    verb: &str,
    table: &str,
    name: &str,
    elements: impl Iterator<Item = (&'a String, &'a String)>,
) {
    let elements: Vec<_> = elements.collect();
    for some in elements.chunks(ELEMENTS_PER_COMMAND) {
        let texts: Vec<_> = some
            .iter()
            .map(|(k, v)| {
                if v.is_empty() {
                    (*k).clone()
                } else {
                    format!("{k} : {v}")
                }
            })
            .collect();
        line(
            script,
            format_args!("{verb} element {table} {name} {{ {} }}", texts.join(", ")),
        );
    }
}

fn line(script: &mut String, text: std::fmt::Arguments<'_>) {
    // Writing to a String cannot fail.
    let _ = writeln!(script, "{text}");
}

async fn run(args: &[&str], input: String) -> Result<Vec<u8>, NftError> {
    let mut child = Command::new("nft")
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    let stdin = child.stdin.take();
    let feed = async {
        if let Some(mut stdin) = stdin {
            // nft may end on the first bad line without reading the rest; its own message is the better one.
            let _ = stdin.write_all(input.as_bytes()).await;
        }
    };
    let finished = tokio::time::timeout(NFT_TIMEOUT, async {
        tokio::join!(feed, child.wait_with_output()).1
    });
    let output = finished.await.map_err(|_| NftError::Timeout)??;
    if !output.status.success() {
        let mut text = String::from_utf8_lossy(&output.stderr).into_owned();
        let mut end = text.len().min(ERROR_BYTES);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        text.truncate(end);
        return Err(NftError::Refused(text));
    }
    Ok(output.stdout)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(chains: &[(&str, &[&str])], elements: &[(&str, &str)]) -> Table {
        let owned = |rules: &[&str]| rules.iter().map(|r| (*r).to_owned()).collect();
        let elements = elements
            .iter()
            .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
            .collect();
        let map = Set {
            is_map: true,
            spec: "type a : verdict;".into(),
            elements: Some(elements),
        };
        Table {
            family: Family::V4,
            chains: chains
                .iter()
                .map(|(n, r)| {
                    (
                        (*n).into(),
                        Chain {
                            hook: None,
                            rules: owned(r),
                        },
                    )
                })
                .collect(),
            sets: BTreeMap::from([("m".into(), map)]),
        }
    }

    #[test]
    fn nothing_is_sent_when_nothing_changed() {
        let table = table(&[("a", &["accept"])], &[("1", "goto a")]);
        assert_eq!(difference(&Known::exactly(&table), &table), "");
    }

    #[test]
    fn only_what_changed_is_sent() {
        let before = table(
            &[("a", &["accept"]), ("b", &["drop"])],
            &[("1", "goto a"), ("2", "goto b")],
        );
        let after = table(
            &[("a", &["return"]), ("c", &["drop"])],
            &[("1", "goto a"), ("2", "goto c")],
        );
        let known = Known::exactly(&before);
        assert_eq!(
            difference(&known, &after).lines().collect::<Vec<_>>(),
            [
                "add table ip kube-proxy",
                "add chain ip kube-proxy c",
                "flush chain ip kube-proxy a",
                "add rule ip kube-proxy a return",
                "add rule ip kube-proxy c drop",
                "delete element ip kube-proxy m { 2 : goto b }",
                "add element ip kube-proxy m { 2 : goto c }",
                "flush chain ip kube-proxy b",
            ]
        );
        assert_eq!(removal(&known, &after), "delete chain ip kube-proxy b\n");
    }

    #[test]
    fn after_a_restart_what_is_there_is_rewritten_in_one_step() {
        let mut known = Known::default();
        known.chains.insert("a".into(), None);
        known.chains.insert("old".into(), None);
        known.sets.insert("m".into(), None);
        let script = difference(&known, &table(&[("a", &["accept"])], &[("1", "goto a")]));
        assert_eq!(
            script.lines().collect::<Vec<_>>(),
            [
                "add table ip kube-proxy",
                "add map ip kube-proxy m { type a : verdict; }",
                "flush map ip kube-proxy m",
                "add chain ip kube-proxy a",
                "flush chain ip kube-proxy a",
                "add rule ip kube-proxy a accept",
                "add element ip kube-proxy m { 1 : goto a }",
                "flush chain ip kube-proxy old",
            ]
        );
    }
}
