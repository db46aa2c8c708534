//! The resolver's scripts: one declaration per file in `lua/`.

use store::script;

script!(pub(crate) count_queries {
    keys: [counts, names, blocked],
    args: [keep_ms, names_keep_ms, fields_max, names_max, field_count, name_count, ..pairs],
});

script!(pub(crate) save_policy {
    keys: [policy],
    args: [expected, document, now_ms, request_id],
});

#[cfg(test)]
mod tests {
    use super::*;

    testkit::scripts_test!("dns", [count_queries, save_policy]);
}
