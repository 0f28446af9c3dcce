//! Node ports as upstream keeps them: one RangeAllocation at `/registry/ranges/servicenodeports`, a bit for each port.

use apimachinery::codec::json;
use apimachinery::{Status, Value};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use rand::Rng;
use serde_json::json;
use store::{Compare, CompareOp, Op};

use super::super::super::tree::text;
use crate::registry::Registry;
use crate::registry::strategy::Companions;

/// The ports below this share of the range are left for people to choose from (KEP-3668).
const STATIC_SHARE: u32 = 32;
const STATIC_MIN: u32 = 16;
const STATIC_MAX: u32 = 128;

/// Why a port cannot be had.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum PortError {
    #[error("provided port is already allocated")]
    Taken,
    #[error("provided port is not in the valid range. The range of valid ports is {0}-{1}")]
    OutOfRange(u16, u16),
    #[error("range is full")]
    Full,
}

/// The allocated node ports, as read from the store and changed for one transaction.
pub struct NodePorts {
    first: u16,
    last: u16,
    /// Bit `n` is port `first + n`; byte 0 holds bits 0 to 7.
    bits: Vec<u8>,
    key: Bytes,
    revision: i64,
    changed: bool,
}

impl NodePorts {
    /// Reads the allocation; nothing stored yet is nothing allocated.
    pub async fn read(registry: &Registry) -> Result<Self, Status> {
        let (first, last) = registry.options.service_node_ports;
        let key = Bytes::from(format!(
            "{}/ranges/servicenodeports",
            registry.options.storage.prefix
        ));
        let found = registry.read_raw(&key).await?;
        let mut ports = Self::empty(first, last, key);
        if let Some(kv) = found {
            ports.revision = kv.mod_revision;
            ports.load(&decode(&kv.value)?);
        }
        Ok(ports)
    }

    fn empty(first: u16, last: u16, key: Bytes) -> Self {
        let size = usize::from(last.saturating_sub(first)) + 1;
        Self {
            first,
            last,
            bits: vec![0; size.div_ceil(8)],
            key,
            revision: 0,
            changed: false,
        }
    }

    /// `data` is Go's big-endian number; a range that differs from ours is taken over port by port.
    fn load(&mut self, stored: &Value) {
        let range = text(stored, &["range"]);
        let first = range
            .split_once('-')
            .and_then(|(first, _)| first.parse().ok())
            .unwrap_or(self.first);
        let data = STANDARD.decode(text(stored, &["data"])).unwrap_or_default();
        for (at, byte) in data.iter().rev().enumerate() {
            for bit in 0..8 {
                if byte >> bit & 1 == 1 {
                    let port = usize::from(first) + at * 8 + bit;
                    if let Ok(port) = u16::try_from(port) {
                        self.mark(port, true);
                    }
                }
            }
        }
        self.changed = first != self.first;
    }

    fn mark(&mut self, port: u16, taken: bool) -> bool {
        if port < self.first || port > self.last {
            return false;
        }
        let at = usize::from(port - self.first);
        let mask = 1 << (at % 8);
        if taken {
            self.bits[at / 8] |= mask;
        } else {
            self.bits[at / 8] &= !mask;
        }
        true
    }

    pub fn is_taken(&self, port: u16) -> bool {
        let Some(at) = port.checked_sub(self.first).map(usize::from) else {
            return false;
        };
        self.bits
            .get(at / 8)
            .is_some_and(|byte| byte >> (at % 8) & 1 == 1)
    }

    /// Takes a certain port.
    pub fn take(&mut self, port: i64) -> Result<(), PortError> {
        let out_of_range = PortError::OutOfRange(self.first, self.last);
        let port = u16::try_from(port).map_err(|_| PortError::OutOfRange(self.first, self.last))?;
        if self.is_taken(port) {
            return Err(PortError::Taken);
        }
        if !self.mark(port, true) {
            return Err(out_of_range);
        }
        self.changed = true;
        Ok(())
    }

    /// Takes any port, from the upper part of the range while that has one.
    pub fn take_any(&mut self) -> Result<u16, PortError> {
        let size = u32::from(self.last - self.first) + 1;
        let reserved = match size {
            0..STATIC_MIN => 0,
            size => (size / STATIC_SHARE)
                .clamp(STATIC_MIN, STATIC_MAX)
                .min(size),
        };
        let upper = self.find(reserved, size);
        let port = upper
            .or_else(|| self.find(0, reserved))
            .ok_or(PortError::Full)?;
        self.mark(port, true);
        self.changed = true;
        Ok(port)
    }

