//! What strangers send, one function a decoder: each takes any bytes and must come back without a panic, in time and memory
//! in proportion to its input. libFuzzer calls them (`tests/fuzz`), and so does an ordinary test with a seeded mutator.
//!
//! ```text
//! tests/fuzz/corpus/NAME/* ─┬─ libFuzzer ──────────────────┬─▶ TARGETS[NAME](bytes)
//!                           └─ mutate (seeded), hostile ───┘
//! ```
//!
//! Read `TARGETS` first. A target asserts what must hold of whatever it accepts: that it reads its own output back.

pub mod expressions;
pub mod hostile;
pub mod meter;
pub mod mutate;
pub mod objects;
pub mod texts;

/// A decoder under test.
pub struct Target {
    /// Its name, also that of its corpus and of its libFuzzer binary.
    pub name: &'static str,
    /// Puts bytes through it.
    pub run: fn(&[u8]),
    /// Words that its grammar knows, for the mutator.
    pub words: &'static [&'static str],
    /// Longest input the server would hand to it (bytes).
    pub longest: usize,
}

/// A request's body is at most this long (bytes).
const BODY: usize = 3 << 20;
/// A request's line is at most this long (bytes).
const URL: usize = 64 << 10;

const OBJECT_WORDS: &[&str] = &[
    "apiVersion",
    "kind",
    "metadata",
    "name",
    "labels",
    "annotations",
    "managedFields",
    "spec",
    "containers",
    "ports",
    "containerPort",
    "status",
    "null",
    "true",
    "-1",
    "1e99",
    "9223372036854775808",
    "\\ud800",
    "{}",
    "[]",
    "v1",
    "Pod",
];
const YAML_WORDS: &[&str] = &[
    "&a ",
    "*a",
    "<<: ",
    "- ",
    ": ",
    "? ",
    "|\n",
    ">-\n",
    "---\n",
    "...\n",
    "!!str ",
    "!!binary ",
    "'",
    "\"",
    "~",
    "0o17",
    "012",
    ".inf",
    ".nan",
    "2026-01-01",
    "\t",
    "# ",
    "{",
    "}",
    "[",
    "]",
    "%YAML 1.1\n",
];
const PATCH_WORDS: &[&str] = &[
    "\n---\n",
    "$patch",
    "delete",
    "replace",
    "merge",
    "$retainKeys",
    "$setElementOrder/containers",
    "$deleteFromPrimitiveList/finalizers",
    "\"op\"",
    "\"path\"",
    "\"from\"",
    "\"value\"",
    "add",
    "remove",
    "move",
    "copy",
    "test",
    "/spec/containers/0",
    "/-",
    "~0",
    "~1",
    "null",
    "f:spec",
    "k:{\"name\":\"a\"}",
];

/// Every decoder that reads what strangers send.
pub const TARGETS: &[Target] = &[
    Target {
        name: "json",
        run: objects::json,
        words: OBJECT_WORDS,
        longest: BODY,
    },
    Target {
        name: "yaml",
        run: objects::yaml,
        words: YAML_WORDS,
        longest: BODY,
    },
    Target {
        name: "protobuf",
        run: objects::protobuf,
        words: &[
            "k8s\0",
            "\n\x02v1",
            "\x12\x03Pod",
            "\x7f\x7f\x7f",
            "\x0a\x00",
            "\x12",
        ],
        longest: BODY,
    },
    Target {
        name: "json_patch",
        run: objects::json_patch,
        words: PATCH_WORDS,
        longest: BODY,
    },
    Target {
        name: "merge_patch",
        run: objects::merge_patch,
        words: PATCH_WORDS,
        longest: BODY,
    },
    Target {
        name: "strategic_patch",
        run: objects::strategic_patch,
        words: PATCH_WORDS,
        longest: BODY,
    },
    Target {
        name: "apply",
        run: objects::apply,
        words: PATCH_WORDS,
        longest: BODY,
    },
    Target {
        name: "label_selector",
        run: texts::label_selector,
        words: &[
            "in", "notin", "(", ")", ",", "==", "!=", "!", ">", "<", " ", "a/b", "x.y/z",
        ],
        longest: URL,
    },
    Target {
        name: "field_selector",
        run: texts::field_selector,
        words: &["metadata.name", "=", "==", "!=", ",", "\\,", "\\=", "\\\\"],
        longest: URL,
    },
    Target {
        name: "quantity",
        run: texts::quantity,
        words: &[
            "Ki",
            "Mi",
            "Ei",
            "n",
            "u",
            "m",
            "k",
            "E",
            "e",
            "e+",
            "e-",
            ".",
            "9999999999",
            "-",
            "+",
        ],
        longest: BODY,
    },
    Target {
        name: "continue_token",
        run: texts::continue_token,
        words: &[
            "\"v\"",
            "meta.k8s.io/v1",
            "\"rv\"",
            "\"start\"",
            "..",
            "/",
            "\\u0000",
            "-1",
        ],
        longest: URL,
    },
    Target {
        name: "cel",
        run: expressions::cel,
        words: &[
            "self",
            "object",
            ".all(x, ",
            ".map(x, ",
            ".exists(x, ",
            ".filter(x, ",
            "has(",
            "in",
            "&&",
            "||",
            "?",
            ":",
            "size()",
            "[?",
            ".?",
            "matches(",
            "split(",
            "join(",
            "b'",
            "r\"",
            "'''",
            "\\u00e9",
            "0x",
            "1u",
            "1e9",
            "duration('1h')",
            "timestamp('2026-01-01T00:00:00Z')",
            "quantity('1Gi')",
            "(",
            ")",
            "[",
            "]",
            "{",
            "}",
            "-9223372036854775808",
        ],
        longest: URL,
    },
];

/// The target of this name.
pub fn target(name: &str) -> Option<&'static Target> {
    TARGETS.iter().find(|target| target.name == name)
}
