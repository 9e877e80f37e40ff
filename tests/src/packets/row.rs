//! Rows of the packet table, and the one helper that runs them.

use super::{
    Carried, Counter, Endpoint, Entropy, Family, Frame, Lab, Mac, Moved, Port, Reply, Talk, Tunnel,
    moves,
    scene::{BACK, FRONT, ROUTER_MAC, Server},
    verdict,
};
use lb_common::{reason::Reason, tcp::State};
use std::{fmt::Write as _, net::IpAddr};

/// What is to become of a frame.
#[derive(Clone, Debug)]
pub enum Outcome {
    /// Translated and sent.
    Sent {
        /// The end that is rewritten, and to what.
        rewritten: Rewritten,
        /// Destination and source MAC address.
        macs: (Mac, Mac),
        /// Where it leaves.
        port: Port,
        /// The service on which it is counted.
        service: u32,
    },
    /// Turned into the answer to itself.
    Answered(Reply),
    /// Dropped, untouched.
    Dropped(Reason),
    /// Passed to the kernel, untouched.
    Passed(Reason),
}

/// Which end of a frame is rewritten.
#[derive(Clone, Copy, Debug)]
pub enum Rewritten {
    /// Its source.
    Source(Endpoint),
    /// Its destination.
    Destination(Endpoint),
    /// Its source and its destination.
    Both(Endpoint, Endpoint),
    /// Neither, and not its time to live: its server answers directly.
    Nothing,
    /// The same, and it is put into a packet to this address.
    Wrapped(Tunnel, IpAddr),
    /// Of an error, the source of the packet that it quotes, and its own
    /// destination.
    QuotedSource(Endpoint),
    /// Of an error, the destination of the packet that it quotes, and its own
    /// source.
    QuotedDestination(Endpoint),
}

#[derive(Clone, Debug)]
enum Input {
    Frame(Box<Frame>),
    Raw(Vec<u8>),
}

/// A frame that arrives, and all that it is to do.
#[derive(Clone, Debug)]
pub struct Step {
    input: Input,
    patches: Vec<(usize, Vec<u8>)>,
    cut: Option<usize>,
    ingress: Port,
    metadata: Vec<u8>,
    outcome: Outcome,
    also: Vec<(Counter, i64)>,
}

impl Step {
    fn new(input: Input, ingress: Port, outcome: Outcome) -> Self {
        Self {
            input,
            patches: Vec::new(),
            cut: None,
            ingress,
            metadata: Vec::new(),
            outcome,
            also: Vec::new(),
        }
    }

    /// A client's frame that goes on to `server`.
    pub fn to_server(frame: Frame, server: Server) -> Self {
        let outcome = Outcome::Sent {
            rewritten: Rewritten::Destination(server.endpoint),
            macs: (server.mac(), BACK.1),
            port: Port::Back,
            service: server.service,
        };
        Self::new(Input::Frame(Box::new(frame)), Port::Front, outcome)
    }

    /// A client's frame that goes on as it is to `server`, which answers
    /// directly.
    pub fn direct(frame: Frame, server: Server) -> Self {
        let mut step = Self::to_server(frame, server);
        if let Outcome::Sent { rewritten, .. } = &mut step.outcome {
            *rewritten = match server.tunnel {
                Some(tunnel) => Rewritten::Wrapped(tunnel, server.endpoint.0),
                None => Rewritten::Nothing,
            };
        }
        step
    }

    /// A ping that is answered.
    pub fn answered(frame: Frame) -> Self {
        Self::new(
            Input::Frame(Box::new(frame)),
            Port::Front,
            Outcome::Answered(Reply::Echo),
        )
    }

    /// An error that a client or a router in front of it sends about a server's
    /// packet, and that goes to `server`.
    pub fn error_to_server(frame: Frame, server: Server) -> Self {
        let mut step = Self::to_server(frame, server);
        if let Outcome::Sent { rewritten, .. } = &mut step.outcome {
            *rewritten = Rewritten::QuotedSource(server.endpoint);
        }
        step
    }

