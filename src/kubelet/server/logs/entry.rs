//! One line of a container's log as CRI runtimes write it:
//! `2026-10-31T14:28:11.123456789Z stdout F the text`. Pure.

/// A line taken apart; the parts borrow from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    /// RFC 3339 with nanoseconds.
    pub time: &'a str,
    /// `stdout` or `stderr`.
    pub stream: &'a str,
    /// The line goes on in the next entry.
    pub partial: bool,
    /// What was written.
    pub content: &'a str,
}

/// Takes a line apart; `None` if it is not an entry.
pub fn parse(line: &str) -> Option<Entry<'_>> {
    let mut parts = line.splitn(4, ' ');
    let (time, stream, tags) = (parts.next()?, parts.next()?, parts.next()?);
    let content = parts.next().unwrap_or_default();
    let known = matches!(stream, "stdout" | "stderr")
        && time.ends_with(['Z', '0', '1', '2', '3', '4', '5', '6', '7', '8', '9']);
    let partial = tags.split(':').next() == Some("P");
    known.then_some(Entry {
        time,
        stream,
        partial,
        content,
    })
}

impl Entry<'_> {
    /// The text as it was written, with its newline.
    pub fn text(&self) -> String {
        let end = if self.partial { "" } else { "\n" };
        format!("{}{end}", self.content)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_taken_apart_and_nothing_else_is() {
        let entry = parse("2026-10-31T14:28:11.5Z stdout F hello  world ").expect("an entry");
        assert_eq!(entry.content, "hello  world ");
        assert_eq!(entry.text(), "hello  world \n");
        let partial = parse("2026-10-31T14:28:11.5Z stderr P half").expect("an entry");
        assert_eq!(
            (partial.text().as_str(), partial.stream),
            ("half", "stderr")
        );
        assert_eq!(
            parse("2026-10-31T14:28:11.5Z stdout F ")
                .expect("an empty line")
                .text(),
            "\n"
        );
        assert_eq!(
            parse("2026-10-31T14:28:11.5Z stdout F")
                .expect("an empty line")
                .text(),
            "\n"
        );
        assert_eq!(parse("garbage"), None);
        assert_eq!(parse("a b c d"), None);
    }
}
