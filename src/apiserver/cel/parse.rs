//! From text to a tree. Macros are recognised here, by their names and the shape of their arguments.

/// Deepest nesting of an expression.
const MAX_DEPTH: usize = 100;
/// Longest expression (bytes).
const MAX_LENGTH: usize = 64 * 1024;

#[derive(Clone, Debug, PartialEq)]
pub enum Literal {
    Null,
    Bool(bool),
    Int(i64),
    Uint(u64),
    Double(f64),
    Text(String),
    Bytes(Vec<u8>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Binary {
    Or,
    And,
    Less,
    LessEqual,
    Greater,
    GreaterEqual,
    Equal,
    NotEqual,
    In,
    Add,
    Subtract,
    Multiply,
    Divide,
    Remainder,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Macro {
    All,
    Exists,
    ExistsOne,
    Map,
    Filter,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Expr {
    Literal(Literal),
    Name(String),
    /// `a.b`; optional: `a.?b`.
    Select(Box<Expr>, String, bool),
    /// `has(a.b)`.
    Has(Box<Expr>, String),
    Index(Box<Expr>, Box<Expr>, bool),
    Call(Option<Box<Expr>>, String, Vec<Expr>),
    Not(Box<Expr>),
    Negate(Box<Expr>),
    Binary(Binary, Box<Expr>, Box<Expr>),
    Condition(Box<Expr>, Box<Expr>, Box<Expr>),
    List(Vec<Expr>),
    Map(Vec<(Expr, Expr)>),
    /// Over what, the variable's name, a condition (of map: absent when it has none), a body.
    Macro(Macro, Box<Expr>, String, Option<Box<Expr>>, Box<Expr>),
}

impl Expr {
    /// Whether a name occurs in it.
    pub fn uses(&self, name: &str) -> bool {
        let any = |list: &[Expr]| list.iter().any(|expr| expr.uses(name));
        match self {
            Self::Literal(_) => false,
            Self::Name(own) => own == name,
            Self::Select(of, _, _) | Self::Has(of, _) | Self::Not(of) | Self::Negate(of) => {
                of.uses(name)
            }
            Self::Index(of, by, _) | Self::Binary(_, of, by) => of.uses(name) || by.uses(name),
            Self::Call(target, _, arguments) => {
                target.as_ref().is_some_and(|target| target.uses(name)) || any(arguments)
            }
            Self::Condition(a, b, c) => a.uses(name) || b.uses(name) || c.uses(name),
            Self::List(list) => any(list),
            Self::Map(list) => list.iter().any(|(k, v)| k.uses(name) || v.uses(name)),
            Self::Macro(_, of, _, condition, body) => {
                of.uses(name) || condition.as_ref().is_some_and(|c| c.uses(name)) || body.uses(name)
            }
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
enum Token {
    Name(String),
    Literal(Literal),
    Sign(&'static str),
}

const SIGNS: [&str; 26] = [
    "||", "&&", "<=", ">=", "==", "!=", ".?", "[?", "<", ">", "+", "-", "*", "/", "%", "!", "?",
    ":", ".", ",", "(", ")", "[", "]", "{", "}",
];

pub fn parse(text: &str) -> Result<Expr, String> {
    if text.len() > MAX_LENGTH {
        return Err("compilation failed: expression is too long".to_owned());
    }
    let tokens = tokens(text).map_err(|why| format!("compilation failed: {why}"))?;
    let mut parser = Parser {
        tokens,
        at: 0,
        depth: 0,
    };
    let expr = parser
        .expression()
        .map_err(|why| format!("compilation failed: {why}"))?;
    match parser.tokens.get(parser.at) {
        None => Ok(expr),
        Some(token) => Err(format!(
            "compilation failed: Syntax error: extraneous input {token:?}"
        )),
    }
}

fn tokens(text: &str) -> Result<Vec<Token>, String> {
    let bytes = text.as_bytes();
    let mut tokens = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        let byte = bytes[at];
        if byte.is_ascii_whitespace() {
            at += 1;
        } else if text[at..].starts_with("//") {
            at += text[at..].find('\n').unwrap_or(text.len() - at);
        } else if let Some((literal, length)) = quoted(&text[at..])? {
            tokens.push(Token::Literal(literal));
            at += length;
        } else if byte.is_ascii_digit()
            || (byte == b'.' && bytes.get(at + 1).is_some_and(u8::is_ascii_digit))
        {
            let (literal, length) = number(&text[at..])?;
            tokens.push(Token::Literal(literal));
            at += length;
        } else if byte.is_ascii_alphabetic() || byte == b'_' {
            let length = text[at..]
                .find(|c: char| !c.is_ascii_alphanumeric() && c != '_')
                .unwrap_or(text.len() - at);
            let word = &text[at..at + length];
            tokens.push(match word {
                "true" => Token::Literal(Literal::Bool(true)),
                "false" => Token::Literal(Literal::Bool(false)),
                "null" => Token::Literal(Literal::Null),
                word => Token::Name(word.to_owned()),
            });
            at += length;
        } else if let Some(sign) = SIGNS.iter().find(|sign| text[at..].starts_with(**sign)) {
            tokens.push(Token::Sign(sign));
            at += sign.len();
        } else {
            return Err(format!(
                "Syntax error: token recognition error at: '{}'",
                text[at..].chars().next().unwrap_or(' ')
            ));
        }
    }
    Ok(tokens)
}

fn number(text: &str) -> Result<(Literal, usize), String> {
    let bytes = text.as_bytes();
    let bad = |text: &str| format!("invalid number literal {text}");
    if let Some(hex) = text.strip_prefix("0x") {
        let length = hex
            .find(|c: char| !c.is_ascii_hexdigit())
            .unwrap_or(hex.len());
        let parsed = i64::from_str_radix(&hex[..length], 16).map_err(|_| bad(&hex[..length]))?;
        return Ok((Literal::Int(parsed), length + 2));
    }
    let mut end = 0;
    let mut float = false;
    while end < bytes.len() {
        match bytes[end] {
            b'0'..=b'9' => {}
            b'.' if !float && bytes.get(end + 1).is_some_and(u8::is_ascii_digit) => float = true,
            b'e' | b'E' if end > 0 => {
                float = true;
                if matches!(bytes.get(end + 1), Some(b'+' | b'-')) {
                    end += 1;
                }
            }
            _ => break,
        }
        end += 1;
    }
    let digits = &text[..end];
    if float {
        let parsed = digits.parse().map_err(|_| bad(digits))?;
        return Ok((Literal::Double(parsed), end));
    }
    if matches!(bytes.get(end), Some(b'u' | b'U')) {
        let parsed = digits.parse().map_err(|_| bad(digits))?;
        return Ok((Literal::Uint(parsed), end + 1));
    }
    let parsed = digits.parse().map_err(|_| bad(digits))?;
    Ok((Literal::Int(parsed), end))
}

/// A text or bytes literal at the beginning of `text`, and its length.
fn quoted(text: &str) -> Result<Option<(Literal, usize)>, String> {
    let (mut raw, mut bytes) = (false, false);
    let mut start = 0;
    for c in text.chars().take(2) {
        match c {
            'r' | 'R' => raw = true,
            'b' | 'B' => bytes = true,
            _ => break,
        }
        start += 1;
    }
    let rest = &text[start..];
    let Some(quote) = ["'''", "\"\"\"", "'", "\""]
        .into_iter()
        .find(|quote| rest.starts_with(quote))
    else {
        return Ok(None);
    };
    let body = &rest[quote.len()..];
    let mut out = String::new();
    let mut chars = body.char_indices();
    while let Some((at, c)) = chars.next() {
        if body[at..].starts_with(quote) {
            let length = start + quote.len() + at + quote.len();
            let literal = if bytes {
                Literal::Bytes(out.into_bytes())
            } else {
                Literal::Text(out)
            };
            return Ok(Some((literal, length)));
        }
        if c == '\n' && quote.len() == 1 {
            break;
        }
        if c != '\\' || raw {
            out.push(c);
            continue;
        }
        let Some((_, escaped)) = chars.next() else {
            break;
        };
        let width = match escaped {
            'x' | 'X' => 2,
            'u' => 4,
            'U' => 8,
            _ => 0,
        };
        if width > 0 {
            let mut code = 0u32;
            for _ in 0..width {
                let digit = chars.next().and_then(|(_, c)| c.to_digit(16));
                code = code * 16 + digit.ok_or("invalid escape in a string")?;
            }
            out.push(char::from_u32(code).ok_or("invalid escape in a string")?);
            continue;
        }
        out.push(match escaped {
            'n' => '\n',
            't' => '\t',
            'r' => '\r',
            'a' => '\u{7}',
            'b' => '\u{8}',
            'f' => '\u{c}',
            'v' => '\u{b}',
            c @ ('\\' | '\'' | '"' | '`' | '?') => c,
            _ => return Err("invalid escape in a string".to_owned()),
        });
    }
    Err("Syntax error: a string does not end".to_owned())
}

struct Parser {
    tokens: Vec<Token>,
    at: usize,
    depth: usize,
}

impl Parser {
    fn sign(&mut self, sign: &str) -> bool {
        let found = matches!(self.tokens.get(self.at), Some(Token::Sign(have)) if *have == sign);
        self.at += usize::from(found);
        found
    }

    fn expect(&mut self, sign: &str) -> Result<(), String> {
        if self.sign(sign) {
            return Ok(());
        }
        Err(match self.tokens.get(self.at) {
            Some(token) => format!("Syntax error: mismatched input {token:?} expecting '{sign}'"),
            None => format!("Syntax error: mismatched input '<EOF>' expecting '{sign}'"),
        })
    }

    fn expression(&mut self) -> Result<Expr, String> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err("expression recursion limit exceeded: 100".to_owned());
        }
        let condition = self.level(0)?;
        let made = if self.sign("?") {
            let yes = self.level(0)?;
            self.expect(":")?;
            let no = self.expression()?;
            Expr::Condition(Box::new(condition), Box::new(yes), Box::new(no))
        } else {
            condition
        };
        self.depth -= 1;
        Ok(made)
    }

    fn operator(&self, level: usize) -> Option<Binary> {
        let token = self.tokens.get(self.at)?;
        let sign = match token {
            Token::Sign(sign) => *sign,
            Token::Name(name) if name == "in" => "in",
            _ => return None,
        };
        Some(match (level, sign) {
            (0, "||") => Binary::Or,
            (1, "&&") => Binary::And,
            (2, "<") => Binary::Less,
            (2, "<=") => Binary::LessEqual,
            (2, ">") => Binary::Greater,
            (2, ">=") => Binary::GreaterEqual,
            (2, "==") => Binary::Equal,
            (2, "!=") => Binary::NotEqual,
            (2, "in") => Binary::In,
            (3, "+") => Binary::Add,
            (3, "-") => Binary::Subtract,
            (4, "*") => Binary::Multiply,
            (4, "/") => Binary::Divide,
            (4, "%") => Binary::Remainder,
            _ => return None,
        })
    }

    fn level(&mut self, level: usize) -> Result<Expr, String> {
        if level == 5 {
            return self.unary();
        }
        let mut left = self.level(level + 1)?;
        while let Some(operator) = self.operator(level) {
            self.at += 1;
            let right = self.level(level + 1)?;
            left = Expr::Binary(operator, Box::new(left), Box::new(right));
        }
        Ok(left)
    }

    fn unary(&mut self) -> Result<Expr, String> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err("expression recursion limit exceeded: 100".to_owned());
        }
        let made = if self.sign("!") {
            Expr::Not(Box::new(self.unary()?))
        } else if self.sign("-") {
            Expr::Negate(Box::new(self.unary()?))
        } else {
            self.member()?
        };
        self.depth -= 1;
        Ok(made)
    }

    fn member(&mut self) -> Result<Expr, String> {
        let mut expr = self.primary()?;
        loop {
            let optional = self.sign(".?");
            if optional || self.sign(".") {
                let name = self.name()?;
                if !optional && self.sign("(") {
                    let arguments = self.list(")")?;
                    expr = called(Some(expr), name, arguments)?;
                } else {
                    expr = Expr::Select(Box::new(expr), unescape(&name), optional);
                }
                continue;
            }
            let optional = self.sign("[?");
            if optional || self.sign("[") {
                let index = self.expression()?;
                self.expect("]")?;
                expr = Expr::Index(Box::new(expr), Box::new(index), optional);
                continue;
            }
            return Ok(expr);
        }
    }

    fn name(&mut self) -> Result<String, String> {
        let Some(Token::Name(name)) = self.tokens.get(self.at).cloned() else {
            return Err("Syntax error: expected an identifier".to_owned());
        };
        self.at += 1;
        Ok(name)
    }

    fn list(&mut self, end: &str) -> Result<Vec<Expr>, String> {
        let mut items = Vec::new();
        while !self.sign(end) {
            items.push(self.expression()?);
            if !self.sign(",") {
                self.expect(end)?;
                break;
            }
        }
        Ok(items)
    }

    fn primary(&mut self) -> Result<Expr, String> {
        if self.sign("(") {
            let inner = self.expression()?;
            self.expect(")")?;
            return Ok(inner);
        }
        if self.sign("[") {
            return Ok(Expr::List(self.list("]")?));
        }
        if self.sign("{") {
            let mut entries = Vec::new();
            while !self.sign("}") {
                let key = self.expression()?;
                self.expect(":")?;
                entries.push((key, self.expression()?));
                if !self.sign(",") {
                    self.expect("}")?;
                    break;
                }
            }
            return Ok(Expr::Map(entries));
        }
        // A leading dot names what it names without one.
        self.sign(".");
        let Some(token) = self.tokens.get(self.at).cloned() else {
            return Err("Syntax error: mismatched input '<EOF>'".to_owned());
        };
        self.at += 1;
        match token {
            Token::Literal(literal) => Ok(Expr::Literal(literal)),
            Token::Name(name) if self.sign("(") => {
                let arguments = self.list(")")?;
                called(None, name, arguments)
            }
            Token::Name(name) => Ok(Expr::Name(name)),
            Token::Sign(sign) => Err(format!("Syntax error: extraneous input '{sign}'")),
        }
    }
}

/// A call, or the macro it stands for.
fn called(target: Option<Expr>, name: String, mut arguments: Vec<Expr>) -> Result<Expr, String> {
    if target.is_none() && name == "has" {
        return match arguments.pop() {
            Some(Expr::Select(of, field, _)) if arguments.is_empty() => Ok(Expr::Has(of, field)),
            _ => Err("invalid argument to has() macro".to_owned()),
        };
    }
    let kind = match name.as_str() {
        "all" => Macro::All,
        "exists" => Macro::Exists,
        "exists_one" | "existsOne" => Macro::ExistsOne,
        "map" => Macro::Map,
        "filter" => Macro::Filter,
        _ => return Ok(Expr::Call(target.map(Box::new), name, arguments)),
    };
    let many = arguments.len() == 3 && kind == Macro::Map;
    let (Some(target), true) = (target, arguments.len() == 2 || many) else {
        return Err(format!("undeclared reference to '{name}'"));
    };
    let body = arguments.pop().map(Box::new);
    let condition = many.then(|| arguments.pop().map(Box::new)).flatten();
    match (arguments.pop(), body) {
        (Some(Expr::Name(variable)), Some(body)) => Ok(Expr::Macro(
            kind,
            Box::new(target),
            variable,
            condition,
            body,
        )),
        _ => Err("argument must be a simple name".to_owned()),
    }
}

/// Names of properties that are no identifiers, as Kubernetes escapes them.
fn unescape(name: &str) -> String {
    if !name.contains("__") {
        return name.to_owned();
    }
    if let Some(word) = name
        .strip_prefix("__")
        .and_then(|rest| rest.strip_suffix("__"))
        && !word.is_empty()
        && word.bytes().all(|byte| byte.is_ascii_lowercase())
    {
        return word.to_owned();
    }
    name.replace("__underscores__", "\u{0}")
        .replace("__dot__", ".")
        .replace("__dash__", "-")
        .replace("__slash__", "/")
        .replace('\u{0}', "__")
}
