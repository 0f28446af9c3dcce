//! What the zone answers about a small cluster, which other tests use, too.

use std::net::IpAddr;
use std::sync::Arc;

use hickory_proto::op::{Query, ResponseCode};
use hickory_proto::rr::{Name, RecordType};
use serde_json::json;

use crate::cluster::Cluster;
use crate::model::{EndpointSlice, Service};
use crate::zone::{Answer, Zone};

pub(crate) struct Fixture {
    pub services: Vec<Arc<Service>>,
    pub slices: Vec<Arc<EndpointSlice>>,
}

impl Cluster for Fixture {
    fn is_synced(&self) -> bool {
        true
    }
    fn has_namespace(&self, name: &str) -> bool {
        ["default", "kube-system"].contains(&name)
    }
    fn service(&self, namespace: &str, name: &str) -> Option<Arc<Service>> {
        self.services
            .iter()
            .find(|s| s.metadata.namespace == namespace && s.metadata.name == name)
            .cloned()
    }
    fn slices(&self, namespace: &str, name: &str) -> Vec<Arc<EndpointSlice>> {
        let key = Some(format!("{namespace}/{name}"));
        self.slices
            .iter()
            .filter(|s| s.service_key() == key)
            .cloned()
            .collect()
    }
    fn services_at(&self, ip: IpAddr) -> Vec<Arc<Service>> {
        self.services
            .iter()
            .filter(|s| s.cluster_addresses().contains(&ip))
            .cloned()
            .collect()
    }
    fn slices_at(&self, ip: IpAddr) -> Vec<Arc<EndpointSlice>> {
        self.slices
            .iter()
            .filter(|s| s.named_endpoints().any(|(i, _)| i == ip))
            .cloned()
            .collect()
    }
}

pub(crate) fn fixture() -> Fixture {
    let service = |name: &str, spec| {
        let (namespace, name) = name.split_once('/').unwrap();
        Arc::new(
            serde_json::from_value(
                json!({"metadata": {"namespace": namespace, "name": name}, "spec": spec}),
            )
            .unwrap(),
        )
    };
    let slice = |service: &str, ports, endpoints| {
        Arc::new(
            serde_json::from_value(json!({
                "metadata": {"namespace": "default", "name": service, "labels": {"kubernetes.io/service-name": service}},
                "ports": ports, "endpoints": endpoints}))
            .unwrap(),
        )
    };
    let many: Vec<_> = (0..100)
        .map(|i| json!({"addresses": [format!("10.244.9.{i}")]}))
        .collect();
    let http =
        json!([{"name": "http", "port": 80}, {"name": "dns", "port": 53, "protocol": "UDP"}]);
    Fixture {
        services: vec![
            service(
                "kube-system/kube-dns",
                json!({"clusterIP": "10.96.0.10", "ports": [{"name": "dns", "port": 53, "protocol": "UDP"}]}),
            ),
            service(
                "default/web",
                json!({"clusterIP": "10.96.0.7", "clusterIPs": ["10.96.0.7"], "ports": http}),
            ),
            service(
                "default/dual",
                json!({"clusterIP": "10.96.0.8", "clusterIPs": ["10.96.0.8", "fd00::8"], "ports": [{"port": 80}]}),
            ),
            service(
                "default/db",
                json!({"clusterIP": "None", "clusterIPs": ["None"], "ports": [{"name": "sql", "port": 1}]}),
            ),
            service("default/bare", json!({"clusterIP": "None"})),
            service("default/many", json!({"clusterIP": "None"})),
            service("default/idle", json!({"clusterIP": "None"})),
            service(
                "default/ext",
                json!({"type": "ExternalName", "externalName": "example.org"}),
            ),
            service(
                "default/inner",
                json!({"type": "ExternalName", "externalName": "web.default.svc.cluster.local"}),
            ),
            service(
                "default/loop",
                json!({"type": "ExternalName", "externalName": "loop.default.svc.cluster.local"}),
            ),
        ],
        slices: vec![
            slice(
                "db",
                json!([{"name": "sql", "port": 5432}]),
                json!([
                {"addresses": ["10.244.1.2"], "hostname": "db-0", "conditions": {"ready": true}},
                {"addresses": ["10.244.1.3"], "hostname": "db-1", "conditions": {"ready": false}},
                {"addresses": ["10.244.1.4"]}]),
            ),
            slice(
                "web",
                json!([{"name": "http", "port": 8080}]),
                json!([{"addresses": ["10.244.1.5"]}]),
            ),
            slice("bare", json!(null), json!([{"addresses": ["10.244.1.6"]}])),
            slice("many", json!([]), json!(many)),
        ],
    }
}

