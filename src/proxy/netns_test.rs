//! The proxy against a real kernel: a node with two pods and a neighbour outside, in network namespaces.
//!
//! ```text
//! outside 192.0.2.2 ── 192.0.2.1 node 10.244.1.1 (bridge) ┬─ 10.244.1.2 pod a
//!                                                         └─ 10.244.1.3 pod b
//! ```
//! Needs root, `ip` and `nft`; says so and passes where they are missing.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::Command;
use std::time::Duration;

use nix::sched::{CloneFlags, setns};
use serde_json::{Value, json};

use crate::endpoints::NodeInfo;
use crate::health::{Health, ServicePorts};
use crate::model::{EndpointSlice, Service};
use crate::proxier::Proxier;
use crate::ruleset::Options;

const TIMEOUT: Duration = Duration::from_millis(1500);

struct Lab {
    prefix: String,
}

impl Lab {
    fn make(name: &str) -> Option<Self> {
        let has = |tool: &str| Command::new(tool).arg("-V").output().is_ok();
        if !nix::unistd::geteuid().is_root() || !has("ip") || !has("nft") {
            println!("skipped: needs root, ip and nft");
            return None;
        }
        let lab = Self {
            prefix: format!("skiff-{name}-{}", std::process::id()),
        };
        for ns in ["node", "a", "b", "out"] {
            ip(&format!("netns add {}", lab.ns(ns)));
            ip(&format!("-n {} link set lo up", lab.ns(ns)));
        }
        let node = lab.ns("node");
        ip(&format!("-n {node} link add br0 type bridge"));
        ip(&format!("-n {node} addr add 10.244.1.1/24 dev br0"));
        ip(&format!("-n {node} link set br0 up"));
        for (ns, address, gateway) in [
            ("a", "10.244.1.2/24", "10.244.1.1"),
            ("b", "10.244.1.3/24", "10.244.1.1"),
            ("out", "192.0.2.2/24", "192.0.2.1"),
        ] {
            let peer = lab.ns(ns);
            ip(&format!(
                "-n {node} link add name to-{ns} type veth peer name eth0 netns {peer}"
            ));
            ip(&format!("-n {node} link set to-{ns} up"));
            if ns == "out" {
                ip(&format!("-n {node} addr add 192.0.2.1/24 dev to-out"));
            } else {
                ip(&format!("-n {node} link set to-{ns} master br0"));
                ip(&format!(
                    "-n {node} link set to-{ns} type bridge_slave hairpin on"
                ));
            }
            ip(&format!("-n {peer} addr add {address} dev eth0"));
            ip(&format!("-n {peer} link set eth0 up"));
            ip(&format!("-n {peer} route add default via {gateway}"));
        }
        // A node needs some route for its own connections to cluster addresses to be rewritten at all.
        ip(&format!("-n {node} route add default via 192.0.2.2"));
        lab.within("node", || {
            std::fs::write("/proc/sys/net/ipv4/ip_forward", "1").unwrap()
        });
        Some(lab)
    }

    fn ns(&self, name: &str) -> String {
        format!("{}-{name}", self.prefix)
    }

    fn within<T: Send>(&self, ns: &str, work: impl FnOnce() -> T + Send) -> T {
        let file = File::open(format!("/run/netns/{}", self.ns(ns))).unwrap();
        std::thread::scope(|scope| {
            let inside = scope.spawn(|| {
                setns(file, CloneFlags::CLONE_NEWNET).unwrap();
                work()
            });
            inside.join().unwrap()
        })
    }

    /// Serves TCP and UDP: the answer is `<ns> <address of the caller>`.
    fn serve(&self, ns: &'static str, port: u16) {
        let any = SocketAddr::from((Ipv4Addr::UNSPECIFIED, port));
        let (tcp, udp) = self.within(ns, || {
            (
                TcpListener::bind(any).unwrap(),
                UdpSocket::bind(any).unwrap(),
            )
        });
        std::thread::spawn(move || {
            for mut stream in tcp.incoming().flatten() {
                let peer = stream.peer_addr().unwrap().ip();
                std::thread::spawn(move || {
                    // One answer a byte, so that a connection can be kept open and tried again.
                    while stream.read_exact(&mut [0]).is_ok() {
                        if stream
                            .write_all(format!("{ns} {peer}\n").as_bytes())
                            .is_err()
                        {
                            return;
                        }
                    }
                });
            }
        });
        std::thread::spawn(move || {
            let mut buffer = [0; 64];
            while let Ok((_, from)) = udp.recv_from(&mut buffer) {
                let _ = udp.send_to(format!("{ns} {}\n", from.ip()).as_bytes(), from);
            }
        });
    }

