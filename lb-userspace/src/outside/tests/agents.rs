//! HAProxy's agents, good and bad.

use super::*;
use crate::config::Agent;
use lb_common::control::agent::{Administration, AgentState, AgentWeight};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

/// An agent that answers one connection after the other with these bytes, the
/// last one for ever. `None`: it says nothing and keeps the connection.
async fn agent(answers: Vec<Option<Vec<u8>>>, send: Option<&str>) -> (Listener, u16) {
    let listener = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
        .await
        .unwrap();
    let port = listener.local_addr().unwrap().port();
    let expected = send.map(str::to_owned);
    tokio::spawn(async move {
        let mut kept = Vec::new();
        let mut answers = answers.into_iter().peekable();
        let mut answer = answers.next().unwrap();
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            if let Some(expected) = &expected {
                let mut got = vec![0; expected.len()];
                stream.read_exact(&mut got).await.unwrap();
                assert_eq!(got, expected.as_bytes());
            }
            match &answer {
                // The asker may have heard enough before this is written.
                Some(bytes) => drop(stream.write_all(bytes).await),
                None => kept.push(stream),
            }
            answer = answers.next().unwrap_or(answer);
        }
    });
    let outside = Listener::start(vec![Watched {
        agent: Some(Agent {
            port,
            interval: Duration::from_millis(20),
            timeout: Duration::from_millis(300),
            send: send.map(str::to_owned),
            source: Some(Ipv4Addr::LOCALHOST.into()),
        }),
        ..watched(80)
    }]);
    (outside, port)
}

fn state(
    weight: Option<AgentWeight>,
    administration: Administration,
    down: bool,
    reason: &str,
) -> OutsideWord {
    OutsideWord::Agent(AgentState {
        weight,
        max_connections: None,
        administration,
        down,
        reason: reason.to_owned(),
    })
}

#[tokio::test]
async fn words_come_through_and_add_up() {
    let lines = ["75%\n", "drain\n", "up ready 100%\n", "down#swap", "up\r\n"];
    let answers = lines.map(|line| Some(line.as_bytes().to_vec()));
    let (mut outside, _) = agent(answers.to_vec(), Some("who are you\n")).await;
    use Administration::{Drain, Ready};
    let percent = |percent| Some(AgentWeight::Percent(percent));
    for expected in [
        state(percent(75), Ready, false, ""),
        state(percent(75), Drain, false, ""),
        state(percent(100), Ready, false, ""),
        state(percent(100), Ready, true, "swap"),
        state(percent(100), Ready, false, ""),
    ] {
        assert_eq!(word(&mut outside).await, expected);
    }
}

#[tokio::test]
async fn a_bad_agent_costs_one_line_and_changes_nothing() {
    let rows: [(Option<&[u8]>, &str); 7] = [
        (Some(b"nonsense\n"), "\"nonsense\" is not a word"),
        (Some(b"up 75\n"), "\"75\" is not a word"),
        (Some(b"\xff\xfe\n"), "not text"),
        (Some(b"\n"), "empty"),
        (Some(b""), "closed without an answer"),
        (Some(&[b'u'; 1 << 20]), "no end of line"),
        (None, "no answer in time"),
    ];
    for (bytes, problem) in rows {
        // Bad twice in a row, then good: told once, and once that it is well.
        let bad = bytes.map(<[u8]>::to_vec);
        let good = Some(b"drain\n".to_vec());
        let (mut outside, _) = agent(vec![bad.clone(), bad, good], None).await;
        let told = trouble(&mut outside).await;
        assert!(
            told.as_ref().is_some_and(|told| told.contains(problem)),
            "{problem}: {told:?}"
        );
        let next = heard(&mut outside).await;
        let drain = state(None, Administration::Drain, false, "");
        assert_eq!(
            next,
            Heard::Word {
                backend: BACKEND,
                word: drain
            },
            "{problem}"
        );
        assert_eq!(trouble(&mut outside).await, None, "{problem}");
    }
}

#[tokio::test]
async fn an_agent_that_is_not_there_is_told_of() {
    let mut outside = Listener::start(vec![Watched {
        agent: Some(Agent {
            port: free_port(),
            interval: Duration::from_millis(20),
            timeout: Duration::from_millis(300),
            send: None,
            source: None,
        }),
        ..watched(80)
    }]);
    let told = trouble(&mut outside).await.unwrap();
    assert_eq!(told, "connection refused");
}
