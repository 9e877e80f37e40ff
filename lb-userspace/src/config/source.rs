//! The text of a configuration file: its syntax errors, and where an offset is.
//!
//! The TOML parser reports every syntax error but, after some of them, drops
//! what follows. So the lines with errors are blanked and the rest is parsed
//! again: values elsewhere are still checked, and offsets stay true. A broken
//! section header is the exception: the keys below it would be taken for keys
//! of the section above, so then only syntax errors are reported.

use std::collections::BTreeSet;

use toml::de::DeTable;

use super::fields::printable;

/// Passes after which the text counts as unreadable. One is enough unless
/// blanking a line breaks the value that it was part of.
const PASSES: usize = 8;

/// The parser's words that this module depends on; tests hold it to them.
const DUPLICATE: &str = "duplicate key";
const UNCLOSED: &str = "unclosed ";

/// A syntax error: offset and message.
pub(super) type SyntaxError = (usize, String);

/// A file split into what can be read and what cannot.
pub(super) struct Source<'t> {
    text: &'t str,
    line_starts: Vec<usize>,
    /// At most one a line: later ones are usually its consequence.
    pub(super) syntax_errors: Vec<SyntaxError>,
    /// The text with erroneous lines blanked; `None`: nothing in it can be
    /// trusted.
    pub(super) readable: Option<String>,
}

impl<'t> Source<'t> {
    pub(super) fn new(text: &'t str) -> Self {
        let line_starts = std::iter::once(0)
            .chain(text.match_indices('\n').map(|(at, _)| at + 1))
            .collect();
        let mut source = Self {
            text,
            line_starts,
            syntax_errors: Vec::new(),
            readable: None,
        };
        source.readable = source.separate();
        source
    }

    /// Whether a part of the file is missing from the readable text, so that
    /// nothing can be said about what the file lacks.
    pub(super) fn incomplete(&self) -> bool {
        !self.syntax_errors.is_empty()
    }

    /// Line and column of an offset, both from 1, the column in characters.
    pub(super) fn position(&self, at: usize) -> (usize, usize) {
        let line = self.line(at);
        let start = self.line_starts[line];
        let column = self.text[start..]
            .char_indices()
            .take_while(|(index, _)| start + index < at)
            // A byte order mark takes no column in an editor.
            .filter(|(_, character)| *character != '\u{feff}')
            .count();
        (line + 1, column + 1)
    }

    fn line(&self, at: usize) -> usize {
        self.line_starts.partition_point(|start| *start <= at) - 1
    }

    fn line_text(&self, line: usize) -> &'t str {
        let start = self.line_starts[line];
        let end = self.line_starts.get(line + 1);
        &self.text[start..end.copied().unwrap_or(self.text.len())]
    }

    fn separate(&mut self) -> Option<String> {
        let mut remaining = self.text.to_owned();
        let mut blanked = BTreeSet::new();
        for pass in 0..PASSES {
            let mut found = self.errors_of(&remaining);
            if found.is_empty() {
                return Some(remaining);
            }
            let swallowed = swallowed_from(&found);
            if let Some(first) = swallowed {
                found.truncate(first + 1);
            }
            for (at, message) in found {
                let line = self.line(at);
                // A later pass finds what an earlier error hid, and what
                // blanking broke; only the former concerns the operator.
                let news = pass == 0 || message == DUPLICATE;
                if blanked.insert(line) && news {
                    let error = self.reword(at, message);
                    self.syntax_errors.push(error);
                }
            }
            let headers = |line: &usize| self.line_text(*line).trim_start().starts_with('[');
            if swallowed.is_some() || blanked.iter().any(headers) {
                return None;
            }
            remaining = self.without(&blanked);
        }
        None
    }

    /// What the parser says about `text`, in file order.
    fn errors_of(&self, text: &str) -> Vec<SyntaxError> {
        let place = |error: toml::de::Error| {
            let at = error.span().map_or(self.text.len(), |span| span.start);
            (
                self.text.floor_char_boundary(at),
                error.message().to_owned(),
            )
        };
        let (_, errors) = DeTable::parse_recoverable(text);
        let mut found: Vec<SyntaxError> = errors.into_iter().map(place).collect();
        // That a string does not end says more than that its array does not.
        found.sort_by_key(|(at, message)| (*at, message.starts_with(UNCLOSED)));
        found
    }

    /// Says what the parser means, where it does not quite.
    fn reword(&self, at: usize, message: String) -> SyntaxError {
        let bare = |c: char| c.is_alphanumeric() || "_-+.:/".contains(c);
        let start = self.text[..at].trim_end_matches(bare).len();
        let end = at
            + self.text[at..]
                .find(|c| !bare(c))
                .unwrap_or(self.text.len() - at);
        let word = printable(&self.text[start..end]);
        let has = |prefix: &str| message.starts_with(prefix);
        let reworded = if message == DUPLICATE && !word.is_empty() {
            format!(
                "`{}` is there twice",
                word.rsplit('.').next().unwrap_or(&word)
            )
        } else if has("invalid boolean") {
            "write `true` or `false`, in lower case; text stands in quotes".to_owned()
        } else if !word.is_empty() && (has("invalid float") || has("string values must be quoted"))
        {
            let message = format!("`{word}` is not a value; text stands in quotes: \"{word}\"");
            return (start, message);
        } else if message.ends_with("string, expected `\"`")
            || message.ends_with("string, expected `'`")
        {
            "the closing quote is missing".to_owned()
        } else if has("missing comma between") || has("unexpected `=` in array") {
            format!("{message}; or is the closing bracket above missing?")
        } else {
            message
        };
        (at, reworded)
    }

    fn without(&self, lines: &BTreeSet<usize>) -> String {
        let mut text = String::with_capacity(self.text.len());
        for line in 0..self.line_starts.len() {
            let original = self.line_text(line);
            if lines.contains(&line) {
                let content = original.trim_end_matches('\n');
                text.extend(std::iter::repeat_n(' ', content.len()));
                text.push_str(&original[content.len()..]);
            } else {
                text.push_str(original);
            }
        }
        text
    }
}

/// The first error of an array or inline table that never ends. It takes the
/// rest of the file for its elements, so later errors mean nothing.
fn swallowed_from(errors: &[SyntaxError]) -> Option<usize> {
    let unending = |(_, message): &SyntaxError| {
        message.starts_with("unclosed array,") || message.starts_with("unclosed inline table")
    };
    let inside = |(_, message): &SyntaxError| {
        let parts = ["array", "inline table", "key-value pairs"];
        parts.iter().any(|part| message.contains(part)) && !message.contains("array table")
    };
    errors
        .iter()
        .any(unending)
        .then(|| errors.iter().position(inside))?
}
