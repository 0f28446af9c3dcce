//! Questions in and answers out, as bytes.
//!
//! Owns what of a packet is believed (one question, opcode QUERY, class IN, EDNS version 0) and how an answer
//! is made to fit. **Invariant:** a packet that is itself an answer is never answered, so that two servers
//! cannot keep each other busy.

use hickory_proto::op::{Edns, Message, MessageType, OpCode, Query, ResponseCode};
use hickory_proto::rr::{DNSClass, Record};

/// The largest UDP answer without and with EDNS; the latter never needs fragments (DNS flag day 2020).
const UDP_BYTES: u16 = 512;
const UDP_EDNS_BYTES: u16 = 1232;
const HEADER_BYTES: usize = 12;
const ANSWER_BIT: u8 = 0x80;

/// What came in.
pub(crate) enum Request {
    /// Nothing to answer.
    Drop,
    /// Answered without looking.
    Reject(Vec<u8>),
    /// A question.
    Ask(Ask),
}

/// A question and how its answer must look.
#[derive(Clone, Debug)]
pub(crate) struct Ask {
    pub query: Query,
    pub dnssec_ok: bool,
    id: u16,
    recursion_desired: bool,
    pub checking_disabled: bool,
    edns: Option<Edns>,
}

/// The contents of an answer.
#[derive(Clone, Debug)]
pub(crate) struct Reply {
    pub code: ResponseCode,
    pub authoritative: bool,
    pub answers: Vec<Record>,
    pub authorities: Vec<Record>,
    pub additionals: Vec<Record>,
}

impl Reply {
    /// An answer that says no more than its code.
    pub fn bare(code: ResponseCode) -> Self {
        Self {
            code,
            authoritative: false,
            answers: Vec::new(),
            authorities: Vec::new(),
            additionals: Vec::new(),
        }
    }
}

/// Over what an answer travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Carrier {
    Udp,
    Tcp,
}

/// Reads a packet.
pub(crate) fn read(packet: &[u8]) -> Request {
    if packet.len() < HEADER_BYTES || packet[2] & ANSWER_BIT != 0 {
        return Request::Drop;
    }
    let id = u16::from_be_bytes([packet[0], packet[1]]);
    let op_code = OpCode::from_u8((packet[2] >> 3) & 0xf);
    if op_code != OpCode::Query {
        return reject(id, op_code, ResponseCode::NotImp, None);
    }
    let Ok(message) = Message::from_vec(packet) else {
        return reject(id, op_code, ResponseCode::FormErr, None);
    };
    if message.metadata.message_type != MessageType::Query {
        return Request::Drop;
    }
    let [query] = message.queries.as_slice() else {
        return reject(id, op_code, ResponseCode::FormErr, None);
    };
    let edns = message.edns.as_ref().map(|asked| {
        let mut edns = Edns::new();
        edns.set_max_payload(UDP_EDNS_BYTES)
            .set_dnssec_ok(asked.flags().dnssec_ok);
        (asked.version(), asked.max_payload(), edns)
    });
    if let Some((version, _, edns)) = &edns
        && *version != 0
    {
        return reject(id, op_code, ResponseCode::BADVERS, Some(edns.clone()));
    }
    if query.query_class() != DNSClass::IN {
        return reject(id, op_code, ResponseCode::Refused, None);
    }
    let dnssec_ok = edns.as_ref().is_some_and(|(_, _, e)| e.flags().dnssec_ok);
    let edns = edns.map(|(_, payload, mut edns)| {
        edns.set_max_payload(payload.clamp(UDP_BYTES, UDP_EDNS_BYTES));
        edns
    });
    Request::Ask(Ask {
        query: query.clone(),
        dnssec_ok,
        id,
        recursion_desired: message.metadata.recursion_desired,
        checking_disabled: message.metadata.checking_disabled,
        edns,
    })
}

/// Writes the answer to a question; too much for the carrier is left out and marked so, additional records first.
pub(crate) fn write(ask: &Ask, reply: Reply, carrier: Carrier) -> Vec<u8> {
    let limit = match (carrier, &ask.edns) {
        (Carrier::Tcp, _) => u16::MAX,
        (Carrier::Udp, Some(edns)) => edns.max_payload(),
        (Carrier::Udp, None) => UDP_BYTES,
    };
    let mut message = Message::response(ask.id, OpCode::Query);
    message.metadata.response_code = reply.code;
    message.metadata.authoritative = reply.authoritative;
    message.metadata.recursion_desired = ask.recursion_desired;
    message.metadata.recursion_available = true;
    message.metadata.checking_disabled = ask.checking_disabled;
    message.add_query(ask.query.clone());
    message.edns = ask.edns.clone().map(|mut edns| {
        edns.set_max_payload(UDP_EDNS_BYTES);
        edns
    });
    message.answers = reply.answers;
    message.authorities = reply.authorities;
    message.additionals = reply.additionals;
    let fits = |message: &Message| {
        message
            .to_vec()
            .ok()
            .filter(|bytes| bytes.len() <= usize::from(limit))
    };
    if let Some(bytes) = fits(&message) {
        return bytes;
    }
    message.additionals.clear();
    if let Some(bytes) = fits(&message) {
        return bytes;
    }
    message.metadata.truncation = true;
    message.authorities.clear();
    let answers = std::mem::take(&mut message.answers);
    let (mut best, mut low, mut high) = (fits(&message), 0, answers.len());
    while low < high {
        let middle = (low + high).div_ceil(2);
        message.answers = answers[..middle].to_vec();
        match fits(&message) {
            Some(bytes) => (best, low) = (Some(bytes), middle),
            None => high = middle - 1,
        }
    }
    best.unwrap_or_else(|| failure(ask.id, OpCode::Query, ResponseCode::ServFail, None))
}

