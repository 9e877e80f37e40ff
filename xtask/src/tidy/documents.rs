//! Rules about documents, and that they tell the truth about the rules.

use super::source::File;
use super::{Finding, RULES};

const ARCHITECTURE: &str = "ARCHITECTURE.md";
const CHANGELOG: &str = "CHANGELOG.md";
const MARK: &str = "**Invariant**";

/// No file names a place that exists on one machine only.
pub(super) fn portable_paths(files: &[File]) -> Vec<Finding> {
    // Put together so that this file does not find itself.
    let places = ["work", "root", "home"].map(|name| format!("/{name}/"));
    let mut findings = Vec::new();
    for file in files {
        for (number, line) in (1..).zip(file.text.lines()) {
            if let Some(place) = places.iter().find(|place| starts_path(line, place)) {
                findings.push(Finding::new(
                    file,
                    number,
                    format!("`{place}` names a place on one machine"),
                ));
            }
        }
    }
    findings
}

/// Whether an absolute path in `line` begins with `place`.
fn starts_path(line: &str, place: &str) -> bool {
    line.match_indices(place).any(|(start, _)| {
        let before = line[..start].chars().next_back();
        !before.is_some_and(|c| c.is_alphanumeric() || "._-}>~".contains(c))
    })
}

/// The change log has a place for what comes; each invariant of the
/// architecture names the rule that enforces it, and each rule is named.
pub(super) fn documents(files: &[File]) -> Vec<Finding> {
    let mut findings = Vec::new();
    let find = |path: &str| files.iter().find(|file| file.path == path);
    match find(CHANGELOG) {
        Some(file) => {
            let heading = |line: &str| {
                line.strip_prefix("## ")
                    .is_some_and(|title| title.trim_matches(['[', ']']) == "Unreleased")
            };
            if !file.text.lines().any(heading) {
                findings.push(Finding::new(file, 1, "has no heading `## Unreleased`"));
            }
        }
        None => findings.push(missing(CHANGELOG)),
    }
    match find(ARCHITECTURE) {
        Some(file) => architecture(file, &mut findings),
        None => findings.push(missing(ARCHITECTURE)),
    }
    findings
}

fn missing(path: &str) -> Finding {
    Finding {
        path: path.to_owned(),
        line: 0,
        message: "is missing".to_owned(),
    }
}

fn architecture(file: &File, findings: &mut Vec<Finding>) {
    let known = |name: &str| RULES.iter().any(|rule| rule.name == name);
    for (number, line) in (1..).zip(file.text.lines()) {
        for name in rules_named(line).filter(|name| !known(name)) {
            findings.push(Finding::new(
                file,
                number,
                format!("there is no rule `{name}`"),
            ));
        }
    }
    for (number, text) in invariants(&file.text) {
        if rules_named(&text).next().is_none() {
            findings.push(Finding::new(
                file,
                number,
                "an invariant without its rule, as in `tidy: module-docs`",
            ));
        }
    }
    for rule in &RULES {
        if !rules_named(&file.text).any(|name| name == rule.name) {
            findings.push(Finding::new(
                file,
                0,
                format!("does not mention the rule `tidy: {}`", rule.name),
            ));
        }
    }
}

/// Names in text like `` `tidy: NAME` ``.
fn rules_named(text: &str) -> impl Iterator<Item = &str> {
    text.split('`')
        .skip(1)
        .step_by(2)
        .filter_map(|code| code.strip_prefix("tidy:"))
        .map(str::trim)
}

/// Each marked invariant with its line: it ends at the next one, or with its
/// paragraph.
fn invariants(text: &str) -> Vec<(usize, String)> {
    let mut found: Vec<(usize, String)> = Vec::new();
    let mut open = false;
    for (number, line) in (1..).zip(text.lines()) {
        if line.contains(MARK) {
            found.push((number, line.to_owned()));
            open = true;
        } else if line.trim().is_empty() {
            open = false;
        } else if let (true, Some((_, text))) = (open, found.last_mut()) {
            text.push('\n');
            text.push_str(line);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::super::expect;
    use super::*;

    #[test]
    fn machine_paths_are_found() {
        let work = format!("/{}/", "work");
        let rows = [
            (format!("see {work}main"), true),
            (format!("\"{work}x\""), true),
            (format!("docs{work}x"), false),
            (format!("${{DIR}}{work}x"), false),
            ("working".to_owned(), false),
        ];
        for (text, bad) in rows {
            let expected: &[&str] = if bad { &["a.md:1"] } else { &[] };
            expect(portable_paths, &[("a.md", &text)], expected);
        }
    }

    #[test]
    fn documents_agree_with_the_rules() {
        let changes = ("CHANGELOG.md", "# Changes\n\n## Unreleased\n");
        let all: String = RULES
            .iter()
            .map(|rule| format!("**Invariant** x.\n`tidy: {}`\n\n", rule.name))
            .collect();
        expect(documents, &[changes, (ARCHITECTURE, &all)], &[]);
        expect(
            documents,
            &[("CHANGELOG.md", "# Changes\n"), (ARCHITECTURE, &all)],
            &["CHANGELOG.md:1"],
        );
        let bare = format!("{all}**Invariant** y.\n\n`tidy: stages`");
        let line = all.lines().count() + 1;
        expect(
            documents,
            &[changes, (ARCHITECTURE, &bare)],
            &[&format!("ARCHITECTURE.md:{line}")],
        );
        let wrong = format!("`tidy: nonsense`\n{all}");
        expect(
            documents,
            &[changes, (ARCHITECTURE, &wrong)],
            &["ARCHITECTURE.md:1"],
        );
        let less = all.replace("`tidy: stages`", "`tidy: no-todo`");
        expect(
            documents,
            &[changes, (ARCHITECTURE, &less)],
            &["ARCHITECTURE.md:0"],
        );
        expect(documents, &[], &["CHANGELOG.md:0", "ARCHITECTURE.md:0"]);
    }
}
