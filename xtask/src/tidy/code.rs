//! Rules for single Rust files.

use super::Finding;
use super::source::{File, has_word};

/// Longer files are hard to hold in one's head.
const MOST_LINES: usize = 900;
/// A test that sleeps this long waits for nothing in particular.
const LONGEST_SLEEP_MS: u64 = 2_000;

/// Where `unsafe` may be, and what for. A path that ends in `/` covers a
/// directory.
const UNSAFE_FILES: [(&str, &str); 13] = [
    (
        "lb-common/src/abi/user.rs",
        "plain-old-data promises for map structs",
    ),
    ("lb-common/src/atomic.rs", "atomics on shared map memory"),
    ("lb-ebpf/src/clock.rs", "calls helpers"),
    ("lb-ebpf/src/family.rs", "reads unions of the kernel's"),
    ("lb-ebpf/src/floors/balance.rs", "calls the redirect helper"),
    ("lb-ebpf/src/floors/maps.rs", "reads map values in place"),
    ("lb-ebpf/src/floors/packet.rs", "reads and writes the frame"),
    ("lb-ebpf/src/maps.rs", "reads map values in place"),
    ("lb-ebpf/src/packet/", "reads and writes the frame"),
    (
        "lb-ebpf/src/stages/emit.rs",
        "calls the route and redirect helpers",
    ),
    ("lb-userspace/src/dataplane/", "maps BPF arrays into memory"),
    (
        "lb-userspace/src/net/packet_socket.rs",
        "addresses of packet sockets",
    ),
    (
        "tests/src/world/",
        "enters namespaces between fork and exec",
    ),
];

/// Every Rust file says first what it is for.
pub(super) fn module_docs(files: &[File]) -> Vec<Finding> {
    files
        .iter()
        .filter(|file| file.is_rust() && !file.text.starts_with("//!"))
        .map(|file| Finding::new(file, 1, "begins without module docs (`//!`)"))
        .collect()
}

/// `unsafe` is in few files, each for a reason. Attributes like
/// `#[unsafe(no_mangle)]` name a symbol and do nothing else.
pub(super) fn unsafe_files(files: &[File]) -> Vec<Finding> {
    let allowed = |path: &str| {
        UNSAFE_FILES
            .iter()
            .any(|(place, _)| path == *place || (place.ends_with('/') && path.starts_with(place)))
    };
    files
        .iter()
        .filter(|file| !allowed(&file.path))
        .flat_map(|file| {
            lines_with(file, |line| {
                has_word(&line.replace("#[unsafe(", "#[("), "unsafe")
            })
            .map(|line| {
                Finding::new(
                    file,
                    line,
                    "`unsafe` in a file that is not in the list of tidy; move it, or add the \
                     file with its reason",
                )
            })
        })
        .collect()
}

/// A test runs, and says what it expects where it expects it.
pub(super) fn test_attributes(files: &[File]) -> Vec<Finding> {
    find_in_code(files, |line| {
        ["ignore", "should_panic"]
            .iter()
            .find(|name| line.contains(&format!("#[{name}")))
            .map(|name| format!("`#[{name}]` hides what a test does not show"))
    })
}

/// What is unfinished is not committed.
pub(super) fn no_todo(files: &[File]) -> Vec<Finding> {
    find_in_code(files, |line| {
        line.contains("todo!(")
            .then(|| "`todo!` is unfinished".to_owned())
    })
}

/// A test waits for a condition, not for time to pass.
pub(super) fn short_sleeps(files: &[File]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in files.iter().filter(|file| file.is_rust()) {
        let first = file.first_test_line();
        for (number, line) in file.code_lines().filter(|(number, _)| *number >= first) {
            let Some(milliseconds) = sleep_in(line) else {
                continue;
            };
            if milliseconds >= LONGEST_SLEEP_MS {
                findings.push(Finding::new(
                    file,
                    number,
                    "a test that sleeps; wait for the condition, or inject the time",
                ));
            }
        }
    }
    findings
}

/// The milliseconds of a literal sleep in this line.
fn sleep_in(line: &str) -> Option<u64> {
    let (_, argument) = line.split_once("sleep(")?;
    let units = [("from_secs(", 1_000), ("from_millis(", 1)];
    units.iter().find_map(|(unit, factor)| {
        let (_, number) = argument.split_once(unit)?;
        let digits: String = number
            .chars()
            .filter(|c| *c != '_')
            .take_while(char::is_ascii_digit)
            .collect();
        Some(digits.parse::<u64>().ok()?.saturating_mul(*factor))
    })
}

