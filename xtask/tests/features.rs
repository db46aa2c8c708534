//! A program that has a Redis server needs no built-in store: `jobs`, `room` and `desk` without their
//! feature `embedded` neither compile the engine nor Lua, and say so when `embedded:` is opened. `dns`
//! takes the store that it is given, and brings none.
#![allow(clippy::unwrap_used, missing_docs)]

use std::path::{Path, PathBuf};
use std::process::Command;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

/// Names of the packages a package is built from.
fn packages_of(package: &str, features: &[&str]) -> Vec<String> {
    let listed = Command::new(env!("CARGO"))
        .args([
            "tree",
            "--locked",
            "--edges",
            "normal,build",
            "--prefix",
            "none",
            "--package",
            package,
        ])
        .args(features)
        .current_dir(root())
        .output()
        .unwrap();
    assert!(listed.status.success(), "{}", String::from_utf8_lossy(&listed.stderr));
    let text = String::from_utf8(listed.stdout).unwrap();
    text.lines().filter_map(|line| line.split(' ').next()).map(str::to_owned).collect()
}

#[test]
fn services_can_leave_the_engine_out() {
    let is_engine = |name: &String| name == "tidegate-engine" || name.starts_with("mlua");
    let dns = packages_of("tidegate-dns", &[]);
    assert!(!dns.iter().any(is_engine) && dns.iter().any(|name| name == "tidegate-store"));
    for package in ["tidegate-jobs", "tidegate-room", "tidegate-desk"] {
        let with = packages_of(package, &[]);
        assert!(with.iter().filter(|name| is_engine(name)).count() >= 2, "{package}: {with:?}");
        let without = packages_of(package, &["--no-default-features"]);
        let left: Vec<&String> = without.iter().filter(|name| is_engine(name)).collect();
        assert!(left.is_empty(), "{package} without `embedded` still builds {left:?}");
        assert!(without.iter().any(|name| name.ends_with("store")), "{without:?}");
    }
}

/// A program of somebody else, built as they would build it. Inside the workspace the features of all
/// tests would come together, and the built-in store with them.
#[test]
fn a_program_without_the_built_in_store_compiles_and_says_what_it_lacks() {
    let target =
        std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), Into::into);
    let folder: PathBuf = target.join("redis-only");
    std::fs::create_dir_all(folder.join("src")).unwrap();
    let crates = root().join("crates");
    let dependency = |name: &str| {
        let path = crates.join(name);
        format!(
            "{name} = {{ package = \"tidegate-{name}\", path = {path:?}, default-features = false }}\n"
        )
    };
    let manifest = format!(
        "[workspace]\n[package]\nname = \"redis-only\"\nversion = \"0.0.0\"\nedition = \"2024\"\n\
         [dependencies]\n{}tokio = {{ version = \"1\", features = [\"rt\", \"macros\"] }}\n\
         [profile.dev]\ndebug = false\n",
        ["store", "jobs", "room", "dns", "desk"].map(dependency).concat(),
    );
    let program = r#"
        // Compiled without the built-in store; this program does not use them.
        use {desk as _, dns as _, room as _};

        #[tokio::main(flavor = "current_thread")]
        async fn main() {
            let store = store::Store::open(&std::env::args().nth(1).unwrap_or_default()).await;
            match store {
                Ok(store) => {
                    jobs::Jobs::new(store.clone(), jobs::Config::default()).map(|_| ()).unwrap();
                    println!("{:?}", store.kind());
                }
                Err(error) => println!("{error}"),
            }
        }
    "#;
    let write = |path: PathBuf, text: &str| {
        // Left alone when it is the same, so that nothing is compiled again.
        if std::fs::read_to_string(&path).ok().as_deref() != Some(text) {
            std::fs::write(path, text).unwrap();
        }
    };
    write(folder.join("Cargo.toml"), &manifest);
    write(folder.join("src/main.rs"), program);
    if !folder.join("Cargo.lock").exists() {
        std::fs::copy(root().join("Cargo.lock"), folder.join("Cargo.lock")).unwrap();
    }
    let built = Command::new(env!("CARGO"))
        .args(["build", "--quiet", "--offline", "--target-dir", "target"])
        .current_dir(&folder)
        .output()
        .unwrap();
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    assert!(built.stderr.is_empty(), "warnings: {}", String::from_utf8_lossy(&built.stderr));
    for (url, expect) in [
        ("embedded:", "was built without the built-in store: use a server, redis://HOST"),
        ("embedded:./data", "the feature \"embedded\""),
        ("redis://127.0.0.1:1", "the store is unavailable"),
    ] {
        let ran = Command::new(folder.join("target/debug/redis-only")).arg(url).output().unwrap();
        let text = String::from_utf8(ran.stdout).unwrap();
        assert!(text.contains(expect), "{url}: {text}");
    }
}
