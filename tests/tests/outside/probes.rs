//! Active probes of nginx.

use crate::stage::{Stage, config, nginx};
use crate::turn;
use anyhow::Result;

const SECTION: &str = "[service.probe]\ntype = \"http\"\ninterval = \"200ms\"\n\
                       fast_interval = \"100ms\"\ntimeout = \"1s\"\nfall = 2\nrise = 2\n";

#[test]
fn a_dead_server_falls_and_rises_and_nobody_forgets_meanwhile() -> Result<()> {
    let Some(_turn) = turn::take() else {
        return Ok(());
    };
    let parts = Stage::world(2)?;
    let mut stage = Stage::open(parts, &config(&[1, 1], SECTION))?;
    assert_eq!(stage.ask(6)?, [3, 3]);

    stage.servers.remove(1).kill()?;
    stage.wait_for(2, "state", "probe-failed")?;
    let reason = stage.backend(2)?["reason"].clone();
    assert_eq!(reason, "its probe fails: connection refused");
    // Probes of web-2 are on the wire; clients' connections are not.
    let own = stage.balancer.status()?["counters"].clone();
    assert!(own.is_object(), "{own}");

    // A daemon that is killed and a file that is read again begin with it.
    stage.balancer.kill()?;
    stage.balancer.start_again()?;
    assert_eq!(stage.backend(2)?["state"], "probe-failed", "after a crash");
    let changed = SECTION.replace("\"200ms\"", "\"150ms\"");
    stage.balancer.write_config(&config(&[1, 1], &changed))?;
    stage.balancer.verb(&["reload"])?;
    assert_eq!(stage.backend(2)?["state"], "probe-failed", "after a reload");

    let second = nginx(&stage.world, 2)?;
    stage.servers.push(second);
    stage.wait_for(2, "state", "in-service")?;
    let events = stage.balancer.json(&["events"])?.to_string();
    assert!(events.contains("probe-failed to in-service"), "{events}");
    let asked = stage.servers[1].accesses()?;
    assert!(asked.iter().all(|access| access.status == 200), "{asked:?}");

    // Without the section nobody is asked, and nothing of it is left.
    stage.servers.remove(1).kill()?;
    stage.wait_for(2, "state", "probe-failed")?;
    stage.balancer.write_config(&config(&[1, 1], ""))?;
    stage.balancer.verb(&["reload"])?;
    assert_eq!(stage.backend(2)?["state"], "in-service");
    assert!(stage.backend(2)?["outside"].is_null());
    Ok(())
}
