//! The text that an HAProxy agent sends: one line, taken whole or not at all.
//!
//! The words are those of HAProxy's `agent-check` (configuration manual,
//! section 5.2), so that an agent written for it works unchanged: `75%`, `up`,
//! `down`, `stopped`, `fail` (`failed`), `ready`, `drain`, `maint`,
//! `maxconn:N`, and behind a word of failure `#` and a reason. Case does not
//! matter; spaces, tabs and commas separate. What a line does not mention stays
//! as it was. Steerline adds `weight:N` and `weight:N%`.
//!
//! A line with one word that is not understood changes nothing: half an
//! instruction may be the opposite of what was meant. HAProxy applies what it
//! understood; here the whole line is reported and the next one is waited for.
//!
//! Two families of words are kept apart, as in HAProxy: *administration*
//! (`ready`, `drain`, `maint`) and *health* (`up`, `down`, …). `up` does not
//! end a drain and `ready` does not raise a server that was called down.

use alloc::string::String;
use core::fmt;

use serde::{Deserialize, Serialize};

/// Longest line read from an agent, bytes, its end included. HAProxy's own
/// buffer is `tune.bufsize`; real lines have tens of bytes.
pub const LINE_MAX: usize = 1_024;
/// Longest reason kept of what stands behind `#`, bytes.
pub const REASON_MAX: usize = 128;
/// HAProxy's bound of a relative weight, percent: 256 of an initial weight of 1.
pub const PERCENT_MAX: u32 = 25_600;

/// A weight as an agent gives it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AgentWeight {
    /// Percent of the configured weight, 0..=[`PERCENT_MAX`].
    Percent(u32),
    /// A weight, 0..=65,535.
    Absolute(u32),
}

impl AgentWeight {
    /// The weight that results, 0..=65,535. A percentage above 0 gives at least
    /// 1, so that no server leaves by rounding.
    pub fn of(self, configured: u32) -> u32 {
        match self {
            Self::Percent(0) | Self::Absolute(0) => 0,
            Self::Percent(percent) => {
                let weight = u64::from(configured) * u64::from(percent) / 100;
                let least = u64::from(configured.min(1));
                u32::try_from(weight.clamp(least, 65_535)).unwrap_or(65_535)
            }
            Self::Absolute(weight) => weight.min(65_535),
        }
    }
}

impl fmt::Display for AgentWeight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Percent(percent) => write!(f, "{percent}%"),
            Self::Absolute(weight) => write!(f, "weight:{weight}"),
        }
    }
}

/// What an agent wants of a server, as an operator would.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Administration {
    /// Takes part.
    #[default]
    Ready,
    /// No new flows; open ones go on.
    Drain,
    /// Under maintenance: no new flows.
    Maintenance,
}

/// What one line says; what it does not mention is `None`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AgentLine {
    /// The weight.
    pub weight: Option<AgentWeight>,
    /// Most flows at a time; 0: no limit.
    pub max_connections: Option<u32>,
    /// `ready`, `drain` or `maint`; of several the last.
    pub administration: Option<Administration>,
    /// Whether the server is up; of several the last.
    pub up: Option<bool>,
    /// What stands behind `#` of a word of failure.
    pub reason: Option<String>,
}

/// Why a line was not taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AgentError {
    /// Nothing in it.
    Empty,
    /// More than [`LINE_MAX`] bytes without an end.
    TooLong,
    /// Bytes that are not text.
    NotText,
    /// A word that means nothing, or has a number that is no number.
    Unknown(String),
}

impl fmt::Display for AgentError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str("the line is empty"),
            Self::TooLong => write!(f, "no end of line within {LINE_MAX} bytes"),
            Self::NotText => f.write_str("the line is not text"),
            Self::Unknown(word) => write!(f, "\"{word}\" is not a word of an agent"),
        }
    }
}

/// Longest piece of a line that an error repeats, characters.
const SHOWN: usize = 32;

