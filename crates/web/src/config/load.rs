//! Loads values: flags, then environment, then file, then default; each remembers which.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use super::value::{Bounds, Value};
use super::{Config, Setting, sections, settings};
use crate::service::Services;

/// The source of a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SettingOrigin {
    /// Nowhere: the default.
    Default,
    /// In a file.
    File(PathBuf),
    /// In the environment, under this name.
    Env(String),
    /// On the command line, by this flag.
    Flag(String),
}

impl fmt::Display for SettingOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SettingOrigin::Default => f.write_str("default"),
            SettingOrigin::File(path) => write!(f, "file {}", path.display()),
            SettingOrigin::Env(name) => write!(f, "environment {name}"),
            SettingOrigin::Flag(flag) => write!(f, "flag {flag}"),
        }
    }
}

/// A value as text, and where it was set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SettingText {
    /// The value.
    pub text: String,
    /// Its source.
    pub origin: SettingOrigin,
}

/// Something wrong with the configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The setting, the variable or `file`.
    pub name: String,
    /// Its source.
    pub origin: SettingOrigin,
    /// The mistake, and what to do.
    pub why: String,
}

impl Problem {
    /// A problem of a setting, whatever set it.
    pub fn new(name: &str, why: impl Into<String>) -> Problem {
        Problem { name: name.to_owned(), origin: SettingOrigin::Default, why: why.into() }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} (from {})", self.name, self.why, self.origin)
    }
}

/// The texts of all settings by name.
#[derive(Debug, Clone, Default)]
pub struct Values(BTreeMap<&'static str, SettingText>);

impl Values {
    /// The defaults of all settings.
    pub fn defaults(services: Services) -> Values {
        let given = |default: &str| SettingText {
            text: default.to_owned(),
            origin: SettingOrigin::Default,
        };
        Values(settings(services).map(|setting| (setting.name, given(setting.default))).collect())
    }

    /// Returns the text of a setting and where it was set.
    pub fn get(&self, name: &str) -> Option<&SettingText> {
        self.0.get(name)
    }

    /// Returns all settings by name.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, &SettingText)> {
        self.0.iter().map(|(name, given)| (*name, given))
    }

    /// Reads the value of a setting.
    pub fn parse<T: Value>(&self, name: &str, bounds: Bounds<'_>) -> Result<T, Problem> {
        let given = self.0.get(name);
        let text = given.map_or("", |given| given.text.as_str());
        T::parse(text, bounds).map_err(|why| Problem {
            name: name.to_owned(),
            origin: given.map_or(SettingOrigin::Default, |given| given.origin.clone()),
            why,
        })
    }
}

/// The configuration, checked.
#[derive(Debug, Clone)]
pub struct LoadedConfig {
    /// The settings of the frame.
    pub config: Config,
    /// All settings, with their origins.
    pub values: Values,
    /// The file that was read, if any.
    pub file: Option<PathBuf>,
}

/// The sources, before anything is read.
#[derive(Debug, Clone, Default)]
pub struct Sources {
    /// The services whose settings count.
    pub services: Services,
    /// `--config`, when given; it must exist then.
    pub file: Option<PathBuf>,
    /// Settings named by flags: name, value, flag.
    pub flags: Vec<(String, String, String)>,
    /// The environment.
    pub env: Vec<(String, String)>,
}

