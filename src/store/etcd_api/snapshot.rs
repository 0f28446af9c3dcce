//! `etcdctl snapshot save`: the store as the database file of an etcd member, so that real etcd's tools read
//! it and real etcd can be started from it.
//!
//! The file is bbolt's: 4 KiB pages in a B+ tree per bucket. Since it is written once and never changed, all
//! pages are laid out first from the sizes alone and then written in order; the values are not gathered in
//! memory.
//!
//! ```text
//!   page 0, 1   meta: where everything is        leaf page    | header | elements … | key value key value … |
//!   page 2      the (empty) free list            branch page  | header | elements … | key key … |
//!   page 3      the root: one entry a bucket     element      leaf:   flags, position, key size, value size
//!   page 4 …    leaves, then branches, of `key`               branch: position, key size, page
//!   …           the same of `lease`
//!   the end     SHA-256 of all of it
//! ```

use std::sync::Arc;

use aws_lc_rs::digest;
use bytes::Bytes;
use futures::Stream;
use prost::Message;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

use super::RAFT_TERM;
use crate::embedded::{Dump, Dumped, Embedded};
use crate::generated::mvccpb;
use crate::kv::{RangeRequest, Store, StoreError};

const PAGE: usize = 4096;
const PAGE_HEADER: usize = 16;
const ELEMENT: usize = 16;
/// Pages before the first leaf.
const FIRST_LEAF: u64 = 4;
const BRANCH_PAGE: u16 = 0x01;
const LEAF_PAGE: u16 = 0x02;
const META_PAGE: u16 = 0x04;
const FREELIST_PAGE: u16 = 0x10;
const BUCKET_ELEMENT: u32 = 0x01;
const META_MAGIC: u32 = 0xED0C_DAED;
const META_VERSION: u32 = 2;
/// Bytes of one message of the stream, or one page if that is larger.
const BLOB: usize = 64 * 1024;
/// Messages made but not sent: 256 KiB.
const BLOBS: usize = 4;

/// A piece of the file.
pub(super) struct Blob {
    pub bytes: Bytes,
    /// Bytes still to come after it.
    pub remaining: u64,
}

/// Makes the file, piece by piece, on a thread of its own.
pub(super) async fn stream(
    store: Arc<Embedded>,
) -> Result<impl Stream<Item = Result<Blob, StoreError>> + use<>, StoreError> {
    let (sender, receiver) = mpsc::channel(BLOBS);
    // Its end is the end of the stream, and an error in it comes before.
    drop(tokio::task::spawn_blocking(move || {
        let mut output = Output::new(sender);
        if let Err(Stop::Failed(error)) = write(&store.dump(), &mut output) {
            // The client may be gone as well.
            let _ = output.sender.blocking_send(Err(error));
        }
    }));
    Ok(ReceiverStream::new(receiver))
}

/// A checksum of the newest (or the given) revision, equal for equal contents, and the store's revision.
pub(super) async fn hash(store: &Embedded, revision: i64) -> Result<(u32, i64), StoreError> {
    let everything = RangeRequest {
        key: Bytes::from_static(b"\0"),
        range_end: Some(Bytes::from_static(b"\0")),
        revision,
        ..RangeRequest::default()
    };
    let response = store.range(everything).await?;
    let mut hasher = crc32fast::Hasher::new();
    for kv in response.kvs {
        hasher.update(&super::convert::key_value(kv).encode_to_vec());
    }
    Ok((hasher.finalize(), response.revision))
}

enum Stop {
    Failed(StoreError),
    /// Nobody reads any more.
    Gone,
}

struct Output {
    sender: mpsc::Sender<Result<Blob, StoreError>>,
    buffer: Vec<u8>,
    digest: digest::Context,
    remaining: u64,
}

impl Output {
    fn new(sender: mpsc::Sender<Result<Blob, StoreError>>) -> Self {
        Self {
            sender,
            buffer: Vec::with_capacity(BLOB + PAGE),
            digest: digest::Context::new(&digest::SHA256),
            remaining: 0,
        }
    }

