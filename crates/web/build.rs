//! Compresses the files that browsers load with Brotli, while the program is built: so it is done once
//! and well. `room-web` and `desk-web` have links to this file.
#![allow(clippy::print_stdout, reason = "Cargo reads what a build script prints")]

use std::error::Error;
use std::path::Path;
use std::{env, fs};

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=assets");
    println!("cargo::rerun-if-changed=build.rs");
    let out = env::var("OUT_DIR")?;
    for entry in fs::read_dir("assets")? {
        let path = entry?.path();
        let Some(name) = path.file_name().and_then(|name| name.to_str()) else { continue };
        let options = brotli::enc::BrotliEncoderParams {
            quality: 11,
            // Text, and no file is larger than the window.
            mode: brotli::enc::backward_references::BrotliEncoderMode::BROTLI_MODE_TEXT,
            ..Default::default()
        };
        let mut packed = Vec::new();
        brotli::BrotliCompress(&mut fs::read(&path)?.as_slice(), &mut packed, &options)?;
        fs::write(Path::new(&out).join(format!("{name}.br")), packed)?;
    }
    Ok(())
}
