//! The desk's scripts: one declaration per file in `lua/`.

use store::script;

script!(pub(crate) admit_endpoints {
    keys: [endpoints],
    args: [most, ..names],
});

script!(pub(crate) report_connections {
    keys: [instances, current, max],
    args: [now_ms, instance, connections, until_ms],
});

script!(pub(crate) raise {
    keys: [number],
    args: [value],
});

#[cfg(test)]
mod tests {
    use super::*;

    testkit::scripts_test!("desk", [admit_endpoints, report_connections, raise]);
}
