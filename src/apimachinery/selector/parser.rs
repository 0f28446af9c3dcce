//! Owns: reading the query syntax of label selectors.

use super::labels::{Operator, Requirement};
use crate::field::quote;
use crate::name;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Token {
    End,
    Comma,
    Open,
    Close,
    Not,
    Equals,
    NotEquals,
    Greater,
    Less,
    Word,
}

pub(super) struct Parser<'a> {
    pub(super) rest: &'a str,
}

impl<'a> Parser<'a> {
    pub(super) fn peek(&self) -> (Token, &'a str) {
        Parser { rest: self.rest }.next()
    }

    pub(super) fn next(&mut self) -> (Token, &'a str) {
        let text = self.rest.trim_start_matches([' ', '\t', '\r', '\n']);
        const SYMBOLS: &[(&str, Token)] = &[
            ("==", Token::Equals),
            ("!=", Token::NotEquals),
            ("=", Token::Equals),
            ("!", Token::Not),
            (",", Token::Comma),
            ("(", Token::Open),
            (")", Token::Close),
            (">", Token::Greater),
            ("<", Token::Less),
        ];
        if text.is_empty() {
            self.rest = text;
            return (Token::End, "");
        }
        for (symbol, token) in SYMBOLS {
            if let Some(rest) = text.strip_prefix(symbol) {
                self.rest = rest;
                return (*token, &text[..symbol.len()]);
            }
        }
        let special = |c: char| {
            matches!(
                c,
                ' ' | '\t' | '\r' | '\n' | '=' | '!' | ',' | '(' | ')' | '>' | '<'
            )
        };
        let end = text.find(special).unwrap_or(text.len());
        self.rest = &text[end..];
        (Token::Word, &text[..end])
    }

    pub(super) fn requirement(&mut self) -> Result<Requirement, String> {
        let (mut token, mut literal) = self.next();
        let negated = token == Token::Not;
        if negated {
            (token, literal) = self.next();
        }
        if token != Token::Word {
            return Err(format!("found '{literal}', expected: identifier"));
        }
        let key = literal;
        if let Some(message) = name::qualified_name(key).into_iter().next() {
            return Err(format!("key: Invalid value: {}: {message}", quote(key)));
        }
        if negated {
            return Requirement::new(key, Operator::DoesNotExist, Vec::new());
        }
        if matches!(self.peek().0, Token::End | Token::Comma) {
            return Requirement::new(key, Operator::Exists, Vec::new());
        }
        let operator = match self.next() {
            (Token::Equals, _) => Operator::Equals,
            (Token::NotEquals, _) => Operator::NotEquals,
            (Token::Greater, _) => Operator::GreaterThan,
            (Token::Less, _) => Operator::LessThan,
            (Token::Word, "in") => Operator::In,
            (Token::Word, "notin") => Operator::NotIn,
            (_, literal) => {
                return Err(format!(
                    "found '{literal}', expected: in, notin, =, ==, !=, gt, lt"
                ));
            }
        };
        let values = match operator {
            Operator::In | Operator::NotIn => self.values()?,
            _ => vec![self.exact_value()?],
        };
        Requirement::new(key, operator, values)
    }

    fn exact_value(&mut self) -> Result<String, String> {
        match self.peek() {
            (Token::End | Token::Comma, _) => Ok(String::new()),
            (Token::Word, literal) => {
                self.next();
                Ok(literal.to_owned())
            }
            (_, literal) => Err(format!("found '{literal}', expected: identifier")),
        }
    }

    fn values(&mut self) -> Result<Vec<String>, String> {
        let (token, literal) = self.next();
        if token != Token::Open {
            return Err(format!("found '{literal}' expected: '('"));
        }
        let mut values = Vec::new();
        let mut need_value = true;
        loop {
            match self.next() {
                (Token::Word, literal) if need_value => {
                    values.push(literal.to_owned());
                    need_value = false;
                }
                (Token::Comma, _) => {
                    if need_value {
                        values.push(String::new());
                    }
                    need_value = true;
                }
                (Token::Close, _) => {
                    if need_value {
                        values.push(String::new());
                    }
                    return Ok(values);
                }
                (_, literal) => {
                    return Err(format!(
                        "found '{literal}', expected: ',', ')' or identifier"
                    ));
                }
            }
        }
    }
}
