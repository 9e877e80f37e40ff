//! A table of each program, half full, and packets on it: timed and checked.

use super::{
    case::{Case, Flow, Mode, Protocol, Site, Subject},
    floors::{Contender, Counted, Floors},
    frame::{Frame, Parties},
    measure::Size,
    product::{self, Pristine},
};
use crate::packets::{Lab, Port, verdict};
use anyhow::{Context as _, Result, ensure};
use lb_common::{abi::algorithm, reason::Reason};
use nix::time::{ClockId, clock_gettime};
use std::collections::BTreeMap;
use steerline::dataplane::Sizes;

/// Flows whose frames are compared byte by byte.
const SAMPLES: u32 = 16;

/// See the module docs. Made by the thread that uses it: it is in the
/// laboratory's network namespace from then on.
pub struct World {
    lab: Lab,
    floors: Floors,
    site: Site,
    size: Size,
    pristine: Option<Pristine>,
}

/// Where flows stand in a row: index of the first, and how many.
type Row = (u32, u32);

/// What a program has counted.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Counts {
    Floor(Counted),
    Steerline(BTreeMap<Reason, u64>),
}

/// CPU time of this thread, nanoseconds: unlike the kernel's own duration of a
/// test run it is no whole number per repeat, and like it, it leaves out what
/// other processes took.
fn cpu_time() -> u64 {
    let now = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).expect("reading the clock");
    now.tv_sec().cast_unsigned() * 1_000_000_000 + now.tv_nsec().cast_unsigned()
}

/// The flows below `count` in an order that has nothing to do with their
/// numbers, always the same.
fn shuffled(count: u32) -> Vec<Flow> {
    let mut flows: Vec<Flow> = (0..count).map(Flow).collect();
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    for place in (1..flows.len()).rev() {
        // xorshift64 (Marsaglia 2003).
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let other = ((state >> 32) as usize * (place + 1)) >> 32;
        flows.swap(place, other);
    }
    flows
}

impl World {
    /// Loads every program, opens the flows through each of them, and compares
    /// samples of what they forward with what is expected.
    ///
    /// # Errors
    /// What forbids it, and the first packet that was not forwarded as it should.
    pub fn new(site: Site, size: Size) -> Result<Self> {
        let sizes = Sizes::for_flows(size.capacity(), size.capacity());
        let mut lab = Lab::new(sizes.buckets4, sizes.spill4)?;
        let room = 2 * size.live + size.new;
        let floors = Floors::new(site, size.capacity(), room, lab.front, lab.back)?;
        floors.line_up(0, (0..size.live).map(Flow));
        floors.line_up(size.live, shuffled(size.live));
        floors.line_up(2 * size.live, (size.live..size.live + size.new).map(Flow));
        product::install(&mut lab, site)?;
        let mut world = Self {
            lab,
            floors,
            site,
            size,
            pristine: None,
        };
        for contender in Contender::BALANCERS {
            world
                .plant(contender)
                .with_context(|| format!("{site}: filling the table of {contender}"))?;
        }
        world.pristine = Some(Pristine::take(&world.lab)?);
        world.compare_restored()?;
        world.compare_forwarded()?;
        Ok(world)
    }

    /// All flows, in the order in which they are made.
    fn made(&self) -> Row {
        (0, self.size.live)
    }

    /// The first `count` flows in shuffled order.
    fn mixed(&self, count: u32) -> Row {
        (self.size.live, count)
    }

    /// Flows that no table has.
    fn fresh(&self) -> Row {
        (2 * self.size.live, self.size.new)
    }