    /// Adds pages; their number is the length rounded up.
    fn pages(&mut self, bytes: &[u8]) -> Result<(), Stop> {
        self.buffer.extend_from_slice(bytes);
        let end = self.buffer.len().next_multiple_of(PAGE);
        self.buffer.resize(end, 0);
        if self.buffer.len() >= BLOB {
            self.flush()?;
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), Stop> {
        let bytes = Bytes::from(std::mem::take(&mut self.buffer));
        self.digest.update(&bytes);
        self.send(bytes)
    }

    fn send(&mut self, bytes: Bytes) -> Result<(), Stop> {
        self.remaining = self.remaining.saturating_sub(bytes.len() as u64);
        let remaining = self.remaining;
        let blob = Blob { bytes, remaining };
        self.sender.blocking_send(Ok(blob)).map_err(|_| Stop::Gone)
    }

    fn finish(&mut self) -> Result<(), Stop> {
        self.flush()?;
        let digest = self.digest.clone().finish();
        self.send(Bytes::copy_from_slice(digest.as_ref()))
    }
}

fn write(dump: &Dump, output: &mut Output) -> Result<(), Stop> {
    let keys = KeyBucket { dump };
    let leases = LeaseBucket { dump };
    let key_tree = Tree::plan(&keys, FIRST_LEAF);
    let lease_tree = Tree::plan(&leases, key_tree.end);
    let pages = lease_tree.end;
    output.remaining = pages * PAGE as u64 + 32;

    for transaction in 0..2 {
        output.pages(&meta_page(transaction, pages))?;
    }
    output.pages(&header(2, FREELIST_PAGE, 0, 0))?;
    let root = [
        ("key", bucket(key_tree.root)),
        ("lease", bucket(lease_tree.root)),
        ("meta", inline_bucket(&meta_entries(dump))),
    ];
    let root = root.map(|(name, value)| (name.as_bytes().to_vec(), value));
    output.pages(&leaf_page(3, &root, BUCKET_ELEMENT))?;
    key_tree.write(&keys, output)?;
    lease_tree.write(&leases, output)?;
    output.finish()
}

/// What a bucket holds, in the order of its keys.
trait Bucket {
    fn len(&self) -> usize;
    fn key(&self, index: usize) -> Vec<u8>;
    fn value_length(&self, index: usize) -> usize;
    fn value(&self, index: usize) -> Result<Vec<u8>, StoreError>;
}

/// Every key at its newest revision; a revision's changes are numbered from 0.
struct KeyBucket<'a> {
    dump: &'a Dump,
}

impl KeyBucket<'_> {
    fn message(dumped: &Dumped, value: Bytes) -> mvccpb::KeyValue {
        let kv = dumped.version.with_value(value);
        if dumped.version.is_delete() {
            return mvccpb::KeyValue {
                key: kv.key,
                ..mvccpb::KeyValue::default()
            };
        }
        super::convert::key_value(kv)
    }
}

impl Bucket for KeyBucket<'_> {
    fn len(&self) -> usize {
        self.dump.versions.len()
    }

    fn key(&self, index: usize) -> Vec<u8> {
        let dumped = &self.dump.versions[index];
        let mut key = revision_key(dumped.version.mod_revision, dumped.sub);
        if dumped.version.is_delete() {
            key.push(b't');
        }
        key
    }

    fn value_length(&self, index: usize) -> usize {
        let dumped = &self.dump.versions[index];
        let length = dumped.version.length();
        let without = Self::message(dumped, Bytes::new()).encoded_len();
        match length {
            0 => without,
            // Field number 5 and the length before the bytes.
            length => without + 1 + prost::length_delimiter_len(length) + length,
        }
    }

    fn value(&self, index: usize) -> Result<Vec<u8>, StoreError> {
        let dumped = &self.dump.versions[index];
        let value = self.dump.value(dumped)?;
        Ok(Self::message(dumped, value).encode_to_vec())
    }
}

struct LeaseBucket<'a> {
    dump: &'a Dump,
}

