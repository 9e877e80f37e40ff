//! The control socket against clients of every kind.

use super::*;
use serde_json::json;
use std::{io, sync::Mutex};
use tokio::net::UnixStream;

/// The lines logged on this thread.
#[derive(Clone, Default)]
struct Log(std::sync::Arc<Mutex<Vec<u8>>>);

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Log {
    fn lines(&self) -> usize {
        self.0
            .lock()
            .unwrap()
            .iter()
            .filter(|byte| **byte == b'\n')
            .count()
    }
}

/// Runs `test` beside a daemon that answers everything with 42.
fn with_daemon<F: Future<Output = ()>>(test: impl FnOnce(mpsc::Sender<Asked>) -> F) -> Log {
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::INFO)
        .with_writer(move || writer.clone())
        .finish();
    let _guard = tracing::subscriber::set_default(subscriber);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let (ask, mut asked) = mpsc::channel::<Asked>(16);
        let daemon = async {
            while let Some((_, back)) = asked.recv().await {
                let _ = back.send(Response::ok(json!(42)));
            }
        };
        tokio::select! {
            () = test(ask) => {}
            () = daemon => {}
        }
    });
    log
}

/// Sends `bytes` to a fresh client task, hangs up, and returns what it said.
async fn say(asked: &mpsc::Sender<Asked>, bytes: &[u8]) -> Vec<Line> {
    let (near, far) = UnixStream::pair().unwrap();
    let served = client(far, asked.clone());
    let talk = async {
        let (mut input, mut output) = near.into_split();
        // A client that is cut off cannot send everything.
        let _ = output.write_all(bytes).await;
        drop(output);
        let mut text = Vec::new();
        // A reset, when the daemon left bytes unread, ends the answers too.
        let _ = input.read_to_end(&mut text).await;
        text
    };
    let ((), text) = tokio::join!(served, talk);
    text.split(|byte| *byte == b'\n')
        .filter(|line| !line.is_empty())
        .map(|line| serde_json::from_slice(line).unwrap())
        .collect()
}

#[test]
fn what_clients_send_and_get() {
    let status = "{\"verb\":\"status\"}\n";
    let long = format!(
        "{{\"verb\":\"{}\"}}\n",
        "x".repeat(LONGEST_REQUEST as usize)
    );
    // Sent; answers of 42, part of the error, lines in the log.
    let rows: &[(&[u8], usize, Option<&str>, usize)] = &[
        (b"", 0, None, 0),
        (status.as_bytes(), 1, None, 0),
        (&status.repeat(50).into_bytes(), 50, None, 0),
        (b"\n", 0, Some("not a request"), 1),
        (b"{\"verb\":\"stat", 0, Some("in the middle of a line"), 1),
        (
            b"{\"verb\":\"walk\"}\n",
            0,
            Some("unknown variant `walk`"),
            1,
        ),
        (
            b"{\"verb\":\"a\\nb\\u001b[2J\"}\n",
            0,
            Some("unknown variant"),
            1,
        ),
        (b"\xff\xfe\n\xff\n\xff\n", 0, Some("not a request"), 1),
        (long.as_bytes(), 0, Some("at most 65536 bytes"), 1),
        (&[b'['; 60_000], 0, Some("in the middle of a line"), 1),
        (
            &[&[b'['; 60_000][..], b"\n"].concat(),
            0,
            Some("not a request"),
            1,
        ),
        (
            &[status.as_bytes(), b"x\n", status.as_bytes()].concat(),
            1,
            Some("not a request"),
            1,
        ),
    ];
    for &(bytes, answers, error, lines) in rows {
        let name = String::from_utf8_lossy(&bytes[..bytes.len().min(40)]).into_owned();
        let log = with_daemon(async |asked| {
            let got = say(&asked, bytes).await;
            let expected = answers + usize::from(error.is_some());
            // The error itself may be lost to the reset that a client gets who
            // goes on sending; the log has it.
            assert!(
                got.len() == expected || got.len() + 1 == expected,
                "{name}: {got:?}"
            );
            assert!(
                got.iter()
                    .take(answers)
                    .all(|line| *line == Line::Ok(json!(42)))
            );
            if let (Some(part), Some(Line::Error(message))) = (error, got.get(answers)) {
                assert!(message.contains(part), "{name}: {message}");
            }
        });
        assert_eq!(log.lines(), lines, "{name}");
    }
}

#[test]
fn garbage_does_no_harm() {
    let mut state = 1u64;
    let mut below = |n: usize| {
        // Knuth's MMIX constants.
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % n
    };
    const PARTS: [&[u8]; 12] = [
        b"{\"verb\":",
        b"\"status\"",
        b"\"weight\"",
        b"}",
        b"\n",
        b"{",
        b"null",
        b"\"service\":\"a\"",
        b",",
        b"\xc3\x28",
        b"\0",
        b"\"\\ud800\"",
    ];
    let clients = 400;
    let log = with_daemon(async |asked| {
        for _ in 0..clients {
            let mut bytes = Vec::new();
            for _ in 0..below(30) {
                match below(3) {
                    0 => bytes.push(below(256) as u8),
                    _ => bytes.extend_from_slice(PARTS[below(PARTS.len())]),
                }
            }
            say(&asked, &bytes).await;
        }
        // It still answers.
        assert_eq!(
            say(&asked, b"{\"verb\":\"status\"}\n").await,
            [Line::Ok(json!(42))]
        );
    });
    assert!(
        (1..=clients).contains(&log.lines()),
        "{} lines",
        log.lines()
    );
}

#[test]
fn a_follower_gets_what_comes_until_it_leaves() {
    let log = Log::default();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let (ask, mut asked) = mpsc::channel::<Asked>(1);
        let (near, far) = UnixStream::pair().unwrap();
        let served = tokio::spawn(client(far, ask));
        let (input, mut output) = near.into_split();
        output
            .write_all(b"{\"verb\":\"events\",\"follow\":true}\n")
            .await
            .unwrap();
        let (request, back) = asked.recv().await.unwrap();
        assert_eq!(request, Request::Events { follow: true });
        let (queue, rest) = mpsc::channel(4);
        assert!(
            back.send(Response::Follow(Line::Ok(json!([])), rest))
                .is_ok()
        );
        queue.send(Line::Event(json!(1))).await.unwrap();
        queue.send(Line::Lost(7)).await.unwrap();
        let mut lines = BufReader::new(input).lines();
        for expected in [r#"{"ok":[]}"#, r#"{"event":1}"#, r#"{"lost":7}"#] {
            assert_eq!(lines.next_line().await.unwrap().as_deref(), Some(expected));
        }
        drop((lines, output));
        served.await.unwrap();
        assert!(queue.is_closed());
    });
    assert_eq!(log.lines(), 0);
}
