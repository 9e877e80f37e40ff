//! Mistakes and warnings: what a configuration file got wrong, and where.

use std::fmt;
use std::path::PathBuf;

use serde::Serialize;

use super::source::Source;

/// Something in a configuration file that keeps it from being used.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Mistake {
    /// Line, from 1.
    pub line: usize,
    /// Column, from 1, in characters.
    pub column: usize,
    /// The key, such as `service[0].backend[2].port`; empty for a syntax error.
    pub path: String,
    /// What is wrong and what would be right.
    pub message: String,
}

impl fmt::Display for Mistake {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}:{}: ", self.line, self.column)?;
        if !self.path.is_empty() {
            write!(formatter, "{}: ", self.path)?;
        }
        formatter.write_str(&self.message)
    }
}

/// Something in a configuration file that works but is probably not meant.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Warning(pub Mistake);

impl fmt::Display for Warning {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}

/// Every mistake of one file, in the order of their places. Displays as
/// `FILE:LINE:COLUMN: KEY: MESSAGE`, one a line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Mistakes {
    /// The file, as the operator named it.
    pub file: PathBuf,
    /// At least one.
    pub mistakes: Vec<Mistake>,
}

impl fmt::Display for Mistakes {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, mistake) in self.mistakes.iter().enumerate() {
            if index > 0 {
                formatter.write_str("\n")?;
            }
            write!(formatter, "{}:{mistake}", self.file.display())?;
        }
        Ok(())
    }
}

impl std::error::Error for Mistakes {}

/// Why a configuration file could not be loaded.
#[derive(Debug)]
pub enum LoadError {
    /// The file could not be read.
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the system said.
        error: std::io::Error,
    },
    /// The file is not UTF-8.
    NotText {
        /// The file.
        path: PathBuf,
        /// Offset of the first byte that is not UTF-8.
        offset: usize,
    },
    /// The file was read and is wrong.
    Mistakes(Mistakes),
}

impl fmt::Display for LoadError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreadable { path, error } => {
                let remedy = match error.kind() {
                    std::io::ErrorKind::NotFound => {
                        "name an existing file with --config, or create this one"
                    }
                    std::io::ErrorKind::PermissionDenied => {
                        "run as a user who may read it, or change its permissions"
                    }
                    _ => "name a readable file with --config",
                };
                write!(
                    formatter,
                    "cannot read the configuration {}: {error}; {remedy}",
                    path.display()
                )
            }
            Self::NotText { path, offset } => write!(
                formatter,
                "{} is not UTF-8 text (byte {offset}); save it as UTF-8",
                path.display()
            ),
            Self::Mistakes(mistakes) => mistakes.fmt(formatter),
        }
    }
}

impl std::error::Error for LoadError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Unreadable { error, .. } => Some(error),
            Self::NotText { .. } => None,
            Self::Mistakes(mistakes) => Some(mistakes),
        }
    }
}

impl From<Mistakes> for LoadError {
    fn from(mistakes: Mistakes) -> Self {
        Self::Mistakes(mistakes)
    }
}

/// A remark at an offset of the file.
struct Remark {
    at: usize,
    path: String,
    message: String,
    /// About the file as a whole rather than one value: a key that is not
    /// there. Means nothing where part of the file could not be read.
    absence: bool,
    /// The other place of a contradiction.
    other: Option<usize>,
}

impl Remark {
    fn new(at: usize, path: &str, message: impl Into<String>) -> Self {
        Self {
            at,
            path: path.to_owned(),
            message: message.into(),
            absence: false,
            other: None,
        }
    }
}

/// Takes mistakes and warnings in any order while the file is read.
#[derive(Default)]
pub(super) struct Collector {
    mistakes: Vec<Remark>,
    warnings: Vec<Remark>,
}

impl Collector {
    /// A value that is wrong.
    pub(super) fn mistake(&mut self, at: usize, path: &str, message: impl Into<String>) {
        self.mistakes.push(Remark::new(at, path, message));
    }

    /// A value that contradicts the one at `other`; the message gets the line of
    /// that one.
    pub(super) fn contradiction(
        &mut self,
        at: usize,
        path: &str,
        message: impl Into<String>,
        other: usize,
    ) {
        self.mistakes.push(Remark {
            other: Some(other),
            ..Remark::new(at, path, message)
        });
    }

    /// Something that is not there.
    pub(super) fn absence(&mut self, at: usize, path: &str, message: impl Into<String>) {
        self.mistakes.push(Remark {
            absence: true,
            ..Remark::new(at, path, message)
        });
    }

    /// Something that works and is probably not meant.
    pub(super) fn warning(&mut self, at: usize, path: &str, message: impl Into<String>) {
        self.warnings.push(Remark::new(at, path, message));
    }

    /// Adds the syntax errors of `source` and puts everything in file order.
    pub(super) fn finish(self, source: &Source<'_>) -> (Vec<Mistake>, Vec<Warning>) {
        let place = |remark: Remark| {
            let (line, column) = source.position(remark.at);
            let message = match remark.other {
                None => remark.message,
                Some(other) => format!("{} (line {})", remark.message, source.position(other).0),
            };
            Mistake {
                line,
                column,
                path: remark.path,
                message,
            }
        };
        let mut mistakes: Vec<Mistake> = self
            .mistakes
            .into_iter()
            .filter(|remark| !(remark.absence && source.incomplete()))
            .map(place)
            .collect();
        for (at, message) in &source.syntax_errors {
            let (line, column) = source.position(*at);
            mistakes.push(Mistake {
                line,
                column,
                path: String::new(),
                message: message.clone(),
            });
        }
        mistakes.sort_by_key(|mistake| (mistake.line, mistake.column));
        let mut warnings: Vec<Warning> =
            self.warnings.into_iter().map(place).map(Warning).collect();
        warnings.sort_by_key(|warning| (warning.0.line, warning.0.column));
        (mistakes, warnings)
    }
}
