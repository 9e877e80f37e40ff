//! Frames of every size, cut at every length, and with lengths that lie.

use lb_common::reason::Reason;
use steerline_tests::packets::{
    Group, Reply, Row, Step, Talk,
    flag::{ACK, PSH, SYN},
    scene::{A, CLIENT, ROUTER_HOP},
    set_mtu,
};

const TALK: Talk = Talk::web(CLIENT.1, A);

/// Offsets in a frame without IP options.
const VERSION_AND_LENGTH: usize = 14;
const TOTAL_LENGTH: usize = 16;
const DATA_OFFSET: usize = 46;
/// Ethernet, and IPv4 without options.
const ETHERNET: usize = 14;
const TO_TCP: usize = 34;

/// The options of a Linux SYN: MSS, SACK permitted, timestamps, window scale.
const SYN_OPTIONS: [u8; 20] = [
    2, 4, 5, 0xb4, 4, 2, 8, 10, 0x11, 0x22, 0x33, 0x44, 0, 0, 0, 0, 1, 3, 3, 7,
];

fn syn() -> Step {
    TALK.syn()
        .with(|frame| frame.tcp_options = SYN_OPTIONS.to_vec())
}

/// Payloads, padding and headers of every size.
pub(crate) fn sizes() -> Group {
    let mut rows = vec![
        Row::new("SYN padded to the shortest Ethernet frame")
            .send(TALK.syn().with(|f| *f = f.clone().padded())),
        Row::new("ACK and answer padded to the shortest Ethernet frame")
            .sends(TALK.handshake())
            .send(TALK.client(ACK).with(|f| *f = f.clone().padded()))
            .send(TALK.server(ACK).with(|f| *f = f.clone().padded()))
            .send(
                TALK.client(ACK)
                    .payload(3)
                    .with(|f| *f = f.clone().padded()),
            ),
        Row::new("more padding than anybody sends")
            .sends(TALK.handshake())
            .send(
                TALK.client(ACK)
                    .payload(8)
                    .with(|f| f.padding = vec![0xee; 200]),
            ),
        Row::new("the TCP options of a SYN").send(syn()),
        Row::new("TCP options of every length")
            .sends(TALK.handshake())
            .sends((0..=40).step_by(4).map(|length| {
                TALK.client(ACK)
                    .payload(9)
                    .with(|f| f.tcp_options = vec![1; length])
            }))
            .sends((0..=40).step_by(4).map(|length| {
                TALK.server(ACK)
                    .payload(9)
                    .with(|f| f.tcp_options = vec![1; length])
            })),
        Row::new("a jumbo frame in both directions")
            .from("xdp-tutorial#225")
            .change(|lab| {
                lab.hop(A.hop(), |hop| hop.mtu = 9_000);
                lab.hop(ROUTER_HOP, |hop| hop.mtu = 9_000);
                set_mtu("front", 9_000);
            })
            .sends(TALK.handshake())
            .send(TALK.client(ACK).payload(8_960))
            .send(
                TALK.client(ACK)
                    .payload(8_961)
                    .replied(Reply::TooBig(TALK.vip.0, 9_000)),
            )
            .send(TALK.server(ACK).payload(8_960))
            .send(TALK.server(ACK).payload(8_960))
            .send(
                TALK.server(ACK)
                    .payload(8_961)
                    .replied(Reply::TooBig(TALK.vip.0, 9_000)),
            )
            .change(|_| set_mtu("front", 1_500)),
    ];
    for length in [
        0, 1, 2, 3, 7, 8, 11, 63, 64, 65, 511, 512, 1_447, 1_448, 1_459, 1_460,
    ] {
        rows.push(
            Row::new(format!("{length} bytes of payload in both directions"))
                .sends(TALK.handshake())
                .send(TALK.client(ACK | PSH).payload(length))
                .send(TALK.server(ACK | PSH).payload(length)),
        );
    }
    for words in 6..=15 {
        let options =
            move |step: Step| step.with(|frame| frame.ip_options = vec![1; (words - 5) * 4]);
        rows.push(
            Row::new(format!("IPv4 header of {words} words"))
                .from("katran Base drops options; a NAT keeps them")
                .send(options(TALK.syn()))
                .send(options(TALK.syn_ack()))
                .send(options(TALK.ack()))
                .send(options(TALK.client(ACK).payload(13)))
                .send(options(TALK.server(ACK).payload(13))),
        );
    }
    Group::new("sizes", rows)
}

/// What becomes of a frame of ours that is cut: before its addresses it is the
/// kernel's, after them it is dropped.
fn cut(step: Step, length: usize) -> Step {
    let step = step.cut(length);
    if length < TO_TCP {
        step.passed(Reason::PassedMalformed)
    } else {
        step.dropped(Reason::Malformed)
    }
}