    /// The frames that establish a flow.
    fn handshake(&self) -> &'static [Frame] {
        match (self.site.mode, self.site.protocol) {
            (Mode::Nat, Protocol::Tcp) => {
                &[Frame::First, Frame::Answer, Frame::Request, Frame::Response]
            }
            (Mode::Nat, Protocol::Udp) => &[Frame::First, Frame::Answer],
            (Mode::Dsr, Protocol::Tcp) => &[Frame::First, Frame::Request],
            (Mode::Dsr, Protocol::Udp) => &[Frame::First],
        }
    }

    fn plant(&mut self, contender: Contender) -> Result<()> {
        for frame in self.handshake() {
            self.run(contender, *frame, self.made(), self.size.live)?;
        }
        Ok(())
    }

    fn port(frame: Frame) -> Port {
        if frame.is_servers() {
            Port::Back
        } else {
            Port::Front
        }
    }

    /// Runs a frame through a program, as it is: verdict, and what leaves.
    fn once(&self, contender: Contender, frame: Frame, flow: Flow) -> Result<(u32, Vec<u8>)> {
        let parties = Parties {
            client: flow.client(),
            server: flow.server(),
        };
        let bytes = frame.arriving(self.site, parties);
        let port = Self::port(frame);
        match contender {
            Contender::Steerline => Ok(self.lab.run(&bytes, port)),
            floor => self.floors.once(floor, &bytes, self.lab.ifindex(port)),
        }
    }

    /// Compares what the restoring programs write with frames built anew.
    fn compare_restored(&mut self) -> Result<()> {
        for frame in [Frame::First, Frame::Answer, Frame::Request, Frame::Response] {
            for flow in [Flow(1), Flow(self.size.live - 1)] {
                let parties = Parties {
                    client: flow.client(),
                    server: flow.server(),
                };
                let ifindex = self.lab.ifindex(Self::port(frame));
                let got = self.floors.restored(frame, flow.0, ifindex)?;
                let wanted = frame.arriving(self.site, parties);
                ensure!(
                    Frame::without_checksums(self.site, &got)
                        == Frame::without_checksums(self.site, &wanted),
                    "{}: {frame:?} of {flow:?} was restored as {got:02x?}\nexpected: {wanted:02x?}",
                    self.site
                );
            }
        }
        Ok(())
    }

    /// Compares samples of what balancers forward with frames built anew.
    fn compare_forwarded(&mut self) -> Result<()> {
        let directions: &[Frame] = match self.site.mode {
            Mode::Nat => &[Frame::Request, Frame::Response],
            Mode::Dsr => &[Frame::Request],
        };
        for contender in Contender::BALANCERS {
            for frame in directions {
                for sample in 0..SAMPLES.min(self.size.live) {
                    let flow = Flow(sample * (self.size.live / SAMPLES).max(1));
                    let (verdict, out) = self.once(contender, *frame, flow)?;
                    self.expect(contender, *frame, flow, flow.server(), verdict, &out)?;
                }
            }
            let flow = Flow(self.size.live);
            let (verdict, out) = self.once(contender, Frame::First, flow)?;
            // The last byte of a server's MAC address is its number.
            let server = out.get(5).copied().unwrap_or(0);
            ensure!(
                (1..=super::case::SERVERS).contains(&server),
                "{}: {contender} sent a new flow to no server",
                self.site
            );
            self.expect(contender, Frame::First, flow, server, verdict, &out)?;
            self.forget(contender, (self.fresh().0, 1))?;
        }
        Ok(())
    }

    fn expect(
        &self,
        contender: Contender,
        frame: Frame,
        flow: Flow,
        server: u8,
        verdict: u32,
        out: &[u8],
    ) -> Result<()> {
        let parties = Parties {
            client: flow.client(),
            server,
        };
        let wanted = frame.leaving(self.site, parties);
        ensure!(
            verdict == verdict::REDIRECT && out == wanted,
            "{}: {contender} made of {frame:?} of {flow:?}: {} {out:02x?}\nexpected: REDIRECT \
             {wanted:02x?}",
            self.site,
            verdict::name(verdict),
        );
        Ok(())
    }

    /// Removes the flows of a row of new clients.
    fn forget(&mut self, contender: Contender, row: Row) -> Result<()> {
        if contender == Contender::Steerline {
            if let Some(pristine) = &self.pristine {
                pristine.restore(&mut self.lab)?;
            }
            return Ok(());
        }
        let front = self.lab.ifindex(Port::Front);
        self.floors.forget(contender, row, front)
    }

    fn counts(&self, contender: Contender) -> Result<Counts> {
        Ok(match contender {
            Contender::Steerline => {
                Counts::Steerline(self.lab.maps.reason_counts()?.into_iter().collect())
            }
            _ => Counts::Floor(self.floors.counted()?),
        })
    }

    /// Runs `repeat` frames of a row through a program. Nanoseconds per repeat,
    /// the restoring program's included.
    ///
    /// # Errors
    /// A verdict or a counter that says that a packet was not treated as it is
    /// supposed to be.
    pub fn run(
        &mut self,
        contender: Contender,
        frame: Frame,
        row: Row,
        repeat: u32,
    ) -> Result<f64> {
        let ifindex = self.lab.ifindex(Self::port(frame));
        let ours = match contender {
            Contender::Steerline => Some(self.lab.program()?),
            _ => None,
        };
        self.floors.aim(contender, ours)?;
        let before = self.counts(contender)?;
        let start = cpu_time();
        let result = self.floors.run(frame, ifindex, row, repeat)?;
        let time = cpu_time() - start;
        let moved = moved(&before, &self.counts(contender)?);
        let (wanted, counts) = expected(contender, frame, repeat.into());
        ensure!(
            result.return_value == wanted && moved == counts,
            "{}: {contender} ran {repeat} × {frame:?}: {} with {moved:?}, expected {} with \
             {counts:?}",
            self.site,
            verdict::name(result.return_value),
            verdict::name(wanted),
        );
        Ok(time as f64 / f64::from(repeat))
    }

    /// Measures a program once. Nanoseconds per packet, the restoring program's
    /// included.
    ///
    /// Before the timed run everything that is measured runs untimed: packets
    /// that repeat, once for every flow; before new flows, one packet of every
    /// flow in the table, so that the caches hold what they hold in traffic and
    /// not what removing the last run's flows left there.
    ///
    /// # Errors
    /// As [`World::run`].
    pub fn measure(&mut self, contender: Contender, case: Case) -> Result<f64> {
        let of_flows = self.mixed(case.flows);
        let repeats = case.repeats(self.size);
        let frame = match case.subject {
            Subject::ToServer => Frame::Request,
            Subject::ToClient => Frame::Response,
            Subject::NotOurs => Frame::Stranger,
            Subject::NoService => Frame::OtherPort,
            Subject::New(chosen) => {
                product::choose_by(&self.lab, chosen);
                let all = self.mixed(self.size.live);
                self.run(contender, Frame::Request, all, self.size.live)?;
                let fresh = self.fresh();
                let time = self.run(contender, Frame::First, fresh, repeats)?;
                self.forget(contender, fresh)?;
                product::choose_by(&self.lab, algorithm::WEIGHTED_ROUND_ROBIN);
                return Ok(time);
            }
        };
        self.run(contender, frame, of_flows, case.flows)?;
        self.run(contender, frame, of_flows, repeats)
    }

    /// Takes flows out of Steerline's IPv4 table, as a defect would: measurements
    /// that meet them must notice.
    pub fn lose_flows(&mut self) {
        let empty = bytemuck::Zeroable::zeroed();
        let table = &self.lab.maps.flows4;
        if let Some(index) = (0..table.len()).find(|index| table.read(*index) != empty) {
            table.write(index, empty);
        }
    }
}