    /// A free port at an offset from `from` to `to`, beginning anywhere.
    fn find(&self, from: u32, to: u32) -> Option<u16> {
        let size = to.checked_sub(from).filter(|size| *size > 0)?;
        let start = rand::rng().random_range(0..size);
        (0..size)
            .map(|step| self.first + (from + (start + step) % size) as u16)
            .find(|port| !self.is_taken(*port))
    }

    pub fn release(&mut self, port: i64) {
        let Ok(port) = u16::try_from(port) else {
            return;
        };
        if self.is_taken(port) && self.mark(port, false) {
            self.changed = true;
        }
    }

    /// The ports taken.
    pub fn taken(&self) -> Vec<u16> {
        (self.first..=self.last)
            .filter(|port| self.is_taken(*port))
            .collect()
    }

    pub fn is_stored(&self) -> bool {
        self.revision > 0
    }

    /// Adds the changed allocation to a transaction, under the condition that nobody else changed it.
    pub fn write(&self, companions: &mut Companions) {
        if !self.changed && self.is_stored() {
            return;
        }
        companions.compare.push(Compare::ModRevision(
            self.key.clone(),
            CompareOp::Equal,
            self.revision,
        ));
        companions.ops.push(Op::Put {
            key: self.key.clone(),
            value: self.encode().into(),
            lease: 0,
        });
    }

    fn encode(&self) -> Vec<u8> {
        let data: Vec<u8> = self
            .bits
            .iter()
            .rev()
            .copied()
            .skip_while(|byte| *byte == 0)
            .collect();
        json::encode(&json!({
            "kind": "RangeAllocation",
            "apiVersion": "v1",
            "metadata": {"creationTimestamp": null},
            "range": format!("{}-{}", self.first, self.last),
            "data": STANDARD.encode(data),
        }))
    }
}

/// A RangeAllocation, in JSON or in upstream's protobuf.
fn decode(bytes: &Bytes) -> Result<Value, Status> {
    use apimachinery::codec::protobuf::Envelope;
    if !Envelope::is_marked(bytes) {
        return Ok(json::decode(bytes).map_err(Status::internal)?.value);
    }
    let envelope = Envelope::open(bytes).map_err(Status::internal)?;
    // RangeAllocation { 1: metadata, 2: range, 3: data }; it is in no table, since it is not served.
    let mut rest = envelope.raw;
    let mut object = json!({});
    while let Some((field, value, left)) = field(rest) {
        rest = left;
        match field {
            2 => object["range"] = String::from_utf8_lossy(value).into(),
            3 => object["data"] = STANDARD.encode(value).into(),
            _ => {}
        }
    }
    Ok(object)
}

/// One length-delimited protobuf field: its number, its bytes, and what follows.
fn field(bytes: &[u8]) -> Option<(u64, &[u8], &[u8])> {
    let (tag, rest) = varint(bytes)?;
    if tag & 7 != 2 {
        return None;
    }
    let (len, rest) = varint(rest)?;
    let len = usize::try_from(len).ok().filter(|len| *len <= rest.len())?;
    let (value, rest) = rest.split_at(len);
    Some((tag >> 3, value, rest))
}

fn varint(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let mut value = 0;
    for (at, byte) in bytes.iter().enumerate().take(10) {
        value |= u64::from(byte & 0x7f) << (7 * at);
        if byte & 0x80 == 0 {
            return Some((value, &bytes[at + 1..]));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ports() -> NodePorts {
        NodePorts::empty(30_000, 32_767, Bytes::from_static(b"key"))
    }

    #[test]
    fn a_port_is_taken_once() {
        let mut ports = ports();
        assert_eq!(ports.take(30_080), Ok(()));
        assert_eq!(ports.take(30_080), Err(PortError::Taken));
        assert_eq!(ports.take(80), Err(PortError::OutOfRange(30_000, 32_767)));
        ports.release(30_080);
        assert_eq!(ports.take(30_080), Ok(()));
    }

    #[test]
    fn any_port_comes_from_the_upper_part_first() {
        let mut ports = ports();
        for _ in 0..2768 - 86 {
            assert!(ports.take_any().unwrap() >= 30_086);
        }
        assert!(ports.take_any().unwrap() < 30_086);
        for _ in 0..85 {
            ports.take_any().unwrap();
        }
        assert_eq!(ports.take_any(), Err(PortError::Full));
    }

    #[test]
    fn the_stored_form_is_gos_big_number() {
        let mut written = ports();
        written.take(30_000).unwrap();
        written.take(30_009).unwrap();
        let stored: Value = serde_json::from_slice(&written.encode()).unwrap();
        assert_eq!(stored["range"], "30000-32767");
        assert_eq!(
            STANDARD.decode(stored["data"].as_str().unwrap()).unwrap(),
            [0b10, 0b1]
        );
        let mut read = ports();
        read.load(&stored);
        assert_eq!(read.taken(), [30_000, 30_009]);
    }
}
