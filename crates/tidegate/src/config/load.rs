//! Where values come from: flags, then environment, then file, then default; each remembers which.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use super::{Config, SETTINGS, Setting};

/// Where a value was set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Origin {
    /// Nowhere: the default.
    Default,
    /// In a file.
    File(PathBuf),
    /// In the environment, under this name.
    Env(String),
    /// On the command line, by this flag.
    Flag(String),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Default => f.write_str("default"),
            Origin::File(path) => write!(f, "file {}", path.display()),
            Origin::Env(name) => write!(f, "environment {name}"),
            Origin::Flag(flag) => write!(f, "flag {flag}"),
        }
    }
}

/// A value as text, and where it was set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Given {
    pub(crate) text: String,
    pub(crate) origin: Origin,
}

/// Something wrong with the configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Problem {
    pub(crate) name: String,
    pub(crate) origin: Origin,
    pub(crate) why: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} (from {})", self.name, self.why, self.origin)
    }
}

/// All values with their origins, checked.
#[derive(Debug, Clone)]
pub(crate) struct Loaded {
    pub(crate) config: Config,
    pub(crate) values: BTreeMap<&'static str, Given>,
    /// The file that was read, if any.
    pub(crate) file: Option<PathBuf>,
}

/// What is known before anything is read.
#[derive(Debug, Clone, Default)]
pub(crate) struct Sources {
    /// `--config`, when given; it must exist then.
    pub(crate) file: Option<PathBuf>,
    /// Settings named by flags: name, value, flag.
    pub(crate) flags: Vec<(String, String, String)>,
    /// The environment.
    pub(crate) env: Vec<(String, String)>,
}

