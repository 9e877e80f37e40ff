//! Active probes: one task a backend, paced by the pure
//! [`Probe`](lb_common::control::probe::Probe).
//!
//! A probe is right or wrong within its timeout, which covers name, connection,
//! encryption and answer together. What is wrong is said in few words, which
//! `status` shows.

mod dns;
mod http;
mod icmp;
mod tls;

use super::{Target, connect, micros_of, random_bits, sleep_until, teller::Teller};
use crate::{
    config::{Probe, ProbeKind},
    daemon::micros,
};
use anyhow::Result;
use lb_common::control::{OutsideWord, probe};
use std::{net::SocketAddr, sync::Arc};

/// What the probes of one service have in common.
pub(super) struct Prober {
    probe: Probe,
    /// Made once: reading the system's certificates takes milliseconds.
    tls: Option<Result<tls::Connector, String>>,
}

impl Prober {
    pub(super) fn new(probe: Probe) -> Self {
        let tls = match &probe.kind {
            ProbeKind::Http(http) => http.tls.as_ref().map(|tls| {
                let host = http.host.as_deref();
                tls::Connector::new(tls, host).map_err(|error| format!("{error:#}"))
            }),
            ProbeKind::Icmp | ProbeKind::Tcp | ProbeKind::Dns(_) => None,
        };
        Self { probe, tls }
    }

    fn parameters(&self) -> probe::ProbeParameters {
        probe::ProbeParameters {
            interval_us: micros_of(self.probe.interval),
            fast_interval_us: micros_of(self.probe.fast_interval),
            rise: self.probe.rise,
            fall: self.probe.fall,
            jitter_percent: self.probe.jitter,
        }
    }

    async fn once(&self, to: SocketAddr) -> Result<()> {
        let source = self.probe.source;
        match &self.probe.kind {
            ProbeKind::Icmp => icmp::probe(to.ip(), source).await,
            ProbeKind::Tcp => {
                let stream = connect::tcp(to, source).await?;
                connect::reset(&stream);
                Ok(())
            }
            ProbeKind::Http(http) => {
                let stream = connect::tcp(to, source).await?;
                match &self.tls {
                    None => http::probe(http, to, stream).await,
                    Some(Ok(connector)) => {
                        let stream = connector.connect(to, stream).await?;
                        http::probe(http, to, stream).await
                    }
                    Some(Err(error)) => anyhow::bail!("{error}"),
                }
            }
            ProbeKind::Dns(dns) => dns::probe(dns, to, source).await,
        }
    }
}

pub(super) async fn run(prober: Arc<Prober>, target: Target, teller: Teller) {
    let record = target.record.probe.clone();
    let mut probe = probe::Probe::new(prober.parameters(), record, micros(), random_bits());
    let port = prober.probe.port.unwrap_or(target.port);
    let to = SocketAddr::new(target.address, port);
    loop {
        sleep_until(probe.poll_timeout()).await;
        let began_us = micros();
        let result = tokio::time::timeout(prober.probe.timeout, prober.once(to)).await;
        let result = result
            .map_err(|_| anyhow::anyhow!("no answer in time"))
            .flatten()
            .map_err(|error| format!("{error:#}"));
        let result = result.as_ref().copied().map_err(String::as_str);
        if probe.result(result, began_us, micros(), random_bits()) {
            let word = OutsideWord::Probe(probe.record().clone());
            teller.word(target.index, word).await;
        }
    }
}
