//! Inputs made to cost more than their size: as long as the server lets them be, and of the shape that makes a careless
//! decoder slow, deep or large.

use serde_json::{Value, json};

use super::objects::{cut, mk_pod};

/// Hostile inputs of a target, each with what it tries.
pub fn inputs(target: &str, longest: usize) -> Vec<(&'static str, Vec<u8>)> {
    match target {
        "json" => json_inputs(longest),
        "yaml" => yaml_inputs(longest),
        "protobuf" => protobuf_inputs(longest),
        "json_patch" => json_patches(longest),
        "merge_patch" | "strategic_patch" | "apply" => patches(longest),
        "cel" => expressions(longest),
        _ => texts(longest),
    }
}

/// As many repetitions as fit.
fn fill(part: &str, longest: usize) -> String {
    part.repeat(longest / part.len().max(1))
}

fn json_inputs(longest: usize) -> Vec<(&'static str, Vec<u8>)> {
    let deep = |open: &str| open.repeat(longest / open.len());
    let nested = 400;
    let repeated = format!(
        "{}{}{}",
        "{\"a\":".repeat(nested),
        format_args!("{{{}\"b\":1}}", fill("\"a\":1,", longest / 2)),
        "}".repeat(nested)
    );
    let long_key = format!(
        "{{\"{}\":{{{}\"b\":1}}}}",
        "k".repeat(longest / 2),
        fill("\"a\":1,", longest / 3)
    );
    let many_repeats = (0..longest / 40)
        .map(|n| format!("\"k{n}\":1,\"k{n}\":2,"))
        .collect::<String>();
    let pod = |field: &str, item: &str| {
        let items = fill(item, longest - 200);
        format!(
            "{{\"apiVersion\":\"v1\",\"kind\":\"Pod\",\"metadata\":{{\"name\":\"a\"}},\"spec\":{{\"{field}\":[{}]}}}}",
            items.trim_end_matches(',')
        )
    };
    vec![
        ("arrays that never end", deep("[").into()),
        ("objects that never end", deep("{\"\":").into()),
        ("a deep field repeated", repeated.into()),
        ("a repeated field below a long key", long_key.into()),
        ("many repeated fields", format!("{{{many_repeats}\"z\":0}}").into()),
        ("a list of small objects", format!("[{}{{}}]", fill("{\"\":0},", longest / 2)).into()),
        ("digits", "9".repeat(longest).into()),
        ("digits behind the point", format!("0.{}", "3".repeat(longest)).into()),
        ("escapes", format!("\"{}\"", fill("\\ud83d\\ude00", longest - 2)).into()),
        ("bytes that are no text", vec![0xff; longest]),
        ("items of a keyed list that are one", pod("containers", "{\"name\":\"a\"},").into()),
        ("unknown fields", pod("containers", "{\"x\":1,\"y\":2},").into()),
        (
            "finalizers that are one",
            format!(
                "{{\"apiVersion\":\"v1\",\"kind\":\"Pod\",\"metadata\":{{\"name\":\"a\",\"finalizers\":[{}\"a\"]}}}}",
                fill("\"a\",", longest - 200)
            )
            .into(),
        ),
        ("items of a keyed list", mk_pod(json!({"containers": named(longest / 20)})).to_string().into()),
    ]
}

fn named(count: usize) -> Vec<Value> {
    (0..count)
        .map(|n| json!({"name": format!("n{n}")}))
        .collect()
}

