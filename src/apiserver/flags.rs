//! What `/flagz` shows of the options a server runs with: upstream's flags and their values as they are in effect, the
//! defaults too, written as Go's flags write themselves.
//!
//! **Invariant:** of keys and certificates there are paths here and never their text.

use std::collections::BTreeMap;
use std::time::Duration;

use apimachinery::time::go_duration;

use crate::options::{
    AdmissionOptions, AuthorizationMode, KubeletClientOptions, Limits, Options, Pem,
    RequestHeaderOptions, ServiceAccountOptions, StorageMediaType, StorageOptions,
};

/// Flags by name, those that were given and those that were not.
pub fn effective(options: &Options) -> BTreeMap<String, String> {
    let mut flags: BTreeMap<String, String> = options.flags.iter().cloned().collect();
    let mut set = |name: &str, value: String| {
        flags.insert(name.to_owned(), value);
    };
    serving(options, &mut set);
    service_accounts(&options.service_accounts, &mut set);
    kubelets(&options.kubelet_client, &mut set);
    admission(&options.admission, &mut set);
    storage(&options.storage, &mut set);
    limits(&options.limits, &mut set);
    request_header(&options.request_header, &mut set);
    flags
}

type Set<'a> = &'a mut dyn FnMut(&str, String);

fn serving(options: &Options, set: Set<'_>) {
    let Options {
        store: _,
        tls,
        service_accounts: _,
        kubelet_client: _,
        admission: _,
        storage: _,
        limits: _,
        authorization_modes,
        anonymous_auth,
        request_header: _,
        advertise_address,
        // That of the port this server was given is among the flags.
        advertise_port: _,
        service_cidrs,
        service_node_ports: (first, last),
        runtime_config,
        feature_gates,
        flags: _,
        in_process: _,
        identity: _,
    } = options;
    if let Some(tls) = tls {
        set("tls-cert-file", path(Some(&tls.serving.certificate)));
        set("tls-private-key-file", path(Some(&tls.serving.key)));
        set("client-ca-file", path(tls.client_ca.as_ref()));
    }
    let modes = authorization_modes.iter().map(|mode| match mode {
        AuthorizationMode::AlwaysAllow => "AlwaysAllow",
        AuthorizationMode::Node => "Node",
        AuthorizationMode::Rbac => "RBAC",
    });
    set("authorization-mode", list(modes));
    set("anonymous-auth", anonymous_auth.to_string());
    set("advertise-address", advertise_address.to_string());
    set("service-cluster-ip-range", service_cidrs.join(","));
    set("service-node-port-range", format!("{first}-{last}"));
    set("runtime-config", switches(runtime_config));
    set("feature-gates", switches(feature_gates));
}

fn service_accounts(options: &ServiceAccountOptions, set: Set<'_>) {
    let ServiceAccountOptions {
        issuers,
        audiences,
        signing_key,
        keys,
        max_expiration,
        extend_expiration,
        jwks_uri,
    } = options;
    set("service-account-issuer", list(issuers));
    set("api-audiences", list(audiences));
    set(
        "service-account-signing-key-file",
        path(signing_key.as_ref()),
    );
    let keys = keys.iter().map(|key| path(Some(key)));
    set("service-account-key-file", list(keys));
    set(
        "service-account-max-token-expiration",
        duration(max_expiration.unwrap_or_default()),
    );
    set(
        "service-account-extend-token-expiration",
        extend_expiration.to_string(),
    );
    let uri = jwks_uri.clone().unwrap_or_default();
    set("service-account-jwks-uri", uri);
}

fn kubelets(options: &KubeletClientOptions, set: Set<'_>) {
    let KubeletClientOptions {
        identity,
        ca,
        address_types,
        timeout,
    } = options;
    let certificate = identity.as_ref().map(|identity| &identity.certificate);
    let key = identity.as_ref().map(|identity| &identity.key);
    set("kubelet-client-certificate", path(certificate));
    set("kubelet-client-key", path(key));
    set("kubelet-certificate-authority", path(ca.as_ref()));
    set("kubelet-preferred-address-types", list(address_types));
    set("kubelet-timeout", duration(*timeout));
}

fn admission(options: &AdmissionOptions, set: Set<'_>) {
    let AdmissionOptions {
        default_not_ready_toleration_seconds,
        default_unreachable_toleration_seconds,
        enable,
        disable,
    } = options;
    set(
        "default-not-ready-toleration-seconds",
        default_not_ready_toleration_seconds.to_string(),
    );
    set(
        "default-unreachable-toleration-seconds",
        default_unreachable_toleration_seconds.to_string(),
    );
    set("enable-admission-plugins", list(enable));
    set("disable-admission-plugins", list(disable));
}