    fn call(&self, from: &str, to: &str) -> io::Result<String> {
        self.within(from, || ask(&mut connect(to)?))
    }

    fn sync(&self, proxier: &mut Proxier, services: &[Service], slices: &[EndpointSlice]) {
        self.within("node", || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            let node = NodeInfo {
                name: "n1".into(),
                zone: None,
            };
            runtime
                .block_on(proxier.sync(services, slices, &node))
                .unwrap();
        });
    }

    fn listing(&self) -> String {
        let output = self.within("node", || {
            Command::new("nft")
                .args(["list", "ruleset"])
                .output()
                .unwrap()
        });
        String::from_utf8(output.stdout).unwrap()
    }

    fn answers(&self, from: &str, to: &str, times: usize) -> BTreeSet<String> {
        (0..times)
            .map(|_| {
                self.call(from, to)
                    .unwrap()
                    .split(' ')
                    .next()
                    .unwrap()
                    .to_owned()
            })
            .collect()
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        for ns in ["node", "a", "b", "out"] {
            let _ = Command::new("ip")
                .args(["netns", "del", &self.ns(ns)])
                .status();
        }
    }
}

#[track_caller]
fn ip(command: &str) {
    let output = Command::new("ip")
        .args(command.split(' '))
        .output()
        .unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "ip {command}: {error}");
}

fn connect(to: &str) -> io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&to.parse().unwrap(), TIMEOUT)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    Ok(stream)
}

fn ask(stream: &mut TcpStream) -> io::Result<String> {
    stream.write_all(b"?")?;
    let mut buffer = [0; 64];
    let count = stream.read(&mut buffer)?;
    Ok(String::from_utf8_lossy(&buffer[..count]).trim().to_owned())
}

fn service(name: &str, spec: Value) -> Service {
    serde_json::from_value(
        json!({"metadata": {"name": name, "namespace": "default"}, "spec": spec}),
    )
    .unwrap()
}

fn slice(name: &str, protocol: &str, endpoints: Value) -> EndpointSlice {
    serde_json::from_value(json!({
        "metadata": {"name": name, "namespace": "default", "labels": {"kubernetes.io/service-name": name}},
        "addressType": "IPv4", "ports": [{"name": "", "port": 8080, "protocol": protocol}], "endpoints": endpoints,
    }))
    .unwrap()
}

fn both() -> Value {
    json!([{"addresses": ["10.244.1.2"], "nodeName": "n1"}, {"addresses": ["10.244.1.3"], "nodeName": "n1"}])
}

fn proxier() -> Proxier {
    let options = Options {
        cluster_cidrs: vec!["10.244.0.0/16".parse().unwrap()],
        ..Options::default()
    };
    let health = Health::default();
    Proxier::new(
        options,
        health.clone(),
        ServicePorts::new(health, Ipv4Addr::LOCALHOST.into()),
    )
}

fn refused(result: io::Result<String>) {
    assert_eq!(result.unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
}

fn times_out(result: io::Result<String>) {
    let kind = result.unwrap_err().kind();
    assert!(
        matches!(kind, io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock),
        "{kind:?}"
    );
}

fn set(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|n| (*n).to_owned()).collect()
}

