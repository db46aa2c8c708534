//! Pi-hole: the teleporter archive of version 5 (`.tar.gz`), or single files of it.

use std::collections::{BTreeMap, BTreeSet};

use dns::{DEFAULT_GROUP, ListAction, UpstreamServer};

use super::builder::{PolicyBuilder, rule_of};
use super::document::{self, Node};

/// Files that are read.
const FILES: [&str; 17] = [
    "adlist.json",
    "adlist_by_group.json",
    "blacklist.exact.json",
    "blacklist.regex.json",
    "whitelist.exact.json",
    "whitelist.regex.json",
    "domainlist_by_group.json",
    "client.json",
    "client_by_group.json",
    "group.json",
    "custom.list",
    "05-pihole-custom-cname.conf",
    "setupVars.conf",
    "adlists.list",
    "blacklist.txt",
    "whitelist.txt",
    "regex.list",
];

/// Tells whether a name is that of a file of Pi-hole.
pub(super) fn is_file(name: &str) -> bool {
    let name = name.rsplit('/').next().unwrap_or_default();
    FILES.contains(&name)
}

/// Imports a single file.
pub(super) fn import_file(
    name: &str,
    text: &str,
    builder: &mut PolicyBuilder,
) -> Result<(), String> {
    let name = name.rsplit('/').next().unwrap_or_default();
    if !is_file(name) {
        return Err(format!("{name:?} is none of the files of Pi-hole: {}", FILES.join(", ")));
    }
    import_archive(&[(name.to_owned(), text.to_owned())], builder)
}

/// Imports the files of an archive.
pub(super) fn import_archive(
    files: &[(String, String)],
    builder: &mut PolicyBuilder,
) -> Result<(), String> {
    if !files.iter().any(|(name, _)| is_file(name)) {
        return Err("it has none of the files of Pi-hole's teleporter".to_owned());
    }
    let mut archive = Archive { files, groups: BTreeMap::new() };
    archive.import_groups(builder)?;
    archive.import_lists(builder)?;
    archive.import_domains(builder)?;
    archive.import_clients(builder)?;
    archive.import_texts(builder);
    for (name, _) in files.iter().filter(|(name, _)| !is_file(name)) {
        builder.set_file(name);
        let reason = match name.as_str() {
            "dhcp.leases" => "there is no DHCP server here",
            "auditlog.json" => "the audit trail is kept by Tidegate",
            _ => "this file has no counterpart here",
        };
        builder.skip(1, name, reason);
    }
    builder.set_file("");
    Ok(())
}

struct Archive<'a> {
    files: &'a [(String, String)],
    /// Groups by number: their id here.
    groups: BTreeMap<String, String>,
}