/// Reads a line: everything up to the first `\n` or `\r`, or all of it.
///
/// # Errors
/// See [`AgentError`]; nothing of the line is to be used then.
pub fn parse(bytes: &[u8]) -> Result<AgentLine, AgentError> {
    let end = bytes.iter().position(|&b| b == b'\n' || b == b'\r');
    let line = &bytes[..end.unwrap_or(bytes.len())];
    if line.len() >= LINE_MAX {
        return Err(AgentError::TooLong);
    }
    let line = core::str::from_utf8(line).map_err(|_| AgentError::NotText)?;
    if line.chars().any(|c| c.is_control() && c != '\t') {
        return Err(AgentError::NotText);
    }
    let mut said = AgentLine::default();
    let mut any = false;
    let (words, reason) = match line.split_once('#') {
        Some((words, reason)) => (words, Some(reason)),
        None => (line, None),
    };
    for word in words
        .split([' ', '\t', ','])
        .filter(|word| !word.is_empty())
    {
        any = true;
        take(word, &mut said).ok_or_else(|| AgentError::Unknown(shown(word)))?;
    }
    if !any {
        return Err(AgentError::Empty);
    }
    said.reason = reason.map(trimmed).filter(|reason| !reason.is_empty());
    Ok(said)
}

fn take(word: &str, said: &mut AgentLine) -> Option<()> {
    let is = |name: &str| word.eq_ignore_ascii_case(name);
    if let Some(number) = word.strip_suffix('%') {
        said.weight = Some(percent(after(number, "weight:").unwrap_or(number))?);
    } else if let Some(number) = after(word, "weight:") {
        let weight = digits(number)?;
        said.weight = Some(AgentWeight::Absolute(weight.min(65_535)));
    } else if let Some(number) = after(word, "maxconn:") {
        said.max_connections = Some(digits(number)?);
    } else if is("ready") {
        said.administration = Some(Administration::Ready);
    } else if is("drain") {
        said.administration = Some(Administration::Drain);
    } else if is("maint") {
        said.administration = Some(Administration::Maintenance);
    } else if is("up") {
        said.up = Some(true);
    } else if is("down") || is("stopped") || is("fail") || is("failed") {
        said.up = Some(false);
    } else {
        return None;
    }
    Some(())
}

fn percent(number: &str) -> Option<AgentWeight> {
    Some(AgentWeight::Percent(digits(number)?.min(PERCENT_MAX)))
}

/// What stands behind a prefix, whatever its case.
fn after<'a>(word: &'a str, prefix: &str) -> Option<&'a str> {
    let head = word.get(..prefix.len())?;
    head.eq_ignore_ascii_case(prefix)
        .then(|| &word[prefix.len()..])
}

/// Digits alone; a number beyond 32 bits is as large as fits.
fn digits(text: &str) -> Option<u32> {
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    Some(text.parse().unwrap_or(u32::MAX))
}

fn shown(word: &str) -> String {
    word.chars().take(SHOWN).collect()
}

fn trimmed(reason: &str) -> String {
    let mut end = reason.len().min(REASON_MAX);
    while !reason.is_char_boundary(end) {
        end -= 1;
    }
    String::from(reason[..end].trim())
}

/// What an agent has said so far.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct AgentState {
    /// The weight; `None`: the configured one.
    pub weight: Option<AgentWeight>,
    /// Most flows at a time; 0 or `None`: the configured limit.
    pub max_connections: Option<u32>,
    /// Whether it takes part.
    pub administration: Administration,
    /// The agent calls the server down.
    pub down: bool,
    /// Why, in its own words.
    pub reason: String,
}

impl AgentState {
    /// Takes a line. True if anything changed.
    pub fn take(&mut self, line: &AgentLine) -> bool {
        let before = self.clone();
        if line.weight.is_some() {
            self.weight = line.weight;
        }
        if line.max_connections.is_some() {
            self.max_connections = line.max_connections;
        }
        if let Some(administration) = line.administration {
            self.administration = administration;
        }
        if let Some(up) = line.up {
            self.down = !up;
        }
        match &line.reason {
            Some(reason) => self.reason.clone_from(reason),
            None if line.up.is_some() || line.administration.is_some() => self.reason.clear(),
            None => {}
        }
        *self != before
    }
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString as _;

    use super::*;
    use Administration::*;
    use AgentWeight::{Absolute, Percent};

    fn line() -> AgentLine {
        AgentLine::default()
    }

    fn weight(weight: AgentWeight) -> AgentLine {
        AgentLine {
            weight: Some(weight),
            ..line()
        }
    }

    fn admin(administration: Administration) -> AgentLine {
        AgentLine {
            administration: Some(administration),
            ..line()
        }
    }

    fn health(up: bool) -> AgentLine {
        AgentLine {
            up: Some(up),
            ..line()
        }
    }