fn storage(options: &StorageOptions, set: Set<'_>) {
    let StorageOptions {
        media_type,
        prefix,
        compaction_interval,
        event_ttl,
    } = options;
    let media = match media_type {
        StorageMediaType::Json => "application/json",
        StorageMediaType::Protobuf => "application/vnd.kubernetes.protobuf",
    };
    set("storage-media-type", media.to_owned());
    set("etcd-prefix", prefix.clone());
    let interval = compaction_interval.unwrap_or_default();
    set("etcd-compaction-interval", duration(interval));
    set("event-ttl", duration(*event_ttl));
}

fn limits(options: &Limits, set: Set<'_>) {
    let Limits {
        requests_in_flight,
        mutating_requests_in_flight,
        priority_and_fairness,
        request_timeout,
        min_request_timeout,
        // Upstream has no flags for these.
        body_bytes: _,
        connections: _,
        handshake_timeout: _,
        shutdown_delay,
        shutdown_grace: _,
    } = options;
    set("max-requests-inflight", requests_in_flight.to_string());
    set(
        "max-mutating-requests-inflight",
        mutating_requests_in_flight.to_string(),
    );
    set(
        "enable-priority-and-fairness",
        priority_and_fairness.to_string(),
    );
    set("request-timeout", duration(*request_timeout));
    set(
        "min-request-timeout",
        min_request_timeout.as_secs().to_string(),
    );
    set("shutdown-delay-duration", duration(*shutdown_delay));
}

fn request_header(options: &RequestHeaderOptions, set: Set<'_>) {
    let RequestHeaderOptions {
        client_ca,
        allowed_names,
        username_headers,
        group_headers,
        extra_header_prefixes,
    } = options;
    set("requestheader-client-ca-file", path(client_ca.as_ref()));
    set("requestheader-allowed-names", list(allowed_names));
    set("requestheader-username-headers", list(username_headers));
    set("requestheader-group-headers", list(group_headers));
    set(
        "requestheader-extra-headers-prefix",
        list(extra_header_prefixes),
    );
}

fn path(pem: Option<&Pem>) -> String {
    let path = pem.and_then(Pem::path);
    path.map(|path| path.display().to_string())
        .unwrap_or_default()
}

fn list(items: impl IntoIterator<Item = impl AsRef<str>>) -> String {
    let items: Vec<_> = items.into_iter().collect();
    let items: Vec<&str> = items.iter().map(AsRef::as_ref).collect();
    format!("[{}]", items.join(","))
}

fn switches(switches: &BTreeMap<String, bool>) -> String {
    let pairs: Vec<String> = switches
        .iter()
        .map(|(name, on)| format!("{name}={on}"))
        .collect();
    pairs.join(",")
}

fn duration(duration: Duration) -> String {
    go_duration(i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::{KeyPair, TlsOptions};
    use store::embedded::Embedded;

    #[test]
    fn flags_that_were_not_given_have_their_defaults_and_secrets_are_not_told() {
        let mut options = Options::new(Embedded::in_memory());
        options.flags = vec![
            ("secure-port".to_owned(), "6443".to_owned()),
            ("event-ttl".to_owned(), String::new()),
        ];
        options
            .feature_gates
            .insert("EmptyDirVolumeMode".to_owned(), true);
        options.tls = Some(TlsOptions {
            serving: KeyPair {
                certificate: Pem::File("/pki/apiserver.crt".into()),
                key: Pem::Bytes(b"a secret".to_vec()),
            },
            client_ca: None,
        });
        let flags = effective(&options);
        for (name, value) in [
            ("secure-port", "6443"),
            ("event-ttl", "1h0m0s"),
            ("authorization-mode", "[Node,RBAC]"),
            ("anonymous-auth", "true"),
            ("service-cluster-ip-range", "10.96.0.0/16"),
            ("service-node-port-range", "30000-32767"),
            ("feature-gates", "EmptyDirVolumeMode=true"),
            ("enable-admission-plugins", "[]"),
            ("max-requests-inflight", "400"),
            ("min-request-timeout", "1800"),
            ("etcd-compaction-interval", "5m0s"),
            ("tls-cert-file", "/pki/apiserver.crt"),
            ("tls-private-key-file", ""),
        ] {
            assert_eq!(flags.get(name).map(String::as_str), Some(value), "{name}");
        }
        assert!(!flags.values().any(|value| value.contains("secret")));
    }
}