fn reject(id: u16, op_code: OpCode, code: ResponseCode, edns: Option<Edns>) -> Request {
    Request::Reject(failure(id, op_code, code, edns))
}

fn failure(id: u16, op_code: OpCode, code: ResponseCode, edns: Option<Edns>) -> Vec<u8> {
    let mut message = Message::error_msg(id, op_code, code);
    message.edns = edns;
    // A message without names cannot be too long; were it so, nothing would be sent.
    message.to_vec().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use hickory_proto::rr::rdata::A;
    use hickory_proto::rr::{Name, RData, RecordType};

    fn question(edns_payload: Option<u16>) -> Vec<u8> {
        let mut message = Message::new(7, MessageType::Query, OpCode::Query);
        message.metadata.recursion_desired = true;
        message.add_query(Query::query(
            Name::from_ascii("Many.default.svc.cluster.local.").unwrap(),
            RecordType::A,
        ));
        message.edns = edns_payload.map(|p| {
            let mut edns = Edns::new();
            edns.set_max_payload(p);
            edns
        });
        message.to_vec().unwrap()
    }

    fn code_of(request: Request) -> ResponseCode {
        match request {
            Request::Reject(bytes) => Message::from_vec(&bytes).unwrap().metadata.response_code,
            _ => panic!("not rejected"),
        }
    }

    fn answers(count: u8) -> Reply {
        let name = Name::from_ascii("Many.default.svc.cluster.local.").unwrap();
        let record = |i| Record::from_rdata(name.clone(), 5, RData::A(A::new(10, 0, 0, i)));
        Reply {
            answers: (0..count).map(record).collect(),
            ..Reply::bare(ResponseCode::NoError)
        }
    }

    #[test]
    fn answers_that_do_not_fit_are_cut_and_marked() {
        for (payload, limit) in [
            (None, 512),
            (Some(100), 512),
            (Some(1000), 1000),
            (Some(4096), 1232),
        ] {
            let Request::Ask(ask) = read(&question(payload)) else {
                panic!("no question")
            };
            let bytes = write(&ask, answers(200), Carrier::Udp);
            let message = Message::from_vec(&bytes).unwrap();
            assert!(
                bytes.len() <= limit && bytes.len() > limit - 32,
                "{} of {limit}",
                bytes.len()
            );
            assert!(message.metadata.truncation);
            assert_eq!(message.edns.is_some(), payload.is_some());
            let message = Message::from_vec(&write(&ask, answers(200), Carrier::Tcp)).unwrap();
            assert_eq!(
                (message.answers.len(), message.metadata.truncation),
                (200, false)
            );
        }
    }

    #[test]
    fn the_question_comes_back_as_it_was_written() {
        let Request::Ask(ask) = read(&question(None)) else {
            panic!("no question")
        };
        let message = Message::from_vec(&write(&ask, answers(1), Carrier::Udp)).unwrap();
        assert_eq!(
            message.queries[0].name().to_ascii(),
            "Many.default.svc.cluster.local."
        );
        assert_eq!(message.metadata.id, 7);
        assert!(message.metadata.recursion_desired && message.metadata.recursion_available);
    }

    #[test]
    fn what_is_no_question_is_dropped_or_refused() {
        let good = question(Some(1232));
        assert!(matches!(read(&[]), Request::Drop));
        assert!(matches!(read(&good[..11]), Request::Drop));
        let mut answer = good.clone();
        answer[2] |= ANSWER_BIT;
        assert!(matches!(read(&answer), Request::Drop));
        assert_eq!(code_of(read(&good[..20])), ResponseCode::FormErr);
        let mut update = good.clone();
        update[2] = 5 << 3;
        assert_eq!(code_of(read(&update)), ResponseCode::NotImp);
        let mut none = good.clone();
        none[5] = 0;
        assert!(matches!(read(&none), Request::Reject(_)));
        let mut chaos = question(None);
        let last = chaos.len() - 1;
        chaos[last] = 3;
        assert_eq!(code_of(read(&chaos)), ResponseCode::Refused);
    }

    #[test]
    fn no_packet_of_noise_gets_more_than_a_refusal() {
        // A fixed linear congruential sequence: the same noise on every run.
        let mut state = 1u64;
        let mut next = || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 56) as u8
        };
        let good = question(Some(1232));
        for round in 0..20_000 {
            let mut packet = good.clone();
            for _ in 0..=round % 8 {
                let at = usize::from(next()) % packet.len();
                packet[at] = next();
            }
            packet.truncate(packet.len() - usize::from(next() % 4));
            if let Request::Ask(ask) = read(&packet) {
                assert!(write(&ask, answers(200), Carrier::Udp).len() <= 1232);
            }
        }
    }
}
