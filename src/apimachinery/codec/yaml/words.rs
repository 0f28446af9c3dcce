//! Owns: what go-yaml says of a text that it cannot read, and on which line. Only texts that were refused come here.
//!
//! The parser finds where a text breaks off and why; go-yaml says the same in other words, and of what its own parser
//! (not its scanner) finds it tells the line before.

use granit_parser::{ErrorKind, Event, Parser, ScanError, StructureStyle};

/// What must come next where a block collection or the document goes on.
const KEY: &str = "did not find expected key";
const ENTRY: &str = "did not find expected '-' indicator";
const DOCUMENT: &str = "did not find expected <document start>";
/// The same in flow collections.
const IN_SEQUENCE: &str = "did not find expected ',' or ']'";
const IN_MAPPING: &str = "did not find expected ',' or '}'";
const NODE: &str = "did not find expected node content";
const NO_TOKEN: &str = "found character that cannot start any token";

/// What a refused text turned out to be.
#[derive(Debug, PartialEq, Eq)]
pub enum Finding<'a> {
    /// Nothing is wrong with the first document; what follows it is not read.
    First(&'a str),
    /// In go-yaml's words, with the line.
    Wrong(String),
    /// Nothing is wrong with its syntax.
    Fine,
}

/// A collection that is not closed yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Open {
    Sequence(StructureStyle),
    Mapping(StructureStyle),
}

/// Who finds it: the line is told differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum By {
    Scanner,
    Parser,
}

/// Looks for what is wrong with a text.
pub fn find(text: &str) -> Finding<'_> {
    if text.chars().any(is_control) {
        return Finding::Wrong("control characters are not allowed".to_owned());
    }
    let mut open: Vec<Open> = Vec::new();
    let mut ended = false;
    for next in Parser::new_from_str(text) {
        match next {
            Err(error) => return refused(text, &open, &error),
            Ok((Event::DocumentStart(..), span)) if ended => {
                return match span.byte_range().and_then(|range| text.get(..range.start)) {
                    Some(first) => Finding::First(first),
                    None => Finding::Fine,
                };
            }
            Ok((Event::DocumentEnd, _)) => ended = true,
            Ok((Event::SequenceStart(style, ..), _)) => open.push(Open::Sequence(style)),
            Ok((Event::MappingStart(style, ..), _)) => open.push(Open::Mapping(style)),
            Ok((Event::SequenceEnd | Event::MappingEnd, _)) => {
                open.pop();
            }
            Ok(_) => {}
        }
    }
    Finding::Fine
}

fn refused<'a>(text: &'a str, open: &[Open], error: &ScanError) -> Finding<'a> {
    match error.kind() {
        // A bound, not a mistake.
        ErrorKind::RecursionLimitExceeded => Finding::Fine,
        // Directives begin the next document.
        ErrorKind::MissingDocumentEndBeforeDirective => {
            let end = error.marker().byte_offset().unwrap_or(0);
            text.get(..end).map_or(Finding::Fine, Finding::First)
        }
        _ => Finding::Wrong(say(text, open, error)),
    }
}

/// Why bytes are no text.
pub fn not_text(body: &[u8], error: std::str::Utf8Error) -> &'static str {
    let at = error.valid_up_to();
    match (error.error_len(), body.get(at)) {
        (None, _) => "incomplete UTF-8 octet sequence",
        (_, Some(0x80..=0xbf | 0xf8..)) => "invalid leading UTF-8 octet",
        (_, Some(0xc0 | 0xc1)) => "invalid length of a UTF-8 sequence",
        _ => "invalid trailing UTF-8 octet",
    }
}

/// What go-yaml's reader takes no text with.
fn is_control(c: char) -> bool {
    !matches!(c, '\t' | '\n' | '\r' | ' '..='~' | '\u{85}' | '\u{a0}'..='\u{d7ff}' | '\u{e000}'..='\u{fefe}'
        | '\u{ff00}'..='\u{fffd}' | '\u{10000}'..)
        && c != '\u{feff}'
}

