//! Debian's snmpd on the servers.

use std::fs;

use anyhow::Result;
use steerline_tests::world::{Namespace, Process, Scratch, World};

use crate::stage::{Stage, config};
use crate::turn;

/// An snmpd that serves one integer, the content of a file.
struct Snmpd {
    _process: Process,
    scratch: Scratch,
}

impl Snmpd {
    fn start(namespace: &Namespace, value: &str) -> Result<Self> {
        let scratch = Scratch::new()?;
        let directory = scratch.path().display().to_string();
        let script = format!(
            "while read command; do case $command in\nPING) echo PONG ;;\n\
             get) read oid; case $oid in\n.1.3.6.1.3.94.1.1) echo $oid; echo integer; \
             cat {directory}/value ;;\n*) echo NONE ;; esac ;;\n\
             *) read rest; echo NONE ;;\nesac; done\n"
        );
        fs::write(scratch.file("state.sh"), script)?;
        let text = format!(
            "agentaddress udp:161\nrocommunity public\n\
             pass_persist .1.3.6.1.3.94.1 /bin/sh {directory}/state.sh\n"
        );
        fs::write(scratch.file("snmpd.conf"), text)?;
        fs::write(scratch.file("value"), format!("{value}\n"))?;
        let mut command = namespace.command("/usr/sbin/snmpd");
        command
            .args(["-f", "-C", "-r", "-I", "-smux", "-c"])
            .arg(scratch.file("snmpd.conf"))
            .arg("-Lf")
            .arg(scratch.file("log"))
            .arg(format!("--persistentDir={directory}"));
        Ok(Self {
            _process: Process::start(&mut command)?,
            scratch,
        })
    }

    fn set(&self, value: &str) -> Result<()> {
        // In one step: the script must not read half.
        let new = self.scratch.file("new");
        fs::write(&new, format!("{value}\n"))?;
        Ok(fs::rename(new, self.scratch.file("value"))?)
    }
}

fn agents(world: &World, values: &[&str]) -> Result<Vec<Snmpd>> {
    let servers = world.servers().iter().zip(values);
    servers.map(|(s, value)| Snmpd::start(s, value)).collect()
}

#[test]
fn a_cache_says_when_it_has_had_enough() -> Result<()> {
    let Some(_turn) = turn::take() else {
        return Ok(());
    };
    let section = "[service.capacity]\ntype = \"state\"\ncommunity = \"public\"\n\
                   oid = \"1.3.6.1.3.94.1.1\"\ninterval = \"1s\"\ntimeout = \"500ms\"\n\
                   retries = 1\n";
    let parts = Stage::world(2)?;
    let snmpd = agents(&parts.0, &["1", "3"])?;
    let stage = Stage::open(parts, &config(&[1, 1], section))?;
    stage.wait_for(1, "state", "in-service")?;
    stage.wait_for(2, "state", "in-service")?;
    assert_eq!(stage.ask(6)?, [3, 3]);
    // The first is STRESSED, and the second is not.
    snmpd[0].set("4")?;
    stage.wait_for(1, "state", "capacity-limited")?;
    assert_eq!(stage.ask(6)?, [0, 6]);
    // Both are: whoever is not over it serves.
    snmpd[1].set("5")?;
    stage.wait_for(2, "state", "capacity-limited")?;
    stage.wait_for(1, "state", "in-service")?;
    assert_eq!(stage.ask(6)?, [6, 0]);
    snmpd[1].set("2")?;
    stage.wait_for(2, "state", "in-service")?;
    drop(snmpd);
    stage.wait_for(2, "state", "capacity-limited")?;
    let reason = stage.backend(2)?["reason"].clone();
    assert_eq!(reason, "the cache says it is offline");
    assert_eq!(stage.logged("web/web-2: capacity: "), 1, "one line");
    Ok(())
}

#[test]
fn weights_follow_what_is_left() -> Result<()> {
    let Some(_turn) = turn::take() else {
        return Ok(());
    };
    let section = "[service.capacity]\ntype = \"headroom\"\ncommunity = \"public\"\n\
                   interval = \"1s\"\n[[service.capacity.object]]\n\
                   oid = \"1.3.6.1.3.94.1.1\"\nthreshold = 100\ncoefficient = 1\n";
    let parts = Stage::world(2)?;
    let snmpd = agents(&parts.0, &["0", "75"])?;
    let stage = Stage::open(parts, &config(&[4, 4], section))?;
    stage.wait_for(2, "effective_weight", 1)?;
    stage.wait_for(1, "effective_weight", 4)?;
    assert_eq!(stage.ask(10)?, [8, 2]);
    snmpd[1].set("100")?;
    stage.wait_for(2, "state", "throttled")?;
    assert_eq!(stage.ask(4)?, [4, 0]);
    snmpd[1].set("0")?;
    stage.wait_for(2, "effective_weight", 4)?;
    assert_eq!(stage.ask(8)?, [4, 4]);
    Ok(())
}