impl Sources {
    /// Reads and checks everything; all problems are told at once.
    pub(crate) fn load(&self) -> Result<Loaded, Vec<Problem>> {
        let mut problems = Vec::new();
        let mut values: BTreeMap<&'static str, Given> = SETTINGS
            .iter()
            .map(|s| (s.name, Given { text: s.default.to_owned(), origin: Origin::Default }))
            .collect();

        let file = self.find_file();
        if let Some(path) = &file {
            match read_file(path) {
                Ok(pairs) => {
                    for (name, text) in pairs {
                        put(&mut values, &mut problems, &name, text, Origin::File(path.clone()));
                    }
                }
                Err(problem) => problems.push(problem),
            }
        }
        for setting in SETTINGS {
            let name = setting.env();
            if let Some((_, text)) = self.env.iter().find(|(key, _)| *key == name) {
                put(&mut values, &mut problems, setting.name, text.clone(), Origin::Env(name));
            }
        }
        problems.extend(self.env.iter().filter_map(|(name, _)| misspelt(name)));
        for (name, text, flag) in &self.flags {
            put(&mut values, &mut problems, name, text.clone(), Origin::Flag(flag.clone()));
        }

        for setting in SETTINGS {
            let Some(given) = values.get(setting.name) else { continue };
            if let Err(why) = (setting.check)(&given.text, setting.bounds) {
                let origin = given.origin.clone();
                problems.push(Problem { name: setting.name.to_owned(), origin, why });
            }
        }
        if !problems.is_empty() {
            return Err(problems);
        }
        let text =
            |name: &str| values.get(name).map(|given| given.text.clone()).unwrap_or_default();
        let built = Config::build(text).map_err(|why| together("config", why))?;
        agree(&built)?;
        Ok(Loaded { config: built, values, file })
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

/// Rules that span several settings.
fn agree(config: &Config) -> Result<(), Vec<Problem>> {
    let empty = |path: &Path| path.as_os_str().is_empty();
    if empty(&config.http.tls_cert) != empty(&config.http.tls_key) {
        let why = "http.tls_cert and http.tls_key belong together: set both or none";
        return Err(together("http.tls_cert", why.to_owned()));
    }
    if config.auth.session_idle > config.auth.session_max {
        let why = "auth.session_idle is longer than auth.session_max";
        return Err(together("auth.session_idle", why.to_owned()));
    }
    if config.server.only.is_empty() {
        let why = "server.only names no service: leave it out to run all";
        return Err(together("server.only", why.to_owned()));
    }
    Ok(())
}

fn together(name: &str, why: String) -> Vec<Problem> {
    vec![Problem { name: name.to_owned(), origin: Origin::Default, why }]
}

fn put(
    values: &mut BTreeMap<&'static str, Given>,
    problems: &mut Vec<Problem>,
    name: &str,
    text: String,
    origin: Origin,
) {
    match find(name) {
        Some(setting) => {
            values.insert(setting.name, Given { text, origin });
        }
        None => {
            let why = match nearest(name) {
                Some(known) => format!("there is no such setting; did you mean {known}?"),
                None => {
                    "there is no such setting; `tidegate config reference` lists all".to_owned()
                }
            };
            problems.push(Problem { name: name.to_owned(), origin, why });
        }
    }
}

/// A variable that looks like a setting and is none. Variables of other kinds are nobody's business.
fn misspelt(variable: &str) -> Option<Problem> {
    const OTHERS: [&str; 1] = ["TIDEGATE_ROOM_SECRET"];
    let rest = variable.strip_prefix("TIDEGATE_")?;
    let (section, field) = rest.split_once('_')?;
    let section = section.to_lowercase();
    let is_setting = super::SECTIONS.iter().any(|(name, _)| *name == section);
    let known = SETTINGS.iter().any(|setting| setting.env() == variable);
    if !is_setting || known || OTHERS.contains(&variable) {
        return None;
    }
    let near = nearest(&format!("{section}.{}", field.to_lowercase())).and_then(find);
    let why = match near {
        Some(setting) => format!("there is no such setting; did you mean {}?", setting.env()),
        None => "there is no such setting; `tidegate config reference` lists all".to_owned(),
    };
    Some(Problem { name: variable.to_owned(), origin: Origin::Env(variable.to_owned()), why })
}

/// The setting of this name.
pub(crate) fn find(name: &str) -> Option<&'static Setting> {
    SETTINGS.iter().find(|setting| setting.name == name)
}

/// The setting whose name differs least, if it differs little.
fn nearest(name: &str) -> Option<&'static str> {
    SETTINGS
        .iter()
        .map(|setting| (distance(name, setting.name), setting.name))
        .min()
        .filter(|(distance, known)| *distance <= known.len() / 3)
        .map(|(_, known)| known)
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
        origin: Origin::File(path.to_owned()),
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

/// A value as it may be shown: the password of a URL is not.
pub(crate) fn shown(text: &str) -> String {
    let Some((scheme, rest)) = text.split_once("://") else { return text.to_owned() };
    let Some((login, host)) = rest.split_once('@') else { return text.to_owned() };
    match login.split_once(':') {
        Some((user, _)) => format!("{scheme}://{user}:…@{host}"),
        None => text.to_owned(),
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
    ) -> Result<Loaded, Vec<Problem>> {
        let file = file(text);
        let own = |pairs: &[(&str, &str)]| {
            pairs.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned())).collect::<Vec<_>>()
        };
        let flags = own(flags).into_iter().map(|(name, text)| (name, text, "--set".to_owned()));
        Sources { file: Some(file.path().to_owned()), env: own(env), flags: flags.collect() }.load()
    }

    #[test]
    fn every_default_passes_its_own_check() {
        for setting in SETTINGS {
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
        let origin = |name: &str| loaded.values[name].origin.to_string();
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
        assert!(sources("[auth]\nsession_idle = '8d'", &[], &[]).is_err());
        assert!(sources("[server]\nonly = []", &[], &[]).is_err());
        assert!(sources("[server]\nonly = ['room']", &[], &[]).is_ok());
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

    #[test]
    fn a_password_is_not_shown() {
        assert_eq!(shown("redis://me:secret@host/1"), "redis://me:…@host/1");
        assert_eq!(shown("redis://:secret@host"), "redis://:…@host");
        assert_eq!(shown("embedded:./x"), "embedded:./x");
        assert_eq!(shown("redis://host:6379"), "redis://host:6379");
    }
}
