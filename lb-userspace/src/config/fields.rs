//! Typed reading of one section: each method takes a key and what its value
//! must be, and reports what is wrong with it.

use std::fmt::Display;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::duration;
use super::format::{self, Shape};
use super::mistakes::Collector;
use super::near::nearest;

/// What a key turned out to hold.
#[derive(Debug, Clone)]
pub(super) enum Field<T> {
    /// The key is not there.
    Absent,
    /// The key is there and wrong; that has been reported.
    Bad,
    /// A value and its offset.
    Is(T, usize),
}

impl<T> Field<T> {
    /// The value, where it could be read.
    pub(super) fn value(self) -> Option<T> {
        match self {
            Self::Absent | Self::Bad => None,
            Self::Is(value, _) => Some(value),
        }
    }

    /// The value or what stands for it. A bad value may become the default
    /// too: its configuration is refused anyway.
    pub(super) fn or(self, default: T) -> T {
        self.value().unwrap_or(default)
    }

    /// The value and its offset, where it could be read.
    pub(super) fn spot(&self) -> Option<(&T, usize)> {
        match self {
            Self::Absent | Self::Bad => None,
            Self::Is(value, at) => Some((value, *at)),
        }
    }

    /// Goes on checking a value; the check reports what it refuses.
    pub(super) fn and<U>(self, check: impl FnOnce(T, usize) -> Option<U>) -> Field<U> {
        match self {
            Self::Absent => Field::Absent,
            Self::Bad => Field::Bad,
            Self::Is(value, at) => match check(value, at) {
                Some(checked) => Field::Is(checked, at),
                None => Field::Bad,
            },
        }
    }
}

/// One table of the file.
pub(super) struct Section<'a> {
    table: &'a DeTable<'a>,
    /// Offset of its header, or of its opening brace.
    pub(super) at: usize,
    path: String,
}

impl<'a> Section<'a> {
    /// The whole file.
    pub(super) fn root(table: &'a DeTable<'a>, out: &mut Collector) -> Self {
        Self::open(table, 0, String::new(), &format::ROOT, out)
    }

    fn open(
        table: &'a DeTable<'a>,
        at: usize,
        path: String,
        shape: &Shape,
        out: &mut Collector,
    ) -> Self {
        let section = Self { table, at, path };
        for key in table.keys() {
            let name = key.get_ref().as_ref();
            if shape.keys.contains(&name) {
                continue;
            }
            let path = section.path(name);
            let message = if shape.later.contains(&name) {
                format!("`{name}` is not available in this version; remove it")
            } else {
                unknown_key(name, shape)
            };
            out.mistake(key.span().start, &path, message);
        }
        section
    }

    /// The full path of a key of this section, for messages.
    pub(super) fn path(&self, key: &str) -> String {
        let key = printable(key);
        match self.path.is_empty() {
            true => key,
            false => format!("{}.{key}", self.path),
        }
    }

    /// The path of the section itself.
    pub(super) fn own_path(&self) -> &str {
        &self.path
    }

    /// The raw value of a key that may have several types.
    pub(super) fn get(&self, key: &str) -> Option<&'a Spanned<DeValue<'a>>> {
        self.table.get(key)
    }

    /// Reports a key that must be there and is not.
    pub(super) fn require<T>(&self, key: &str, field: &Field<T>, out: &mut Collector) {
        if matches!(field, Field::Absent) {
            out.absence(self.at, &self.path(key), format!("`{key}` is missing"));
        }
    }

    /// Reports a value whose capability this version does not have.
    pub(super) fn unavailable(
        &self,
        key: &str,
        at: usize,
        value: impl Display,
        remedy: &str,
        out: &mut Collector,
    ) {
        let message = format!("`{key} = {value}` is not available in this version; {remedy}");
        out.mistake(at, &self.path(key), message);
    }

    fn typed<T>(
        &self,
        key: &str,
        expected: &str,
        out: &mut Collector,
        convert: impl FnOnce(&'a DeValue<'a>) -> Option<T>,
    ) -> Field<T> {
        let Some(value) = self.get(key) else {
            return Field::Absent;
        };
        let at = value.span().start;
        match convert(value.get_ref()) {
            Some(converted) => Field::Is(converted, at),
            None => {
                let message = wrong_type(expected, value.get_ref());
                out.mistake(at, &self.path(key), message);
                Field::Bad
            }
        }
    }

