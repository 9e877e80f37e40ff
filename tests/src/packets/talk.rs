//! A connection between a client and a server, as the frames that arrive.

use super::{
    Endpoint, Family, Frame, Port, Step,
    counters::moves,
    flag::{ACK, PSH, SYN},
    scene::{self, BACK, FRONT, POOL, ROUTER_MAC, Server, Vip},
};
use lb_common::{abi::forwarding, reason::Reason, tcp::State};

/// Who talks with whom.
#[derive(Clone, Copy, Debug)]
pub struct Talk {
    /// The client's address and port.
    pub client: Endpoint,
    /// Where it connects to.
    pub vip: Endpoint,
    /// Where it is to end up.
    pub server: Server,
    /// Datagrams instead of segments.
    pub is_udp: bool,
    /// The server answers the client directly.
    pub is_direct: bool,
    /// What the server sees in place of the client.
    pub stands: Option<Endpoint>,
}

/// Sequence numbers of the two SYNs.
const CLIENT_ISN: u32 = 1_000;
const SERVER_ISN: u32 = 50_000;

impl Talk {
    /// The usual client of the service's family, at another of its ports, to
    /// the service's own port.
    pub const fn new(port: u16, vip: Vip, server: Server) -> Self {
        let family = Family::of(vip.endpoint.0);
        Self {
            client: (family.counterpart(scene::CLIENT.0), port),
            vip: vip.endpoint,
            server,
            is_udp: vip.protocol == scene::UDP,
            is_direct: forwarding::is_one_sided(vip.forwarding),
            stands: match vip.forwarding {
                forwarding::FULL_NAT => Some((family.counterpart(POOL.0), POOL.1)),
                _ => None,
            },
        }
    }

    /// The same, opened after so many other flows since the row began.
    pub const fn after(self, flows: u16) -> Self {
        match self.stands {
            Some((address, _)) => Self {
                stands: Some((address, POOL.1 + flows)),
                ..self
            },
            None => self,
        }
    }

    /// The usual client with [`scene::WEB`].
    pub const fn web(port: u16, server: Server) -> Self {
        Self::new(port, scene::WEB, server)
    }

    /// The same conversation in a family.
    pub const fn in_family(self, family: Family) -> Self {
        Self {
            client: (family.counterpart(self.client.0), self.client.1),
            vip: (family.counterpart(self.vip.0), self.vip.1),
            server: self.server.in_family(family),
            stands: match self.stands {
                Some((address, port)) => Some((family.counterpart(address), port)),
                None => None,
            },
            ..self
        }
    }

    /// The same with another client.
    pub const fn from(self, client: Endpoint) -> Self {
        Self { client, ..self }
    }

    /// The same with another address or port of the service.
    pub const fn to(self, vip: Endpoint) -> Self {
        Self { vip, ..self }
    }

    /// The same with another server.
    pub const fn at(self, server: Server) -> Self {
        Self { server, ..self }
    }

    /// The family of both ends.
    pub const fn family(&self) -> Family {
        Family::of(self.vip.0)
    }

    /// A frame of the client as it comes in; `flags` are for segments.
    pub fn client_frame(&self, flags: u8) -> Frame {
        let macs = (FRONT.1, ROUTER_MAC);
        if self.is_udp {
            return Frame::udp(macs, self.client, self.vip);
        }
        Frame::tcp(macs, self.client, self.vip, flags).with(|frame| {
            frame.sequence = if flags & SYN != 0 {
                CLIENT_ISN
            } else {
                CLIENT_ISN + 1
            };
            frame.acknowledgement = if flags & ACK != 0 { SERVER_ISN + 1 } else { 0 };
        })
    }

    /// Where the server's frames come from: one that answers directly has the
    /// service's address.
    const fn server_source(&self) -> Endpoint {
        if self.is_direct {
            self.vip
        } else {
            self.server.endpoint
        }
    }

    /// A frame of the server as it comes in.
    pub fn server_frame(&self, flags: u8) -> Frame {
        let macs = (BACK.1, self.server.mac());
        let (source, client) = (self.server_source(), self.stands.unwrap_or(self.client));
        if self.is_udp {
            return Frame::udp(macs, source, client);
        }
        Frame::tcp(macs, source, client, flags).with(|frame| {
            frame.sequence = if flags & SYN != 0 {
                SERVER_ISN
            } else {
                SERVER_ISN + 1
            };
            frame.acknowledgement = if flags & ACK != 0 { CLIENT_ISN + 1 } else { 0 };
        })
    }

