//! HAProxy's agent on each server.

use crate::peers::Peer;
use crate::stage::{Stage, config};
use crate::turn;
use anyhow::Result;

const PORT: u16 = 9_707;
const SECTION: &str = "[service.agent]\nport = 9707\ninterval = \"100ms\"\ntimeout = \"1s\"\n";

fn stage(weights: &[u32]) -> Result<(Stage, Vec<Peer>)> {
    let parts = Stage::world(u8::try_from(weights.len())?)?;
    let agents = parts.0.servers().iter();
    let agents = agents
        .map(|server| Peer::agent(server, PORT, "up ready 100%\n"))
        .collect::<Result<_>>()?;
    Ok((Stage::open(parts, &config(weights, SECTION))?, agents))
}

#[test]
fn a_draining_server_gets_no_new_flow_until_it_is_ready() -> Result<()> {
    let Some(_turn) = turn::take() else {
        return Ok(());
    };
    let (stage, agents) = stage(&[1, 1, 1])?;
    stage.wait_for(2, "state", "in-service")?;
    assert_eq!(stage.ask(9)?, [3, 3, 3]);

    agents[1].say("drain\n");
    stage.wait_for(2, "state", "drained")?;
    assert_eq!(stage.ask(30)?, [15, 0, 15], "drain means no new flow");
    agents[1].say("maint\n");
    stage.wait_for(2, "state", "out-of-service")?;
    assert_eq!(stage.ask(10)?, [5, 0, 5], "maint means no new flow");
    // `up` is about health and does not end what the administrator said.
    agents[1].say("up\n");
    agents[1].wait_for(2)?;
    assert_eq!(stage.ask(10)?, [5, 0, 5], "up does not end a drain");

    agents[1].say("ready\n");
    stage.wait_for(2, "state", "in-service")?;
    assert_eq!(stage.ask(9)?, [3, 3, 3], "ready means new flows");
    agents[1].say("down#disk is full\n");
    stage.wait_for(2, "state", "probe-failed")?;
    let reason = stage.backend(2)?["reason"].clone();
    assert_eq!(reason, "its agent says down: disk is full");
    assert_eq!(stage.ask(10)?, [5, 0, 5], "down means no new flow");
    Ok(())
}

#[test]
fn weights_come_from_agents_and_outlive_the_daemon() -> Result<()> {
    let Some(_turn) = turn::take() else {
        return Ok(());
    };
    let (mut stage, agents) = stage(&[4, 8])?;
    agents[1].say("25%\n");
    stage.wait_for(2, "effective_weight", 2)?;
    assert_eq!(stage.backend(2)?["weight"], 8, "the file's");
    assert_eq!(stage.backend(2)?["outside"]["weight_source"], "agent");
    assert_eq!(stage.ask(12)?, [8, 4]);

    // Nonsense changes nothing and is told once, whatever is sent.
    agents[1].say("100% sideways\n");
    agents[1].wait_for(3)?;
    agents[1].say([b'u'; 100_000]);
    agents[1].wait_for(3)?;
    assert_eq!(stage.backend(2)?["effective_weight"], 2);
    assert_eq!(stage.logged("web/web-2: agent: "), 1, "one line");

    // Gone with its agent: what was said last stands, over a crash as well.
    drop(agents);
    stage.balancer.kill()?;
    stage.balancer.start_again()?;
    assert_eq!(stage.backend(2)?["effective_weight"], 2);
    assert_eq!(stage.ask(6)?, [4, 2]);
    Ok(())
}