impl Archive<'_> {
    fn text(&self, file: &str) -> Option<&str> {
        self.files.iter().find(|(name, _)| name == file).map(|(_, text)| text.as_str())
    }

    fn rows(&self, file: &str) -> Result<Vec<Node>, String> {
        let Some(text) = self.text(file).filter(|text| !text.trim().is_empty()) else {
            return Ok(Vec::new());
        };
        let root = document::read(text).map_err(|error| format!("{file}: {error}"))?;
        Ok(root.items().to_vec())
    }

    /// Groups that things are in, by the number of the thing; none means the default group.
    fn membership(
        &self,
        file: &str,
        field: &str,
    ) -> Result<BTreeMap<String, BTreeSet<String>>, String> {
        let mut found: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for row in self.rows(file)? {
            let (thing, group) = (row.field(field).to_owned(), row.field("group_id").to_owned());
            found.entry(thing).or_default().insert(group);
        }
        Ok(found)
    }

    fn import_groups(&mut self, builder: &mut PolicyBuilder) -> Result<(), String> {
        builder.set_file("group.json");
        self.groups.insert("0".to_owned(), DEFAULT_GROUP.to_owned());
        for row in self.rows("group.json")? {
            let (number, name) = (row.field("id"), row.field("name"));
            if number == "0" {
                continue;
            }
            if row.field("enabled") == "0" {
                builder.skip(row.line, name, "the group is switched off");
                continue;
            }
            let id = builder.add_group(name, name, row.field("description"));
            self.groups.insert(number.to_owned(), id);
        }
        Ok(())
    }

    fn import_lists(&self, builder: &mut PolicyBuilder) -> Result<(), String> {
        let members = self.membership("adlist_by_group.json", "adlist_id")?;
        builder.set_file("adlist.json");
        let mut of_group: BTreeMap<String, Vec<String>> = BTreeMap::new();
        let mut is_restricted = false;
        for row in self.rows("adlist.json")? {
            let (address, comment) = (row.field("address"), row.field("comment"));
            let enabled = row.field("enabled") != "0";
            let added = builder.add_list(row.line, comment, address, ListAction::Block, enabled);
            let Some(list) = added else { continue };
            let default = BTreeSet::from(["0".to_owned()]);
            let groups = members.get(row.field("id")).unwrap_or(&default);
            for group in groups.iter().filter_map(|number| self.groups.get(number)) {
                of_group.entry(group.clone()).or_default().push(list.clone());
            }
            is_restricted |= *groups != default;
        }
        if is_restricted || self.groups.len() > 1 {
            for group in self.groups.values() {
                let lists = of_group.remove(group).unwrap_or_default();
                builder.group(group).lists = Some(lists);
            }
        }
        builder.set_file("adlists.list");
        for (number, line) in lines(self.text("adlists.list")) {
            builder.add_list(number, "", line, ListAction::Block, true);
        }
        Ok(())
    }

    fn import_domains(&self, builder: &mut PolicyBuilder) -> Result<(), String> {
        let members = self.membership("domainlist_by_group.json", "domainlist_id")?;
        for (file, is_allow, is_pattern) in [
            ("blacklist.exact.json", false, false),
            ("blacklist.regex.json", false, true),
            ("whitelist.exact.json", true, false),
            ("whitelist.regex.json", true, true),
        ] {
            builder.set_file(file);
            for row in self.rows(file)? {
                let domain = row.field("domain");
                if row.field("enabled") == "0" {
                    builder.skip(row.line, domain, "it is switched off");
                    continue;
                }
                let rule = exact_rule(domain, is_allow, is_pattern);
                let groups = members.get(row.field("id"));
                let known = groups.into_iter().flatten().filter_map(|group| self.groups.get(group));
                let known: Vec<&String> = known.collect();
                if known.is_empty() || (known.len() == 1 && self.groups.len() == 1) {
                    builder.add_rule(row.line, &rule, None);
                } else {
                    for group in known {
                        builder.add_rule(row.line, &rule, Some(group));
                    }
                }
            }
        }
        for (file, is_allow, is_pattern) in [
            ("blacklist.txt", false, false),
            ("whitelist.txt", true, false),
            ("regex.list", false, true),
        ] {
            builder.set_file(file);
            for (number, line) in lines(self.text(file)) {
                builder.add_rule(number, &exact_rule(line, is_allow, is_pattern), None);
            }
        }
        Ok(())
    }

    fn import_clients(&self, builder: &mut PolicyBuilder) -> Result<(), String> {
        let members = self.membership("client_by_group.json", "client_id")?;
        builder.set_file("client.json");
        for row in self.rows("client.json")? {
            let (ip, comment) = (row.field("ip"), row.field("comment"));
            let groups = members.get(row.field("id"));
            let known: Vec<&String> =
                groups.into_iter().flatten().filter_map(|number| self.groups.get(number)).collect();
            if known.len() > 1 {
                builder.skip(
                    row.line,
                    ip,
                    format!("a client has one group here; it is in {}", known[0]),
                );
            }
            let group = known.first().map_or("", |group| group.as_str());
            let wanted = if comment.is_empty() { ip } else { comment };
            builder.add_client(row.line, wanted, comment, group, vec![ip.to_owned()], Vec::new());
        }
        Ok(())
    }

    fn import_texts(&self, builder: &mut PolicyBuilder) {
        builder.set_file("custom.list");
        for (number, line) in lines(self.text("custom.list")) {
            let mut words = line.split_whitespace();
            let address = words.next().unwrap_or_default();
            let kind = if address.contains(':') { "AAAA" } else { "A" };
            for name in words {
                builder.add_record(number, name, kind, address);
            }
        }
        builder.set_file("05-pihole-custom-cname.conf");
        for (number, line) in lines(self.text("05-pihole-custom-cname.conf")) {
            match line.strip_prefix("cname=").and_then(|rest| rest.split_once(',')) {
                Some((alias, target)) => {
                    let target = target.split(',').next().unwrap_or_default();
                    builder.add_record(number, alias, "CNAME", target);
                }
                None => builder.skip(number, line, "only cname= is read"),
            }
        }
        builder.set_file("setupVars.conf");
        for (number, line) in lines(self.text("setupVars.conf")) {
            let Some((key, value)) = line.split_once('=') else { continue };
            if key.starts_with("PIHOLE_DNS_") {
                let address = value.replace('#', ":");
                builder.add_upstream(number, UpstreamServer { address, ..Default::default() });
            } else if matches!(
                key,
                "BLOCKING_ENABLED" | "DNSSEC" | "CONDITIONAL_FORWARDING" | "REV_SERVER"
            ) {
                builder.skip(number, line, "set it here by hand");
            }
        }
    }
}

/// Lines that say something, with their numbers.
fn lines(text: Option<&str>) -> impl Iterator<Item = (usize, &str)> {
    text.unwrap_or_default()
        .lines()
        .enumerate()
        .map(|(index, line)| (index + 1, line.trim()))
        .filter(|(_, line)| !line.is_empty() && !line.starts_with('#'))
}

/// An exact name is only this name, without those below it.
fn exact_rule(domain: &str, is_allow: bool, is_pattern: bool) -> String {
    if is_pattern {
        return rule_of(&format!("/{domain}/"), is_allow);
    }
    let rule = format!("|{}|", domain.to_ascii_lowercase());
    if is_allow { format!("@@{rule}") } else { rule }
}