impl Sources {
    /// Reads and checks everything; all problems are told at once.
    pub fn load(&self) -> Result<LoadedConfig, Vec<Problem>> {
        let mut problems = Vec::new();
        let services = self.services;
        let mut values = Values::defaults(services);
        let file = self.find_file();
        if let Some(path) = &file {
            match read_file(path) {
                Ok(pairs) => {
                    for (name, text) in pairs {
                        self.put(
                            &mut values,
                            &mut problems,
                            &name,
                            text,
                            SettingOrigin::File(path.clone()),
                        );
                    }
                }
                Err(problem) => problems.push(problem),
            }
        }
        for setting in settings(services) {
            let name = setting.env();
            if let Some((_, text)) = self.env.iter().find(|(key, _)| *key == name) {
                self.put(
                    &mut values,
                    &mut problems,
                    setting.name,
                    text.clone(),
                    SettingOrigin::Env(name),
                );
            }
        }
        problems.extend(self.env.iter().filter_map(|(name, _)| self.misspelt(name)));
        for (name, text, flag) in &self.flags {
            self.put(
                &mut values,
                &mut problems,
                name,
                text.clone(),
                SettingOrigin::Flag(flag.clone()),
            );
        }

        for (variable, name) in services.iter().flat_map(|service| service.fallback_variables()) {
            let is_unset =
                values.get(name).is_some_and(|given| given.origin == SettingOrigin::Default);
            let given = self.env.iter().find(|(key, text)| key == variable && !text.is_empty());
            if let Some((_, text)) = given.filter(|_| is_unset) {
                let origin = SettingOrigin::Env((*variable).to_owned());
                self.put(&mut values, &mut problems, name, text.clone(), origin);
            }
        }

        for setting in settings(services) {
            let Some(given) = values.get(setting.name) else { continue };
            if let Err(why) = (setting.check)(&given.text, setting.bounds) {
                let origin = given.origin.clone();
                problems.push(Problem { name: setting.name.to_owned(), origin, why });
            }
        }
        if !problems.is_empty() {
            return Err(problems);
        }
        let config = Config::read(&values).map_err(|problem| vec![problem])?;
        self.agree(&config, &values).map_err(|problem| vec![problem])?;
        Ok(LoadedConfig { config, values, file })
    }

    /// `--config`, `TIDEGATE_CONFIG`, or the first of the usual places that exists.
    fn find_file(&self) -> Option<PathBuf> {
        if let Some(path) = &self.file {
            return Some(path.clone());
        }
        let var = |name: &str| {
            let found = self.env.iter().find(|(key, value)| key == name && !value.is_empty());
            found.map(|(_, value)| PathBuf::from(value))
        };
        if let Some(path) = var("TIDEGATE_CONFIG") {
            return Some(path);
        }
        let user = var("XDG_CONFIG_HOME").or_else(|| Some(var("HOME")?.join(".config")));
        [
            Some(PathBuf::from("tidegate.toml")),
            user.map(|folder| folder.join("tidegate/tidegate.toml")),
            Some(PathBuf::from("/etc/tidegate/tidegate.toml")),
        ]
        .into_iter()
        .flatten()
        .find(|path| path.is_file())
    }
}

impl Sources {
    /// Checks rules that span several settings.
    fn agree(&self, config: &Config, values: &Values) -> Result<(), Problem> {
        let empty = |path: &Path| path.as_os_str().is_empty();
        if empty(&config.http.tls_cert) != empty(&config.http.tls_key) {
            let why = "http.tls_cert and http.tls_key belong together: set both or none";
            return Err(Problem::new("http.tls_cert", why));
        }
        if config.resp.tls && empty(&config.http.tls_cert) {
            let why = "resp.tls needs a certificate: set http.tls_cert and http.tls_key";
            return Err(Problem::new("resp.tls", why));
        }
        if config.auth.session_idle > config.auth.session_max {
            let why = "auth.session_idle is longer than auth.session_max";
            return Err(Problem::new("auth.session_idle", why));
        }
        if let Some(names) = &config.server.only.0 {
            let known = || {
                let optional = self.services.iter().filter(|service| service.is_optional());
                optional.map(|service| service.name())
            };
            if names.is_empty() {
                let why = "server.only names no service: leave it out to run all";
                return Err(Problem::new("server.only", why));
            }
            if let Some(wrong) = names.iter().find(|name| !known().any(|known| known == **name)) {
                let known: Vec<&str> = known().collect();
                let why =
                    format!("unknown service {wrong:?}; known services: {}", known.join(", "));
                return Err(Problem::new("server.only", why));
            }
        }
        self.services.iter().try_for_each(|service| service.check_settings(values))
    }

    fn put(
        &self,
        values: &mut Values,
        problems: &mut Vec<Problem>,
        name: &str,
        text: String,
        origin: SettingOrigin,
    ) {
        match find(self.services, name) {
            Some(setting) => {
                values.0.insert(setting.name, SettingText { text, origin });
            }
            None => {
                let why = match self.nearest(name) {
                    Some(known) => {
                        format!("unknown setting; did you mean {}?", known.name)
                    }
                    None => "unknown setting; `tidegate config reference` lists all".to_owned(),
                };
                problems.push(Problem { name: name.to_owned(), origin, why });
            }
        }
    }

