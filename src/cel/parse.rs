//! From text to a tree. Macros are recognised here, by their names and the shape of their arguments.
//!
//! What can be told wrong later carries its place in the text, which is where cel-go points: the operator, the dot, the
//! opening bracket.

/// Deepest nesting of an expression.
const MAX_DEPTH: usize = 100;
/// Most levels of a parsed expression: chains of members and of operators make it deep without nesting. What walks it and
/// what drops it goes as deep.
const MAX_HEIGHT: usize = 250;
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

/// A place in the text, in bytes.
pub type At = usize;

#[derive(Clone, Debug, PartialEq)]
pub enum Expr {
    Literal(Literal),
    Name(String, At),
    /// `a.b`; optional: `a.?b`.
    Select(Box<Expr>, String, bool, At),
    /// `has(a.b)`.
    Has(Box<Expr>, String, At),
    Index(Box<Expr>, Box<Expr>, bool, At),
    Call(Option<Box<Expr>>, String, Vec<Expr>, At),
    Not(Box<Expr>, At),
    Negate(Box<Expr>, At),
    Binary(Binary, Box<Expr>, Box<Expr>, At),
    Condition(Box<Expr>, Box<Expr>, Box<Expr>, At),
    /// Items, each perhaps optional: `[?a, b]`.
    List(Vec<(bool, Expr)>),
    /// Entries, each perhaps optional: `{?'a': b}`.
    Map(Vec<(bool, Expr, Expr)>),
    /// `Name.of.type{field: value, ?other: optional}`.
    Struct(String, Vec<(bool, String, Expr)>, At),
    /// Over what, the variable's name, a condition (of map: absent when it has none), a body.
    Macro(Macro, Box<Expr>, String, Option<Box<Expr>>, Box<Expr>, At),
}

impl Expr {
    /// The name it is, if it is just one.
    pub fn name(&self) -> Option<&str> {
        match self {
            Self::Name(name, _) => Some(name),
            _ => None,
        }
    }

    /// Whether it only looks something up.
    pub fn is_path(&self) -> bool {
        match self {
            Self::Name(_, _) => true,
            Self::Select(of, _, false, _) | Self::Index(of, _, false, _) => of.is_path(),
            _ => false,
        }
    }