    /// An error that a server or a router in front of it sends about a client's
    /// packet, and that goes to the client as from `vip`.
    pub fn error_to_client(frame: Frame, vip: Endpoint, service: u32) -> Self {
        let mut step = Self::to_client(frame, vip, service);
        if let Outcome::Sent { rewritten, .. } = &mut step.outcome {
            *rewritten = Rewritten::QuotedDestination(vip);
        }
        step
    }

    /// This frame is answered instead.
    pub fn replied(mut self, reply: Reply) -> Self {
        self.outcome = Outcome::Answered(reply);
        self
    }

    /// A server's frame that goes on to its client as from `vip`.
    pub fn to_client(frame: Frame, vip: Endpoint, service: u32) -> Self {
        let outcome = Outcome::Sent {
            rewritten: Rewritten::Source(vip),
            macs: (ROUTER_MAC, FRONT.1),
            port: Port::Front,
            service,
        };
        Self::new(Input::Frame(Box::new(frame)), Port::Back, outcome)
    }

    /// Both ends are rewritten instead of one.
    pub fn both(mut self, source: Endpoint, destination: Endpoint) -> Self {
        if let Outcome::Sent { rewritten, .. } = &mut self.outcome {
            *rewritten = Rewritten::Both(source, destination);
        }
        self
    }

    /// A frame of the network that is passed untouched.
    pub fn raw_passed(bytes: Vec<u8>, ingress: Port, reason: Reason) -> Self {
        Self::new(Input::Raw(bytes), ingress, Outcome::Passed(reason))
    }

    /// This frame is dropped instead.
    pub fn dropped(mut self, reason: Reason) -> Self {
        self.outcome = Outcome::Dropped(reason);
        self
    }

    /// This frame is passed instead.
    pub fn passed(mut self, reason: Reason) -> Self {
        self.outcome = Outcome::Passed(reason);
        self
    }

    /// This frame, coming in and going out, changed by `change`.
    pub fn with(mut self, change: impl FnOnce(&mut Frame)) -> Self {
        if let Input::Frame(frame) = &mut self.input {
            change(frame);
        }
        self
    }

    /// This frame with so many bytes of payload.
    pub fn payload(self, length: usize) -> Self {
        self.with(|frame| *frame = frame.clone().payload(length))
    }

    /// Overwrites bytes of the frame that comes in.
    pub fn patch(mut self, offset: usize, bytes: &[u8]) -> Self {
        self.patches.push((offset, bytes.to_vec()));
        self
    }

    /// Cuts the frame that comes in.
    pub fn cut(mut self, length: usize) -> Self {
        self.cut = Some(length);
        self
    }

    /// Comes in elsewhere.
    pub fn at(mut self, port: Port) -> Self {
        self.ingress = port;
        self
    }

    /// Comes in behind so many bytes of metadata: a multiple of four, at most
    /// 216. They take from the room in front of the frame, of which a test run
    /// has as much. (Before Linux 6.7 metadata has at most 32 bytes.)
    pub fn metadata(mut self, length: usize) -> Self {
        self.metadata = vec![0x6d; length];
        self
    }

    /// Leaves elsewhere.
    pub fn leaving(mut self, at: Port, with: (Mac, Mac)) -> Self {
        if let Outcome::Sent { macs, port, .. } = &mut self.outcome {
            *macs = with;
            *port = at;
        }
        self
    }

    /// Moves these counters too.
    pub fn also(mut self, moves: impl IntoIterator<Item = (Counter, i64)>) -> Self {
        self.also.extend(moves);
        self
    }