fn yaml_inputs(longest: usize) -> Vec<(&'static str, Vec<u8>)> {
    let mut laughs = String::from("a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n");
    for level in 1..12 {
        let aliases = vec![format!("*a{}", level - 1); 10].join(",");
        laughs.push_str(&format!("a{level}: &a{level} [{aliases}]\n"));
    }
    let long = format!(
        "a: &a {}\nb:\n{}",
        "x".repeat(longest / 2),
        fill("- *a\n", longest / 3)
    );
    let mut anchors = String::new();
    for number in 0..100 {
        anchors.push_str(&format!(
            "k{number}: &k{number} {}\n",
            "x".repeat(longest / 300)
        ));
    }
    anchors.push_str("b:\n");
    for number in 0..longest / 12 {
        anchors.push_str(&format!("- *k{}\n", number % 100));
    }
    vec![
        ("aliases of aliases", laughs.into()),
        ("aliases of a long text", long.into()),
        ("aliases of many long texts", anchors.into()),
        ("flow lists that never end", "[".repeat(longest).into()),
        ("block lists that never end", fill("- ", longest).into()),
        ("maps that never end", fill("? ", longest).into()),
        ("a merge of itself", "a: &a\n  <<: *a\n".into()),
        ("one key again and again", fill("a: 1\n", longest).into()),
        ("anchors", fill("- &a 1\n", longest).into()),
        ("documents", fill("--- 1\n", longest).into()),
        ("comments", fill("#\n", longest).into()),
        ("quotes", fill("- \"\\x41\"\n", longest).into()),
        (
            "a folded text",
            format!("a: >\n{}", fill("  x\n\n", longest)).into(),
        ),
        ("a plain text of many lines", fill("x\n ", longest).into()),
        ("a key that does not end", "a".repeat(longest).into()),
        (
            "flow maps",
            format!("[{}{{}}]", fill("{a: 1},", longest / 2)).into(),
        ),
        ("tags", fill("!!str ", longest).into()),
        (
            "indentation",
            (0..2000)
                .map(|n| format!("{}a:\n", " ".repeat(n)))
                .collect::<String>()
                .into(),
        ),
    ]
}

fn protobuf_inputs(longest: usize) -> Vec<(&'static str, Vec<u8>)> {
    let wrap = |kind: &str, version: &str, raw: &[u8]| {
        apimachinery::codec::protobuf::Envelope {
            api_version: version,
            kind,
            raw,
        }
        .close()
    };
    // JSONSchemaProps holds itself: CustomResourceDefinition > spec > versions > schema > openAPIV3Schema > not > not …
    let mut deep = Vec::new();
    for _ in 0..100_000 {
        let mut outer = vec![0xba, 0x01];
        varint(&mut outer, deep.len());
        if outer.len() + deep.len() > longest / 2 {
            break;
        }
        // Built from the inside out: only a prefix is put before it.
        outer.extend_from_slice(&deep);
        deep = outer;
        if deep.len() > 40_000 {
            break;
        }
    }
    vec![
        (
            "empty containers",
            wrap("Pod", "v1", &field(2, &[0x12, 0].repeat(longest / 2))),
        ),
        (
            "labels that are one",
            wrap("Pod", "v1", &field(1, &[0x5a, 0].repeat(longest / 2))),
        ),
        (
            "a message in pieces",
            wrap("Pod", "v1", &[0x12, 0].repeat(longest / 2)),
        ),
        (
            "fields nobody knows",
            wrap("Pod", "v1", &[0xf8, 0x7f, 1].repeat(longest / 3)),
        ),
        (
            "a length past the end",
            wrap(
                "Pod",
                "v1",
                &[0x0a, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f],
            ),
        ),
        (
            "a schema in itself",
            wrap("JSONSchemaProps", "apiextensions.k8s.io/v1", &deep),
        ),
        (
            "packed numbers",
            wrap(
                "Pod",
                "v1",
                &field(2, &field(14, &field(4, &vec![1; longest]))),
            ),
        ),
        (
            "an envelope in pieces",
            [b"k8s\0", &[0x0a, 0].repeat(longest / 2)[..]].concat(),
        ),
    ]
}