    /// Any string.
    pub(super) fn string(&self, key: &str, out: &mut Collector) -> Field<&'a str> {
        self.typed(key, "a string", out, DeValue::as_str)
    }

    /// `true` or `false`.
    pub(super) fn boolean(&self, key: &str, out: &mut Collector) -> Field<bool> {
        self.typed(key, "true or false", out, DeValue::as_bool)
    }

    /// An integer of a range that `T` holds.
    pub(super) fn integer<T>(
        &self,
        key: &str,
        range: RangeInclusive<T>,
        out: &mut Collector,
    ) -> Field<T>
    where
        T: TryFrom<i128> + PartialOrd + Display,
    {
        let path = self.path(key);
        self.typed(key, "an integer", out, DeValue::as_integer)
            .and(|integer, at| {
                let value = i128::from_str_radix(integer.as_str(), integer.radix())
                    .ok()
                    .and_then(|value| T::try_from(value).ok())
                    .filter(|value| range.contains(value));
                if value.is_none() {
                    let (low, high) = (range.start(), range.end());
                    let message = format!("{integer} is out of range; {low} to {high} is possible");
                    out.mistake(at, &path, message);
                }
                value
            })
    }

    /// A number above 0 and at most 1; integers are numbers.
    pub(super) fn fraction(&self, key: &str, out: &mut Collector) -> Field<f64> {
        let path = self.path(key);
        let number = |value: &'a DeValue<'a>| match value {
            DeValue::Float(float) => float.as_str().parse().ok(),
            DeValue::Integer(integer) if integer.radix() == 10 => integer.as_str().parse().ok(),
            _ => None,
        };
        self.typed(key, "a number", out, number)
            .and(|value: f64, at| {
                let inside = value > 0.0 && value <= 1.0;
                if !inside {
                    let message =
                        format!("{value} is out of range; above 0 and at most 1 is possible");
                    out.mistake(at, &path, message);
                }
                inside.then_some(value)
            })
    }

    /// A duration of a range.
    pub(super) fn duration(
        &self,
        key: &str,
        range: RangeInclusive<Duration>,
        out: &mut Collector,
    ) -> Field<Duration> {
        self.duration_or_zero(key, false, range, out)
    }

    /// A duration of a range, or 0 where `zero` says that it is possible.
    pub(super) fn duration_or_zero(
        &self,
        key: &str,
        zero: bool,
        range: RangeInclusive<Duration>,
        out: &mut Collector,
    ) -> Field<Duration> {
        let path = self.path(key);
        self.typed(key, "a duration such as \"60s\"", out, DeValue::as_str)
            .and(|text, at| {
                let value = match duration::parse(text) {
                    Ok(value) => value,
                    Err(problem) => {
                        out.mistake(at, &path, format!("{}: {problem}", quoted(text)));
                        return None;
                    }
                };
                if range.contains(&value) || (zero && value.is_zero()) {
                    return Some(value);
                }
                let message = format!(
                    "{} is out of range; {}{} to {} is possible",
                    quoted(text),
                    if zero { "0s, or " } else { "" },
                    duration::format(*range.start()),
                    duration::format(*range.end()),
                );
                out.mistake(at, &path, message);
                None
            })
    }

    /// One of the spellings; those with `None` are of another version.
    pub(super) fn choice<T: Copy>(
        &self,
        key: &str,
        spellings: &[(&str, Option<T>)],
        out: &mut Collector,
    ) -> Field<T> {
        self.string(key, out).and(|text, at| {
            match spellings.iter().find(|(spelling, _)| *spelling == text) {
                Some((_, Some(value))) => return Some(*value),
                Some((_, None)) => {
                    let here = spellings
                        .iter()
                        .filter(|(_, value)| value.is_some())
                        .map(|(spelling, _)| *spelling);
                    let remedy = format!("use {}", alternatives(here));
                    self.unavailable(key, at, quoted(text), &remedy, out);
                }
                None => {
                    let known = || spellings.iter().map(|(spelling, _)| *spelling);
                    let message = match nearest(text, known()) {
                        Some(near) => {
                            format!("{} is unknown; did you mean \"{near}\"?", quoted(text))
                        }
                        None => format!(
                            "{} is unknown; possible is {}",
                            quoted(text),
                            alternatives(known())
                        ),
                    };
                    out.mistake(at, &self.path(key), message);
                }
            }
            None
        })
    }

    /// An absolute path.
    pub(super) fn absolute_path(&self, key: &str, out: &mut Collector) -> Field<PathBuf> {
        let path = self.path(key);
        self.string(key, out).and(|text, at| {
            let problem = if text.contains('\0') {
                "a path cannot contain a zero byte"
            } else if !text.starts_with('/') {
                "the path must be absolute: start it with `/`"
            } else {
                return Some(PathBuf::from(text));
            };
            out.mistake(at, &path, format!("{}: {problem}", quoted(text)));
            None
        })
    }

    /// The elements of an array, each with its path and offset.
    pub(super) fn array(
        &self,
        key: &str,
        expected: &str,
        out: &mut Collector,
    ) -> Field<Vec<(&'a DeValue<'a>, String, usize)>> {
        let path = self.path(key);
        self.typed(key, expected, out, DeValue::as_array)
            .and(|array, _| {
                let element = |(index, value): (usize, &'a Spanned<DeValue<'a>>)| {
                    let path = format!("{path}[{index}]");
                    (value.get_ref(), path, value.span().start)
                };
                Some(array.iter().enumerate().map(element).collect())
            })
    }

    /// A table below this one.
    pub(super) fn section(
        &self,
        key: &str,
        shape: &Shape,
        out: &mut Collector,
    ) -> Field<Section<'a>> {
        let expected = format!("one table, {}", shape.header);
        self.typed(key, &expected, out, DeValue::as_table)
            .and(|table, at| Some(Section::open(table, at, self.path(key), shape, out)))
    }

    /// The tables of an array below this one. One table by itself, written
    /// with `[…]` instead of `[[…]]`, is reported and still read.
    pub(super) fn sections(
        &self,
        key: &str,
        shape: &Shape,
        out: &mut Collector,
    ) -> Vec<Section<'a>> {
        let Some(value) = self.get(key) else {
            return Vec::new();
        };
        let elements = match value.get_ref() {
            DeValue::Array(array) => array.iter().collect(),
            DeValue::Table(_) => {
                let message = format!("every {key} is a table of its own; write {}", shape.header);
                out.mistake(value.span().start, &self.path(key), message);
                vec![value]
            }
            other => {
                let expected = format!("tables, {}", shape.header);
                let message = wrong_type(&expected, other);
                out.mistake(value.span().start, &self.path(key), message);
                Vec::new()
            }
        };
        let mut sections = Vec::new();
        for (index, element) in elements.into_iter().enumerate() {
            let path = format!("{}[{index}]", self.path(key));
            let at = element.span().start;
            match element.get_ref().as_table() {
                Some(table) => sections.push(Section::open(table, at, path, shape, out)),
                None => {
                    let message = wrong_type("a table", element.get_ref());
                    out.mistake(at, &path, message);
                }
            }
        }
        sections
    }

    /// Whether `key` holds this very string, without reporting anything.
    pub(super) fn says(&self, key: &str, text: &str) -> bool {
        self.get(key)
            .and_then(|value| value.get_ref().as_str())
            .is_some_and(|value| value == text)
    }
}

