# Short names for what one does all day. `just` lists them.

default:
    @just --list

# Start the product on ./tidegate-data.
run *args:
    cargo run --release -- {{args}}

# Every test.
test *filter:
    ./test {{filter}}

# Format, dependencies, lints, documentation, benchmarks compile.
lint:
    ./lint

# What matches, so often alone and so often beside two busy loops: how often does each test fail?
stress filter times="10":
    .ci/stress {{filter}} {{times}}

# Quick check of one crate.
check crate:
    cargo clippy -p {{crate}} --all-targets -- -D warnings

# Write generated files anew: openapi.json, docs/configuration.md, docs/cli.md, docs/keys.md.
codegen:
    cargo xtask codegen

# Licences, sources, duplicate versions, banned crates.
deny:
    cargo deny check bans licenses sources
