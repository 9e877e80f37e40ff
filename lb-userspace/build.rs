//! Embeds the BPF object that `STEERLINE_BPF_OBJECT` names.
//!
//! `.cargo/config.toml` sets the variable to where `cargo xtask` puts the
//! object. Before that is built (`cargo check`, clippy, an editor) an empty
//! object is embedded, which `run` refuses to load.

use std::{env, fs, path::PathBuf};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-env-changed=STEERLINE_BPF_OBJECT");
    let target = PathBuf::from(env::var("OUT_DIR")?).join("steerline-xdp");
    match env::var("STEERLINE_BPF_OBJECT") {
        Ok(object) if !object.is_empty() => {
            println!("cargo::rerun-if-changed={object}");
            if fs::exists(&object)? {
                fs::copy(&object, &target)
                    .map_err(|error| format!("STEERLINE_BPF_OBJECT={object}: {error}"))?;
            } else {
                fs::write(&target, [])?;
            }
        }
        _ => fs::write(&target, [])?,
    }
    Ok(())
}