    /// This frame in fragments of at most `size` bytes of its IP payload, in order:
    /// what becomes of each is what would become of it. The counters that it moves
    /// too are moved by the first.
    pub fn fragments(self, size: usize) -> Vec<Self> {
        let pieces = self.built().fragments(size);
        let sent = matches!(self.outcome, Outcome::Sent { .. });
        let step = |(number, piece): (usize, Frame)| {
            let mut step = self.clone();
            step.input = Input::Frame(Box::new(piece));
            if number > 0 {
                step.also.clear();
                if sent {
                    step.also
                        .push((Counter::Reason(Reason::FragmentFollowed), 1));
                }
            }
            step
        };
        pieces.into_iter().enumerate().map(step).collect()
    }

    /// Moves none of the counters that were named so far.
    pub fn without_moves(mut self) -> Self {
        self.also.clear();
        self
    }

    /// Length of the frame that comes in, before it is cut.
    pub fn length(&self) -> usize {
        match &self.input {
            Input::Frame(frame) => frame.bytes().len(),
            Input::Raw(bytes) => bytes.len(),
        }
    }

    /// The frame that comes in.
    pub fn incoming(&self) -> Vec<u8> {
        let mut bytes = match &self.input {
            Input::Frame(frame) => frame.bytes(),
            Input::Raw(bytes) => bytes.clone(),
        };
        for (offset, patch) in &self.patches {
            bytes[*offset..*offset + patch.len()].copy_from_slice(patch);
        }
        if let Some(length) = self.cut {
            bytes.truncate(length);
        }
        bytes
    }

    /// Where it comes in.
    pub fn ingress(&self) -> Port {
        self.ingress
    }

    fn built(&self) -> &Frame {
        match &self.input {
            Input::Frame(frame) => frame,
            Input::Raw(_) => panic!("only a frame that was built can be sent on"),
        }
    }

    /// What tells this frame's flow apart in the packet around it: what it was
    /// with the flow's first frame, of which `got` may be the one.
    fn entropy(&self, lab: &mut Lab, tunnel: &Tunnel, got: &[u8]) -> Entropy {
        let frame = self.built();
        let flow = (frame.carried, frame.source, *tunnel);
        *lab.entropies
            .entry(flow)
            .or_insert_with(|| tunnel.entropy(got))
    }

    /// Verdict, bytes and moves, where `got` came out.
    fn expected(&self, lab: &mut Lab, got: &[u8]) -> (u32, Vec<u8>, Moved) {
        let mut moved = Moved::new();
        for (counter, by) in &self.also {
            moved.add(*counter, *by);
        }
        match &self.outcome {
            Outcome::Dropped(reason) => {
                moved.add(Counter::Reason(*reason), 1);
                (verdict::DROP, self.incoming(), moved)
            }
            Outcome::Passed(reason) => {
                moved.add(Counter::Reason(*reason), 1);
                (verdict::PASS, self.incoming(), moved)
            }
            Outcome::Answered(reply) => {
                moved.add(Counter::Reason(reply.reason()), 1);
                (verdict::TX, reply.to(self.built()).bytes(), moved)
            }
            Outcome::Sent {
                rewritten,
                macs,
                port,
                service,
            } => {
                let frame = self.built();
                let reason = match frame.carried {
                    Carried::Icmp(..) => Reason::IcmpRelayed,
                    Carried::Tcp | Carried::Udp { .. } => Reason::Forwarded,
                };
                moved.add(Counter::Reason(reason), 1);
                moved.add(Counter::Packets(*service), 1);
                moved.add(Counter::Bytes(*service), frame.total_length().into());
                let out = frame.clone().with(|frame| {
                    frame.macs = *macs;
                    match rewritten {
                        Rewritten::Source(endpoint) => frame.source = *endpoint,
                        Rewritten::Destination(endpoint) => frame.destination = *endpoint,
                        Rewritten::Both(source, destination) => {
                            (frame.source, frame.destination) = (*source, *destination);
                        }
                        Rewritten::Nothing | Rewritten::Wrapped(..) => return,
                        Rewritten::QuotedSource(endpoint) => {
                            frame.destination.0 = endpoint.0;
                            frame.quoted().source = *endpoint;
                        }
                        Rewritten::QuotedDestination(endpoint) => {
                            frame.source.0 = endpoint.0;
                            frame.quoted().destination = *endpoint;
                        }
                    }
                    frame.ttl -= 1;
                });
                let verdict = if *port == self.ingress {
                    verdict::TX
                } else {
                    verdict::REDIRECT
                };
                let bytes = match rewritten {
                    Rewritten::Wrapped(tunnel, server) => {
                        tunnel.around(&out, *server, self.entropy(lab, tunnel, got))
                    }
                    _ => out.bytes(),
                };
                (verdict, bytes, moved)
            }
        }
    }