    /// Finds a variable that looks like a setting and is none. Other variables do not matter here.
    fn misspelt(&self, variable: &str) -> Option<Problem> {
        let rest = variable.strip_prefix("TIDEGATE_")?;
        let (section, field) = rest.split_once('_')?;
        let section = section.to_lowercase();
        let is_setting = sections(self.services).any(|known| known.name == section);
        let known = settings(self.services).any(|setting| setting.env() == variable);
        let other = self.services.iter().any(|service| service.variables().contains(&variable));
        if !is_setting || known || other {
            return None;
        }
        let why = match self.nearest(&format!("{section}.{}", field.to_lowercase())) {
            Some(setting) => format!("unknown setting; did you mean {}?", setting.env()),
            None => "unknown setting; `tidegate config reference` lists all".to_owned(),
        };
        Some(Problem {
            name: variable.to_owned(),
            origin: SettingOrigin::Env(variable.to_owned()),
            why,
        })
    }

    /// The setting whose name differs least, if it differs little.
    fn nearest(&self, name: &str) -> Option<&'static Setting> {
        settings(self.services)
            .map(|setting| (distance(name, setting.name), setting))
            .min_by_key(|(distance, _)| *distance)
            .filter(|(distance, known)| *distance <= known.name.len() / 3)
            .map(|(_, known)| known)
    }
}

/// Returns the setting of this name.
pub fn find(services: Services, name: &str) -> Option<&'static Setting> {
    settings(services).find(|setting| setting.name == name)
}

/// Edit distance, for names of a few dozen characters.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut last = i;
        let mut left = i + 1;
        for (cell, y) in row.iter_mut().skip(1).zip(&b) {
            let here = (last + usize::from(x != *y)).min(left + 1).min(*cell + 1);
            last = *cell;
            *cell = here;
            left = here;
        }
        if let Some(first) = row.first_mut() {
            *first = i + 1;
        }
    }
    row.last().copied().unwrap_or(0)
}

/// The settings in a file, as `section.field` and text.
fn read_file(path: &Path) -> Result<Vec<(String, String)>, Problem> {
    let problem = |why: String| Problem {
        name: "file".to_owned(),
        origin: SettingOrigin::File(path.to_owned()),
        why,
    };
    let text = std::fs::read_to_string(path).map_err(|error| problem(error.to_string()))?;
    let table: toml::Table = text.parse().map_err(|error: toml::de::Error| {
        problem(format!("this is not TOML: {}", error.to_string().trim_end()))
    })?;
    let mut pairs = Vec::new();
    for (section, value) in table {
        let toml::Value::Table(fields) = value else {
            return Err(problem(format!("{section} stands alone; settings are in [sections]")));
        };
        for (field, value) in fields {
            let name = format!("{section}.{field}");
            let text = as_text(&value).ok_or_else(|| problem(format!("{name} is not a value")))?;
            pairs.push((name, text));
        }
    }
    Ok(pairs)
}

