//! `cargo xtask tidy`: the rules of the house as programs.
//!
//! A rule that matters is a function here, not a sentence that reviewers
//! remember. Each has a name, by which ARCHITECTURE.md says which of its
//! invariants it enforces; that the two agree is itself a rule. Rules read
//! text, not syntax trees: they must stay quick and easy to follow, and what
//! they cannot see, a reviewer still can.

mod code;
mod documents;
mod layers;
mod source;

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::shell;
use source::File;

/// A rule: its name and what finds the places that break it.
struct Rule {
    name: &'static str,
    check: fn(&[File]) -> Vec<Finding>,
}

/// A place that breaks a rule.
#[derive(Debug, PartialEq, Eq)]
struct Finding {
    path: String,
    /// Counted from 1; 0 for the file as a whole.
    line: usize,
    message: String,
}

impl Finding {
    fn new(file: &File, line: usize, message: impl Into<String>) -> Self {
        Self {
            path: file.path.clone(),
            line,
            message: message.into(),
        }
    }
}

/// Every rule. A new one must be named in ARCHITECTURE.md.
const RULES: [Rule; 13] = [
    Rule {
        name: "module-docs",
        check: code::module_docs,
    },
    Rule {
        name: "unsafe-files",
        check: code::unsafe_files,
    },
    Rule {
        name: "test-attributes",
        check: code::test_attributes,
    },
    Rule {
        name: "no-todo",
        check: code::no_todo,
    },
    Rule {
        name: "short-sleeps",
        check: code::short_sleeps,
    },
    Rule {
        name: "file-length",
        check: code::file_length,
    },
    Rule {
        name: "dependencies",
        check: layers::dependencies,
    },
    Rule {
        name: "packet-pointers",
        check: layers::packet_pointers,
    },
    Rule {
        name: "map-statics",
        check: layers::map_statics,
    },
    Rule {
        name: "stages",
        check: layers::stages,
    },
    Rule {
        name: "pure-common",
        check: layers::pure_common,
    },
    Rule {
        name: "portable-paths",
        check: documents::portable_paths,
    },
    Rule {
        name: "documents",
        check: documents::documents,
    },
];

/// Checks every file that git tracks or would track.
pub(crate) fn run() -> Result<()> {
    let files = repository()?;
    let mut count = 0;
    for rule in &RULES {
        for finding in (rule.check)(&files) {
            let Finding {
                path,
                line,
                message,
            } = finding;
            if line == 0 {
                eprintln!("{path}: {message} [{}]", rule.name);
            } else {
                eprintln!("{path}:{line}: {message} [{}]", rule.name);
            }
            count += 1;
        }
    }
    if count > 0 {
        bail!("tidy found {count} places to mend");
    }
    Ok(())
}

/// The text files of the repository.
fn repository() -> Result<Vec<File>> {
    let root = shell::root();
    let listed = shell::ask(Command::new("git").current_dir(&root).args([
        "ls-files",
        "-z",
        "--cached",
        "--others",
        "--exclude-standard",
    ]));
    let mut paths = match listed {
        Some(text) => text
            .split('\0')
            .filter(|path| !path.is_empty())
            .map(str::to_owned)
            .collect(),
        // An unpacked source archive has no git.
        None => {
            let mut paths = Vec::new();
            walk(&root, &root, &mut paths)?;
            paths
        }
    };
    paths.sort();
    let mut files = Vec::with_capacity(paths.len());
    for path in paths {
        // Deleted but still tracked, or no text.
        if let Ok(text) = fs::read_to_string(root.join(&path)) {
            files.push(File::new(path, text));
        }
    }
    Ok(files)
}

fn walk(root: &Path, directory: &Path, paths: &mut Vec<String>) -> Result<()> {
    let entries =
        fs::read_dir(directory).with_context(|| format!("cannot list {}", directory.display()))?;
    for entry in entries {
        let entry = entry?;
        let path = entry.path();
        if entry.file_type()?.is_dir() {
            if !["target", ".git"].iter().any(|name| path.ends_with(name)) {
                walk(root, &path, paths)?;
            }
        } else if let Some(text) = path.strip_prefix(root)?.to_str() {
            paths.push(text.to_owned());
        }
    }
    Ok(())
}

/// Runs `check` on files given as rows and compares `path:line`.
#[cfg(test)]
#[track_caller]
fn expect(check: fn(&[File]) -> Vec<Finding>, files: &[(&str, &str)], expected: &[&str]) {
    let files: Vec<File> = files
        .iter()
        .map(|(path, text)| File::new((*path).to_owned(), (*text).to_owned()))
        .collect();
    let found: Vec<String> = check(&files)
        .iter()
        .map(|finding| format!("{}:{}", finding.path, finding.line))
        .collect();
    assert_eq!(found, expected, "{:?}", check(&files));
}