    #[test]
    fn lines_that_mean_something() {
        for (text, expected) in [
            ("75%\n", weight(Percent(75))),
            ("75%", weight(Percent(75))),
            ("100%\r\nup", weight(Percent(100))),
            ("0%\n", weight(Percent(0))),
            ("99999999999999999999%\n", weight(Percent(PERCENT_MAX))),
            ("weight:12\n", weight(Absolute(12))),
            ("WEIGHT:50%\n", weight(Percent(50))),
            ("weight:70000\n", weight(Absolute(65_535))),
            ("up\n", health(true)),
            ("UP\n", health(true)),
            ("down\n", health(false)),
            ("stopped\n", health(false)),
            ("fail\n", health(false)),
            ("failed\n", health(false)),
            ("ready\n", admin(Ready)),
            ("Drain\n", admin(Drain)),
            ("maint\n", admin(Maintenance)),
            ("drain ready\n", admin(Ready)),
            (
                "maxconn:30\n",
                AgentLine {
                    max_connections: Some(30),
                    ..line()
                },
            ),
            (
                " up,ready\t 80% maxconn:0 \n",
                AgentLine {
                    weight: Some(Percent(80)),
                    max_connections: Some(0),
                    administration: Some(Ready),
                    up: Some(true),
                    reason: None,
                },
            ),
            (
                "down#disk is full, 99%\n",
                AgentLine {
                    reason: Some("disk is full, 99%".into()),
                    ..health(false)
                },
            ),
            ("down #  \n", health(false)),
        ] {
            assert_eq!(parse(text.as_bytes()), Ok(expected), "{text:?}");
        }
    }

    #[test]
    fn lines_that_change_nothing() {
        for (bytes, problem) in [
            (&b"\n"[..], "empty"),
            (b"", "empty"),
            (b" , \t\n", "empty"),
            (b"#down\n", "empty"),
            (b"\nup\n", "empty"),
            (b"up sideways\n", "\"sideways\""),
            (b"drain 75\n", "\"75\""),
            (b"-5%\n", "\"-5%\""),
            (b"%\n", "\"%\""),
            (b"7 5%%\n", "\"7\""),
            (b"1.5%\n", "\"1.5%\""),
            (b"weight:\n", "\"weight:\""),
            (b"maxconn:many\n", "\"maxconn:many\""),
            (b"HTTP/1.1 400 Bad Request\r\n", "\"HTTP/1.1\""),
            (b"up\0down\n", "not text"),
            (b"\xff\xfe\n", "not text"),
            (&[b'u'; LINE_MAX], "no end of line"),
            (&[b'u'; LINE_MAX * 2], "no end of line"),
        ] {
            let error = parse(bytes).expect_err("a line of nonsense").to_string();
            assert!(error.contains(problem), "{bytes:?}: {error}");
        }
    }

    #[test]
    fn a_percentage_never_rounds_a_server_away() {
        for (given, configured, weight) in [
            (Percent(75), 8, 6),
            (Percent(50), 1, 1),
            (Percent(1), 8, 1),
            (Percent(0), 8, 0),
            (Percent(50), 0, 0),
            (Percent(100), 65_535, 65_535),
            (Percent(200), 65_535, 65_535),
            (Percent(PERCENT_MAX), 1, 256),
            (Absolute(12), 8, 12),
            (Absolute(12), 0, 12),
            (Absolute(0), 8, 0),
        ] {
            assert_eq!(given.of(configured), weight, "{given} of {configured}");
        }
    }

    #[test]
    fn what_is_not_mentioned_stays() {
        let mut state = AgentState::default();
        let mut take = |text: &str| {
            let changed = state.take(&parse(text.as_bytes()).expect("a line"));
            (changed, state.clone())
        };
        assert!(!take("up ready\n").0);
        assert_eq!(take("drain 50%\n").1.administration, Drain);
        let (changed, state) = take("up\n");
        assert!(!changed, "up does not end a drain");
        assert_eq!(state.weight, Some(Percent(50)));
        let (_, state) = take("down#swap\n");
        assert_eq!((state.down, &*state.reason), (true, "swap"));
        let (_, state) = take("ready\n");
        assert_eq!((state.down, state.administration), (true, Ready));
        assert_eq!(take("up 100% maxconn:9\n").1.max_connections, Some(9));
    }
}
