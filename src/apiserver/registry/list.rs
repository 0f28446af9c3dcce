//! GET of a collection: which snapshot answers, which page of it, and the response streamed from the entries' bytes.
//!
//! Upstream's rules (`storage.GetListOptions`, KEP-2340, KEP-4988): without a resourceVersion the list is as new as the
//! store, with `0` whatever the cache has, else not older than asked or exactly it. Pages continue at the first one's revision.

use std::sync::Arc;

use api::Resource;
use apimachinery::Status;
use bytes::Bytes;
use store::StoreError;

use super::kind::Kind;
use super::options::{ListOptions, Match};
use super::page;
use super::select::Selectors;
use super::{Registry, errors};
use crate::cache::{Cache, Entry, Selection, Snapshot};

/// A list ready to be encoded.
pub struct Listing {
    pub entries: Vec<Arc<Entry>>,
    pub revision: i64,
    /// The token for the next page; empty on the last.
    pub next: String,
    /// How many objects are behind this page, when that is known.
    pub remaining: Option<i64>,
}

const LIST_EXPIRED: &str = "The resourceVersion for the provided list is too old.";
const CONTINUE_EXPIRED: &str = "The provided continue parameter is too old to display a consistent list result. \
    You can start a new list without the continue parameter, or use the continue token in this response to retrieve \
    the remainder of the results. Continuing with the provided token results in an inconsistent list - objects that \
    were created, modified, or deleted between the time the first chunk was returned and now may show up in the list.";

impl Registry {
    /// Lists the objects of `kind` in `namespace` (`""`: all).
    pub async fn list(
        &self,
        kind: &Kind,
        resource: &'static Resource,
        namespace: &str,
        options: &ListOptions,
    ) -> Result<Listing, Status> {
        let selectors =
            Selectors::parse(resource, &options.label_selector, &options.field_selector)?;
        let counts = selectors.is_everything();
        let scope = kind.scope(namespace);
        let selection = selectors.selection(kind, scope.clone(), namespace);
        let cache = kind.cache(self);
        let mut request = Request {
            cache,
            selection,
            start: Bytes::new(),
            limit: options.limit,
            counts,
        };
        if options.continue_token.is_empty() {
            return self.first_page(&request, options).await;
        }
        let from = page::decode(&scope, &options.continue_token)?;
        if !matches!(options.resource_version.as_str(), "" | "0") {
            return Err(Status::bad_request(
                "specifying resource version is not allowed when using continue",
            ));
        }
        request.start = from.start.clone();
        if from.revision < 0 {
            cache.catch_up().await.map_err(errors::cache)?;
            return Ok(request.of_snapshot(&cache.snapshot()));
        }
        match request.at(from.revision).await {
            Err(StoreError::Compacted { .. }) => {
                let mut status = Status::expired(CONTINUE_EXPIRED);
                status.continue_token = Some(page::encode_inconsistent(&scope, &from.start));
                Err(status)
            }
            other => other.map_err(errors::store),
        }
    }

    async fn first_page(
        &self,
        request: &Request<'_>,
        options: &ListOptions,
    ) -> Result<Listing, Status> {
        let cache = request.cache;
        let revision = options.revision().map_err(|status| {
            Status::bad_request(format!("invalid resource version: {}", status.message))
        })?;
        // Without a word on how, a version is exact in a list of pages, as it was before there was one.
        let is_exact = match options.version_match {
            Some(matching) => matching == Match::Exact,
            None => options.limit > 0 && revision.is_some_and(|revision| revision > 0),
        };
        match (revision, options.version_match) {
            (Some(revision), _) if is_exact => {
                return request.at(revision).await.map_err(|error| match error {
                    StoreError::Compacted { .. } => Status::expired(LIST_EXPIRED),
                    StoreError::FutureRevision { requested, current } => {
                        Status::too_large_resource_version(requested, current, 1)
                    }
                    error => errors::store(error),
                });
            }
            (None, _) => cache.catch_up().await,
            (Some(0), _) => cache.filled().await,
            (Some(revision), _) => cache.wait(revision).await,
        }
        .map_err(errors::cache)?;
        Ok(request.of_snapshot(&cache.snapshot()))
    }
}

struct Request<'a> {
    cache: &'a Arc<Cache>,
    selection: Selection,
    /// First key of the page; empty: from the beginning.
    start: Bytes,
    limit: usize,
    /// Whether what remains can be counted: only without selectors.
    counts: bool,
}

impl Request<'_> {
    /// The page as of `revision`: from memory when nothing has changed since, else from the store's history.
    async fn at(&self, revision: i64) -> Result<Listing, StoreError> {
        let snapshot = self.cache.snapshot();
        if snapshot.changed <= revision && revision <= snapshot.revision {
            let mut listing = self.of_snapshot(&snapshot);
            listing.revision = revision;
            return Ok(self.continued_at(listing, revision));
        }
        let (entries, _) = self
            .cache
            .read_range(&self.selection.prefix, &self.start, revision, 0)
            .await?;
        Ok(self.page_of(entries.iter(), revision))
    }

    fn of_snapshot(&self, snapshot: &Snapshot) -> Listing {
        if let Some(only) = &self.selection.only {
            let found = snapshot
                .get(only)
                .filter(|entry| only >= &self.start && self.selection.matches(entry));
            return Listing {
                entries: found.into_iter().cloned().collect(),
                revision: snapshot.revision,
                next: String::new(),
                remaining: None,
            };
        }
        let entries = snapshot.scan(&self.selection.prefix, &self.start);
        self.page_of(entries, snapshot.revision)
    }

    fn page_of<'e>(&self, entries: impl Iterator<Item = &'e Arc<Entry>>, revision: i64) -> Listing {
        let mut matching = entries.filter(|entry| self.selection.matches(entry));
        let mut page = Vec::new();
        while self.limit == 0 || page.len() < self.limit {
            match matching.next() {
                Some(entry) => page.push(entry.clone()),
                None => break,
            }
        }
        let (mut next, mut remaining) = (String::new(), None);
        if let Some(last) = page
            .last()
            .filter(|_| self.limit > 0 && page.len() == self.limit)
        {
            let left = if self.counts {
                matching.count()
            } else {
                usize::from(matching.next().is_some())
            };
            if left > 0 {
                next = page::encode(&self.selection.prefix, last.key(), revision);
                remaining = self.counts.then_some(left as i64);
            }
        }
        Listing {
            entries: page,
            revision,
            next,
            remaining,
        }
    }

    /// The next page is of the same revision, even if the snapshot that served this one was newer.
    fn continued_at(&self, mut listing: Listing, revision: i64) -> Listing {
        if let (false, Some(last)) = (listing.next.is_empty(), listing.entries.last()) {
            listing.next = page::encode(&self.selection.prefix, last.key(), revision);
        }
        listing
    }
}