/// The words, and before them the line where go-yaml tells one. `line` counts from 0.
fn told(by: By, line: usize, words: &str) -> String {
    match (by, line) {
        (_, 0) => words.to_owned(),
        (By::Scanner, line) => format!("line {}: {words}", line + 1),
        (By::Parser, line) => format!("line {line}: {words}"),
    }
}

fn say(text: &str, open: &[Open], error: &ScanError) -> String {
    let line = error.marker().line().saturating_sub(1);
    let wanted = wanted(open);
    let (by, line, words) = match error.kind() {
        ErrorKind::UnknownAnchor => return unknown_anchor(text, error),
        ErrorKind::MappingValueNotAllowed => (
            By::Scanner,
            line,
            "mapping values are not allowed in this context",
        ),
        ErrorKind::MappingKeyNotAllowed => (
            By::Scanner,
            line,
            "mapping keys are not allowed in this context",
        ),
        ErrorKind::BlockSequenceEntryNotAllowed => (
            By::Scanner,
            line,
            "block sequence entries are not allowed in this context",
        ),
        ErrorKind::SimpleKeyExpected => {
            let after = next_token(text, line, error.marker().col());
            (By::Scanner, after, "could not find expected ':'")
        }
        ErrorKind::UnexpectedCharacter { .. }
        | ErrorKind::TabInBlockIndentation
        | ErrorKind::TabInIndentation
        | ErrorKind::TabNotAllowed => (By::Scanner, line, NO_TOKEN),
        ErrorKind::UnclosedQuotedScalar => {
            let end = text.matches('\n').count();
            (By::Scanner, end, "found unexpected end of stream")
        }
        ErrorKind::InvalidBlockScalarHeader => (
            By::Scanner,
            line,
            "did not find expected comment or line break",
        ),
        ErrorKind::MissingAnchorOrAliasName => (
            By::Scanner,
            line,
            "did not find expected alphabetic or numeric character",
        ),
        ErrorKind::InvalidQuotedScalarHexEscape => {
            let words = "did not find expected hexdecimal number";
            (By::Scanner, line, words)
        }
        ErrorKind::UnclosedVerbatimTag => (By::Scanner, line, "did not find the expected '>'"),
        ErrorKind::UnclosedFlowCollection { open } => {
            let end = last_line(text);
            (By::Parser, end, in_flow(*open, text))
        }
        ErrorKind::MismatchedFlowCollectionEnd { open, close } => {
            let start = error.marker().byte_offset().unwrap_or(0);
            let end = closing(text, start, *close);
            let before = text.get(..end).unwrap_or(text);
            (
                By::Parser,
                before.matches('\n').count(),
                in_flow(*open, before),
            )
        }
        ErrorKind::MisplacedFlowCollectionEnd => {
            let start = error.marker().byte_offset().unwrap_or(0);
            let before = text.get(..start).unwrap_or("").trim_end();
            let words = if before.ends_with([':', '-']) {
                NODE
            } else {
                wanted
            };
            (By::Parser, line, words)
        }
        ErrorKind::UnexpectedEofBlockMapping
        | ErrorKind::UnexpectedEofBlockSequence
        | ErrorKind::ExpectedNodeContent => (By::Parser, line, NODE),
        ErrorKind::ExpectedBlockMappingKey => (By::Parser, line, KEY),
        ErrorKind::ExpectedBlockSequenceEntry => (By::Parser, line, ENTRY),
        ErrorKind::ExpectedFlowMappingSeparator => (By::Parser, line, IN_MAPPING),
        ErrorKind::ExpectedFlowSequenceSeparator => (By::Parser, line, IN_SEQUENCE),
        ErrorKind::InvalidColonPlacement
        | ErrorKind::InvalidTrailingSingleQuotedScalar
        | ErrorKind::InvalidTrailingDoubleQuotedScalar
        | ErrorKind::ExpectedDocumentStart => (By::Parser, line, wanted),
        _ => return told(By::Scanner, line, without_context(&error.info())),
    };
    told(by, line, words)
}

