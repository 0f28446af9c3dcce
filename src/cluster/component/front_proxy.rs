//! Front proxies: who calls is in headers, believed if the connection's certificate is one of theirs
//! (apiserver/pkg/authentication/request/headerrequest).

use std::collections::BTreeMap;
use std::sync::Arc;

use apimachinery::Value;
use client::delegation::{AUTHENTICATED, Caller};
use http::HeaderMap;
use parking_lot::RwLock;
use rustls::pki_types::CertificateDer;

use super::tls::Authorities;

/// Which front proxies are believed, and where they say who calls; none at first. Clones share it.
#[derive(Clone, Default)]
pub struct FrontProxies {
    authorities: Authorities,
    told: Arc<RwLock<Told>>,
}

#[derive(Clone, Debug, Default)]
struct Told {
    /// CNs of their certificates; empty is any.
    names: Vec<String>,
    user: Vec<String>,
    uid: Vec<String>,
    group: Vec<String>,
    extra_prefixes: Vec<String>,
}

impl FrontProxies {
    /// Takes what the API server tells in the data of a ConfigMap.
    ///
    /// # Errors
    ///
    /// The authorities cannot be read; nobody is believed then.
    pub fn set(&self, data: &Value) -> Result<(), String> {
        let list = |key: &str| -> Vec<String> {
            let text = data[key].as_str().unwrap_or("[]");
            serde_json::from_str(text).unwrap_or_default()
        };
        *self.told.write() = Told {
            names: list("requestheader-allowed-names"),
            user: list("requestheader-username-headers"),
            uid: list("requestheader-uid-headers"),
            group: list("requestheader-group-headers"),
            extra_prefixes: list("requestheader-extra-headers-prefix"),
        };
        self.authorities.clear();
        match data["requestheader-client-ca-file"].as_str() {
            Some(pem) => self.authorities.set(pem),
            None => Ok(()),
        }
    }

    /// Whom a front proxy says it speaks for; `None` if it is no front proxy, or does not say.
    pub fn caller(&self, chain: &[CertificateDer<'static>], headers: &HeaderMap) -> Option<Caller> {
        let told = self.told.read().clone();
        let name = first(headers, &told.user)?;
        if !self.authorities.trust(chain) {
            return None;
        }
        let proxy = Caller::of_certificate(chain.first()?);
        let is_named = |proxy: Caller| told.names.contains(&proxy.name);
        if !told.names.is_empty() && !proxy.is_some_and(is_named) {
            return None;
        }
        let all = told.group.iter().flat_map(|header| headers.get_all(header));
        let groups = all.filter_map(|value| value.to_str().ok());
        let mut groups: Vec<String> = groups.map(str::to_owned).collect();
        if !groups.iter().any(|group| group == AUTHENTICATED) {
            groups.push(AUTHENTICATED.to_owned());
        }
        Some(Caller {
            name,
            uid: first(headers, &told.uid).unwrap_or_default(),
            groups,
            extra: extra(headers, &told.extra_prefixes),
        })
    }
}

/// The first of the headers that says anything.
fn first(headers: &HeaderMap, names: &[String]) -> Option<String> {
    let values = names
        .iter()
        .filter_map(|name| headers.get(name)?.to_str().ok());
    values.map(str::to_owned).find(|value| !value.is_empty())
}

/// What follows a prefix is the key, whose bytes may be escaped as in URLs.
fn extra(headers: &HeaderMap, prefixes: &[String]) -> BTreeMap<String, Vec<String>> {
    let mut extra: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (name, value) in headers {
        let mut keys = prefixes.iter().filter_map(|prefix| {
            let prefix = prefix.to_ascii_lowercase();
            name.as_str().strip_prefix(prefix.as_str())
        });
        if let (Some(key), Ok(value)) = (keys.next(), value.to_str()) {
            extra
                .entry(unescape(key))
                .or_default()
                .push(value.to_owned());
        }
    }
    extra
}

/// `%2f` is a slash; what is no such escape stays as it is.
fn unescape(key: &str) -> String {
    let (mut bytes, mut rest) = (Vec::new(), key.as_bytes());
    while let Some((byte, after)) = rest.split_first() {
        let code = after.get(..2).filter(|_| *byte == b'%');
        let code = code.and_then(|hex| std::str::from_utf8(hex).ok());
        match code.and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
            Some(escaped) => {
                bytes.push(escaped);
                rest = &after[2..];
            }
            None => {
                bytes.push(*byte);
                rest = after;
            }
        }
    }
    String::from_utf8(bytes).unwrap_or_else(|_| key.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::{HeaderName, HeaderValue};
    use serde_json::json;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let pairs = pairs.iter().map(|(name, value)| {
            (
                HeaderName::from_static(name),
                HeaderValue::from_static(value),
            )
        });
        let mut all = HeaderMap::new();
        for (name, value) in pairs {
            all.append(name, value);
        }
        all
    }

    #[test]
    fn a_front_proxy_is_believed_if_its_authority_and_its_name_are_known() {
        let (authority, (chain, _)) = super::super::tests::master();
        let proxies = FrontProxies::default();
        let sent = headers(&[
            ("x-remote-user", "jane"),
            ("x-remote-group", "dev"),
            ("x-remote-group", "ops"),
            ("x-remote-extra-acme.com%2fproject", "a"),
        ]);
        assert_eq!(proxies.caller(&chain, &sent), None);
        let mut data = json!({
            "requestheader-client-ca-file": authority,
            "requestheader-allowed-names": "[\"front-proxy-client\"]",
            "requestheader-username-headers": "[\"X-Remote-User\"]",
            "requestheader-group-headers": "[\"X-Remote-Group\"]",
            "requestheader-extra-headers-prefix": "[\"X-Remote-Extra-\"]",
        });
        proxies.set(&data).expect("an authority");
        assert_eq!(proxies.caller(&chain, &sent), None, "it is called admin");
        data["requestheader-allowed-names"] = json!("[\"x\",\"admin\"]");
        proxies.set(&data).expect("an authority");
        let caller = proxies.caller(&chain, &sent).expect("a caller");
        assert_eq!(caller.name, "jane");
        assert_eq!(caller.groups, ["dev", "ops", AUTHENTICATED]);
        assert_eq!(caller.extra["acme.com/project"], ["a"]);
        assert_eq!(proxies.caller(&chain, &headers(&[])), None);
        assert_eq!(proxies.caller(&[], &sent), None);
        data["requestheader-client-ca-file"] = Value::Null;
        proxies.set(&data).expect("nobody");
        assert_eq!(proxies.caller(&chain, &sent), None);
    }

    #[test]
    fn only_whole_escapes_are_undone() {
        for (given, expected) in [
            ("a%2fb", "a/b"),
            ("a%2", "a%2"),
            ("%zz", "%zz"),
            ("a%ff", "a%ff"),
        ] {
            assert_eq!(unescape(given), expected);
        }
    }
}
