//! DFP agents made of bytes: the vectors' own, and wrong ones.

use super::*;
use crate::config::Dfp;
use lb_common::control::dfp::{HostWeight, Key, Load, Message, emit, parse};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

/// An agent's listener, and a manager that connects to it every second.
async fn manager(password: Option<&str>, timeout: Duration) -> (Listener, tokio::net::TcpListener) {
    let listener = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
        .await
        .unwrap();
    let port = listener.local_addr().unwrap().port();
    let outside = Listener::start(vec![Watched {
        dfp: Some(Dfp {
            agents: vec![SocketAddr::from((Ipv4Addr::LOCALHOST, port))],
            password: password.map(str::to_owned),
            key_id: 7,
            timeout,
            retries: 0,
            interval: Duration::from_secs(1),
            bind_id: 5,
        }),
        ..watched(80)
    }]);
    (outside, listener)
}

async fn accept(listener: &tokio::net::TcpListener) -> TcpStream {
    limited("the manager connects", listener.accept())
        .await
        .unwrap()
        .0
}

fn key() -> Key {
    Key {
        id: 7,
        secret: b"secret".to_vec(),
    }
}

fn weight(address: Ipv4Addr, port: u16, bind_id: u16, weight: u16) -> Message {
    Message::Preference(vec![Load {
        port,
        protocol: 6,
        hosts: vec![HostWeight {
            address,
            bind_id,
            weight,
        }],
    }])
}

#[tokio::test]
async fn weights_come_through_until_the_agent_is_lost() {
    let (mut outside, listener) = manager(None, Duration::from_secs(10)).await;
    let mut stream = accept(&listener).await;
    let mut hello = [0; 16];
    stream.read_exact(&mut hello).await.unwrap();
    let parameters = Message::Parameters { keepalive_s: 5 };
    assert_eq!(parse(&hello, None), Ok(parameters));

    let here = Ipv4Addr::LOCALHOST;
    let elsewhere = Ipv4Addr::new(10, 9, 9, 9);
    // What is not ours, in the wrong direction or unknown passes unheard; bytes
    // come in pieces.
    let sent = [
        emit(&Message::Preference(vec![]), None),
        emit(&weight(elsewhere, 80, 5, 1), None),
        emit(&weight(here, 81, 5, 2), None),
        emit(&weight(here, 80, 6, 3), None),
        emit(&Message::Parameters { keepalive_s: 9 }, None),
        emit(&Message::Other(0x0500), None),
        emit(&weight(here, 80, 5, 24), None),
        emit(&weight(here, 0, 5, 0), None),
    ];
    for piece in sent.concat().chunks(5) {
        stream.write_all(piece).await.unwrap();
        stream.flush().await.unwrap();
    }
    assert_eq!(word(&mut outside).await, OutsideWord::Dfp(Some(24)));
    assert_eq!(word(&mut outside).await, OutsideWord::Dfp(Some(0)));
    drop(stream);
    assert_eq!(word(&mut outside).await, OutsideWord::Dfp(None));
    let told = trouble(&mut outside).await.unwrap();
    assert!(told.contains("closed the connection"), "{told}");
    // After the interval it is tried again.
    let mut stream = accept(&listener).await;
    let again = emit(&weight(here, 80, 5, 9), None);
    stream.write_all(&again).await.unwrap();
    assert_eq!(trouble(&mut outside).await, None);
    assert_eq!(word(&mut outside).await, OutsideWord::Dfp(Some(9)));
}

#[tokio::test]
async fn a_bad_agent_costs_its_connection_and_one_line() {
    let here = Ipv4Addr::LOCALHOST;
    let signed = emit(&weight(here, 80, 5, 1), Some(&key()));
    let other = Key {
        id: 7,
        secret: b"other".to_vec(),
    };
    let rows: [(Option<&str>, Vec<u8>, &str); 6] = [
        (None, b"SSH-2.0-OpenSSH_9\r\n".to_vec(), "version 83"),
        (None, vec![1, 0, 1, 1, 0xff, 0xff, 0xff, 0xff], "4294967295"),
        (
            None,
            vec![1, 0, 1, 1, 0, 0, 0, 12, 0, 2, 0, 3],
            "TLV 0x0002",
        ),
        (
            Some("secret"),
            emit(&weight(here, 80, 5, 1), None),
            "without",
        ),
        (
            Some("secret"),
            emit(&weight(here, 80, 5, 1), Some(&other)),
            "another secret",
        ),
        (Some("other"), signed.clone(), "another secret"),
    ];
    for (password, bytes, problem) in rows {
        let (mut outside, listener) = manager(password, Duration::ZERO).await;
        let mut stream = accept(&listener).await;
        stream.write_all(&bytes).await.unwrap();
        let told = heard(&mut outside).await;
        let Heard::Peer {
            trouble: Some(told),
            ..
        } = told
        else {
            panic!("{problem}: {told:?}");
        };
        assert!(told.contains(problem), "{problem}: {told}");
        // Its own end is closed: what it still sends is not read.
        let mut rest = Vec::new();
        let read = limited("the end", stream.read_to_end(&mut rest)).await;
        assert!(read.is_err() || rest.len() <= 44, "{problem}");
        // The same again is not told again.
        let mut stream = accept(&listener).await;
        stream.write_all(&bytes).await.unwrap();
        let _ = limited("the end", stream.read_to_end(&mut rest)).await;
        assert!(!outside.has_next().await, "{problem}");
    }
    // With the right secret it is heard.
    let (mut outside, listener) = manager(Some("secret"), Duration::ZERO).await;
    let mut stream = accept(&listener).await;
    stream.write_all(&signed).await.unwrap();
    assert_eq!(word(&mut outside).await, OutsideWord::Dfp(Some(1)));
}

#[tokio::test]
async fn half_a_message_and_silence_are_waited_out() {
    let (mut outside, listener) = manager(None, Duration::from_secs(2)).await;
    let mut stream = accept(&listener).await;
    stream.write_all(&[1, 0, 1, 1, 0, 0]).await.unwrap();
    let told = trouble(&mut outside).await.unwrap();
    assert_eq!(told, "silent for 2s; closed");
}
