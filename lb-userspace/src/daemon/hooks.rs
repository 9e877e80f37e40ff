//! Attaching the program to every interface, and again where it was taken off.
//!
//! Frames go from one interface to another, and a native program can send them
//! only to a driver that takes frames without a socket buffer (`ndo_xdp_xmit`);
//! those that have no native XDP have not. So all interfaces run in one mode:
//! with `mode = "auto"` one whose driver refuses makes all of them generic.

use super::{Daemon, prepare};
use crate::{
    config::Mode as Wanted,
    dataplane::{Hook, HookState, Mode, Pins},
    net::links::{Link, XdpMode},
};
use anyhow::{Context as _, Result};

impl Daemon {
    /// Attaches everywhere, or nowhere.
    pub(super) fn attach(&mut self, plan: &prepare::Plan) -> Result<()> {
        match self.config.data_plane.mode {
            Wanted::Native => self.attach_all(plan, Mode::Native)?,
            Wanted::Generic => self.attach_all(plan, Mode::Generic)?,
            Wanted::Auto => self.attach_auto(plan)?,
        }
        self.loaded.drop_former_programs()
    }

    fn attach_auto(&mut self, plan: &prepare::Plan) -> Result<()> {
        // Links of earlier days keep their mode, and the others follow.
        let ours = plan.hooks.iter().zip(&plan.links);
        let mut ours = ours.filter(|((_, state), _)| *state == HookState::Ours);
        if let Some((_, link)) = ours.next() {
            let mode = mode_of(link);
            return self.attach_all(plan, mode).with_context(|| {
                format!(
                    "{} runs in {mode} mode already, and all interfaces must run in one; to begin \
                     again, end the traffic with `steerline detach`",
                    link.name
                )
            });
        }
        let Err(error) = self.attach_all(plan, Mode::Native) else {
            return Ok(());
        };
        tracing::warn!("{error:#}; taking generic mode on every interface, which is slower");
        self.attach_all(plan, Mode::Generic)
    }

    fn attach_all(&mut self, plan: &prepare::Plan, mode: Mode) -> Result<()> {
        for (hook, state) in &plan.hooks {
            match self.loaded.attach(hook, *state, mode) {
                Ok(attached) => self.attached.push(attached),
                Err(error) => {
                    for (attached, (_, state)) in self.attached.drain(..).zip(&plan.hooks) {
                        if *state == HookState::Free {
                            let _ = Pins::remove_link(&attached.link);
                        }
                    }
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// Attaches to an interface that lost the program, in the mode of the others.
    pub(super) async fn attach_again(&mut self, link: &Link, others: &[Link], program: u32) {
        let hook = Hook {
            interface: link.name.clone(),
            ifindex: link.index,
            program: None,
        };
        let mut modes = match self.config.data_plane.mode {
            Wanted::Native => vec![Mode::Native],
            Wanted::Generic => vec![Mode::Generic],
            Wanted::Auto => {
                let runs = |link: &&Link| link.xdp.is_some_and(|xdp| xdp.program_id == program);
                match others.iter().find(runs) {
                    Some(other) => vec![mode_of(other)],
                    None => vec![Mode::Native, Mode::Generic],
                }
            }
        }
        .into_iter();
        let mut attached = Err(anyhow::anyhow!("no mode to attach in"));
        while attached.is_err()
            && let Some(mode) = modes.next()
        {
            attached = self.loaded.attach(&hook, HookState::Free, mode);
        }
        let attached = match attached {
            Ok(_) => self.network.restore(&link.name, &self.config).await,
            Err(error) => Err(error),
        };
        let news = match attached {
            Ok(()) => self.watchdog.attached(&link.name, program),
            Err(error) => self.watchdog.failed(&link.name, format!("{error:#}")),
        };
        if let Some(happening) = news {
            self.journal.record(&happening);
        }
    }
}

/// The mode in which an interface runs our program.
fn mode_of(link: &Link) -> Mode {
    match link.xdp {
        Some(xdp) if xdp.mode == XdpMode::Generic => Mode::Generic,
        _ => Mode::Native,
    }
}