    /// Runs the frame; what differs from what is expected.
    pub fn judge(&self, lab: &mut Lab) -> Result<(), String> {
        lab.drain_wanted(&mut Moved::new());
        let before = lab.snapshot();
        let (verdict, bytes) = lab.run_behind(&self.metadata, &self.incoming(), self.ingress);
        let after = lab.snapshot();
        let mut moved = before.moved(&after);
        lab.drain_wanted(&mut moved);
        let (wanted_verdict, wanted_bytes, wanted_moves) = self.expected(lab, &bytes);

        let mut report = String::new();
        if verdict != wanted_verdict {
            let (wanted, got) = (verdict::name(wanted_verdict), verdict::name(verdict));
            let _ = writeln!(report, "verdict: expected {wanted}, got {got}");
        }
        if bytes != wanted_bytes {
            report += &hex_difference(&wanted_bytes, &bytes);
        }
        for line in wanted_moves.difference(&moved) {
            let _ = writeln!(report, "{line}");
        }
        if let Err(line) = before.measurements_agree(&after) {
            let _ = writeln!(report, "{line}");
        }
        if report.is_empty() {
            Ok(())
        } else {
            Err(report)
        }
    }
}

/// Lines of sixteen bytes in which `wanted` and `got` differ, changed bytes
/// marked.
pub fn hex_difference(wanted: &[u8], got: &[u8]) -> String {
    let mut text = String::new();
    if wanted.len() != got.len() {
        let _ = writeln!(text, "length: expected {}, got {}", wanted.len(), got.len());
    }
    for offset in (0..wanted.len().max(got.len())).step_by(16) {
        let line = |bytes: &[u8]| {
            let end = bytes.len().min(offset + 16);
            bytes.get(offset..end).unwrap_or(&[]).to_vec()
        };
        let (wanted, got) = (line(wanted), line(got));
        if wanted == got {
            continue;
        }
        let hex = |bytes: &[u8]| {
            bytes
                .iter()
                .map(|byte| format!("{byte:02x}"))
                .collect::<Vec<_>>()
                .join(" ")
        };
        let marks: Vec<&str> = (0..wanted.len().max(got.len()))
            .map(|place| {
                if wanted.get(place) == got.get(place) {
                    "  "
                } else {
                    "^^"
                }
            })
            .collect();
        let _ = writeln!(text, "  {offset:04x}  expected {}", hex(&wanted));
        let _ = writeln!(text, "        got      {}", hex(&got));
        let _ = writeln!(text, "                 {}", marks.join(" ").trim_end());
    }
    text
}

type Change = Box<dyn Fn(&mut Lab)>;
type Check = Box<dyn Fn(&mut Lab) -> Result<(), String>>;

enum Do {
    Send(Box<Step>),
    Change(Change),
    Check(Check),
}

/// A named conversation.
pub struct Row {
    name: String,
    origin: &'static str,
    script: Vec<Do>,
}