fn ask(name: &str, kind: RecordType) -> Option<Answer> {
    let zone = Zone::new("cluster.local", 5, 1).unwrap();
    zone.answer(
        &fixture(),
        &Query::query(Name::from_ascii(name).unwrap(), kind),
    )
}

#[track_caller]
fn check(name: &str, kind: RecordType, want: &[&str]) {
    let answer = ask(name, kind).expect("the name is the cluster's");
    let got: Vec<_> = answer.answers.iter().map(|r| r.data.to_string()).collect();
    assert_eq!(got, want, "{name}");
    assert_eq!(answer.code, ResponseCode::NoError);
    assert!(
        answer
            .answers
            .iter()
            .all(|r| r.name.to_ascii() == name && r.ttl == 5),
        "{:?}",
        answer.answers
    );
}

#[track_caller]
fn check_negative(name: &str, kind: RecordType, code: ResponseCode) {
    let answer = ask(name, kind).expect("the name is the cluster's");
    assert_eq!((answer.code, answer.answers.len()), (code, 0), "{name}");
    assert_eq!(answer.authorities[0].record_type(), RecordType::SOA);
}

#[test]
fn services_have_their_cluster_addresses() {
    check(
        "web.default.svc.cluster.local.",
        RecordType::A,
        &["10.96.0.7"],
    );
    check(
        "WeB.default.SVC.cluster.local.",
        RecordType::A,
        &["10.96.0.7"],
    );
    check(
        "dual.default.svc.cluster.local.",
        RecordType::AAAA,
        &["fd00::8"],
    );
    check_negative(
        "web.default.svc.cluster.local.",
        RecordType::AAAA,
        ResponseCode::NoError,
    );
    check_negative(
        "web.default.svc.cluster.local.",
        RecordType::MX,
        ResponseCode::NoError,
    );
}

#[test]
fn headless_services_have_their_ready_endpoints() {
    check(
        "db.default.svc.cluster.local.",
        RecordType::A,
        &["10.244.1.2", "10.244.1.4"],
    );
    check(
        "bare.default.svc.cluster.local.",
        RecordType::A,
        &["10.244.1.6"],
    );
    check(
        "db-0.db.default.svc.cluster.local.",
        RecordType::A,
        &["10.244.1.2"],
    );
    check(
        "10-244-1-4.db.default.svc.cluster.local.",
        RecordType::A,
        &["10.244.1.4"],
    );
    check_negative(
        "db-1.db.default.svc.cluster.local.",
        RecordType::A,
        ResponseCode::NXDomain,
    );
    check_negative(
        "idle.default.svc.cluster.local.",
        RecordType::A,
        ResponseCode::NXDomain,
    );
}