#[test]
fn services_are_reached_from_pods_from_the_node_and_from_outside() {
    let Some(lab) = Lab::make("reach") else {
        return;
    };
    lab.serve("a", 8080);
    lab.serve("b", 8080);
    let mut proxier = proxier();
    let web = service(
        "web",
        json!({"type": "NodePort", "clusterIP": "10.96.0.7", "externalIPs": ["198.51.100.7"],
               "ports": [{"port": 80, "nodePort": 30080}]}),
    );
    lab.sync(&mut proxier, &[web], &[slice("web", "TCP", both())]);

    // A pod, itself an endpoint, so that some of its connections come back to it.
    assert_eq!(lab.answers("a", "10.96.0.7:80", 20), set(&["a", "b"]));
    assert_eq!(lab.answers("node", "10.96.0.7:80", 20), set(&["a", "b"]));
    // Every address of the node.
    for address in ["192.0.2.1:30080", "10.244.1.1:30080"] {
        assert_eq!(
            lab.answers("out", address, 20),
            set(&["a", "b"]),
            "{address}"
        );
        assert_eq!(
            lab.answers("node", address, 20),
            set(&["a", "b"]),
            "{address}"
        );
    }
    assert_eq!(lab.answers("out", "198.51.100.7:80", 20), set(&["a", "b"]));
    // Masqueraded from outside, and a pod sees pods.
    assert!(
        lab.call("out", "192.0.2.1:30080")
            .unwrap()
            .ends_with(" 10.244.1.1")
    );
    let from_a: BTreeSet<_> = (0..20)
        .map(|_| lab.call("a", "10.96.0.7:80").unwrap())
        .collect();
    assert_eq!(from_a, set(&["a 10.244.1.1", "b 10.244.1.2"]));
    // A port that the Service has not.
    refused(lab.call("a", "10.96.0.7:81"));
    refused(lab.call("node", "10.96.0.7:81"));
}

#[test]
fn a_service_without_endpoints_is_refused_at_once() {
    let Some(lab) = Lab::make("refuse") else {
        return;
    };
    let mut proxier = proxier();
    let web = service(
        "web",
        json!({"clusterIP": "10.96.0.7", "ports": [{"port": 80, "nodePort": 30080}]}),
    );
    lab.sync(&mut proxier, &[web], &[]);
    refused(lab.call("a", "10.96.0.7:80"));
    refused(lab.call("node", "10.96.0.7:80"));
    refused(lab.call("out", "192.0.2.1:30080"));
}

#[test]
fn the_policy_local_keeps_the_caller_s_address_and_never_leaves_the_node() {
    let Some(lab) = Lab::make("local") else {
        return;
    };
    lab.serve("a", 8080);
    lab.serve("b", 8080);
    let mut proxier = proxier();
    let web = service(
        "web",
        json!({"clusterIP": "10.96.0.7", "ports": [{"port": 80, "nodePort": 30080}],
               "externalTrafficPolicy": "Local", "internalTrafficPolicy": "Local"}),
    );
    let one_here = json!([{"addresses": ["10.244.1.2"], "nodeName": "n1"}, {"addresses": ["10.244.1.3"], "nodeName": "n2"}]);
    lab.sync(
        &mut proxier,
        std::slice::from_ref(&web),
        &[slice("web", "TCP", one_here)],
    );
    assert_eq!(lab.call("out", "192.0.2.1:30080").unwrap(), "a 192.0.2.2");
    assert_eq!(lab.answers("b", "10.96.0.7:80", 10), set(&["a"]));
    // The node itself and pods are inside: they get any endpoint.
    assert_eq!(lab.answers("node", "192.0.2.1:30080", 20), set(&["a", "b"]));

    let none_here = json!([{"addresses": ["10.244.1.3"], "nodeName": "n2"}]);
    lab.sync(&mut proxier, &[web], &[slice("web", "TCP", none_here)]);
    times_out(lab.call("out", "192.0.2.1:30080"));
    times_out(lab.call("a", "10.96.0.7:80"));
}

