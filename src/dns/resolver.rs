//! Puts together the answer to a question: the zone's, the resolvers', or the one after the other for an alias.

use std::sync::Arc;

use hickory_proto::op::{Query, ResponseCode};
use hickory_proto::rr::{Record, RecordType};
use rand::seq::SliceRandom;

use crate::cluster::Cluster;
use crate::forward::Upstream;
use crate::wire::{Ask, Reply};
use crate::zone::{Answer, Zone};

/// Aliases followed for one question; ExternalName Services may name each other in a circle.
const ALIASES: usize = 8;

/// Answers questions.
pub struct Resolver {
    zone: Zone,
    cluster: Arc<dyn Cluster>,
    upstream: Upstream,
}

impl Resolver {
    /// A resolver of a zone and of everything else.
    pub fn new(zone: Zone, cluster: Arc<dyn Cluster>, upstream: Upstream) -> Self {
        Self {
            zone,
            cluster,
            upstream,
        }
    }

    /// The answer, if it can be given without asking anybody.
    pub(crate) fn local(&self, ask: &Ask) -> Option<Reply> {
        match self.zone.answer(&*self.cluster, &ask.query) {
            Some(answer) if answer.follow.is_none() => Some(local_reply(answer, Vec::new())),
            Some(_) => None,
            None => self.upstream.cached(ask),
        }
    }

    /// The answer.
    pub(crate) async fn resolve(&self, ask: &Ask) -> Reply {
        let mut ask = ask.clone();
        let mut aliases = Vec::new();
        for _ in 0..ALIASES {
            let Some(mut answer) = self.zone.answer(&*self.cluster, &ask.query) else {
                let mut reply = self.upstream.ask(&ask).await;
                aliases.append(&mut reply.answers);
                reply.answers = aliases;
                return reply;
            };
            match answer.follow.take() {
                None => return local_reply(answer, aliases),
                Some(target) => {
                    aliases.append(&mut answer.answers);
                    ask.query = Query::query(target, ask.query.query_type());
                }
            }
        }
        Reply::bare(ResponseCode::ServFail)
    }
}

fn local_reply(mut answer: Answer, mut answers: Vec<Record>) -> Reply {
    let are_addresses = |records: &[Record]| {
        records
            .iter()
            .all(|r| matches!(r.record_type(), RecordType::A | RecordType::AAAA))
    };
    // Clients take the first: spread them.
    if are_addresses(&answer.answers) {
        answer.answers.shuffle(&mut rand::rng());
    }
    answers.append(&mut answer.answers);
    Reply {
        code: answer.code,
        authoritative: answer.code != ResponseCode::ServFail,
        answers,
        authorities: answer.authorities,
        additionals: answer.additionals,
    }
}