#[test]
fn named_ports_have_srv_records() {
    check(
        "_http._tcp.web.default.svc.cluster.local.",
        RecordType::SRV,
        &["0 100 80 web.default.svc.cluster.local."],
    );
    check(
        "_sql._tcp.db.default.svc.cluster.local.",
        RecordType::SRV,
        &[
            "0 50 5432 10-244-1-4.db.default.svc.cluster.local.",
            "0 50 5432 db-0.db.default.svc.cluster.local.",
        ],
    );
    check(
        "web.default.svc.cluster.local.",
        RecordType::SRV,
        &[
            "0 50 53 web.default.svc.cluster.local.",
            "0 50 80 web.default.svc.cluster.local.",
        ],
    );
    let more = ask("_sql._tcp.db.default.svc.cluster.local.", RecordType::SRV)
        .unwrap()
        .additionals;
    assert_eq!(
        more.iter().map(|r| r.data.to_string()).collect::<Vec<_>>(),
        ["10.244.1.4", "10.244.1.2"]
    );
    for name in [
        "_http._udp.web",
        "_nope._tcp.web",
        "http.tcp.web",
        "_tcp.web",
    ] {
        let name = format!("{name}.default.svc.cluster.local.");
        check_negative(&name, RecordType::SRV, ResponseCode::NXDomain);
    }
    check_negative(
        "bare.default.svc.cluster.local.",
        RecordType::SRV,
        ResponseCode::NoError,
    );
}

#[test]
fn external_names_are_aliases_to_follow() {
    check(
        "ext.default.svc.cluster.local.",
        RecordType::A,
        &["example.org."],
    );
    let answer = ask("ext.default.svc.cluster.local.", RecordType::AAAA).unwrap();
    assert_eq!(answer.follow.unwrap().to_ascii(), "example.org.");
    assert_eq!(
        ask("ext.default.svc.cluster.local.", RecordType::CNAME)
            .unwrap()
            .follow,
        None
    );
}

#[test]
fn pods_have_the_address_in_their_name_if_their_namespace_exists() {
    check(
        "10-244-1-2.default.pod.cluster.local.",
        RecordType::A,
        &["10.244.1.2"],
    );
    check(
        "fd00--2.default.pod.cluster.local.",
        RecordType::AAAA,
        &["fd00::2"],
    );
    check_negative(
        "10-244-1-2.nowhere.pod.cluster.local.",
        RecordType::A,
        ResponseCode::NXDomain,
    );
    check_negative(
        "10-244-1-300.default.pod.cluster.local.",
        RecordType::A,
        ResponseCode::NXDomain,
    );
}

#[test]
fn names_above_services_exist_and_unknown_ones_do_not() {
    for name in ["", "svc.", "pod.", "default.svc.", "default.pod."] {
        check_negative(
            &format!("{name}cluster.local."),
            RecordType::A,
            ResponseCode::NoError,
        );
    }
    for name in [
        "nope.default.svc.",
        "nowhere.svc.",
        "web.nowhere.svc.",
        "x.",
        "a.b.c.web.default.svc.",
    ] {
        check_negative(
            &format!("{name}cluster.local."),
            RecordType::A,
            ResponseCode::NXDomain,
        );
    }
}

#[test]
fn the_zone_describes_itself() {
    check("dns-version.cluster.local.", RecordType::TXT, &["1.1.0"]);
    check(
        "cluster.local.",
        RecordType::NS,
        &["kube-dns.kube-system.svc.cluster.local."],
    );
    check("ns.dns.cluster.local.", RecordType::A, &["10.96.0.10"]);
    check(
        "cluster.local.",
        RecordType::SOA,
        &["ns.dns.cluster.local. hostmaster.cluster.local. 1 7200 1800 86400 5"],
    );
}

#[test]
fn addresses_lead_back_to_names_and_foreign_ones_are_not_ours() {
    check(
        "7.0.96.10.in-addr.arpa.",
        RecordType::PTR,
        &["web.default.svc.cluster.local."],
    );
    check(
        "2.1.244.10.in-addr.arpa.",
        RecordType::PTR,
        &["db-0.db.default.svc.cluster.local."],
    );
    let v6 = "8.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.d.f.ip6.arpa.";
    check(v6, RecordType::PTR, &["dual.default.svc.cluster.local."]);
    for name in [
        "8.8.8.8.in-addr.arpa.",
        "8.8.8.in-addr.arpa.",
        "example.org.",
        "local.",
        "xcluster.local.",
    ] {
        assert_eq!(ask(name, RecordType::PTR), None, "{name}");
    }
}