/// What the innermost open collection goes on with.
fn wanted(open: &[Open]) -> &'static str {
    match open.last() {
        None => DOCUMENT,
        Some(Open::Sequence(StructureStyle::Block)) => ENTRY,
        Some(Open::Mapping(StructureStyle::Block)) => KEY,
        Some(Open::Sequence(StructureStyle::Flow)) => IN_SEQUENCE,
        Some(Open::Mapping(StructureStyle::Flow)) => IN_MAPPING,
    }
}

/// What is missing where a flow collection breaks off behind `before`.
fn in_flow(open: char, before: &str) -> &'static str {
    if before.trim_end().ends_with(['[', '{', ',', ':']) {
        NODE
    } else if open == '[' {
        IN_SEQUENCE
    } else {
        IN_MAPPING
    }
}

/// Where the bracket stands that does not belong to the one at `start`.
fn closing(text: &str, start: usize, close: char) -> usize {
    let mut quote = None;
    for (at, c) in text.char_indices().skip_while(|(at, _)| *at < start) {
        match quote {
            Some(open) if c == open => quote = None,
            None if c == '"' || c == '\'' => quote = Some(c),
            None if c == close => return at,
            _ => {}
        }
    }
    text.len()
}

/// The line of the end, counted from 0: go-yaml ends the last line where the text does not.
fn last_line(text: &str) -> usize {
    text.matches('\n').count() + usize::from(!text.ends_with('\n'))
}

/// The line (from 0) of what comes after the scalar that begins at `line` and `column`.
fn next_token(text: &str, line: usize, column: usize) -> usize {
    let continues = |text: &str| {
        let words = text.trim_start();
        words.is_empty() || words.starts_with('#') || text.len() - words.len() > column
    };
    let rest = text.lines().enumerate().skip(line + 1);
    let mut rest = rest.skip_while(|(_, text)| continues(text));
    rest.next()
        .map_or_else(|| last_line(text), |(line, _)| line)
}

