//! Indents compact JSON for people (`?pretty=true`), piece by piece: a list is indented while it is streamed.

/// Where in the text the indenter is.
#[derive(Default)]
pub struct Indenter {
    depth: usize,
    in_string: bool,
    escaped: bool,
    /// An opening bracket was written and nothing in it yet.
    opened: bool,
}

impl Indenter {
    /// Appends the indented form of `piece`, which may end anywhere.
    pub fn write(&mut self, piece: &[u8], out: &mut Vec<u8>) {
        for byte in piece {
            if self.in_string {
                out.push(*byte);
                match byte {
                    _ if self.escaped => self.escaped = false,
                    b'\\' => self.escaped = true,
                    b'"' => self.in_string = false,
                    _ => {}
                }
                continue;
            }
            match byte {
                b'}' | b']' => {
                    self.depth = self.depth.saturating_sub(1);
                    if !self.opened {
                        self.new_line(out);
                    }
                    self.opened = false;
                    out.push(*byte);
                }
                b' ' | b'\n' | b'\r' | b'\t' => {}
                byte => {
                    if self.opened {
                        self.new_line(out);
                        self.opened = false;
                    }
                    out.push(*byte);
                    match byte {
                        b'"' => self.in_string = true,
                        b'{' | b'[' => {
                            self.depth += 1;
                            self.opened = true;
                        }
                        b',' => self.new_line(out),
                        b':' => out.push(b' '),
                        _ => {}
                    }
                }
            }
        }
    }

    fn new_line(&self, out: &mut Vec<u8>) {
        out.push(b'\n');
        out.extend(std::iter::repeat_n(b' ', 2 * self.depth));
    }
}

/// The indented form of a whole text.
pub fn indent(json: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(json.len() * 2);
    Indenter::default().write(json, &mut out);
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn indented_text_is_serdes_pretty_text_however_it_is_cut() {
        let value: Value = json!({"a": [1, {"b": "x\"y{"}, [], {}], "c": null, "d": "e,f:[]"});
        let compact = value.to_string();
        let pretty = serde_json::to_string_pretty(&value).unwrap();
        assert_eq!(
            String::from_utf8(indent(compact.as_bytes())).unwrap(),
            pretty
        );
        let mut out = Vec::new();
        let mut indenter = Indenter::default();
        for byte in compact.as_bytes().chunks(1) {
            indenter.write(byte, &mut out);
        }
        assert_eq!(String::from_utf8(out).unwrap(), pretty);
    }
}