/// etcd's `leasepb.Lease`.
#[derive(Clone, PartialEq, prost::Message)]
struct StoredLease {
    #[prost(int64, tag = "1")]
    id: i64,
    #[prost(int64, tag = "2")]
    ttl: i64,
}

impl LeaseBucket<'_> {
    fn message(&self, index: usize) -> StoredLease {
        let (id, ttl) = self.dump.leases[index];
        StoredLease { id, ttl }
    }
}

impl Bucket for LeaseBucket<'_> {
    fn len(&self) -> usize {
        self.dump.leases.len()
    }

    fn key(&self, index: usize) -> Vec<u8> {
        self.dump.leases[index].0.to_be_bytes().to_vec()
    }

    fn value_length(&self, index: usize) -> usize {
        self.message(index).encoded_len()
    }

    fn value(&self, index: usize) -> Result<Vec<u8>, StoreError> {
        Ok(self.message(index).encode_to_vec())
    }
}

fn revision_key(main: i64, sub: i64) -> Vec<u8> {
    let mut key = main.to_be_bytes().to_vec();
    key.push(b'_');
    key.extend_from_slice(&sub.to_be_bytes());
    key
}

/// etcd's own bookkeeping. What is older than the snapshot was compacted.
fn meta_entries(dump: &Dump) -> Vec<(Vec<u8>, Vec<u8>)> {
    let floor = revision_key(dump.compacted, 0);
    let index = u64::try_from(dump.revision).unwrap_or(0);
    let entries: [(&str, Vec<u8>); 4] = [
        ("consistent_index", index.to_be_bytes().to_vec()),
        ("finishedCompactRev", floor.clone()),
        ("scheduledCompactRev", floor),
        ("term", RAFT_TERM.to_be_bytes().to_vec()),
    ];
    entries
        .map(|(name, value)| (name.as_bytes().to_vec(), value))
        .into()
}

/// A B+ tree laid out on consecutive pages, leaves first and the root last.
struct Tree {
    leaves: Vec<Node>,
    /// Level by level, the lowest first.
    branches: Vec<Vec<Node>>,
    root: u64,
    /// The first page after it.
    end: u64,
}

/// A page and the entries (of a leaf) or nodes one level down (of a branch) that are on it.
struct Node {
    page: u64,
    pages: u64,
    first: usize,
    count: usize,
    first_key: Vec<u8>,
}

impl Tree {
    fn plan(bucket: &impl Bucket, start: u64) -> Self {
        let keys = |index| bucket.key(index);
        let sizes = |index| bucket.key(index).len() + bucket.value_length(index);
        let leaves = plan_level(bucket.len(), start, sizes, keys);
        let mut branches: Vec<Vec<Node>> = Vec::new();
        loop {
            let below = branches.last().unwrap_or(&leaves);
            let last = below.last().expect("a level has a node");
            let end = last.page + last.pages;
            if below.len() == 1 {
                let root = last.page;
                return Self {
                    leaves,
                    branches,
                    root,
                    end,
                };
            }
            let keys = |index: usize| below[index].first_key.clone();
            let sizes = |index: usize| below[index].first_key.len();
            branches.push(plan_level(below.len(), end, sizes, keys));
        }
    }

    fn write(&self, bucket: &impl Bucket, output: &mut Output) -> Result<(), Stop> {
        for leaf in &self.leaves {
            let entries: Vec<_> = (leaf.first..leaf.first + leaf.count)
                .map(|index| Ok((bucket.key(index), bucket.value(index)?)))
                .collect::<Result<_, _>>()
                .map_err(Stop::Failed)?;
            output.pages(&leaf_page(leaf.page, &entries, 0))?;
        }
        let mut below = &self.leaves;
        for level in &self.branches {
            for branch in level {
                let children = &below[branch.first..branch.first + branch.count];
                output.pages(&branch_page(branch.page, children))?;
            }
            below = level;
        }
        Ok(())
    }
}

