//! Stopping the daemon ends nothing; `detach` ends everything.

use anyhow::{Context, Result, ensure};
use steerline_tests::world::{Client, Load, wait_until};

use crate::ending;
use crate::lab::{Lab, PATIENCE, Service, WEB, vip};
use crate::links;
use crate::turn;

fn requests(lab: &Lab, count: u64) -> Result<()> {
    Load::sequential(vip(), count)
        .run(lab.world.client())?
        .expect_success()
}

#[test]
fn traffic_outlives_the_daemon_until_detach() -> Result<()> {
    let Some(_turn) = turn::beside() else {
        return Ok(());
    };
    let mut lab = Lab::new(2, &[Service::round_robin(&[1, 1])])?;
    requests(&lab, 10)?;
    lab.balancer.stop()?;
    let log = lab.balancer.log();
    assert!(
        log.contains("traffic goes on"),
        "it says what goes on:\n{log}"
    );

    requests(&lab, 10)?;
    assert_eq!(lab.stats()?.each(WEB, "/new_flows")?, [10, 10]);
    let (code, message) = ending::of(lab.balancer.command(&["status"]))?;
    assert_eq!(code, Some(3), "{message}");
    assert!(message.contains("no daemon listens"), "{message}");

    lab.balancer.detach()?;
    assert_no_trace(&lab)?;
    let (code, message) = ending::of(lab.balancer.command(&["stats"]))?;
    assert_eq!(code, Some(1), "{message}");
    assert!(message.contains("nothing is pinned"), "{message}");
    // Nothing to do is done.
    lab.balancer.detach()?;

    lab.balancer.start_again()?;
    assert_eq!(
        lab.status()?.each(WEB, "/new_flows")?,
        [0, 0],
        "all begins anew"
    );
    requests(&lab, 10)?;
    assert_eq!(lab.status()?.each(WEB, "/new_flows")?, [5, 5]);
    Ok(())
}

#[test]
fn detach_ends_a_running_daemon_too() -> Result<()> {
    let Some(_turn) = turn::beside() else {
        return Ok(());
    };
    let mut lab = Lab::new(1, &[Service::round_robin(&[1])])?;
    requests(&lab, 3)?;
    let id = lab.balancer.process_id().context("no daemon")?;
    lab.balancer.detach()?;
    assert_no_trace(&lab)?;
    wait_until("the daemon has ended", PATIENCE, || {
        let stat = std::fs::read_to_string(format!("/proc/{id}/stat"))?;
        // A zombie until its parent asks for it.
        Ok(stat.contains(") Z ").then_some(()))
    })?;
    // The guard reaps it; it had ended well.
    lab.balancer.stop()
}

/// No pin, no program, and no connection through the virtual address.
fn assert_no_trace(lab: &Lab) -> Result<()> {
    let pins = lab.balancer.pin_directory();
    ensure!(!pins.exists(), "{pins:?} is still there");
    assert_eq!(
        links::programs(lab.world.balancer())?,
        links::Programs::new()
    );
    let answer = Client::new(lab.world.client()).get(None, vip(), "/")?;
    let failure = match answer {
        Ok(response) => anyhow::bail!("somebody answered: {response:?}"),
        Err(failure) => failure,
    };
    println!("after detach: {failure}");
    Ok(())
}
