//! Asks a backend's HAProxy agent, as HAProxy's `agent-check` does: connect,
//! send what `agent-send` says, read a line.
//!
//! An agent that cannot be reached or talks nonsense changes nothing, as in
//! HAProxy: whether the server is up is a probe's question, and what the agent
//! said last stands. A whole answer has [`LINE_MAX`] bytes at most.

use super::{Target, connect, random_bits, sleep_until, teller::Teller};
use crate::{config::Agent, daemon::micros};
use anyhow::{Result, bail};
use lb_common::control::{
    OutsideWord,
    agent::{AgentLine, LINE_MAX, parse},
};
use std::{net::SocketAddr, sync::Arc};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

pub(super) async fn run(agent: Arc<Agent>, target: Target, mut teller: Teller) {
    let mut state = target.record.agent.clone();
    let to = SocketAddr::new(target.address, agent.port);
    let interval_us = super::micros_of(agent.interval);
    // Not all at once.
    let mut due_us = micros() + super::part(interval_us, random_bits());
    loop {
        sleep_until(due_us).await;
        due_us = micros().saturating_add(interval_us);
        let answer = tokio::time::timeout(agent.timeout, ask(&agent, to)).await;
        match answer
            .map_err(|_| anyhow::anyhow!("no answer in time"))
            .flatten()
        {
            Ok(line) => {
                if state.take(&line) {
                    let word = OutsideWord::Agent(state.clone());
                    teller.word(target.index, word).await;
                }
                teller.well().await;
            }
            Err(error) => teller.trouble(format!("{error:#}")).await,
        }
    }
}

async fn ask(agent: &Agent, to: SocketAddr) -> Result<AgentLine> {
    let mut stream = connect::tcp(to, agent.source).await?;
    if let Some(text) = &agent.send {
        stream
            .write_all(text.as_bytes())
            .await
            .map_err(connect::plain)?;
    }
    let mut bytes = [0; LINE_MAX];
    let mut length = 0;
    while length < LINE_MAX && !bytes[..length].contains(&b'\n') {
        match stream.read(&mut bytes[length..]).await {
            Ok(0) => break,
            Ok(more) => length += more,
            Err(error) if length == 0 => return Err(connect::plain(error)),
            // A reset behind the answer is a hurried close.
            Err(_) => break,
        }
    }
    if length == 0 {
        bail!("the agent closed without an answer");
    }
    parse(&bytes[..length]).map_err(|error| anyhow::anyhow!("{error}"))
}
