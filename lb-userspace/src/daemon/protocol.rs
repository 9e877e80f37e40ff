//! What is said on the control socket: one JSON document a line.
//!
//! A client sends a [`Request`] and gets one answer, an object with one key:
//! `ok` with what was asked for, `refused` where the request or the
//! configuration is at fault and nothing was changed, or `error`. After the
//! answer to `events` with `follow`, lines `event` and `lost` follow without
//! end.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::sync::{mpsc, oneshot};

/// What a client may ask.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "verb", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Request {
    /// The status snapshot.
    Status {},
    /// Detach everything and exit.
    Detach {},
    /// No new flows for a backend; open ones have the drain timeout.
    Drain {
        /// Name of the service.
        service: String,
        /// Name of the backend.
        backend: String,
    },
    /// No new flows for a backend.
    Disable {
        /// Name of the service.
        service: String,
        /// Name of the backend.
        backend: String,
    },
    /// End a drain or disablement.
    Enable {
        /// Name of the service.
        service: String,
        /// Name of the backend.
        backend: String,
    },
    /// Give a backend a weight.
    Weight {
        /// Name of the service.
        service: String,
        /// Name of the backend.
        backend: String,
        /// The weight; `null`: the configured one.
        weight: Option<u16>,
    },
    /// Read the configuration file again.
    Reload {},
    /// Why the backends of a service are what they are.
    Explain {
        /// Name of the service.
        service: String,
    },
    /// The journal.
    Events {
        /// Go on with what happens from now on.
        #[serde(default)]
        follow: bool,
    },
}

/// Why a request was refused. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// What is wrong, and the remedy.
    pub message: String,
    /// The mistakes of a configuration file, as `check --json` prints them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mistakes: Option<Value>,
}

impl From<String> for Refusal {
    fn from(message: String) -> Self {
        Self {
            message,
            mistakes: None,
        }
    }
}

/// A line from the daemon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Line {
    /// What was asked for.
    Ok(Value),
    /// It failed.
    Error(String),
    /// It was not done, and is the client's to mend.
    Refused(Refusal),
    /// Something happened.
    Event(Value),
    /// So many events were not sent, because this client read too slowly.
    Lost(u64),
}

/// What a request comes to.
pub(crate) enum Response {
    /// One line.
    Answer(Line),
    /// One line, and more as they come.
    Follow(Line, mpsc::Receiver<Line>),
}

impl Response {
    pub(crate) fn ok(value: Value) -> Self {
        Self::Answer(Line::Ok(value))
    }

    pub(crate) fn refused(refusal: impl Into<Refusal>) -> Self {
        Self::Answer(Line::Refused(refusal.into()))
    }

    pub(crate) fn result(result: anyhow::Result<Value>) -> Self {
        Self::Answer(match result {
            Ok(value) => Line::Ok(value),
            Err(error) => Line::Error(format!("{error:#}")),
        })
    }
}

/// A request on its way to the daemon's loop, with the way back.
pub(crate) type Asked = (Request, oneshot::Sender<Response>);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_on_the_wire() {
        let names = |service: &str, backend: &str| (service.to_owned(), backend.to_owned());
        let (service, backend) = names("web", "w 1");
        let weight = |weight| Request::Weight {
            service: "web".into(),
            backend: "w".into(),
            weight,
        };
        let rows = [
            (r#"{"verb":"status"}"#, Request::Status {}),
            (r#"{"verb":"detach"}"#, Request::Detach {}),
            (r#"{"verb":"reload"}"#, Request::Reload {}),
            (
                r#"{"verb":"drain","service":"web","backend":"w 1"}"#,
                Request::Drain { service, backend },
            ),
            (
                r#"{"verb":"weight","service":"web","backend":"w","weight":0}"#,
                weight(Some(0)),
            ),
            (
                r#"{"verb":"weight","service":"web","backend":"w","weight":null}"#,
                weight(None),
            ),
            (
                r#"{"verb":"events","follow":true}"#,
                Request::Events { follow: true },
            ),
            (r#"{"verb":"events"}"#, Request::Events { follow: false }),
        ];
        for (text, request) in rows {
            assert_eq!(serde_json::from_str::<Request>(text).unwrap(), request);
            let again = serde_json::to_string(&request).unwrap();
            assert_eq!(serde_json::from_str::<Request>(&again).unwrap(), request);
        }
        for (text, part) in [
            (
                r#"{"verb":"explode"}"#,
                "unknown variant `explode`, expected one of `status`",
            ),
            (r#"{"verb":"status","x":1}"#, "unknown field `x`"),
            (
                r#"{"verb":"drain","service":"web"}"#,
                "missing field `backend`",
            ),
            (
                r#"{"verb":"weight","service":"a","backend":"b","weight":65536}"#,
                "65536",
            ),
            (
                r#"{"verb":"weight","service":"a","backend":"b","weight":-1}"#,
                "-1",
            ),
            (r#"{}"#, "missing field `verb`"),
            ("", "EOF"),
        ] {
            let error = serde_json::from_str::<Request>(text)
                .unwrap_err()
                .to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
