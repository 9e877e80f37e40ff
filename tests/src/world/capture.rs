//! What was on the wire, as tcpdump recorded it and tshark judges it.

use std::io::{BufRead, BufReader};
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use nix::sys::signal::Signal;

use super::Namespace;
use super::process::{Process, run};
use super::scratch::Scratch;

const LIMIT: Duration = Duration::from_secs(10);

/// A capture under way on one device.
///
/// On a device with a native XDP program tcpdump sees neither what the program
/// took nor what it sent: capture at the other end of the veth.
#[derive(Debug)]
pub struct Capture {
    process: Process,
    messages: Receiver<String>,
    scratch: Scratch,
}

impl Capture {
    /// Starts capturing what matches `filter` (as of pcap-filter(7), empty for
    /// everything) and returns once nothing can be missed any more.
    pub fn start(namespace: &Namespace, device: &str, filter: &str) -> Result<Self> {
        let scratch = Scratch::new()?;
        let mut command = namespace.command("tcpdump");
        command
            // Immediate mode has slots of the snapshot length: these are 16,384
            // packets before any is lost. No change of user.
            .args(["-n", "-s", "2048", "-B", "32768", "--immediate-mode"])
            .args(["-Z", "root"])
            .args(["-i", device, "-w"])
            .arg(scratch.file("capture.pcap"))
            .args(filter.split_whitespace())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        let mut process = Process::start(&mut command)?;
        let stderr = process.child().stderr.take().context("no standard error")?;
        let (sender, messages) = mpsc::channel();
        thread::spawn(move || {
            // Ends with the process, whose guard we hold.
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        let capture = Self {
            process,
            messages,
            scratch,
        };
        capture.message(|line| line.contains("listening on").then_some(()))?;
        Ok(capture)
    }

    /// Ends the capture once tcpdump has written all that the kernel gave it.
    /// What is still under way in the network is not waited for: the caller
    /// knows when its traffic is over.
    pub fn stop(mut self) -> Result<Pcap> {
        let start = Instant::now();
        loop {
            self.process.signal(Signal::SIGUSR1)?;
            let counts = self.message(parse_counts)?;
            ensure!(
                counts.dropped == 0,
                "the kernel dropped {} packets before tcpdump saw them",
                counts.dropped
            );
            if counts.captured >= counts.received {
                break;
            }
            ensure!(start.elapsed() < LIMIT, "tcpdump falls behind: {counts:?}");
        }
        self.process.signal(Signal::SIGTERM)?;
        self.process.wait(LIMIT)?;
        Ok(Pcap {
            scratch: self.scratch,
        })
    }

    /// Waits for a message of tcpdump that `pick` takes.
    fn message<T>(&self, pick: impl Fn(&str) -> Option<T>) -> Result<T> {
        let mut seen = Vec::new();
        loop {
            let line = self
                .messages
                .recv_timeout(LIMIT)
                .map_err(|error| anyhow!("tcpdump ({error}) said only {seen:?}"))?;
            if let Some(value) = pick(&line) {
                return Ok(value);
            }
            seen.push(line);
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
struct Counts {
    captured: u64,
    received: u64,
    dropped: u64,
}

/// Reads tcpdump's answer to SIGUSR1.
fn parse_counts(line: &str) -> Option<Counts> {
    let number_before = |words: &str| {
        let (before, _) = line.split_once(words)?;
        before.trim_end().rsplit([' ', ',']).next()?.parse().ok()
    };
    Some(Counts {
        captured: number_before("packets captured").or_else(|| number_before("packet captured"))?,
        received: number_before("packets received by filter")
            .or_else(|| number_before("packet received by filter"))?,
        dropped: number_before("packets dropped by kernel")
            .or_else(|| number_before("packet dropped by kernel"))?,
    })
}

/// A finished capture, kept as long as this value.
#[derive(Debug)]
pub struct Pcap {
    scratch: Scratch,
}

impl Pcap {
    /// Frames that were made rather than captured, for tshark to judge.
    pub fn of_frames<F: AsRef<[u8]>>(frames: impl IntoIterator<Item = F>) -> Result<Self> {
        // The format of draft-ietf-opsawg-pcap: magic number, version 2.4, two
        // words of zero, snapshot length, link type Ethernet.
        let mut file = Vec::new();
        file.extend(0xa1b2_c3d4_u32.to_ne_bytes());
        file.extend([2_u16.to_ne_bytes(), 4_u16.to_ne_bytes()].concat());
        for word in [0, 0, 65_535, 1_u32] {
            file.extend(word.to_ne_bytes());
        }
        for (second, frame) in (0_u32..).zip(frames) {
            let frame = frame.as_ref();
            let length = u32::try_from(frame.len())?;
            for word in [second, 0, length, length] {
                file.extend(word.to_ne_bytes());
            }
            file.extend(frame);
        }
        let scratch = Scratch::new()?;
        let this = Self { scratch };
        std::fs::write(this.path(), file).context("cannot write the capture")?;
        Ok(this)
    }

    /// The file, for other readers.
    pub fn path(&self) -> std::path::PathBuf {
        self.scratch.file("capture.pcap")
    }

    /// The values of `fields` in each packet that matches `filter`, a display
    /// filter of tshark.
    pub fn fields(&self, filter: &str, fields: &[&str]) -> Result<Vec<Vec<String>>> {
        fields_of(&self.path(), filter, fields)
    }

    /// Where each SYN went, in order, repeated ones included.
    pub fn syn_destinations(&self) -> Result<Vec<SocketAddr>> {
        let rows = self.fields(
            "tcp.flags.syn == 1 && tcp.flags.ack == 0",
            &["ip.dst", "ipv6.dst", "tcp.dstport"],
        )?;
        rows.iter()
            .map(|row| match row.as_slice() {
                [v4, v6, port] => {
                    let address: IpAddr = if v4.is_empty() { v6 } else { v4 }.parse()?;
                    Ok(SocketAddr::new(address, port.parse()?))
                }
                _ => Err(anyhow!("three fields asked, {} came", row.len())),
            })
            .collect()
    }

    /// A line for each packet with a checksum that tshark finds wrong. It is
    /// an error if tshark could not judge because a packet was cut.
    ///
    /// A TCP checksum of 0xffff where 0 is due is the same number in one's
    /// complement and not wrong: Linux itself sends it in about one of 65,536
    /// segments (`CSUM_MANGLED_0` in `skb_checksum_help`). tshark has a name for
    /// it, and [`Self::count`] counts `tcp.checksum.ffff` for who is to send none.
    pub fn bad_checksums(&self) -> Result<Vec<String>> {
        let cut = self.count("frame.cap_len < frame.len")?;
        ensure!(cut == 0, "{cut} packets were captured in part");
        // None at all is right in UDP over IPv4 (RFC 8200, section 8.1), and around
        // packets in a tunnel (RFC 6935): port 6080 is GUE's. Of a segment that an
        // error quotes in part tshark does not say so. In its coding 0 is bad, 1
        // good, 2 unverified, 3 not present.
        let filter = ["ip", "tcp", "udp", "icmp", "icmpv6"]
            .map(|protocol| format!("{protocol}.checksum.status == 0"))
            .join(" || ")
            .replace(
                "tcp.checksum.status == 0",
                "(tcp.checksum.status == 0 && !tcp.checksum.ffff && !icmp && !icmpv6)",
            )
            + " || (ipv6 && udp.checksum.zero && udp.dstport != 6080)";
        let rows = self.fields(
            &filter,
            &[
                "frame.number",
                "frame.len",
                "_ws.col.Source",
                "_ws.col.Destination",
                "_ws.col.Info",
            ],
        )?;
        Ok(rows.into_iter().map(|row| row.join(" ")).collect())
    }

    /// How many packets match `filter`, a display filter of tshark; empty for
    /// all.
    pub fn count(&self, filter: &str) -> Result<usize> {
        Ok(self.fields(filter, &["frame.number"])?.len())
    }
}

fn fields_of(file: &Path, filter: &str, fields: &[&str]) -> Result<Vec<Vec<String>>> {
    let mut command = Command::new("tshark");
    command
        .args([
            "-n",
            "-o",
            "ip.check_checksum:TRUE",
            "-o",
            "tcp.check_checksum:TRUE",
        ])
        .args(["-o", "udp.check_checksum:TRUE", "-T", "fields", "-r"])
        .arg(file);
    if !filter.is_empty() {
        command.args(["-Y", filter]);
    }
    for field in fields {
        command.args(["-e", field]);
    }
    let output = run(&mut command)?;
    let text = String::from_utf8_lossy(&output.stdout);
    Ok(text
        .lines()
        .map(|line| line.split('\t').map(str::to_owned).collect())
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_read_from_tcpdump() {
        let counts = |captured, received, dropped| {
            Some(Counts {
                captured,
                received,
                dropped,
            })
        };
        let rows = [
            (
                "tcpdump: 3 packets captured, 14 packets received by filter, 0 packets dropped by kernel",
                counts(3, 14, 0),
            ),
            (
                "1 packet captured, 1 packet received by filter, 1 packet dropped by kernel",
                counts(1, 1, 1),
            ),
            ("tcpdump: listening on eth0, link-type EN10MB", None),
        ];
        for (line, expected) in rows {
            assert_eq!(parse_counts(line), expected, "{line}");
        }
    }
}