#[test]
fn a_client_sticks_to_its_endpoint_even_over_a_restart_of_the_proxy() {
    let Some(lab) = Lab::make("sticky") else {
        return;
    };
    lab.serve("a", 8080);
    lab.serve("b", 8080);
    let web = service(
        "web",
        json!({"clusterIP": "10.96.0.7", "ports": [{"port": 80}], "sessionAffinity": "ClientIP",
               "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 1}}}),
    );
    let endpoints = slice("web", "TCP", both());
    lab.sync(
        &mut proxier(),
        std::slice::from_ref(&web),
        std::slice::from_ref(&endpoints),
    );
    let first = lab.answers("out", "10.96.0.7:80", 20);
    assert_eq!(first.len(), 1);
    lab.sync(&mut proxier(), &[web], &[endpoints]);
    assert_eq!(lab.answers("out", "10.96.0.7:80", 20), first);
    let mut seen = first;
    for _ in 0..12 {
        std::thread::sleep(Duration::from_millis(1100));
        seen.extend(lab.answers("out", "10.96.0.7:80", 1));
        if seen.len() == 2 {
            return;
        }
    }
    panic!("the affinity never timed out");
}

#[test]
fn connections_live_through_updates_restarts_and_a_flushed_table() {
    let Some(lab) = Lab::make("live") else { return };
    lab.serve("a", 8080);
    lab.serve("b", 8080);
    let web = service(
        "web",
        json!({"clusterIP": "10.96.0.7", "ports": [{"port": 80}]}),
    );
    let other = service(
        "other",
        json!({"clusterIP": "10.96.0.8", "ports": [{"port": 80}]}),
    );
    let endpoints = [slice("web", "TCP", both()), slice("other", "TCP", both())];
    let mut first = proxier();
    lab.sync(&mut first, std::slice::from_ref(&web), &endpoints);
    let mut open = lab.within("out", || connect("10.96.0.7:80")).unwrap();
    ask(&mut open).unwrap();

    lab.sync(&mut first, &[web.clone(), other.clone()], &endpoints);
    assert_eq!(lab.answers("out", "10.96.0.8:80", 20), set(&["a", "b"]));
    lab.sync(&mut first, std::slice::from_ref(&web), &endpoints);
    assert!(!lab.listing().contains("other"), "{}", lab.listing());
    refused_or_lost(lab.call("a", "10.96.0.8:80"));

    let mut second = proxier();
    lab.sync(&mut second, &[web.clone(), other.clone()], &endpoints);
    assert_eq!(lab.answers("out", "10.96.0.8:80", 20), set(&["a", "b"]));

    lab.within("node", || {
        Command::new("nft")
            .args(["flush", "ruleset"])
            .status()
            .unwrap()
    });
    lab.sync(&mut second, std::slice::from_ref(&web), &endpoints);
    assert_eq!(lab.answers("out", "10.96.0.7:80", 20), set(&["a", "b"]));
    ask(&mut open).unwrap();

    // A table of the same name but another make, as upstream's is.
    lab.within("node", || {
        let script = "delete table ip kube-proxy; add table ip kube-proxy; \
            add chain ip kube-proxy nat-output { type nat hook output priority 0; }; \
            add map ip kube-proxy service-ips { type ipv4_addr : verdict; }; \
            add chain ip kube-proxy theirs; add rule ip kube-proxy theirs drop; \
            add element ip kube-proxy service-ips { 10.96.0.7 : goto theirs }";
        assert!(Command::new("nft").arg(script).status().unwrap().success());
    });
    lab.sync(&mut proxier(), &[web], &endpoints);
    assert_eq!(lab.answers("out", "10.96.0.7:80", 20), set(&["a", "b"]));
    assert!(!lab.listing().contains("theirs"));

    lab.within("node", || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(crate::cleanup()).unwrap();
        runtime.block_on(crate::cleanup()).unwrap();
    });
    assert_eq!(lab.listing(), "");
}

fn refused_or_lost(result: io::Result<String>) {
    assert!(result.is_err());
}

#[test]
fn a_udp_client_that_keeps_its_port_follows_the_endpoints() {
    let Some(lab) = Lab::make("udp") else { return };
    lab.serve("a", 8080);
    lab.serve("b", 8080);
    let mut proxier = proxier();
    let dns = service(
        "dns",
        json!({"clusterIP": "10.96.0.10", "ports": [{"port": 53, "nodePort": 30053, "protocol": "UDP"}]}),
    );
    let only = |ip: &str| {
        [slice(
            "dns",
            "UDP",
            json!([{"addresses": [ip], "nodeName": "n1"}]),
        )]
    };
    let sockets = ["out", "node"].map(|ns| {
        lab.within(ns, || {
            let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
            socket.set_read_timeout(Some(TIMEOUT)).unwrap();
            socket
        })
    });
    let ask = |socket: &UdpSocket, to: &str| {
        let mut buffer = [0; 64];
        socket.send_to(b"?", to)?;
        let count = socket.recv(&mut buffer)?;
        io::Result::Ok(
            String::from_utf8_lossy(&buffer[..count])
                .split(' ')
                .next()
                .unwrap()
                .to_owned(),
        )
    };
    let addresses = ["10.96.0.10:53", "192.0.2.1:30053"];
    // Sent before there is any Service: conntrack has an entry without rewriting.
    for (socket, to) in sockets.iter().flat_map(|s| addresses.map(|a| (s, a))) {
        let _ = ask(socket, to);
    }
    for (endpoint, name) in [("10.244.1.2", "a"), ("10.244.1.3", "b")] {
        lab.sync(&mut proxier, std::slice::from_ref(&dns), &only(endpoint));
        for (socket, to) in sockets.iter().flat_map(|s| addresses.map(|a| (s, a))) {
            assert_eq!(ask(socket, to).unwrap(), name, "{to}");
        }
    }
    lab.sync(&mut proxier, &[], &[]);
    for socket in &sockets {
        assert!(ask(socket, addresses[0]).is_err());
    }
}

#[test]
fn the_kernel_takes_every_kind_of_rule_in_both_families() {
    let Some(lab) = Lab::make("kinds") else {
        return;
    };
    let mut web = service(
        "web",
        json!({"type": "LoadBalancer", "clusterIPs": ["10.96.0.7", "fd00:96::7"], "externalTrafficPolicy": "Local",
               "externalIPs": ["198.51.100.7", "2001:db8::7"], "sessionAffinity": "ClientIP",
               "loadBalancerSourceRanges": ["192.0.2.0/24", "192.0.2.0/25", "2001:db8::/32"],
               "ports": [{"port": 80, "nodePort": 30080}]}),
    );
    let ingress =
        json!({"loadBalancer": {"ingress": [{"ip": "198.51.100.8"}, {"ip": "2001:db8::8"}]}});
    web.status = serde_json::from_value(ingress).unwrap();
    let mut sticky6 = slice(
        "web",
        "TCP",
        json!([{"addresses": ["fd00:244::2"], "nodeName": "n1"}]),
    );
    sticky6.address_type = "IPv6".into();
    let plain = service(
        "plain",
        json!({"clusterIPs": ["fd00:96::8"], "ports": [{"port": 80, "protocol": "SCTP"}]}),
    );
    let many: Vec<_> = (2..20)
        .map(|i| json!({"addresses": [format!("fd00:244::{i}")]}))
        .collect();
    let mut plain6 = slice("plain", "SCTP", json!(many));
    plain6.address_type = "IPv6".into();
    let many4: Vec<_> = (2..20)
        .map(|i| json!({"addresses": [format!("10.244.1.{i}")], "nodeName": "n1"}))
        .collect();
    let slices = [slice("web", "TCP", json!(many4)), sticky6, plain6];

    let cidrs = ["10.244.0.0/16", "fd00:244::/64"]
        .map(|c| c.parse().unwrap())
        .to_vec();
    let options = Options {
        cluster_cidrs: cidrs.clone(),
        masquerade_all: false,
        nodeport_cidrs: cidrs,
    };
    let health = Health::default();
    let ports = ServicePorts::new(health.clone(), Ipv4Addr::LOCALHOST.into());
    let mut proxier = Proxier::new(options, health, ports);
    lab.sync(&mut proxier, &[web, plain], &slices);
    let listing = lab.listing();
    for part in [
        "table ip kube-proxy",
        "table ip6 kube-proxy",
        "firewall-default/web/tcp/",
        "fd00:244::3 . 8080",
    ] {
        assert!(listing.contains(part), "{part}: {listing}");
    }
    lab.sync(&mut proxier, &[], &[]);
    assert!(!lab.listing().contains("default/"), "{}", lab.listing());
}