fn unknown_anchor(text: &str, error: &ScanError) -> String {
    let start = error.marker().byte_offset().unwrap_or(0);
    let name: String = text
        .get(start..)
        .unwrap_or("")
        .trim_start_matches('*')
        .chars()
        .take_while(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-'))
        .collect();
    format!("unknown anchor '{name}' referenced")
}

/// `while scanning a tag, did not find expected tag URI`, without what was being done.
fn without_context(words: &str) -> &str {
    match words.split_once(", ") {
        Some((context, rest)) if context.starts_with("while ") => rest,
        _ => words,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As kubectl 1.37 says it.
    #[track_caller]
    fn check(text: &str, expect: &str) {
        assert_eq!(find(text), Finding::Wrong(expect.to_owned()), "{text:?}");
    }

    #[test]
    fn what_the_scanner_finds_is_told_with_its_line_but_the_first() {
        check(
            "a: b: c\n",
            "mapping values are not allowed in this context",
        );
        check(
            "x: 1\na: b: c\n",
            "line 2: mapping values are not allowed in this context",
        );
        check(
            "x:\n  a: 1\n   b: 2\n",
            "line 3: mapping values are not allowed in this context",
        );
        check(
            "x: 1\na: - b\n",
            "line 2: block sequence entries are not allowed in this context",
        );
        check("a: @x\n", "found character that cannot start any token");
        check(
            "x: 1\na:\n\tb: 1\n",
            "line 3: found character that cannot start any token",
        );
        check("a: 'x\n", "line 2: found unexpected end of stream");
        check(
            "x: 1\na: \"x\nb: 1\n",
            "line 4: found unexpected end of stream",
        );
        check("a: \"\\q\"\n", "found unknown escape character");
        check(
            "x: 1\na: \"\\xzz\"\n",
            "line 2: did not find expected hexdecimal number",
        );
        check("a: !<x\n", "did not find the expected '>'");
        check("a: !x! y\n", "did not find expected tag URI");
        check(
            "a: &\n",
            "did not find expected alphabetic or numeric character",
        );
        check("a: |x\n b\n", "did not find expected comment or line break");
        check("a: >0\n b\n", "found an indentation indicator equal to 0");
    }

    #[test]
    fn a_key_without_a_colon_is_told_where_the_next_line_begins() {
        check("a: 1\nb\n", "line 3: could not find expected ':'");
        check("a: 1\nb\nc: 2\n", "line 3: could not find expected ':'");
        check("a: 1\nb", "line 3: could not find expected ':'");
        check("a: 1\n? b\nc\n", "line 4: could not find expected ':'");
        check(
            "a:\n  - b: 1\n    c\n    d: 1\n",
            "line 4: could not find expected ':'",
        );
    }

    #[test]
    fn what_the_parser_finds_is_told_with_the_line_before() {
        check("x:\n  a: 1\n b: 2\n", "line 2: did not find expected key");
        check("a: 1\n- b\n", "line 1: did not find expected key");
        check("x: 1\na: \"x\" y\n", "line 1: did not find expected key");
        check("a: 'it's'\n", "did not find expected key");
        check("a: 'b'\n 'c'\n", "line 1: did not find expected key");
        check("x: 1\na: b\n]\n", "line 2: did not find expected key");
        check("- a\nb: 1\n", "line 1: did not find expected '-' indicator");
        check(
            "a:\n  - b\n  c: 1\n",
            "line 2: did not find expected '-' indicator",
        );
        check("a: ]\n", "did not find expected node content");
        check("a: ,\n", "did not find expected node content");
    }

    #[test]
    fn flow_collections_say_what_they_miss() {
        check("a: [\n", "line 1: did not find expected node content");
        check("a: {\n", "line 1: did not find expected node content");
        check(
            "a: [1, 2\nb: 3\n",
            "line 1: did not find expected ',' or ']'",
        );
        check(
            "x: 1\na: [1 2, 3\n",
            "line 2: did not find expected ',' or ']'",
        );
        check(
            "x: 1\na: {b: 1\nc: 2\n",
            "line 2: did not find expected ',' or '}'",
        );
        check("[a, b\n", "line 1: did not find expected ',' or ']'");
        check("a: {b: [c}\n", "did not find expected ',' or ']'");
        check(
            "x: 1\n\n\na: {b: [c}\n",
            "line 3: did not find expected ',' or ']'",
        );
    }

    #[test]
    fn control_characters_and_unknown_anchors_have_no_line() {
        check("x: 1\na: \u{1}\n", "control characters are not allowed");
        check("a: \u{80}\n", "control characters are not allowed");
        check("x: 1\na: *x y\n", "unknown anchor 'x' referenced");
    }

    #[test]
    fn one_document_is_read() {
        assert_eq!(find("a: 1\n---\nb: 2\n"), Finding::First("a: 1\n"));
        assert_eq!(find("a: 1\n---\n]: :\n"), Finding::First("a: 1\n"));
        assert_eq!(find("a: 1\n%YAML 1.1\n"), Finding::First("a: 1\n"));
        assert_eq!(find("a: 1\n"), Finding::Fine);
    }

    #[test]
    fn bytes_that_are_no_text_are_told_apart() {
        let of = |body: &[u8]| not_text(body, std::str::from_utf8(body).expect_err("no text"));
        assert_eq!(of(b"a: \x80"), "invalid leading UTF-8 octet");
        assert_eq!(of(b"a: \xe2\x28\xa1"), "invalid trailing UTF-8 octet");
        assert_eq!(of(b"a: \xe2\x82"), "incomplete UTF-8 octet sequence");
    }
}