fn as_text(value: &toml::Value) -> Option<String> {
    match value {
        toml::Value::String(text) => Some(text.clone()),
        toml::Value::Integer(number) => Some(number.to_string()),
        toml::Value::Boolean(flag) => Some(flag.to_string()),
        toml::Value::Float(number) => Some(number.to_string()),
        toml::Value::Array(items) => {
            items.iter().map(as_text).collect::<Option<Vec<_>>>().map(|items| items.join(","))
        }
        toml::Value::Datetime(_) | toml::Value::Table(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn file(text: &str) -> tempfile::NamedTempFile {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(text.as_bytes()).unwrap();
        file
    }

    fn sources(
        text: &str,
        env: &[(&str, &str)],
        flags: &[(&str, &str)],
    ) -> Result<LoadedConfig, Vec<Problem>> {
        let file = file(text);
        let own = |pairs: &[(&str, &str)]| {
            pairs.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned())).collect::<Vec<_>>()
        };
        let flags = own(flags).into_iter().map(|(name, text)| (name, text, "--set".to_owned()));
        let (file, env, flags) = (Some(file.path().to_owned()), own(env), flags.collect());
        Sources { services: &[], file, env, flags }.load()
    }

    #[test]
    fn every_default_passes_its_own_check() {
        for setting in settings(&[]) {
            (setting.check)(setting.default, setting.bounds)
                .unwrap_or_else(|why| panic!("{}: {why}", setting.name));
            assert!(!setting.doc.is_empty(), "{} has no description", setting.name);
        }
        sources("", &[], &[]).unwrap();
    }

    #[test]
    fn the_stronger_source_wins_and_is_named() {
        let text = "[http]\nmax_body = '2mb'\nbody_timeout = '5s'\n[audit]\nkeep = 500";
        let env = [("TIDEGATE_HTTP_BODY_TIMEOUT", "6s"), ("TIDEGATE_AUDIT_KEEP", "600")];
        let loaded = sources(text, &env, &[("audit.keep", "700")]).unwrap();
        assert_eq!(loaded.config.http.max_body.0, 2 << 20);
        assert_eq!(loaded.config.http.body_timeout.as_secs(), 6);
        assert_eq!(loaded.config.audit.keep, 700);
        let origin = |name: &str| loaded.values.get(name).unwrap().origin.to_string();
        assert!(origin("http.max_body").starts_with("file "));
        assert_eq!(origin("http.body_timeout"), "environment TIDEGATE_HTTP_BODY_TIMEOUT");
        assert_eq!(origin("audit.keep"), "flag --set");
        assert_eq!(origin("log.level"), "default");
    }

    #[test]
    fn all_problems_are_told_at_once_with_where_they_are() {
        let text = "[http]\nmax_bodi = 1\nbody_timeout = '5 weeks'\n[audit]\nkeep = 1";
        let problems = sources(text, &[("TIDEGATE_LOG_FORMAT", "xml")], &[]).unwrap_err();
        let told: Vec<String> = problems.iter().map(ToString::to_string).collect();
        assert_eq!(told.len(), 4, "{told:#?}");
        assert!(
            told[0].contains("http.max_bodi") && told[0].contains("did you mean http.max_body?")
        );
        assert!(told.iter().any(|p| p.contains("audit.keep: 1 is not between 100 and 10000000")));
        assert!(told.iter().any(|p| p.contains("log.format") && p.contains("TIDEGATE_LOG_FORMAT")));
    }

    #[test]
    fn a_misspelt_variable_is_told_and_others_are_left_alone() {
        let told = sources("", &[("TIDEGATE_HTTP_LISTN", "x")], &[]).unwrap_err();
        assert!(told[0].to_string().contains("did you mean TIDEGATE_HTTP_LISTEN?"), "{told:?}");
        let others =
            ["TIDEGATE_SERVER", "TIDEGATE_TOKEN", "TIDEGATE_ROOM_SECRET", "TIDEGATE_JOB_ID"];
        let others: Vec<(&str, &str)> = others.iter().map(|name| (*name, "x")).collect();
        assert!(sources("", &others, &[]).is_ok());
    }

    #[test]
    fn a_file_that_cannot_be_read_is_a_problem() {
        assert!(sources("this is = = not toml", &[], &[]).is_err());
        assert!(sources("http = 1", &[], &[]).is_err());
        let gone = Sources { file: Some("/nowhere/at/all.toml".into()), ..Sources::default() };
        assert!(gone.load().is_err());
    }

    #[test]
    fn settings_that_belong_together_are_checked_together() {
        assert!(sources("[http]\ntls_cert = 'a.pem'", &[], &[]).is_err());
        assert!(sources("[resp]\ntls = true", &[], &[]).is_err());
        assert!(sources("[auth]\nsession_idle = '8d'", &[], &[]).is_err());
        assert!(sources("[server]\nonly = []", &[], &[]).is_err());
        assert!(sources("[server]\nonly = ['echo']", &[], &[]).is_err());
    }

    #[test]
    fn the_header_of_a_proxy_must_be_one() {
        let set = |name: &str| sources("", &[], &[("http.client_address_header", name)]);
        assert_eq!(
            set("CF-Connecting-IP").unwrap().config.http.client_address_header,
            "cf-connecting-ip"
        );
        for wrong in ["", "two words", "X-Forwarded-For, Forwarded", "Host", "Cookie"] {
            assert!(set(wrong).is_err(), "{wrong}");
        }
    }
}