/// What moved between two readings; what did not is left out.
fn moved(before: &Counts, after: &Counts) -> BTreeMap<&'static str, u64> {
    let mut moved = BTreeMap::new();
    let mut note = |name, before: u64, after: u64| {
        if after != before {
            moved.insert(name, after - before);
        }
    };
    match (before, after) {
        (Counts::Floor(before), Counts::Floor(after)) => {
            note(Reason::Forwarded.name(), before.packets, after.packets);
            note(Reason::NewFlow.name(), before.opened, after.opened);
        }
        (Counts::Steerline(before), Counts::Steerline(after)) => {
            // A flow that both its buckets have no room for is in the spill,
            // and as good as others.
            for (reason, after) in after.iter().filter(|(r, _)| **r != Reason::Spilled) {
                note(reason.name(), before[reason], *after);
            }
        }
        _ => unreachable!("two readings of one program"),
    }
    moved
}

/// The verdict, and the counters that move, if every repeat is treated as it
/// should be.
fn expected(
    contender: Contender,
    frame: Frame,
    repeats: u64,
) -> (u32, BTreeMap<&'static str, u64>) {
    let counted = |reasons: &[Reason]| {
        let reasons = reasons.iter();
        reasons.map(|reason| (reason.name(), repeats)).collect()
    };
    match (contender, frame) {
        (Contender::Empty, _) => (verdict::PASS, counted(&[])),
        (Contender::MacSwap, _) => (verdict::TX, counted(&[])),
        (Contender::Steerline, Frame::Stranger) => {
            (verdict::PASS, counted(&[Reason::PassedNotOurs]))
        }
        (Contender::Steerline, Frame::OtherPort) => {
            (verdict::PASS, counted(&[Reason::PassedNoService]))
        }
        (_, Frame::Stranger) => (verdict::PASS, counted(&[])),
        (_, Frame::OtherPort) => (verdict::DROP, counted(&[])),
        (_, Frame::First) => (
            verdict::REDIRECT,
            counted(&[Reason::Forwarded, Reason::NewFlow]),
        ),
        _ => (verdict::REDIRECT, counted(&[Reason::Forwarded])),
    }
}
