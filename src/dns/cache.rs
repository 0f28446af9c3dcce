//! A small memory of what the upstream resolvers said.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use hickory_proto::op::ResponseCode;
use hickory_proto::rr::{Name, RData, Record, RecordType};

use crate::wire::Reply;

/// Entries kept; at about 1 kB each this is 4 MB.
const ENTRIES: usize = 4096;
/// Longest time an answer is kept, whatever its TTL (kubeadm's `cache 30`).
const LONGEST: Duration = Duration::from_secs(30);

/// What makes two questions the same.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    /// In lower case.
    pub name: Name,
    pub kind: RecordType,
    pub dnssec_ok: bool,
    pub checking_disabled: bool,
}

/// The memory; oldest entries make room for new ones.
#[derive(Default)]
pub(crate) struct Cache {
    entries: HashMap<Key, Entry>,
    /// Keys in the order they came, each as often as it was stored.
    order: VecDeque<(Key, Instant)>,
}

struct Entry {
    reply: Reply,
    stored: Instant,
    keep: Duration,
}

impl Cache {
    /// The answer with its TTLs counted down, unless it has expired.
    pub fn get(&self, key: &Key, now: Instant) -> Option<Reply> {
        let entry = self.entries.get(key)?;
        let age = now.saturating_duration_since(entry.stored);
        if age >= entry.keep {
            return None;
        }
        let seconds = u32::try_from(age.as_secs()).unwrap_or(u32::MAX);
        let mut reply = entry.reply.clone();
        for record in records(&mut reply) {
            record.ttl = record.ttl.saturating_sub(seconds);
        }
        Some(reply)
    }

    /// Keeps an answer for as long as its records allow; failures are not kept.
    pub fn put(&mut self, key: Key, reply: &Reply, now: Instant) {
        let keep = lifetime(reply).min(LONGEST);
        if keep.is_zero() {
            return;
        }
        while self.order.len() >= ENTRIES {
            let Some((oldest, stored)) = self.order.pop_front() else {
                break;
            };
            // Stored again since: the later place in the order counts.
            if self
                .entries
                .get(&oldest)
                .is_some_and(|e| e.stored == stored)
            {
                self.entries.remove(&oldest);
            }
        }
        self.order.push_back((key.clone(), now));
        self.entries.insert(
            key,
            Entry {
                reply: reply.clone(),
                stored: now,
                keep,
            },
        );
    }
}

fn records(reply: &mut Reply) -> impl Iterator<Item = &mut Record> {
    reply
        .answers
        .iter_mut()
        .chain(&mut reply.authorities)
        .chain(&mut reply.additionals)
}

fn lifetime(reply: &Reply) -> Duration {
    let seconds = match reply.code {
        ResponseCode::NoError if !reply.answers.is_empty() => {
            reply.answers.iter().map(|r| r.ttl).min()
        }
        // RFC 2308: a negative answer lasts as long as its SOA says.
        ResponseCode::NoError | ResponseCode::NXDomain => {
            reply.authorities.iter().find_map(|r| match &r.data {
                RData::SOA(soa) => Some(r.ttl.min(soa.minimum)),
                _ => None,
            })
        }
        _ => None,
    };
    Duration::from_secs(seconds.unwrap_or(0).into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use hickory_proto::rr::rdata::A;

    fn key(i: usize) -> Key {
        let name = Name::from_ascii(format!("n{i}.example.")).unwrap();
        Key {
            name,
            kind: RecordType::A,
            dnssec_ok: false,
            checking_disabled: false,
        }
    }

    fn reply(ttl: u32) -> Reply {
        let record = Record::from_rdata(key(0).name, ttl, RData::A(A::new(192, 0, 2, 1)));
        Reply {
            answers: vec![record],
            ..Reply::bare(ResponseCode::NoError)
        }
    }

    #[test]
    fn ttls_count_down_and_end() {
        let (mut cache, start) = (Cache::default(), Instant::now());
        cache.put(key(1), &reply(20), start);
        let later = cache.get(&key(1), start + Duration::from_secs(7)).unwrap();
        assert_eq!(later.answers[0].ttl, 13);
        assert!(
            cache
                .get(&key(1), start + Duration::from_secs(20))
                .is_none()
        );
        cache.put(key(2), &reply(3600), start);
        assert!(cache.get(&key(2), start + LONGEST).is_none());
    }

    #[test]
    fn failures_are_not_kept() {
        let (mut cache, now) = (Cache::default(), Instant::now());
        cache.put(key(1), &Reply::bare(ResponseCode::ServFail), now);
        cache.put(key(2), &Reply::bare(ResponseCode::NXDomain), now);
        assert!(cache.entries.is_empty());
    }

    #[test]
    fn the_cache_does_not_grow_past_its_bound() {
        let (mut cache, now) = (Cache::default(), Instant::now());
        for i in 0..2 * ENTRIES {
            cache.put(key(i), &reply(20), now + Duration::from_nanos(i as u64));
        }
        assert_eq!((cache.entries.len(), cache.order.len()), (ENTRIES, ENTRIES));
        assert!(cache.get(&key(2 * ENTRIES - 1), now).is_some());
    }
}