    /// The client's frame is forwarded to the server.
    pub fn client(&self, flags: u8) -> Step {
        let frame = self.client_frame(flags);
        if self.is_direct {
            Step::direct(frame, self.server)
        } else if let Some(source) = self.stands {
            Step::to_server(frame, self.server).both(source, self.server.endpoint)
        } else {
            Step::to_server(frame, self.server)
        }
    }

    /// A client's frame as its server gets it, but for MAC addresses and time to
    /// live.
    pub fn at_server(&self, frame: &Frame) -> Frame {
        let mut frame = frame.clone();
        if !self.is_direct {
            frame.destination = self.server.endpoint;
        }
        frame.source = self.stands.unwrap_or(frame.source);
        frame
    }

    /// The same of a server's frame and the client.
    pub fn at_client(&self, frame: &Frame) -> Frame {
        let (source, destination) = (self.vip, self.client);
        frame
            .clone()
            .with(|frame| (frame.source, frame.destination) = (source, destination))
    }

    /// The server's frame is forwarded to the client, as from the service. One
    /// that answers directly is no business of ours, should its frames come by.
    pub fn server(&self, flags: u8) -> Step {
        let step = Step::to_client(self.server_frame(flags), self.vip, self.server.service);
        if self.is_direct {
            step.passed(Reason::PassedNoService)
        } else if self.stands.is_some() {
            step.both(self.vip, self.client)
        } else {
            step
        }
    }

    /// The client's datagram, or its segment of data.
    pub fn request(&self, length: usize) -> Step {
        self.client(ACK | PSH).payload(length)
    }

    /// The server's datagram, or its segment of data.
    pub fn response(&self, length: usize) -> Step {
        self.server(ACK | PSH).payload(length)
    }

    /// The frame that opens a flow: a SYN or a datagram.
    pub fn first(&self) -> Step {
        if self.is_udp {
            self.request(20)
                .also(moves::opens_datagram(self.server.index))
        } else {
            self.syn()
        }
    }

    /// The frame that would open a flow, forwarded without doing so: for
    /// [`Step::dropped`] and [`Step::passed`].
    pub fn request_to_open(&self) -> Step {
        self.client(SYN).payload(if self.is_udp { 20 } else { 0 })
    }

    /// The server's first answer.
    pub fn answer(&self) -> Step {
        if self.is_direct {
            self.server(SYN | ACK)
                .payload(if self.is_udp { 60 } else { 0 })
        } else if self.is_udp {
            self.response(60).also(moves::answers(self.server.index))
        } else {
            self.syn_ack()
        }
    }

    /// Everything up to a flow that counts as active, as far as it goes without
    /// time passing: of datagrams in direct return the first one.
    pub fn begun(&self) -> Vec<Step> {
        match (self.is_udp, self.is_direct) {
            (false, false) => self.handshake(),
            (false, true) => vec![self.syn(), self.direct_ack()],
            (true, false) => vec![self.first(), self.answer()],
            (true, true) => vec![self.first()],
        }
    }

    /// The client's last word of a handshake whose answer is not seen.
    pub fn direct_ack(&self) -> Step {
        let index = self.server.index;
        self.client(ACK).also(moves::becomes_active(
            index,
            State::HalfOpen,
            State::Established,
        ))
    }

    /// The client's SYN, opening a flow.
    pub fn syn(&self) -> Step {
        self.client(SYN).also(moves::opens(self.server.index))
    }

    /// The server's first answer.
    pub fn syn_ack(&self) -> Step {
        self.server(SYN | ACK)
            .also(moves::goes(State::HalfOpen, State::Answered))
    }

    /// The client's last word of the handshake.
    pub fn ack(&self) -> Step {
        self.client(ACK).also(moves::establishes(self.server.index))
    }

    /// SYN and SYN-ACK.
    pub fn answered(&self) -> Vec<Step> {
        vec![self.syn(), self.syn_ack()]
    }

    /// The whole handshake.
    pub fn handshake(&self) -> Vec<Step> {
        vec![self.syn(), self.syn_ack(), self.ack()]
    }

    /// A frame of the client that comes in, for [`Step::dropped`] and
    /// [`Step::passed`].
    pub fn refused(&self, flags: u8) -> (Frame, Port) {
        (self.client_frame(flags), Port::Front)
    }
}
