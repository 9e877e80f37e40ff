//! Frames that are worth a try, in `corpus.txt`: each a line `PORT HEX`, where PORT
//! is `front` or `back`, below a line `# WHAT IT IS`.

use steerline_tests::packets::Port;

const CORPUS: &str = include_str!("corpus.txt");

/// A frame as the corpus has it.
pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// All of them, and where they come in.
pub(super) fn frames() -> Vec<(Vec<u8>, Port)> {
    let lines = CORPUS.lines().enumerate();
    lines
        .filter(|(_, line)| !line.is_empty() && !line.starts_with('#'))
        .map(|(number, line)| {
            parse(line).unwrap_or_else(|| panic!("corpus.txt:{}: {line}", number + 1))
        })
        .collect()
}

fn parse(line: &str) -> Option<(Vec<u8>, Port)> {
    let (port, digits) = line.split_once(' ')?;
    let port = match port {
        "front" => Port::Front,
        "back" => Port::Back,
        _ => return None,
    };
    let pairs = digits.as_bytes().chunks(2);
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    let bytes: Vec<u8> = pairs.map(byte).collect::<Option<_>>()?;
    (bytes.len() >= 14).then_some((bytes, port))
}

/// Every frame says what it is, and none is there twice.
#[test]
fn the_corpus_explains_itself() {
    let mut unique = std::collections::BTreeSet::new();
    let mut explained = false;
    for line in CORPUS.lines().filter(|line| !line.is_empty()) {
        if line.starts_with('#') {
            explained = true;
            continue;
        }
        assert!(explained, "{line}: what is it?");
        assert!(parse(line).is_some() && unique.insert(line), "{line}");
        explained = false;
    }
    assert!(unique.len() >= 30, "{} frames", unique.len());
}