/// Files stay short enough to be read.
pub(super) fn file_length(files: &[File]) -> Vec<Finding> {
    files
        .iter()
        .filter(|file| file.is_rust() && file.text.lines().count() > MOST_LINES)
        .map(|file| Finding::new(file, MOST_LINES + 1, format!("has over {MOST_LINES} lines")))
        .collect()
}

/// Numbers of the lines of code that pass `test`.
pub(super) fn lines_with(file: &File, test: impl Fn(&str) -> bool) -> impl Iterator<Item = usize> {
    file.code_lines()
        .filter(move |(_, line)| test(line))
        .map(|(number, _)| number)
}

/// A finding for each line of code for which `judge` has a message.
fn find_in_code(files: &[File], judge: impl Fn(&str) -> Option<String>) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in files {
        for (number, line) in file.code_lines() {
            if let Some(message) = judge(line) {
                findings.push(Finding::new(file, number, message));
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::super::expect;
    use super::*;

    #[test]
    fn module_docs_come_first() {
        expect(
            module_docs,
            &[("a.rs", "//! What.\n"), ("b.md", "text")],
            &[],
        );
        expect(
            module_docs,
            &[("a.rs", "fn main() {}"), ("b.rs", "")],
            &["a.rs:1", "b.rs:1"],
        );
    }

    #[test]
    fn unsafe_is_allowed_by_file_and_directory() {
        let block = "//! Docs about unsafe.\nfn f() {\n    unsafe { g() }\n}\n";
        expect(unsafe_files, &[("lb-common/src/atomic.rs", block)], &[]);
        expect(
            unsafe_files,
            &[("lb-userspace/src/dataplane/maps.rs", block)],
            &[],
        );
        expect(
            unsafe_files,
            &[("lb-common/src/flow/mod.rs", block)],
            &["lb-common/src/flow/mod.rs:3"],
        );
        expect(unsafe_files, &[("a.rs", "#[unsafe(no_mangle)]")], &[]);
        expect(
            unsafe_files,
            &[("a.rs", "// unsafe\nlet x = \"unsafe\";\n")],
            &[],
        );
    }

    #[test]
    fn tests_may_not_be_hidden() {
        let rows: [(&str, &[&str]); 4] = [
            ("#[test]\nfn t() {}", &[]),
            ("#[test]\n#[ignore]\nfn t() {}", &["a.rs:2"]),
            ("#[ignore = \"slow\"]", &["a.rs:1"]),
            ("#[should_panic(expected = \"x\")]", &["a.rs:1"]),
        ];
        for (text, expected) in rows {
            expect(test_attributes, &[("a.rs", text)], expected);
        }
    }

    #[test]
    fn unfinished_code_is_found() {
        expect(no_todo, &[("a.rs", "fn f() { todo!() }")], &["a.rs:1"]);
        expect(no_todo, &[("a.rs", "// todo!() later")], &[]);
    }

    #[test]
    fn only_long_sleeps_of_tests_are_found() {
        let rows: [(&str, &str, &[&str]); 6] = [
            (
                "tests/a.rs",
                "thread::sleep(Duration::from_secs(2));",
                &["tests/a.rs:1"],
            ),
            ("tests/a.rs", "sleep(Duration::from_millis(1_999));", &[]),
            (
                "x/tests/a.rs",
                "sleep(Duration::from_millis(2_000));",
                &["x/tests/a.rs:1"],
            ),
            ("x/src/a.rs", "sleep(Duration::from_secs(5));", &[]),
            (
                "x/src/a.rs",
                "#[cfg(test)]\nsleep(Duration::from_secs(5));",
                &["x/src/a.rs:2"],
            ),
            ("tests/a.rs", "sleep(interval);", &[]),
        ];
        for (path, text, expected) in rows {
            expect(short_sleeps, &[(path, text)], expected);
        }
    }

    #[test]
    fn long_files_are_found() {
        let text = "//\n".repeat(MOST_LINES);
        expect(file_length, &[("a.rs", &text)], &[]);
        expect(
            file_length,
            &[("a.rs", &format!("{text}//\n"))],
            &["a.rs:901"],
        );
    }
}
