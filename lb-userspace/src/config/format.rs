//! The keys of the file format, section by section. The format is that of all
//! versions: `later` names sections that this version knows and refuses.

/// The keys of one section.
pub(super) struct Shape {
    /// The section as one writes it, for messages.
    pub(super) header: &'static str,
    /// Keys that are read.
    pub(super) keys: &'static [&'static str],
    /// Keys of the format that this version does not have.
    pub(super) later: &'static [&'static str],
}

pub(super) const ROOT: Shape = Shape {
    header: "the top of the file",
    keys: &["data_plane", "control", "service"],
    later: &["cluster"],
};

pub(super) const DATA_PLANE: Shape = Shape {
    header: "`[data_plane]`",
    keys: &[
        "interfaces",
        "mode",
        "flow_table",
        "pin_directory",
        "reattach",
        "tunnel_source",
        "source_pool",
    ],
    later: &[],
};

pub(super) const FLOW_TABLE: Shape = Shape {
    header: "`flow_table`",
    keys: &["ipv4", "ipv6"],
    later: &[],
};

pub(super) const CONTROL: Shape = Shape {
    header: "`[control]`",
    keys: &["socket", "metrics", "state_directory"],
    later: &[],
};

pub(super) const SERVICE: Shape = Shape {
    header: "`[[service]]`",
    keys: &[
        "name",
        "address",
        "port",
        "protocol",
        "forwarding",
        "algorithm",
        "measure",
        "announce",
        "gue_port",
        "sticky",
        "drain_timeout",
        "drain_reset",
        "aca",
        "slow_start",
        "inband_health",
        "fail_detect",
        "syn_guard",
        "probe",
        "agent",
        "dfp",
        "capacity",
        "backend",
    ],
    later: &["syn_cookies"],
};

pub(super) const ACA: Shape = Shape {
    header: "`[service.aca]`",
    keys: &[
        "load_step",
        "dynamic_step",
        "load_threshold",
        "teardown_interval",
        "ageout",
        "pick",
        "smoothing",
        "short_flow_bytes",
        "calculation",
        "absolute_sensitivity",
        "variance",
        "curve",
    ],
    later: &[],
};

pub(super) const SLOW_START: Shape = Shape {
    header: "`[service.slow_start]`",
    keys: &["ramp"],
    later: &[],
};

pub(super) const RAMP: Shape = Shape {
    header: "`ramp`",
    keys: &["rate1", "interval1", "rate2", "interval2", "maximum"],
    later: &[],
};

pub(super) const INBAND_HEALTH: Shape = Shape {
    header: "`[service.inband_health]`",
    keys: &[
        "check",
        "failures",
        "reset_time",
        "resume_service",
        "syn_timeout",
        "max_ejected_percent",
    ],
    later: &[],
};

pub(super) const FAIL_DETECT: Shape = Shape {
    header: "`[service.fail_detect]`",
    keys: &["connections", "clients", "reassign", "retry"],
    later: &[],
};

pub(super) const SYN_GUARD: Shape = Shape {
    header: "`[service.syn_guard]`",
    keys: &["unanswered", "interval"],
    later: &[],
};

pub(super) const PROBE: Shape = Shape {
    header: "`[service.probe]`",
    keys: &[
        "type",
        "port",
        "interval",
        "fast_interval",
        "timeout",
        "rise",
        "fall",
        "jitter_percent",
        "source",
        "path",
        "host",
        "expect_status",
        "expect_body",
        "server_name",
        "verify",
        "ca_file",
        "query",
    ],
    later: &[],
};

pub(super) const AGENT: Shape = Shape {
    header: "`[service.agent]`",
    keys: &["port", "interval", "timeout", "send", "source"],
    later: &[],
};

pub(super) const DFP: Shape = Shape {
    header: "`[service.dfp]`",
    keys: &[
        "agents", "password", "key_id", "timeout", "retries", "interval", "bind_id",
    ],
    later: &[],
};

pub(super) const CAPACITY: Shape = Shape {
    header: "`[service.capacity]`",
    keys: &[
        "type",
        "community",
        "port",
        "interval",
        "timeout",
        "retries",
        "oid",
        "force_delete",
        "autoadjust",
        "object",
    ],
    later: &[],
};

pub(super) const OBJECT: Shape = Shape {
    header: "`[[service.capacity.object]]`",
    keys: &["oid", "maximum", "weight", "threshold", "coefficient"],
    later: &[],
};

pub(super) const BACKEND: Shape = Shape {
    header: "`[[service.backend]]`",
    keys: &[
        "name",
        "address",
        "port",
        "weight",
        "max_connections",
        "backup",
    ],
    later: &[],
};

/// Every section, to tell an operator where a misplaced key belongs. In TOML a
/// key belongs to the last header above it, so one of a service's own keys
/// written below `[service.aca]` is a frequent slip.
const SECTIONS: [&Shape; 17] = [
    &ROOT,
    &DATA_PLANE,
    &FLOW_TABLE,
    &CONTROL,
    &SERVICE,
    &ACA,
    &SLOW_START,
    &RAMP,
    &INBAND_HEALTH,
    &FAIL_DETECT,
    &SYN_GUARD,
    &PROBE,
    &AGENT,
    &DFP,
    &CAPACITY,
    &OBJECT,
    &BACKEND,
];

/// Headers of the sections that have `key`.
pub(super) fn sections_with(key: &str) -> Vec<&'static str> {
    SECTIONS
        .iter()
        .filter(|shape| shape.keys.contains(&key))
        .map(|shape| shape.header)
        .collect()
}
