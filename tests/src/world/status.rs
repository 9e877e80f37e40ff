//! Questions to `status`, and what they wait for.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::{Balancer, wait_until};

/// When a wait gives up. No scenario passes because of this number.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// The name of server `number`.
pub fn web(number: u8) -> String {
    format!("web-{number}")
}

/// What `status --json` or `stats --json` said at one moment.
#[derive(Clone, Debug)]
pub struct Status(pub Value);

impl Status {
    /// What it says, which may be a tenth of a second old.
    pub fn glance(balancer: &Balancer) -> Result<Self> {
        Ok(Self(balancer.status()?))
    }

    /// A snapshot made after this call.
    pub fn now(balancer: &Balancer) -> Result<Self> {
        let before = Self::glance(balancer)?.sequence()?;
        Self::wait(balancer, "there is another snapshot", |status| {
            Ok(status.sequence()? > before)
        })
    }

    /// The first snapshot of which `condition` holds.
    pub fn wait(
        balancer: &Balancer,
        what: &str,
        condition: impl Fn(&Self) -> Result<bool>,
    ) -> Result<Self> {
        let mut last = None;
        let found = wait_until(what, PATIENCE, || {
            let status = Self::glance(balancer)?;
            let holds = condition(&status)?;
            last = Some(status.clone());
            Ok(holds.then_some(status))
        });
        found.with_context(|| match last {
            Some(Self(value)) => value.to_string(),
            None => String::new(),
        })
    }

    /// Waits until no flow is active or half-open by any book, and the table
    /// says so as well.
    pub fn quiet(balancer: &Balancer) -> Result<Self> {
        Self::wait(
            balancer,
            "no flow is live",
            |status| Ok(status.live()? == 0),
        )
    }

    /// Flows that are half-open or past it, by the books of the flow tables and
    /// of every backend: 0 only if all agree on there being none.
    pub fn live(&self) -> Result<u64> {
        let mut live = 0;
        for table in self.0["flow_table"].as_array().context("no flow table")? {
            live += number(table, "/live")? + number(table, "/half_open")?;
        }
        for service in self.0["services"].as_array().context("no services")? {
            live += number(service, "/active_flows")?;
            for backend in service["backends"].as_array().context("no backends")? {
                live += number(backend, "/active_flows")? + number(backend, "/half_open")?;
            }
        }
        Ok(live)
    }

    /// The number of the snapshot: it grows by one each tenth of a second of the
    /// daemon's.
    pub fn sequence(&self) -> Result<u64> {
        self.number("/sequence")
    }

    /// One service.
    pub fn service(&self, name: &str) -> Result<&Value> {
        named(&self.0["services"], name)
    }

    /// A number by its JSON pointer (RFC 6901).
    pub fn number(&self, pointer: &str) -> Result<u64> {
        number(&self.0, pointer)
    }

    /// How many packets were counted for a reason.
    pub fn counter(&self, reason: &str) -> Result<u64> {
        self.number(&format!("/counters/{reason}"))
    }

    /// A number of each backend of a service, in order of the file.
    pub fn each(&self, service: &str, pointer: &str) -> Result<Vec<u64>> {
        self.service(service)?["backends"]
            .as_array()
            .context("no list of backends")?
            .iter()
            .map(|backend| number(backend, pointer))
            .collect()
    }

    /// The sum over a service's backends.
    pub fn sum(&self, service: &str, pointer: &str) -> Result<u64> {
        Ok(self.each(service, pointer)?.iter().sum())
    }

    /// One backend of a service.
    pub fn backend(&self, service: &str, number: u8) -> Result<&Value> {
        named(&self.service(service)?["backends"], &web(number))
    }

    /// Fails if a packet was dropped for a reason that no scenario here gives.
    pub fn expect_no_drops(&self) -> Result<()> {
        for reason in [
            "no_backend",
            "table_full",
            "malformed",
            "no_route",
            "internal",
        ] {
            let count = self.counter(reason)?;
            ensure!(count == 0, "{count} packets were dropped: {reason}");
        }
        let mismatches = self.number("/mismatches")?;
        ensure!(mismatches == 0, "{mismatches} mismatches");
        Ok(())
    }
}

/// A number in JSON by its pointer.
pub fn number(value: &Value, pointer: &str) -> Result<u64> {
    value
        .pointer(pointer)
        .and_then(Value::as_u64)
        .with_context(|| format!("no number at {pointer} in {value}"))
}

/// The element of a list whose `name` is this.
pub fn named<'a>(list: &'a Value, name: &str) -> Result<&'a Value> {
    list.as_array()
        .and_then(|list| list.iter().find(|item| item["name"] == name))
        .with_context(|| format!("no {name} in {list}"))
}
