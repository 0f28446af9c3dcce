//! How much of a server a request takes: its seats, and what its writes cost after their answer (upstream's
//! `flowcontrol/request` work estimators, with the size of objects counted).

use std::time::Duration;

use crate::backend::Backend;
use crate::query::Query;
use crate::request::{RequestInfo, Verb};

/// Most seats of a list, and of a write.
const MOST_OF_LIST: usize = 100;
const MOST_OF_WRITE: usize = 10;
/// Bytes in memory at once that one seat stands for.
const BYTES_PER_SEAT: usize = 100_000;
/// Lists out of a cache are written as they go: so many bytes at once, however long they are.
const STREAMED_BYTES: usize = 1_000_000;
/// What an object is taken for whose size is not known.
const LARGEST_OBJECT: usize = 1_500_000;
/// Watches that one seat tells of an event, and how long that takes.
const WATCHES_PER_SEAT: usize = 10;
const PER_EVENT: Duration = Duration::from_millis(5);

/// What a request is taken for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Work {
    /// Seats until its answer.
    pub seats: usize,
    /// Seats after it, for as long as `after` says.
    pub seats_after: usize,
    pub after: Duration,
}

impl Work {
    pub const ONE: Self = Self::of_seats(1);

    const fn of_seats(seats: usize) -> Self {
        Self {
            seats,
            seats_after: 0,
            after: Duration::ZERO,
        }
    }

    /// Seats it holds while it runs: those of both stages are taken at once.
    pub fn width(&self) -> usize {
        self.seats.max(self.seats_after)
    }
}

/// Estimates a request of a level where none may be wider than `widest`.
pub fn of(backend: &dyn Backend, info: &RequestInfo, widest: usize) -> Work {
    if !info.is_resource {
        return Work::ONE;
    }
    match info.verb {
        Verb::List | Verb::Watch => {
            let most = widest.min(MOST_OF_LIST);
            let is_plain_watch = info.verb == Verb::Watch
                && !info
                    .query
                    .optional_flag("sendInitialEvents")
                    .unwrap_or(false);
            if is_plain_watch {
                return Work::ONE;
            }
            match backend.size(&info.group, &info.resource) {
                None => Work::ONE,
                Some(size) => Work::of_seats(list(info, size, most).clamp(1, most.max(1))),
            }
        }
        Verb::Create | Verb::Update | Verb::Patch | Verb::Delete => {
            // A token is an answer: nothing is stored, and nobody is told.
            if info.resource == "serviceaccounts" && info.subresource == "token" {
                return Work::ONE;
            }
            write(backend.watches(info), widest.min(MOST_OF_WRITE).max(1))
        }
        _ => Work::ONE,
    }
}

fn list(info: &RequestInfo, (count, bytes): (usize, usize), most: usize) -> usize {
    let Ok(limit) = info.query.integer("limit") else {
        // It will be refused.
        return most;
    };
    let limit = limit.and_then(|limit| usize::try_from(limit).ok());
    let limited = limit
        .filter(|limit| *limit > 0)
        .map_or(count, |limit| limit.min(count));
    let average = match (bytes.checked_div(count), count) {
        (Some(average), _) if average > 0 => average,
        (_, 0) => 0,
        _ => LARGEST_OBJECT,
    };
    let is_cached = info.verb == Verb::Watch || is_from_cache(&info.query);
    let selects = ["labelSelector", "fieldSelector"]
        .iter()
        .any(|name| info.query.get(name).is_some_and(|text| !text.is_empty()));
    let at_once = if !info.name.is_empty() {
        1
    } else if !is_cached && selects {
        limited.max(count / 2)
    } else {
        limited
    };
    let mut bytes = at_once.saturating_mul(average);
    if is_cached {
        bytes = bytes.min(STREAMED_BYTES);
    }
    bytes.div_ceil(BYTES_PER_SEAT)
}

/// Whether upstream answers the list out of its cache (`delegator.ShouldDelegateListMeta`).
fn is_from_cache(query: &Query) -> bool {
    let is_set = |name: &str| query.get(name).is_some_and(|text| !text.is_empty());
    match query.get("resourceVersionMatch").unwrap_or("") {
        "Exact" => false,
        "NotOlderThan" => true,
        _ => {
            let version = query.get("resourceVersion").unwrap_or("");
            let is_exact = is_set("limit") && !version.is_empty() && version != "0";
            !is_set("continue") && !is_exact
        }
    }
}

fn write(watches: usize, most: usize) -> Work {
    if watches < WATCHES_PER_SEAT {
        return Work::ONE;
    }
    let events = watches.div_ceil(WATCHES_PER_SEAT);
    let seats_after = events.min(most);
    // The work is the same, however many seats do it.
    let after = PER_EVENT.mul_f64(events as f64 / seats_after as f64);
    Work {
        seats: 1,
        seats_after,
        after,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::Method;

    fn info(method: &Method, path: &str) -> RequestInfo {
        RequestInfo::parse(method, &path.parse().expect("a path"))
    }

    #[track_caller]
    fn seats(path: &str, size: (usize, usize), expected: usize) {
        let info = info(&Method::GET, path);
        assert_eq!(list(&info, size, 100), expected, "{path}");
    }

    #[test]
    fn a_list_is_as_wide_as_what_it_holds_in_memory() {
        const PODS: &str = "/api/v1/pods";
        let size = (1_000, 4_500_000);
        seats(PODS, size, 10);
        seats(PODS, (10, 45_000), 1);
        seats(PODS, (0, 0), 0);
        seats(&format!("{PODS}?limit=50"), size, 3);
        seats(&format!("{PODS}?limit=500&resourceVersion=7"), size, 23);
        seats(&format!("{PODS}?limit=50&continue=x"), size, 3);
        seats(
            &format!("{PODS}?limit=50&continue=x&labelSelector=a"),
            size,
            23,
        );
        seats(
            &format!("{PODS}?resourceVersion=7&resourceVersionMatch=Exact"),
            size,
            45,
        );
        seats(&format!("{PODS}?fieldSelector=metadata.name=x"), size, 1);
        seats(&format!("{PODS}?limit=many"), size, 100);
        seats(&format!("{PODS}?watch=1&sendInitialEvents=true"), size, 10);
    }

    #[test]
    fn a_write_goes_on_for_those_who_watch() {
        assert_eq!(write(9, 10), Work::ONE);
        let work = write(25, 10);
        assert_eq!(
            (work.seats, work.seats_after, work.after),
            (1, 3, PER_EVENT)
        );
        let wide = write(1_000, 10);
        assert_eq!((wide.width(), wide.after), (10, PER_EVENT * 10));
        assert_eq!(write(1_000, 1).after, PER_EVENT * 100);
    }
}
