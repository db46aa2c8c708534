//! docs/configuration.md, written from the table.

use std::fmt::Write;

use super::sections;
use crate::service::Services;

/// The page.
pub fn page(services: Services) -> String {
    let mut page = String::from(INTRODUCTION);
    for section in sections(services) {
        // Writing to a String cannot fail, here and below.
        let _ = write!(page, "\n## `[{}]`\n\n{}\n\n", section.name, joined(section.doc));
        page.push_str(
            "| Setting | Default | Value | Bounds | On reload |\n|---|---|---|---|---|\n",
        );
        let prefix = format!("{}.", section.name);
        for setting in section.settings {
            let default = match setting.default {
                "" => "empty".to_owned(),
                text => format!("`{text}`"),
            };
            let bounds = setting
                .bounds
                .map_or_else(|| "–".to_owned(), |(least, most)| format!("{least} … {most}"));
            let reload = if setting.live { "at once" } else { "after a restart" };
            let _ = writeln!(
                page,
                "| `{}`<br>{} | {default} | {} | {bounds} | {reload} |",
                setting.name.trim_start_matches(&prefix),
                joined(setting.doc),
                (setting.kind)(),
            );
        }
    }
    page
}

fn joined(doc: &[&str]) -> String {
    doc.iter().map(|line| line.trim()).collect::<Vec<_>>().join(" ")
}

const INTRODUCTION: &str = "\
<!-- Written by `cargo xtask codegen` from the tables of settings. Do not edit. -->
# Configuration

Nothing needs to be set: without a file, `tidegate` runs on the built-in store in `./tidegate-data`.

Values come from, strongest first:

1. flags: `--store`, `--listen`, … and `--set section.name=value` for any setting,
2. the environment: `TIDEGATE_SECTION_NAME`, so `http.max_body` is `TIDEGATE_HTTP_MAX_BODY`,
3. one TOML file: `--config FILE`, else `TIDEGATE_CONFIG`, else the first that exists of
   `./tidegate.toml`, `~/.config/tidegate/tidegate.toml`, `/etc/tidegate/tidegate.toml`,
4. the default.

```toml
[http]
listen = \"0.0.0.0:7070\"
trusted_proxies = [\"10.0.0.0/8\"]

[store]
url = \"redis://10.0.0.5:6379\"
```

`tidegate config show --origin` prints every value and where it came from; `tidegate config check`
tells all mistakes at once and changes nothing. A running server reads everything again on `SIGHUP`
(`systemctl reload tidegate`): if anything is wrong, the old settings stay and the log says what;
settings marked *after a restart* are named in the log when they changed.
";