fn unknown_key(name: &str, shape: &Shape) -> String {
    let shown = printable(name);
    let known = || shape.keys.iter().chain(shape.later).copied();
    let elsewhere = format::sections_with(name);
    if !elsewhere.is_empty() {
        let places = elsewhere.join(" or ");
        return format!(
            "`{shown}` does not belong in {}; it belongs in {places}",
            shape.header
        );
    }
    match nearest(name, known()) {
        Some(near) => format!("unknown key `{shown}`; did you mean `{near}`?"),
        None => format!(
            "unknown key `{shown}`; known in {} are {}",
            shape.header,
            shape.keys.join(", ")
        ),
    }
}

/// "expected …, found …".
pub(super) fn wrong_type(expected: &str, found: &DeValue<'_>) -> String {
    let found = match found {
        DeValue::String(text) => format!("the string {}", quoted(text)),
        DeValue::Integer(integer) => format!("the integer {integer}"),
        DeValue::Float(float) => format!("the number {float}"),
        DeValue::Boolean(value) => format!("`{value}`"),
        DeValue::Datetime(_) => "a date".to_owned(),
        DeValue::Array(_) => "an array".to_owned(),
        DeValue::Table(_) => "a table".to_owned(),
    };
    format!("expected {expected}, found {found}")
}

/// A string of the file, in quotes, short and safe to print.
pub(super) fn quoted(text: &str) -> String {
    format!("\"{}\"", printable(text))
}

/// Longest piece of the file repeated in a message, characters.
const SHOWN: usize = 48;

/// A piece of the file, short and safe to print.
pub(super) fn printable(text: &str) -> String {
    let mut shown = String::new();
    for character in text.chars().take(SHOWN) {
        match character {
            '"' | '\'' | '\\' => shown.push(character),
            other => shown.extend(other.escape_debug()),
        }
    }
    if text.chars().nth(SHOWN).is_some() {
        shown.push('…');
    }
    shown
}

fn alternatives<'t>(spellings: impl Iterator<Item = &'t str>) -> String {
    let quoted: Vec<String> = spellings
        .map(|spelling| format!("\"{spelling}\""))
        .collect();
    quoted.join(" or ")
}