impl Row {
    /// A row that does nothing yet.
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            origin: "",
            script: Vec::new(),
        }
    }

    /// This row under a name.
    pub fn named(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// This row with its family in its name, for those that run over families.
    pub fn in_family(mut self, family: Family) -> Self {
        self.name += &format!(" ({})", family.name());
        self
    }

    /// Where the case comes from: a specification, another balancer's test, a
    /// report of one of its users.
    pub fn from(mut self, origin: &'static str) -> Self {
        self.origin = origin;
        self
    }

    /// A frame arrives.
    pub fn send(mut self, step: Step) -> Self {
        self.script.push(Do::Send(Box::new(step)));
        self
    }

    /// Frames arrive.
    pub fn sends(mut self, steps: impl IntoIterator<Item = Step>) -> Self {
        self.script
            .extend(steps.into_iter().map(|step| Do::Send(Box::new(step))));
        self
    }

    /// A flow begins, and gets to where no later tick finds it another one: in direct
    /// return datagrams are a conversation from their second tick on.
    pub fn settled(self, talk: Talk) -> Self {
        let row = self.sends(talk.begun());
        if !talk.is_udp || !talk.is_direct {
            return row;
        }
        let index = talk.server.index;
        row.change(move |lab| lab.age(talk.client, 1)).send(
            talk.request(5)
                .also(moves::goes(State::Datagram, State::Conversing))
                .also([(Counter::HalfClosed(index), 1), (Counter::Opened(index), 1)]),
        )
    }

    /// The controller, or time, changes something.
    pub fn change(mut self, change: impl Fn(&mut Lab) + 'static) -> Self {
        self.script.push(Do::Change(Box::new(change)));
        self
    }

    /// Something is done before all else.
    pub fn first(mut self, change: impl Fn(&mut Lab) + 'static) -> Self {
        self.script.insert(0, Do::Change(Box::new(change)));
        self
    }

    /// Something else must hold now.
    pub fn check(mut self, check: impl Fn(&mut Lab) -> Result<(), String> + 'static) -> Self {
        self.script.push(Do::Check(Box::new(check)));
        self
    }

    /// How many frames arrive.
    pub fn frames(&self) -> usize {
        let arrives = |action: &&Do| matches!(action, Do::Send(_));
        self.script.iter().filter(arrives).count()
    }

    fn run(&self, lab: &mut Lab) -> Result<(), String> {
        lab.reset();
        let mut frames = 0;
        for action in &self.script {
            match action {
                Do::Change(change) => change(lab),
                Do::Check(check) => check(lab)?,
                Do::Send(step) => {
                    frames += 1;
                    step.judge(lab)
                        .map_err(|report| format!("frame {frames}\n{report}"))?;
                }
            }
        }
        Ok(())
    }
}

/// The rows of one subject.
pub struct Group {
    name: &'static str,
    rows: Vec<Row>,
}

impl Group {
    /// Rows under a common name.
    pub fn new(name: &'static str, rows: Vec<Row>) -> Self {
        Self { name, rows }
    }

    /// `GROUP: ROW`, with the origin if the case has one.
    pub fn names(&self) -> Vec<String> {
        let name = |row: &Row| match row.origin {
            "" => format!("{}: {}", self.name, row.name),
            origin => format!("{}: {} [{origin}]", self.name, row.name),
        };
        self.rows.iter().map(name).collect()
    }

    /// Runs every row, each on fresh tables.
    ///
    /// # Panics
    /// If any row fails, with what each of them reported.
    pub fn run(&self, lab: &mut Lab) {
        let mut failures = String::new();
        for (row, name) in self.rows.iter().zip(self.names()) {
            match row.run(lab) {
                Ok(()) => println!("ok      {name}"),
                Err(report) => {
                    println!("FAILED  {name}");
                    let _ = writeln!(failures, "\n{name}\n{report}");
                }
            }
        }
        if let Err(error) = lab.nothing_strayed() {
            let _ = writeln!(
                failures,
                "\n{}: counters beyond the scene moved: {error}",
                self.name
            );
        }
        assert!(failures.is_empty(), "{failures}");
    }
}
