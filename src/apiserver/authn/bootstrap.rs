//! Bootstrap tokens (`abcdef.0123456789abcdef`), kept as Secrets in kube-system, with which a node asks for its certificate.

use apimachinery::Value;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use super::token::Refusal;
use crate::backend::Backend;
use crate::request::UserInfo;

const GROUP: &str = "system:bootstrappers";
const SECRET_TYPE: &str = "bootstrap.kubernetes.io/token";

/// Whether it has a bootstrap token's form: six and sixteen lower-case letters or digits.
pub fn looks_like(token: &str) -> bool {
    let is_code = |text: &str, length: usize| {
        text.len() == length
            && text
                .bytes()
                .all(|byte| byte.is_ascii_digit() || byte.is_ascii_lowercase())
    };
    token
        .split_once('.')
        .is_some_and(|(id, secret)| is_code(id, 6) && is_code(secret, 16))
}

/// The user a valid token stands for. `now` in seconds since 1970.
pub async fn verify(token: &str, backend: &dyn Backend, now: i64) -> Result<UserInfo, Refusal> {
    let (id, secret) = token.split_once('.').ok_or(Refusal::NotOurs)?;
    let name = format!("bootstrap-token-{id}");
    let object = backend
        .find("", "secrets", "kube-system", &name)
        .await
        .map_err(|_| Refusal::Unavailable)?
        .ok_or(Refusal::NotOurs)?;
    user(&object, id, secret, now)
}

fn user(object: &Value, id: &str, secret: &str, now: i64) -> Result<UserInfo, Refusal> {
    let data = |key: &str| {
        object["data"][key]
            .as_str()
            .and_then(|text| STANDARD.decode(text).ok())
            .and_then(|bytes| String::from_utf8(bytes).ok())
            .unwrap_or_default()
    };
    let deleted = !object["metadata"]["deletionTimestamp"].is_null();
    let same = aws_lc_rs::constant_time::verify_slices_are_equal(
        data("token-secret").as_bytes(),
        secret.as_bytes(),
    )
    .is_ok();
    let is_token = object["type"].as_str() == Some(SECRET_TYPE);
    if deleted || !is_token || !same || data("token-id") != id {
        return Err(Refusal::NotOurs);
    }
    let expiration = data("expiration");
    if !expiration.is_empty() {
        let expires = apimachinery::time::parse(&expiration).ok_or(Refusal::NotOurs)?;
        if expires.unix_timestamp() <= now {
            return Err(Refusal::Expired);
        }
    }
    if data("usage-bootstrap-authentication") != "true" {
        return Err(Refusal::NotOurs);
    }
    let extra = data("auth-extra-groups");
    let mut groups = vec![GROUP];
    groups.extend(extra.split(',').filter(|group| !group.is_empty()));
    if groups.iter().any(|group| !group.starts_with(GROUP)) {
        return Err(Refusal::NotOurs);
    }
    Ok(UserInfo::new(format!("system:bootstrap:{id}"), groups))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn secret(expiration: &str) -> Value {
        let encode = |text: &str| STANDARD.encode(text);
        json!({"type": SECRET_TYPE, "metadata": {}, "data": {
            "token-id": encode("abcdef"),
            "token-secret": encode("0123456789abcdef"),
            "usage-bootstrap-authentication": encode("true"),
            "expiration": encode(expiration),
            "auth-extra-groups": encode("system:bootstrappers:kubeadm:default-node-token"),
        }})
    }

    #[test]
    fn only_the_form_of_a_bootstrap_token_is_taken_for_one() {
        assert!(looks_like("abcdef.0123456789abcdef"));
        assert!(!looks_like("abcdef.0123456789ABCDEF"));
        assert!(!looks_like("a.b.c"));
    }

    #[test]
    fn a_valid_token_is_a_bootstrapper() {
        let user = user(
            &secret("2100-01-01T00:00:00Z"),
            "abcdef",
            "0123456789abcdef",
            0,
        )
        .expect("a user");
        assert_eq!(user.name, "system:bootstrap:abcdef");
        assert!(user.is_in(GROUP) && user.is_in(UserInfo::AUTHENTICATED));
    }

    #[test]
    fn an_expired_or_wrong_token_is_refused() {
        let old = secret("2000-01-01T00:00:00Z");
        assert_eq!(
            user(&old, "abcdef", "0123456789abcdef", 2_000_000_000),
            Err(Refusal::Expired)
        );
        assert_eq!(
            user(&secret(""), "abcdef", "0123456789abcdeg", 0),
            Err(Refusal::NotOurs)
        );
    }
}