    /// Whether a name occurs in it.
    pub fn uses(&self, name: &str) -> bool {
        let any = |list: &[Expr]| list.iter().any(|expr| expr.uses(name));
        match self {
            Self::Literal(_) => false,
            Self::Name(own, _) => own == name,
            Self::Select(of, _, _, _)
            | Self::Has(of, _, _)
            | Self::Not(of, _)
            | Self::Negate(of, _) => of.uses(name),
            Self::Index(of, by, _, _) | Self::Binary(_, of, by, _) => {
                of.uses(name) || by.uses(name)
            }
            Self::Call(target, _, arguments, _) => {
                target.as_ref().is_some_and(|target| target.uses(name)) || any(arguments)
            }
            Self::Condition(a, b, c, _) => a.uses(name) || b.uses(name) || c.uses(name),
            Self::List(list) => list.iter().any(|(_, item)| item.uses(name)),
            Self::Map(list) => list.iter().any(|(_, k, v)| k.uses(name) || v.uses(name)),
            Self::Struct(_, fields, _) => fields.iter().any(|(_, _, value)| value.uses(name)),
            Self::Macro(_, of, _, condition, body, _) => {
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

/// Where and what is wrong.
type Fail = (At, String);

/// A complaint as cel-go shows it: with its line, and an arrow under the place.
pub fn located(text: &str, at: At, why: &str) -> String {
    let at = at.min(text.len());
    let before = &text.as_bytes()[..at];
    let start = before
        .iter()
        .rposition(|byte| *byte == b'\n')
        .map_or(0, |newline| newline + 1);
    let row = before.iter().filter(|byte| **byte == b'\n').count() + 1;
    let line = text[start..].lines().next().unwrap_or("");
    let column = text
        .get(start..at)
        .map_or(at - start, |part| part.chars().count());
    format!(
        "ERROR: <input>:{row}:{}: {why}\n | {line}\n | {}^",
        column + 1,
        ".".repeat(column)
    )
}

/// The tree of a text.
///
/// # Errors
/// What is wrong with its syntax, with its place.
pub fn parse(text: &str) -> Result<Expr, String> {
    if text.len() > MAX_LENGTH {
        return Err("compilation failed: expression is too long".to_owned());
    }
    parse_whole(text)
        .map_err(|(at, why)| format!("compilation failed: {}", located(text, at, &why)))
}

fn parse_whole(text: &str) -> Result<Expr, Fail> {
    let mut parser = Parser {
        tokens: tokens(text)?,
        end: text.len(),
        at: 0,
        depth: 0,
        height: 0,
    };
    let expr = parser.expression()?;
    match parser.tokens.get(parser.at) {
        None => Ok(expr),
        Some((token, at)) => Err((
            *at,
            format!(
                "Syntax error: extraneous input '{}' expecting <EOF>",
                token.show()
            ),
        )),
    }
}

impl Token {
    fn show(&self) -> String {
        match self {
            Self::Name(name) => name.clone(),
            Self::Sign(sign) => (*sign).to_owned(),
            Self::Literal(Literal::Null) => "null".to_owned(),
            Self::Literal(Literal::Bool(flag)) => flag.to_string(),
            Self::Literal(Literal::Int(number)) => number.to_string(),
            Self::Literal(Literal::Uint(number)) => format!("{number}u"),
            Self::Literal(Literal::Double(number)) => number.to_string(),
            Self::Literal(Literal::Text(text)) => format!("{text:?}"),
            Self::Literal(Literal::Bytes(_)) => "b\"\"".to_owned(),
        }
    }
}

fn tokens(text: &str) -> Result<Vec<(Token, At)>, Fail> {
    let bytes = text.as_bytes();
    let mut tokens = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        let byte = bytes[at];
        if byte.is_ascii_whitespace() {
            at += 1;
        } else if text[at..].starts_with("//") {
            at += text[at..].find('\n').unwrap_or(text.len() - at);
        } else if let Some((literal, length)) = quoted(&text[at..]).map_err(|why| (at, why))? {
            tokens.push((Token::Literal(literal), at));
            at += length;
        } else if byte.is_ascii_digit()
            || (byte == b'.' && bytes.get(at + 1).is_some_and(u8::is_ascii_digit))
        {
            let (literal, length) = number(&text[at..]).map_err(|why| (at, why))?;
            tokens.push((Token::Literal(literal), at));
            at += length;
        } else if byte.is_ascii_alphabetic() || byte == b'_' {
            let length = text[at..]
                .find(|c: char| !c.is_ascii_alphanumeric() && c != '_')
                .unwrap_or(text.len() - at);
            let word = &text[at..at + length];
            let token = match word {
                "true" => Token::Literal(Literal::Bool(true)),
                "false" => Token::Literal(Literal::Bool(false)),
                "null" => Token::Literal(Literal::Null),
                word => Token::Name(word.to_owned()),
            };
            tokens.push((token, at));
            at += length;
        } else if let Some(sign) = SIGNS.iter().find(|sign| text[at..].starts_with(**sign)) {
            tokens.push((Token::Sign(sign), at));
            at += sign.len();
        } else {
            let wrong = text[at..].chars().next().unwrap_or(' ');
            return Err((
                at,
                format!("Syntax error: token recognition error at: '{wrong}'"),
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
    tokens: Vec<(Token, At)>,
    /// How long the text is.
    end: At,
    at: usize,
    depth: usize,
    /// Levels of the expression that was read last.
    height: usize,
}

impl Parser {
    /// The expression made last stands above the one read last and one of this height.
    fn grow(&mut self, other: usize) -> Result<(), Fail> {
        self.height = self.height.max(other) + 1;
        if self.height > MAX_HEIGHT {
            let why = format!("expression recursion limit exceeded: {MAX_HEIGHT}");
            return Err((self.place(), why));
        }
        Ok(())
    }

    /// Where the next token stands.
    fn place(&self) -> At {
        self.tokens.get(self.at).map_or(self.end, |(_, at)| *at)
    }

    fn sign(&mut self, sign: &str) -> bool {
        let found =
            matches!(self.tokens.get(self.at), Some((Token::Sign(have), _)) if *have == sign);
        self.at += usize::from(found);
        found
    }

    fn expect(&mut self, sign: &str) -> Result<(), Fail> {
        if self.sign(sign) {
            return Ok(());
        }
        Err(self.mismatch(&format!("'{sign}'")))
    }

    fn mismatch(&self, expected: &str) -> Fail {
        let have = self
            .tokens
            .get(self.at)
            .map_or_else(|| "<EOF>".to_owned(), |(token, _)| token.show());
        let why = format!("Syntax error: mismatched input '{have}' expecting {expected}");
        (self.place(), why)
    }

    fn deeper(&mut self) -> Result<(), Fail> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            let why = format!("expression recursion limit exceeded: {MAX_DEPTH}");
            return Err((self.place(), why));
        }
        Ok(())
    }

    fn expression(&mut self) -> Result<Expr, Fail> {
        self.deeper()?;
        let condition = self.level(0)?;
        let at = self.place();
        let made = if self.sign("?") {
            let first = self.height;
            let yes = self.level(0)?;
            let first = first.max(self.height);
            self.expect(":")?;
            let no = self.expression()?;
            self.grow(first)?;
            Expr::Condition(Box::new(condition), Box::new(yes), Box::new(no), at)
        } else {
            condition
        };
        self.depth -= 1;
        Ok(made)
    }

    fn operator(&self, level: usize) -> Option<Binary> {
        let (token, _) = self.tokens.get(self.at)?;
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

    fn level(&mut self, level: usize) -> Result<Expr, Fail> {
        if level == 5 {
            return self.unary();
        }
        let mut left = self.level(level + 1)?;
        if let (0 | 1, Some(operator)) = (level, self.operator(level)) {
            return self.logical(level, operator, left);
        }
        while let Some(operator) = self.operator(level) {
            let at = self.place();
            self.at += 1;
            let height = self.height;
            let right = self.level(level + 1)?;
            self.grow(height)?;
            left = Expr::Binary(operator, Box::new(left), Box::new(right), at);
        }
        Ok(left)
    }

    /// A chain of `&&` or `||` as a balanced tree, since there may be many of them.
    fn logical(&mut self, level: usize, operator: Binary, first: Expr) -> Result<Expr, Fail> {
        let (mut operands, mut height) = (vec![(0, first)], self.height);
        while self.operator(level).is_some() {
            let at = self.place();
            self.at += 1;
            operands.push((at, self.level(level + 1)?));
            height = height.max(self.height);
        }
        self.height = height + operands.len().next_power_of_two().ilog2() as usize;
        self.grow(0)?;
        Ok(balanced(operator, operands).1)
    }

    fn unary(&mut self) -> Result<Expr, Fail> {
        self.deeper()?;
        let at = self.place();
        let made = if self.sign("!") {
            Expr::Not(Box::new(self.unary()?), at)
        } else if self.sign("-") {
            Expr::Negate(Box::new(self.unary()?), at)
        } else {
            self.depth -= 1;
            return self.member();
        };
        self.grow(0)?;
        self.depth -= 1;
        Ok(made)
    }

    fn member(&mut self) -> Result<Expr, Fail> {
        let mut expr = self.primary()?;
        loop {
            let at = self.place();
            let optional = self.sign(".?");
            if optional || self.sign(".") {
                let name = self.name()?;
                let open = self.place();
                let height = self.height;
                if !optional && self.sign("(") {
                    let arguments = self.list(")")?;
                    self.grow(height)?;
                    expr = called(Some(expr), name, arguments, open)?;
                } else {
                    self.grow(height)?;
                    expr = Expr::Select(Box::new(expr), unescape(&name), optional, at);
                }
                continue;
            }
            let optional = self.sign("[?");
            if optional || self.sign("[") {
                let height = self.height;
                let index = self.expression()?;
                self.expect("]")?;
                self.grow(height)?;
                expr = Expr::Index(Box::new(expr), Box::new(index), optional, at);
                continue;
            }
            if let Some(name) = dotted(&expr)
                && self.sign("{")
            {
                let height = self.height;
                expr = Expr::Struct(name, self.fields()?, at);
                self.grow(height)?;
                continue;
            }
            return Ok(expr);
        }
    }

    fn name(&mut self) -> Result<String, Fail> {
        let Some((Token::Name(name), _)) = self.tokens.get(self.at).cloned() else {
            return Err(self.mismatch("IDENTIFIER"));
        };
        self.at += 1;
        Ok(name)
    }

    fn list(&mut self, end: &str) -> Result<Vec<Expr>, Fail> {
        let (mut items, mut height) = (Vec::new(), 0);
        while !self.sign(end) {
            items.push(self.expression()?);
            height = height.max(self.height);
            if !self.sign(",") {
                self.expect(end)?;
                break;
            }
        }
        self.height = height;
        Ok(items)
    }

    /// The fields of a struct, after its brace.
    fn fields(&mut self) -> Result<Vec<(bool, String, Expr)>, Fail> {
        let (mut fields, mut height) = (Vec::new(), 0);
        while !self.sign("}") {
            let optional = self.sign("?");
            let name = unescape(&self.name()?);
            self.expect(":")?;
            fields.push((optional, name, self.expression()?));
            height = height.max(self.height);
            if !self.sign(",") {
                self.expect("}")?;
                break;
            }
        }
        self.height = height;
        Ok(fields)
    }

    fn items(&mut self, mut optional: bool) -> Result<Expr, Fail> {
        let (mut items, mut height) = (Vec::new(), 0);
        while !self.sign("]") {
            let optional = std::mem::take(&mut optional) || self.sign("?");
            items.push((optional, self.expression()?));
            height = height.max(self.height);
            if !self.sign(",") {
                self.expect("]")?;
                break;
            }
        }
        self.height = height + 1;
        Ok(Expr::List(items))
    }

    fn entries(&mut self) -> Result<Expr, Fail> {
        let (mut entries, mut height) = (Vec::new(), 0);
        while !self.sign("}") {
            let optional = self.sign("?");
            let key = self.expression()?;
            height = height.max(self.height);
            self.expect(":")?;
            entries.push((optional, key, self.expression()?));
            height = height.max(self.height);
            if !self.sign(",") {
                self.expect("}")?;
                break;
            }
        }
        self.height = height + 1;
        Ok(Expr::Map(entries))
    }

    fn primary(&mut self) -> Result<Expr, Fail> {
        if self.sign("(") {
            let inner = self.expression()?;
            self.expect(")")?;
            return Ok(inner);
        }
        let optional = self.sign("[?");
        if optional || self.sign("[") {
            return self.items(optional);
        }
        if self.sign("{") {
            return self.entries();
        }
        // A leading dot names what it names without one.
        self.sign(".");
        let at = self.place();
        let token = self.tokens.get(self.at).map(|(token, _)| token.clone());
        match token {
            Some(Token::Literal(literal)) => {
                self.at += 1;
                self.height = 1;
                Ok(Expr::Literal(literal))
            }
            Some(Token::Name(name)) => {
                self.at += 1;
                let open = self.place();
                self.height = 1;
                if self.sign("(") {
                    let arguments = self.list(")")?;
                    self.grow(0)?;
                    return called(None, name, arguments, open);
                }
                Ok(Expr::Name(name, at))
            }
            _ => Err(self.mismatch(
                "{'[', '{', '(', '.', '-', '!', 'true', 'false', 'null', NUM_FLOAT, NUM_INT, NUM_UINT, STRING, BYTES, IDENTIFIER}",
            )),
        }
    }
}

/// Operands, of which there is one at least and each with the place of the operator before it, under one operator with as
/// few levels as can be.
fn balanced(operator: Binary, mut operands: Vec<(At, Expr)>) -> (At, Expr) {
    if operands.len() > 1 {
        let right = operands.split_off(operands.len() / 2);
        let (before, left) = balanced(operator, operands);
        let (at, right) = balanced(operator, right);
        let both = Expr::Binary(operator, Box::new(left), Box::new(right), at);
        return (before, both);
    }
    operands.pop().unwrap_or((0, Expr::Literal(Literal::Null)))
}

/// `a.b.c`, where the expression is just names.
fn dotted(expr: &Expr) -> Option<String> {
    match expr {
        Expr::Name(name, _) => Some(name.clone()),
        Expr::Select(of, field, false, _) => Some(format!("{}.{field}", dotted(of)?)),
        _ => None,
    }
}

/// A call, or the macro it stands for.
fn called(
    target: Option<Expr>,
    name: String,
    mut arguments: Vec<Expr>,
    at: At,
) -> Result<Expr, Fail> {
    if target.is_none() && name == "has" {
        return match arguments.pop() {
            Some(Expr::Select(of, field, _, _)) if arguments.is_empty() => {
                Ok(Expr::Has(of, field, at))
            }
            _ => Err((at, "invalid argument to has() macro".to_owned())),
        };
    }
    let kind = match name.as_str() {
        "all" => Macro::All,
        "exists" => Macro::Exists,
        "exists_one" | "existsOne" => Macro::ExistsOne,
        "map" => Macro::Map,
        "filter" => Macro::Filter,
        _ => return Ok(Expr::Call(target.map(Box::new), name, arguments, at)),
    };
    let many = arguments.len() == 3 && kind == Macro::Map;
    let (Some(target), true) = (target, arguments.len() == 2 || many) else {
        let why = format!("undeclared reference to '{name}' (in container '')");
        return Err((at, why));
    };
    let body = arguments.pop().map(Box::new);
    let condition = many.then(|| arguments.pop().map(Box::new)).flatten();
    match (arguments.pop(), body) {
        (Some(Expr::Name(variable, _)), Some(body)) => Ok(Expr::Macro(
            kind,
            Box::new(target),
            variable,
            condition,
            body,
            at,
        )),
        _ => Err((at, "argument must be a simple name".to_owned())),
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