fn varint(out: &mut Vec<u8>, mut number: usize) {
    while number >= 0x80 {
        out.push((number & 0x7f) as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// A field of bytes, of a number below 16.
fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    let mut out = vec![number << 3 | 2];
    varint(&mut out, bytes.len());
    out.extend_from_slice(bytes);
    out
}

fn json_patches(longest: usize) -> Vec<(&'static str, Vec<u8>)> {
    let operations = 10_000;
    let large =
        json!({"metadata": {"annotations": {}}, "x": vec![0; longest / 4], "y": 1}).to_string();
    let repeat = |operations: Vec<Value>, times: usize| {
        let all: Vec<Value> = operations.iter().cycle().take(times).cloned().collect();
        Value::Array(all).to_string()
    };
    let there_and_back = vec![
        json!({"op": "move", "from": "/x", "path": "/z"}),
        json!({"op": "move", "from": "/z", "path": "/x"}),
    ];
    let front = vec![
        json!({"op": "remove", "path": "/x/0"}),
        json!({"op": "add", "path": "/x/0", "value": 1}),
    ];
    let doubling = vec![json!({"op": "copy", "from": "", "path": "/a"})];
    let many = vec![json!({"op": "test", "path": "/y", "value": 1})];
    let long_path =
        json!([{"op": "test", "path": "/a".repeat(longest / 4), "value": 1}]).to_string();
    vec![
        (
            "a large value moved to and fro",
            cut(&large, &repeat(there_and_back, operations)),
        ),
        (
            "a long list shifted",
            cut(&large, &repeat(front, operations)),
        ),
        (
            "copies of copies",
            cut("{\"a\":[\"0123456789\"]}", &repeat(doubling, operations)),
        ),
        (
            "more operations than allowed",
            cut(&large, &repeat(many, 60_000)),
        ),
        ("a path that does not end", cut(&large, &long_path)),
        (
            "removals from the front",
            cut(
                &large,
                &repeat(vec![json!({"op": "remove", "path": "/x/0"})], operations),
            ),
        ),
    ]
}

fn patches(longest: usize) -> Vec<(&'static str, Vec<u8>)> {
    let half = longest / 2 - 200;
    let count = half / 20;
    let containers = |from: usize, count: usize| -> Vec<Value> {
        (from..from + count)
            .map(|n| json!({"name": format!("n{n}")}))
            .collect()
    };
    let words = |from: usize, count: usize| -> Vec<Value> {
        (from..from + count)
            .map(|n| json!(format!("w{n}")))
            .collect()
    };
    let pod = |change: Value| -> String {
        let mut pod = mk_pod(json!({}));
        apimachinery::patch::merge_patch(&mut pod, change);
        pod.to_string()
    };
    let mut reversed = containers(0, count);
    reversed.reverse();
    let order: Vec<Value> = containers(0, count);
    let annotations: serde_json::Map<String, Value> =
        (0..count).map(|n| (format!("a{n}"), json!("1"))).collect();
    vec![
        (
            "a long keyed list against another",
            cut(
                &pod(json!({"spec": {"containers": containers(0, count)}})),
                &pod(json!({"spec": {"containers": containers(count, count)}})),
            ),
        ),
        (
            "a long keyed list against itself turned around",
            cut(&pod(json!({"spec": {"containers": order}})), &pod(json!({"spec": {"containers": reversed}}))),
        ),
        (
            "a long order",
            cut(
                &pod(json!({"spec": {"containers": containers(0, count)}})),
                &json!({"spec": {"$setElementOrder/containers": reversed}}).to_string(),
            ),
        ),
        (
            "a long order of new items",
            cut(
                &pod(json!({})),
                &json!({"spec": {"$setElementOrder/containers": containers(0, count / 2), "containers": containers(0, count / 2)}})
                    .to_string(),
            ),
        ),
        (
            "a long set against another",
            cut(
                &pod(json!({"metadata": {"finalizers": words(0, count)}})),
                &pod(json!({"metadata": {"finalizers": words(count, count)}})),
            ),
        ),
        (
            "values taken from a long set",
            cut(
                &pod(json!({"metadata": {"finalizers": words(0, count)}})),
                &json!({"metadata": {"$deleteFromPrimitiveList/finalizers": words(count, count)}}).to_string(),
            ),
        ),
        (
            "items deleted one by one",
            cut(
                &pod(json!({"spec": {"containers": containers(0, count / 2)}})),
                &json!({"spec": {"containers": (count..count + count / 2).map(|n| json!({"name": format!("n{n}"), "$patch": "delete"})).collect::<Vec<_>>()}})
                    .to_string(),
            ),
        ),
        (
            "keys kept",
            cut(
                &pod(json!({"metadata": {"annotations": annotations}})),
                &json!({"metadata": {"annotations": {"$retainKeys": (0..count).map(|n| format!("b{n}")).collect::<Vec<_>>()}}})
                    .to_string(),
            ),
        ),
        (
            "one item again and again",
            cut(
                &pod(json!({"spec": {"containers": vec![json!({"name": "a"}); count]}})),
                &pod(json!({"spec": {"containers": vec![json!({"name": "a"}); count]}})),
            ),
        ),
        ("a deep map", cut(&"{\"a\":".repeat(500).add_end(), &"{\"a\":".repeat(500).add_end())),
        (
            "many managers",
            cut(
                &pod(json!({"metadata": {"managedFields": (0..half / 160).map(|n| json!({"manager": format!("m{n}"), "operation": "Update",
                    "apiVersion": "v1", "fieldsType": "FieldsV1", "fieldsV1": {"f:spec": {"f:x": {}}}})).collect::<Vec<_>>()}})),
                &pod(json!({"spec": {"nodeName": "a"}})),
            ),
        ),
        (
            "fields of nobody",
            cut(
                &pod(json!({"metadata": {"managedFields": [{"manager": "m", "operation": "Apply", "apiVersion": "v1", "fieldsType": "FieldsV1",
                    "fieldsV1": {"f:spec": {"f:containers": (0..count / 2).map(|n| (format!("k:{{\"name\":\"n{n}\"}}"), json!({".": {}}))).collect::<serde_json::Map<_, _>>()}}}]},
                    "spec": {"containers": containers(0, count / 4)}})),
                &pod(json!({"spec": {"nodeName": "a"}})),
            ),
        ),
    ]
}

/// Ends a deep map.
trait AddEnd {
    fn add_end(self) -> String;
}

impl AddEnd for String {
    fn add_end(mut self) -> String {
        let opened = self.matches('{').count();
        self.push('1');
        self.push_str(&"}".repeat(opened));
        self
    }
}

fn expressions(longest: usize) -> Vec<(&'static str, Vec<u8>)> {
    let mut doubling = String::from("['0123456789']");
    for _ in 0..40 {
        doubling = format!("{doubling}.map(a, a + a)");
    }
    let mut lists = String::from("[1,2]");
    for _ in 0..40 {
        lists = format!("[{lists}].map(a, a + a)[0]");
    }
    let walk = "self.spec.list.all(a, ".repeat(40) + "true" + &")".repeat(40);
    vec![
        ("parentheses", "(".repeat(longest).into()),
        ("lists", "[".repeat(longest).into()),
        ("members", format!("self{}", fill(".a", longest - 4)).into()),
        ("indexes", format!("self{}", fill("[0]", longest - 4)).into()),
        ("calls", format!("self{}", fill(".a()", longest - 4)).into()),
        ("sums", format!("1{}", fill("+1", longest - 1)).into()),
        ("ands", format!("true{}", fill("&&true", longest - 6)).into()),
        ("equals", format!("1{}", fill("==1", longest - 3)).into()),
        ("conditions", format!("{}1", fill("true?1:", longest - 1)).into()),
        ("negations", "!".repeat(longest).into()),
        ("minuses", "-".repeat(longest).into()),
        ("texts that double", doubling.into()),
        ("lists that double", lists.into()),
        ("walks in walks", walk.into()),
        ("a text that does not end", format!("'{}", "a".repeat(longest - 1)).into()),
        ("digits", "9".repeat(longest).into()),
        ("a long pattern", format!("'a'.matches('{}')", fill("(a*)*", longest - 20)).into()),
        ("a large pattern", "'a'.matches('((((a{1000}){1000}){1000}){1000})')".into()),
        ("replacements that grow", "'aaaaaaaaaa'.replace('', 'aaaaaaaaaa').replace('', 'aaaaaaaaaaaaaaaaaaaa').replace('', 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa').replace('', 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa').replace('', 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa').replace('', 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa')".into()),
        ("durations at their end", "timestamp('9999-12-31T23:59:59Z') - duration('-9223372036854775808ns')".into()),
    ]
}

fn texts(longest: usize) -> Vec<(&'static str, Vec<u8>)> {
    vec![
        ("requirements", fill("a=b,", longest).into()),
        ("bare keys", fill("a,", longest).into()),
        (
            "values",
            format!("a in ({})", fill("b,", longest - 10)).into(),
        ),
        ("parentheses", "(".repeat(longest).into()),
        ("spaces", " ".repeat(longest).into()),
        ("exclamation marks", "!".repeat(longest).into()),
        (
            "backslashes",
            format!("a={}", "\\".repeat(longest - 2)).into(),
        ),
        ("digits", "9".repeat(longest).into()),
        (
            "digits behind the point",
            format!("0.{}", "9".repeat(longest - 2)).into(),
        ),
        ("zeros", format!("{}1", "0".repeat(longest - 1)).into()),
        (
            "an exponent",
            format!("1e{}", "9".repeat(longest - 2)).into(),
        ),
        (
            "a negative exponent",
            format!("1e-{}", "9".repeat(longest - 3)).into(),
        ),
        ("base64", "QUFB".repeat(longest / 4).into()),
        (
            "a deep token",
            format!("{{\"v\":{}", "[".repeat(longest.min(12_000) - 10)).into(),
        ),
        ("bytes that are no text", vec![0xff; longest]),
        ("durations", fill("1h", longest).into()),
    ]
}
