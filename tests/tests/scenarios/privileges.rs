//! Who is not root is told so, in words.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use anyhow::{Context, Result};
use steerline_tests::world::{Scratch, topology};

use crate::ending;
use crate::lab::{Lab, Service};
use crate::links;
use crate::turn;

/// `nobody` starts the daemon in a directory that is its own. Without the check
/// it would be an `Operation not permitted` from somewhere (aya#609, katran#127).
#[test]
fn nobody_cannot_run_it_and_learns_why() -> Result<()> {
    let Some(_turn) = turn::beside() else {
        return Ok(());
    };
    let lab = Lab::new(1, &[Service::round_robin(&[1])])?;
    let scratch = Scratch::new()?;
    let open = |mode| fs::set_permissions(scratch.path(), fs::Permissions::from_mode(mode));
    open(0o777)?;
    let pins = Path::new("/sys/fs/bpf").join(scratch.path().file_name().context("name")?);
    let config = scratch.file("steerline.toml");
    let text = format!(
        "[data_plane]\ninterfaces = [{:?}, {:?}]\npin_directory = {pins:?}\n[control]\nsocket = \
         {:?}\nstate_directory = {:?}\n{}",
        topology::FRONT_DEVICE,
        topology::BACK_DEVICE,
        scratch.file("control.sock"),
        scratch.file("state"),
        Service::round_robin(&[1]).text()
    );
    fs::write(&config, text)?;
    // A copy, since the original may be where `nobody` cannot look.
    let binary = scratch.file("steerline");
    fs::copy(lab.balancer.command(&[]).get_program(), &binary)?;

    let programs = links::programs(lab.world.balancer())?;
    let mut command = lab.world.balancer().command("setpriv");
    command
        .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
        .arg(&binary)
        .arg("--config")
        .arg(&config)
        .arg("run");
    let (code, message) = ending::of(command)?;
    println!("{message}");
    assert_eq!(code, Some(1), "{message}");
    for word in ["root", "CAP_NET_ADMIN", "CAP_BPF"] {
        assert!(message.contains(word), "no {word:?} in {message}");
    }
    assert!(!pins.exists());
    assert_eq!(links::programs(lab.world.balancer())?, programs);
    assert!(!scratch.file("control.sock").exists(), "a socket was left");
    Ok(())
}
