//! Files as the rules see them: as text, and for Rust as code without its
//! comments and strings.

/// One text file of the repository.
pub(super) struct File {
    /// Relative to the top, with `/`.
    pub(super) path: String,
    pub(super) text: String,
    /// For Rust, the text with comments and literals blanked, line by line
    /// where it was; empty for other files.
    code: String,
}

impl File {
    pub(super) fn new(path: String, text: String) -> Self {
        let code = if path.ends_with(".rs") {
            blank_comments_and_literals(&text)
        } else {
            String::new()
        };
        Self { path, text, code }
    }

    pub(super) fn is_rust(&self) -> bool {
        self.path.ends_with(".rs")
    }

    /// Numbered lines of code without comments and literals.
    pub(super) fn code_lines(&self) -> impl Iterator<Item = (usize, &str)> {
        (1..).zip(self.code.lines())
    }

    /// The number of the first line that belongs to tests: in a file of tests
    /// the first, elsewhere that of `#[cfg(test)]`, which ends a file here.
    pub(super) fn first_test_line(&self) -> usize {
        let test_file = self.path.starts_with("tests/")
            || self.path.contains("/tests/")
            || self.path.ends_with("/tests.rs");
        if test_file {
            return 1;
        }
        self.code_lines()
            .find(|(_, line)| line.trim() == "#[cfg(test)]")
            .map_or(usize::MAX, |(number, _)| number)
    }
}

/// Whether `word` occurs in `line` and is not part of a longer identifier.
pub(super) fn has_word(line: &str, word: &str) -> bool {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(word).any(|(start, _)| {
        let before = line[..start].chars().next_back();
        let after = line[start + word.len()..].chars().next();
        !before.is_some_and(is_part) && !after.is_some_and(is_part)
    })
}

/// Replaces what is in comments, strings and character literals by spaces.
fn blank_comments_and_literals(text: &str) -> String {
    let characters: Vec<char> = text.chars().collect();
    let mut out = String::with_capacity(text.len());
    let mut at = 0;
    while at < characters.len() {
        let length = blank_length(&characters, at);
        if length == 0 {
            out.push(characters[at]);
            at += 1;
            continue;
        }
        let end = (at + length).min(characters.len());
        for c in &characters[at..end] {
            out.push(if *c == '\n' { '\n' } else { ' ' });
        }
        at = end;
    }
    out
}

/// How many characters from `at` on are a comment or a literal.
fn blank_length(text: &[char], at: usize) -> usize {
    let peek = |offset: usize| text.get(at + offset).copied();
    let count_while = |from: usize, test: &dyn Fn(char) -> bool| {
        text[(at + from).min(text.len())..]
            .iter()
            .take_while(|c| test(**c))
            .count()
    };
    match (text[at], peek(1)) {
        ('/', Some('/')) => count_while(0, &|c| c != '\n'),
        ('/', Some('*')) => block_comment(&text[at..]),
        ('"', _) => quoted(&text[at..]),
        ('r', Some('"' | '#')) if !follows_identifier(text, at) => {
            let hashes = count_while(1, &|c| c == '#');
            if peek(1 + hashes) == Some('"') {
                raw_string(&text[at..], hashes)
            } else {
                0
            }
        }
        // A lifetime has no closing quote where a character would.
        ('\'', Some('\\')) => 4 + count_while(3, &|c| c != '\''),
        ('\'', Some(_)) if peek(2) == Some('\'') => 3,
        _ => 0,
    }
}

fn follows_identifier(text: &[char], at: usize) -> bool {
    // `br"…"` is a raw string as well.
    let before = at.checked_sub(1).map(|index| text[index]);
    before.is_some_and(|c| (c.is_alphanumeric() || c == '_') && c != 'b')
}

fn block_comment(text: &[char]) -> usize {
    let mut depth = 0usize;
    let mut at = 0;
    while at < text.len() {
        match (text[at], text.get(at + 1)) {
            ('/', Some('*')) => {
                depth += 1;
                at += 2;
            }
            ('*', Some('/')) => {
                depth -= 1;
                at += 2;
                if depth == 0 {
                    return at;
                }
            }
            _ => at += 1,
        }
    }
    text.len()
}

fn quoted(text: &[char]) -> usize {
    let mut at = 1;
    while at < text.len() {
        match text[at] {
            '\\' => at += 2,
            '"' => return at + 1,
            _ => at += 1,
        }
    }
    text.len()
}

fn raw_string(text: &[char], hashes: usize) -> usize {
    let mut at = 2 + hashes;
    while at < text.len() {
        let closing = text[at] == '"'
            && text[at + 1..]
                .iter()
                .take(hashes)
                .filter(|c| **c == '#')
                .count()
                == hashes;
        if closing {
            return at + 1 + hashes;
        }
        at += 1;
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_literals_are_blanked() {
        let rows = [
            ("a // b\nc", "a     \nc"),
            ("a /* b /* c */ d */ e", "a                   e"),
            (r#"f("x\"y") g"#, "f(      ) g"),
            (r##"r#"a"b"# c"##, "         c"),
            (r#"br"\" c"#, "b     c"),
            ("'x' '\\'' '\\u{1F600}' e", "                     e"),
            ("fn f<'a>(x: &'a str)", "fn f<'a>(x: &'a str)"),
            ("'\"' unsafe", "    unsafe"),
            ("\"unclosed", "         "),
        ];
        for (text, expected) in rows {
            assert_eq!(blank_comments_and_literals(text), expected, "{text}");
        }
    }

    #[test]
    fn words_are_whole() {
        let rows = [
            ("unsafe { x }", true),
            ("#[unsafe(no_mangle)]", true),
            ("unsafe_op_in_unsafe_fn", false),
            ("", false),
        ];
        for (line, expected) in rows {
            assert_eq!(has_word(line, "unsafe"), expected, "{line:?}");
        }
    }
}