/// Frames cut at every length that the kernel lets in: 14 and up.
pub(crate) fn cuts() -> Group {
    let mut rows = Vec::new();
    let plain_syn = || {
        TALK.client(SYN)
            .with(|frame| frame.tcp_options = SYN_OPTIONS.to_vec())
    };
    let data = || TALK.client(ACK | PSH).payload(11);
    let reply = || TALK.server(ACK | PSH).payload(11);
    for length in ETHERNET..plain_syn().length() {
        rows.push(
            Row::new(format!("SYN cut to {length} bytes"))
                .from("overdrive passes what is cut short; here only what lacks its addresses")
                .send(cut(plain_syn(), length)),
        );
    }
    for length in ETHERNET..data().length() {
        rows.push(
            Row::new(format!("data and reply cut to {length} bytes"))
                .sends(TALK.handshake())
                .send(cut(data(), length))
                .send(cut(reply(), length)),
        );
    }
    Group::new("cuts", rows)
}

/// A row that another balancer has too.
const FOUR_WORDS: &str = "IP header of 4 words";

/// Offsets, and the bytes that are put there.
type Patches = Vec<(usize, Vec<u8>)>;

/// Headers that contradict each other or the frame.
pub(crate) fn lengths() -> Group {
    let total = |value: u16| value.to_be_bytes();
    let rows: Vec<(&str, Patches, Reason)> = vec![
        (
            "total length 0",
            vec![(TOTAL_LENGTH, total(0).to_vec())],
            Reason::Malformed,
        ),
        (
            "total length below the IP header",
            vec![(TOTAL_LENGTH, total(19).to_vec())],
            Reason::Malformed,
        ),
        (
            "total length of the IP header alone",
            vec![(TOTAL_LENGTH, total(20).to_vec())],
            Reason::Malformed,
        ),
        (
            "total length inside the TCP header",
            vec![(TOTAL_LENGTH, total(39).to_vec())],
            Reason::Malformed,
        ),
        (
            "total length one beyond the frame",
            vec![(TOTAL_LENGTH, total(49).to_vec())],
            Reason::Malformed,
        ),
        (
            "total length of 65,535",
            vec![(TOTAL_LENGTH, total(65_535).to_vec())],
            Reason::Malformed,
        ),
        (
            "TCP data offset 0",
            vec![(DATA_OFFSET, vec![0x00])],
            Reason::Malformed,
        ),
        (
            "TCP data offset 4",
            vec![(DATA_OFFSET, vec![0x40])],
            Reason::Malformed,
        ),
        (
            "TCP data offset beyond the segment",
            vec![(DATA_OFFSET, vec![0x80])],
            Reason::Malformed,
        ),
        (
            "TCP data offset 15",
            vec![(DATA_OFFSET, vec![0xf0])],
            Reason::Malformed,
        ),
        (
            FOUR_WORDS,
            vec![(VERSION_AND_LENGTH, vec![0x44])],
            Reason::PassedMalformed,
        ),
        (
            "IP header of no word",
            vec![(VERSION_AND_LENGTH, vec![0x40])],
            Reason::PassedMalformed,
        ),
        (
            "IP header beyond the frame",
            vec![(VERSION_AND_LENGTH, vec![0x4f])],
            Reason::Malformed,
        ),
        (
            "version 5",
            vec![(VERSION_AND_LENGTH, vec![0x55])],
            Reason::PassedMalformed,
        ),
        (
            "version 6 in an IPv4 frame",
            vec![(VERSION_AND_LENGTH, vec![0x65])],
            Reason::PassedMalformed,
        ),
        (
            "version 0",
            vec![(VERSION_AND_LENGTH, vec![0x05])],
            Reason::PassedMalformed,
        ),
        (
            "IP header as long as the packet",
            vec![
                (VERSION_AND_LENGTH, vec![0x4c]),
                (TOTAL_LENGTH, total(48).to_vec()),
            ],
            Reason::Malformed,
        ),
    ];
    let rows = rows.into_iter().map(|(name, patches, reason)| {
        let refuse = |step: Step| {
            let step = patches
                .iter()
                .fold(step, |step, (at, bytes)| step.patch(*at, bytes));
            if reason.drops() {
                step.dropped(reason)
            } else {
                step.passed(reason)
            }
        };
        // Eight bytes of payload: the frame has 62.
        Row::new(name)
            .from(if name == FOUR_WORDS {
                "overdrive drops it; here the kernel does"
            } else {
                ""
            })
            .send(refuse(TALK.client(SYN).payload(8)))
            .sends(TALK.handshake())
            .send(refuse(TALK.client(ACK).payload(8)))
            .send(refuse(TALK.server(ACK).payload(8)))
    });
    Group::new("lengths", rows.collect())
}