/// Fills pages one after the other; an entry too large for one takes as many as it needs.
fn plan_level(
    entries: usize,
    start: u64,
    size: impl Fn(usize) -> usize,
    key: impl Fn(usize) -> Vec<u8>,
) -> Vec<Node> {
    let mut nodes = Vec::new();
    let mut page = start;
    let mut first = 0;
    while first < entries || nodes.is_empty() {
        let mut bytes = PAGE_HEADER;
        let mut count = 0;
        while first + count < entries {
            let next = ELEMENT + size(first + count);
            // bbolt wants at least two keys on a branch page, whose keys are short.
            if count > 0 && bytes + next > PAGE {
                break;
            }
            bytes += next;
            count += 1;
        }
        let pages = bytes.div_ceil(PAGE) as u64;
        let first_key = if count > 0 { key(first) } else { Vec::new() };
        nodes.push(Node {
            page,
            pages,
            first,
            count,
            first_key,
        });
        page += pages;
        first += count;
    }
    nodes
}

fn header(page: u64, flags: u16, count: usize, overflow: usize) -> Vec<u8> {
    let mut bytes = page.to_le_bytes().to_vec();
    bytes.extend_from_slice(&flags.to_le_bytes());
    // A page of 4 KiB holds fewer than 256 elements.
    bytes.extend_from_slice(&(count as u16).to_le_bytes());
    bytes.extend_from_slice(&(overflow as u32).to_le_bytes());
    bytes
}

fn leaf_page(page: u64, entries: &[(Vec<u8>, Vec<u8>)], flags: u32) -> Vec<u8> {
    let data: usize = entries
        .iter()
        .map(|(key, value)| key.len() + value.len())
        .sum();
    let size = PAGE_HEADER + ELEMENT * entries.len() + data;
    let mut bytes = header(page, LEAF_PAGE, entries.len(), size.div_ceil(PAGE) - 1);
    let mut at = ELEMENT * entries.len();
    for (index, (key, value)) in entries.iter().enumerate() {
        // Counted from the element itself.
        let position = at - ELEMENT * index;
        for field in [flags, position as u32, key.len() as u32, value.len() as u32] {
            bytes.extend_from_slice(&field.to_le_bytes());
        }
        at += key.len() + value.len();
    }
    for (key, value) in entries {
        bytes.extend_from_slice(key);
        bytes.extend_from_slice(value);
    }
    bytes
}

fn branch_page(page: u64, children: &[Node]) -> Vec<u8> {
    let mut bytes = header(page, BRANCH_PAGE, children.len(), 0);
    let mut at = ELEMENT * children.len();
    for (index, child) in children.iter().enumerate() {
        let position = at - ELEMENT * index;
        bytes.extend_from_slice(&(position as u32).to_le_bytes());
        bytes.extend_from_slice(&(child.first_key.len() as u32).to_le_bytes());
        bytes.extend_from_slice(&child.page.to_le_bytes());
        at += child.first_key.len();
    }
    for child in children {
        bytes.extend_from_slice(&child.first_key);
    }
    bytes
}

/// A bucket's root page and its sequence number.
fn bucket(root: u64) -> Vec<u8> {
    let mut bytes = root.to_le_bytes().to_vec();
    bytes.extend_from_slice(&0_u64.to_le_bytes());
    bytes
}

/// A bucket so small that its only page is in its entry.
fn inline_bucket(entries: &[(Vec<u8>, Vec<u8>)]) -> Vec<u8> {
    let mut bytes = bucket(0);
    bytes.extend_from_slice(&leaf_page(0, entries, 0));
    bytes
}

fn meta_page(transaction: u64, pages: u64) -> Vec<u8> {
    let mut meta = Vec::new();
    for field in [META_MAGIC, META_VERSION, PAGE as u32, 0] {
        meta.extend_from_slice(&field.to_le_bytes());
    }
    // The root bucket, the free list, the number of pages, the transaction.
    for field in [3, 0, 2, pages, transaction] {
        meta.extend_from_slice(&u64::to_le_bytes(field));
    }
    // FNV-1a.
    let checksum = meta.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let mut bytes = header(transaction, META_PAGE, 0, 0);
    bytes.extend_from_slice(&meta);
    bytes.extend_from_slice(&checksum.to_le_bytes());
    bytes
}
