//! A DFP agent that speaks for two servers.

use anyhow::Result;
use lb_common::control::dfp::{HostWeight, Key, Load, Message, emit};
use steerline_tests::world::World;

use crate::peers::Peer;
use crate::stage::{Stage, config};
use crate::turn;

const PORT: u16 = 8_081;

fn weights(weights: &[(u8, u16)]) -> Message {
    let hosts = weights.iter().map(|&(number, weight)| HostWeight {
        address: World::server_address(number),
        bind_id: 0,
        weight,
    });
    Message::Preference(vec![Load {
        port: 80,
        protocol: 6,
        hosts: hosts.collect(),
    }])
}

#[test]
fn weights_of_an_agent_are_in_force_while_it_is_there() -> Result<()> {
    let Some(_turn) = turn::take() else {
        return Ok(());
    };
    let key = Key {
        id: 1,
        secret: b"secret".to_vec(),
    };
    let signed = |message: &Message| emit(message, Some(&key));
    let section = format!(
        "[service.dfp]\nagents = [\"{}:{PORT}\"]\npassword = \"secret\"\nkey_id = 1\n\
         interval = \"1s\"\n",
        World::server_address(1)
    );
    let parts = Stage::world(2)?;
    let first = signed(&weights(&[(1, 3), (2, 1)]));
    let agent = Peer::dfp(parts.0.server(1)?, PORT, &first)?;
    // The file's weights are another's word while the agent is there.
    let stage = Stage::open(parts, &config(&[1, 1], &section))?;
    stage.wait_for(1, "effective_weight", 3)?;
    stage.wait_for(2, "effective_weight", 1)?;
    assert_eq!(stage.ask(8)?, [6, 2]);

    agent.say(signed(&weights(&[(2, 0)])));
    stage.wait_for(2, "state", "throttled")?;
    assert_eq!(stage.ask(8)?, [8, 0]);

    // Unsigned: the connection is closed, and the agent's words with it.
    agent.say(emit(&weights(&[(1, 0), (2, 0)]), None));
    stage.wait_for(2, "state", "in-service")?;
    stage.wait_for(1, "effective_weight", 1)?;
    assert_eq!(stage.ask(8)?, [4, 4]);
    assert_eq!(stage.logged("without signature"), 1, "one line");

    agent.say(signed(&weights(&[(1, 1), (2, 3)])));
    stage.wait_for(2, "effective_weight", 3)?;
    drop(agent);
    stage.wait_for(2, "effective_weight", 1)?;
    assert_eq!(stage.ask(8)?, [4, 4]);
    Ok(())
}
