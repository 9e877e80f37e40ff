//! Debian's snmpd, an agent that is mute, and one that talks nonsense.

use super::*;
use crate::config::{Capacity, CapacityKind, Object};
use lb_common::control::{capacity::CacheState, snmp_weight::Autoadjust};
use std::net::SocketAddrV4;
use tokio::net::UdpSocket;

/// Objects of net-snmp's `pass_persist`, below the experimental arc.
const OID: [u64; 7] = [1, 3, 6, 1, 3, 94, 1];

fn object(last: u64, maximum: u64, weight: u32) -> Object {
    let mut oid = OID.to_vec();
    oid.push(last);
    Object {
        oid,
        maximum,
        weight,
    }
}

fn state() -> CapacityKind {
    CapacityKind::State {
        oid: object(1, 1, 1).oid,
        force_delete: false,
    }
}

fn polled(kind: CapacityKind, port: u16) -> Listener {
    Listener::start(vec![Watched {
        capacity: Some(Capacity {
            kind,
            community: "public".to_owned(),
            port,
            interval: Duration::from_millis(50),
            timeout: Duration::from_millis(250),
            retries: 1,
        }),
        ..watched(80)
    }])
}

/// An snmpd whose objects 1 and 2 have the type and value in a file each.
struct Snmpd {
    scratch: Scratch,
    port: u16,
    _program: Program,
}

impl Snmpd {
    fn start(name: &str) -> Self {
        let scratch = Scratch::new(name);
        let directory = scratch.0.display().to_string();
        let script = format!(
            "while read command; do case $command in\n\
             PING) echo PONG ;;\n\
             get) read oid; case $oid in\n\
             .1.3.6.1.3.94.1.[12]) echo $oid; cat {directory}/${{oid##*.}} ;;\n\
             *) echo NONE ;; esac ;;\n\
             *) read rest; echo NONE ;;\nesac; done\n"
        );
        let script = scratch.file("pass.sh", &script);
        let port = free_udp_port();
        // snmpd keeps what `pass` said for 30 s; a persistent script is asked anew.
        let line = format!("pass_persist .1.3.6.1.3.94.1 /bin/sh {}", script.display());
        let config = format!("agentaddress udp:127.0.0.1:{port}\nrocommunity public\n{line}\n");
        let config = scratch.file("snmpd.conf", &config);
        let config = config.display().to_string();
        let log = format!("{directory}/log");
        let state = format!("--persistentDir={directory}");
        let arguments = [
            "-f", "-C", "-c", &config, "-Lf", &log, "-r", "-I", "-smux", &state,
        ];
        let snmpd = Self {
            port,
            _program: Program::start("snmpd", &arguments),
            scratch,
        };
        snmpd.set(1, "integer", "2");
        snmpd.set(2, "gauge", "0");
        snmpd
    }

    fn set(&self, object: u8, kind: &str, value: &str) {
        // In one step: the script must not read half.
        let new = self.scratch.file("new", &format!("{kind}\n{value}\n"));
        std::fs::rename(new, self.scratch.0.join(object.to_string())).unwrap();
    }
}

fn free_udp_port() -> u16 {
    let socket = std::net::UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    socket.local_addr().unwrap().port()
}

#[tokio::test]
async fn states_of_a_cache_by_snmpd() {
    let snmpd = Snmpd::start("state");
    let mut outside = polled(state(), snmpd.port);
    let mut current = CacheState::Offline;
    for (kind, value, expected) in [
        ("integer", "1", CacheState::Underused),
        ("integer", "4", CacheState::Stressed),
        ("integer", "9", CacheState::Initializing),
        ("integer", "10", CacheState::Offline),
        ("integer", "3", CacheState::Burdened),
        ("string", "abc", CacheState::Offline),
        ("integer", "7", CacheState::Halting),
        ("integer", "0", CacheState::Offline),
        ("integer", "5", CacheState::Overtaxed),
    ] {
        snmpd.set(1, kind, value);
        assert_ne!(current, expected, "a row that shows nothing");
        // Until snmpd is up, and between two polls, others may come first.
        while current != expected {
            match word(&mut outside).await {
                OutsideWord::Capacity(state) => current = state,
                other => panic!("{other:?}"),
            }
        }
    }
    drop(snmpd);
    let silence = word(&mut outside).await;
    assert_eq!(silence, OutsideWord::Capacity(CacheState::Offline));
}

#[tokio::test]
async fn weights_from_numbers_by_snmpd() {
    let snmpd = Snmpd::start("numbers");
    let headroom = CapacityKind::Headroom {
        objects: vec![object(1, 80, 3), object(2, 1_000, 1)],
    };
    let mut outside = polled(headroom, snmpd.port);
    for (first, second, expected) in [("40", "500", 4), ("80", "1000", 0), ("0", "0", 8)] {
        snmpd.set(1, "gauge", first);
        snmpd.set(2, "integer", second);
        loop {
            match word(&mut outside).await {
                OutsideWord::SnmpWeight(Some(weight)) if weight == expected => break,
                OutsideWord::SnmpWeight(_) => {}
                other => panic!("{other:?}"),
            }
        }
    }
    snmpd.set(1, "gauge", "8000");
    let least_loaded = CapacityKind::LeastLoaded {
        objects: vec![object(1, 16_000, 16_000)],
        autoadjust: Autoadjust::Average,
    };
    let mut outside = polled(least_loaded, snmpd.port);
    assert_eq!(word(&mut outside).await, OutsideWord::SnmpWeight(Some(16)));
    // A number no more: the configured weight again.
    snmpd.set(1, "string", "many");
    assert_eq!(word(&mut outside).await, OutsideWord::SnmpWeight(None));
}

/// An agent that answers every datagram with these bytes.
async fn answering(bytes: &'static [u8]) -> u16 {
    let socket = UdpSocket::bind(SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0))
        .await
        .unwrap();
    let port = socket.local_addr().unwrap().port();
    tokio::spawn(async move {
        let mut question = [0; 2_048];
        loop {
            let (_, from) = socket.recv_from(&mut question).await.unwrap();
            if !bytes.is_empty() {
                socket.send_to(bytes, from).await.unwrap();
            }
        }
    });
    port
}

#[tokio::test]
async fn no_answer_and_nonsense_mean_offline_and_one_line() {
    for (bytes, problem) in [
        (&b""[..], "no answer in time"),
        (b"nonsense", "not an answer of SNMPv2c"),
        (b"\x30\x84\xff\xff\xff\xff", "not an answer of SNMPv2c"),
        (&[0x30; 60_000], "not an answer of SNMPv2c"),
    ] {
        let port = answering(bytes).await;
        let mut outside = polled(state(), port);
        assert_eq!(
            word(&mut outside).await,
            OutsideWord::Capacity(CacheState::Offline)
        );
        let told = trouble(&mut outside).await.unwrap();
        assert!(told.contains(problem), "{told}");
        // Two more polls say nothing new.
        tokio::time::sleep(Duration::from_millis(700)).await;
        assert!(!outside.has_next().await, "{problem}");
    }
}
