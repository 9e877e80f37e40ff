//! Finds or installs what builds and tests need.
//!
//! Every step looks first and acts only when something is missing, so a second
//! run says nothing. Only Debian packages, crates and one mount are used:
//!
//! - a compiler for the packet path, see [`crate::bpf::Route`];
//! - `bpf-linker`, built into `target/tools` and never into the user's home;
//! - bpffs on `/sys/fs/bpf`, where the daemon pins its maps and links;
//! - the programs that the test world and the demo run.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::bpf::{self, Route};
use crate::shell;

/// The version that reads the bitcode of LLVM 22 and knows `--btf`.
const LINKER_VERSION: &str = "0.13.0";
/// What bpf-linker is linked with. It reads bitcode up to this version.
pub(crate) const LLVM_MAJOR: u32 = 22;
const LLVM_PACKAGES: [&str; 3] = ["llvm-22-dev", "libclang-22-dev", "clang-22"];
const BPFFS: &str = "/sys/fs/bpf";

/// A file that is there when `package` is installed.
enum Evidence {
    Program(&'static str),
    File(&'static str),
}

/// What tests and the demo run, and the Debian package that brings it.
const RUNTIME: [(Evidence, &str); 11] = [
    (Evidence::Program("nginx"), "nginx-light"),
    (
        Evidence::File("/usr/lib/nginx/modules/ngx_http_echo_module.so"),
        "libnginx-mod-http-echo",
    ),
    (Evidence::Program("ip"), "iproute2"),
    (Evidence::Program("ethtool"), "ethtool"),
    (Evidence::Program("tcpdump"), "tcpdump"),
    (Evidence::Program("tshark"), "tshark"),
    (Evidence::Program("bpftool"), "bpftool"),
    (Evidence::Program("curl"), "curl"),
    (Evidence::Program("dnsmasq"), "dnsmasq-base"),
    (Evidence::Program("snmpd"), "snmpd"),
    (Evidence::Program("openssl"), "openssl"),
];

/// Everything: for `cargo xtask setup`, the tests and the demo.
pub(crate) fn everything() -> Result<()> {
    for_build()?;
    for_runs()
}

/// What tests and the demo need besides a build.
pub(crate) fn for_runs() -> Result<()> {
    let missing: Vec<&str> = RUNTIME
        .iter()
        .filter(|(evidence, _)| match evidence {
            Evidence::Program(name) => shell::find_program(name).is_none(),
            Evidence::File(path) => !Path::new(path).exists(),
        })
        .map(|(_, package)| *package)
        .collect();
    install(&missing, "tests and demo")?;
    mount_bpffs()
}

/// What the build needs: a compiler for BPF and the linker.
pub(crate) fn for_build() -> Result<(Route, PathBuf)> {
    let route = match Route::find() {
        Some(route) => route,
        None => {
            install(
                &bpf::DEBIAN_COMPILER,
                "a compiler for BPF (a rustup nightly with rust-src serves as well)",
            )?;
            Route::find().context(
                "the packages are installed, but /usr/bin/rustc still has no core library for \
                 bpfel-unknown-none",
            )?
        }
    };
    Ok((route, linker()?))
}

/// `bpf-linker` in `target/tools`, built if it is not there or does not run.
fn linker() -> Result<PathBuf> {
    let tools = shell::root().join("target/tools");
    let linker = tools.join("bin/bpf-linker");
    let wanted = format!("bpf-linker {LINKER_VERSION}");
    let works =
        || shell::ask(Command::new(&linker).arg("--version")).is_some_and(|v| v.contains(&wanted));
    if works() {
        return Ok(linker);
    }
    let prefix = match llvm_prefix() {
        Some(prefix) => prefix,
        None => {
            install(&LLVM_PACKAGES, "bpf-linker")?;
            llvm_prefix().context("LLVM 22 is installed, but its prefix cannot be found")?
        }
    };
    let mut command = shell::cargo();
    shell::clear_compiler_environment(&mut command);
    command
        .args(["install", "bpf-linker", "--locked", "--force"])
        .args(["--version", LINKER_VERSION])
        .args(["--no-default-features", "--features", "llvm-22"])
        .arg("--root")
        .arg(&tools)
        .env("LLVM_PREFIX", &prefix)
        // llvm-sys looks for the static libraries here but does not tell rustc.
        .env("RUSTFLAGS", format!("-L {}", prefix.join("lib").display()));
    shell::run(&mut command)?;
    if !works() {
        bail!(
            "{} was built but does not answer `--version` with {wanted}",
            linker.display()
        );
    }
    Ok(linker)
}

/// Where a complete LLVM 22 lives: Debian's place, else what `llvm-config` says.
fn llvm_prefix() -> Option<PathBuf> {
    let debian = PathBuf::from(format!("/usr/lib/llvm-{LLVM_MAJOR}"));
    if debian.join("include/llvm-c/Core.h").exists() && debian.join("bin/clang").exists() {
        return Some(debian);
    }
    let configs = [
        format!("llvm-config-{LLVM_MAJOR}"),
        "llvm-config".to_owned(),
    ];
    configs.iter().find_map(|program| {
        let version = shell::ask(Command::new(program).arg("--version"))?;
        if !version.starts_with(&format!("{LLVM_MAJOR}.")) {
            return None;
        }
        shell::ask(Command::new(program).arg("--prefix")).map(PathBuf::from)
    })
}

/// Installs Debian packages without starting a service of theirs.
fn install(packages: &[&str], purpose: &str) -> Result<()> {
    if packages.is_empty() {
        return Ok(());
    }
    let names = packages.join(" ");
    if shell::find_program("apt-get").is_none() {
        bail!(
            "needed for {purpose}, under whatever names this system gives them (Debian's are): \
             {names}"
        );
    }
    if !shell::is_root() {
        bail!("needed for {purpose}; as root: apt-get install --no-install-recommends {names}");
    }
    eprintln!("installing for {purpose}: {names}");
    apt_get(&["update"])?;
    let mut arguments = vec!["install", "--yes", "--no-install-recommends"];
    arguments.extend(packages);
    apt_get(&arguments).with_context(|| format!("cannot install {names}"))
}

/// Runs apt-get while a policy forbids that packages start services. nginx's
/// would listen on port 80 of this machine, which nobody asked for.
///
/// A shell owns the policy file, so that an interrupt ends apt-get, then the
/// file, even though it has ended us already.
fn apt_get(arguments: &[&str]) -> Result<()> {
    const SCRIPT: &str = r#"
policy=/usr/sbin/policy-rc.d
mark='# steerline: no service starts while packages are installed'
# Ours, left by a run that was killed.
if [ -f $policy ] && grep -qxF "$mark" $policy; then rm -f $policy; fi
if [ ! -e $policy ]; then
    trap 'rm -f $policy' EXIT
    trap 'exit 130' INT TERM HUP
    printf '#!/bin/sh\n%s\nexit 101\n' "$mark" >$policy
    chmod 755 $policy
fi
apt-get -q -o DPkg::Lock::Timeout=300 "$@" >&2
"#;
    eprintln!("$ apt-get {}", arguments.join(" "));
    let status = Command::new("sh")
        .args(["-c", SCRIPT, "apt-get"])
        .args(arguments)
        .env("DEBIAN_FRONTEND", "noninteractive")
        .status()
        .context("cannot start sh")?;
    if !status.success() {
        bail!("`apt-get {}` failed ({status})", arguments.join(" "));
    }
    Ok(())
}

/// Mounts the BPF file system; fresh machines and containers come without.
fn mount_bpffs() -> Result<()> {
    let mounts = fs::read_to_string("/proc/self/mounts").context("cannot read the mount table")?;
    if is_bpffs(&mounts, BPFFS) {
        return Ok(());
    }
    if !shell::is_root() {
        // Without root the tests that would pin something skip themselves.
        eprintln!("{BPFFS} is not mounted; as root: mount -t bpf bpf {BPFFS}");
        return Ok(());
    }
    shell::run(Command::new("mount").args(["-t", "bpf", "bpf", BPFFS]))
}

/// Whether the mount table (as in /proc/self/mounts) has a bpffs at `path`.
fn is_bpffs(mounts: &str, path: &str) -> bool {
    mounts.lines().any(|line| {
        let mut fields = line.split(' ').skip(1);
        fields.next() == Some(path) && fields.next() == Some("bpf")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bpffs_is_found_by_path_and_type() {
        let rows = [
            ("bpf /sys/fs/bpf bpf rw,relatime 0 0", true),
            ("none /sys/fs/bpf bpf rw 0 0", true),
            ("tmpfs /sys/fs/bpf tmpfs rw 0 0", false),
            ("bpf /run/bpf bpf rw 0 0", false),
            ("", false),
        ];
        for (mounts, expected) in rows {
            assert_eq!(is_bpffs(mounts, BPFFS), expected, "{mounts:?}");
        }
    }
}
