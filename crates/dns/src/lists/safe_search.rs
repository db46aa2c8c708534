//! Safe search: names of search engines, and the names whose addresses they get instead.

use crate::policy::SearchEngine;

/// Top-level domains under which Google searches. Its own list is longer by those of territories that
/// redirect to one of these.
const GOOGLE_ENDS: &[&str] = &[
    "com", "ad", "ae", "com.af", "com.ag", "al", "am", "co.ao", "com.ar", "as", "at", "com.au",
    "az", "ba", "com.bd", "be", "bf", "bg", "com.bh", "bi", "bj", "com.bn", "com.bo", "com.br",
    "bs", "bt", "co.bw", "by", "com.bz", "ca", "cd", "cf", "cg", "ch", "ci", "co.ck", "cl", "cm",
    "cn", "com.co", "co.cr", "com.cu", "cv", "com.cy", "cz", "de", "dj", "dk", "dm", "com.do",
    "dz", "com.ec", "ee", "com.eg", "es", "com.et", "fi", "com.fj", "fm", "fr", "ga", "ge", "gg",
    "com.gh", "com.gi", "gl", "gm", "gr", "com.gt", "gy", "com.hk", "hn", "hr", "ht", "hu",
    "co.id", "ie", "co.il", "im", "co.in", "iq", "is", "it", "je", "com.jm", "jo", "co.jp",
    "co.ke", "com.kh", "ki", "kg", "co.kr", "com.kw", "kz", "la", "com.lb", "li", "lk", "co.ls",
    "lt", "lu", "lv", "com.ly", "co.ma", "md", "me", "mg", "mk", "ml", "com.mm", "mn", "com.mt",
    "mu", "mv", "mw", "com.mx", "com.my", "co.mz", "com.na", "com.ng", "com.ni", "ne", "nl", "no",
    "com.np", "nr", "nu", "co.nz", "com.om", "com.pa", "com.pe", "com.pg", "com.ph", "com.pk",
    "pl", "pn", "com.pr", "ps", "pt", "com.py", "com.qa", "ro", "ru", "rw", "com.sa", "com.sb",
    "sc", "se", "com.sg", "sh", "si", "sk", "com.sl", "sn", "so", "sm", "sr", "st", "com.sv", "td",
    "tg", "co.th", "com.tj", "tl", "tm", "tn", "to", "com.tr", "tt", "com.tw", "co.tz", "com.ua",
    "co.ug", "co.uk", "com.uy", "co.uz", "com.vc", "co.ve", "co.vi", "com.vn", "vu", "ws", "rs",
    "co.za", "co.zm", "co.zw", "cat",
];

/// Names of YouTube that honour a restriction.
const YOUTUBE: &[&str] = &[
    "www.youtube.com",
    "youtube.com",
    "m.youtube.com",
    "youtubei.googleapis.com",
    "youtube.googleapis.com",
    "www.youtube-nocookie.com",
];

const BING: &[&str] = &["www.bing.com", "bing.com", "edgeservices.bing.com"];

const DUCKDUCKGO: &[&str] = &["duckduckgo.com", "www.duckduckgo.com", "start.duckduckgo.com"];

const YANDEX: &[&str] = &[
    "yandex.com",
    "www.yandex.com",
    "yandex.ru",
    "www.yandex.ru",
    "yandex.by",
    "www.yandex.by",
    "yandex.kz",
    "www.yandex.kz",
    "yandex.uz",
    "www.yandex.uz",
    "yandex.com.tr",
    "www.yandex.com.tr",
    "ya.ru",
    "www.ya.ru",
];

const ECOSIA: &[&str] = &["www.ecosia.org", "ecosia.org"];

/// Returns the name whose addresses a name of an engine gets; none if the name is not one of them.
pub fn find(engine: SearchEngine, name: &str) -> Option<&'static str> {
    let among = |names: &[&str]| names.contains(&name);
    match engine {
        SearchEngine::Google => is_google(name).then_some("forcesafesearch.google.com"),
        SearchEngine::Bing => among(BING).then_some("strict.bing.com"),
        SearchEngine::Youtube => among(YOUTUBE).then_some("restrict.youtube.com"),
        SearchEngine::YoutubeModerate => among(YOUTUBE).then_some("restrictmoderate.youtube.com"),
        SearchEngine::Duckduckgo => among(DUCKDUCKGO).then_some("safe.duckduckgo.com"),
        SearchEngine::Yandex => among(YANDEX).then_some("familysearch.yandex.ru"),
        SearchEngine::Ecosia => among(ECOSIA).then_some("strict-safe-search.ecosia.org"),
    }
}

fn is_google(name: &str) -> bool {
    let name = name.strip_prefix("www.").unwrap_or(name);
    name.strip_prefix("google.").is_some_and(|end| GOOGLE_ENDS.contains(&end))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn engines_are_known_by_their_names() {
        for (engine, name, target) in [
            (SearchEngine::Google, "www.google.de", Some("forcesafesearch.google.com")),
            (SearchEngine::Google, "google.co.uk", Some("forcesafesearch.google.com")),
            (SearchEngine::Google, "mail.google.com", None),
            (SearchEngine::Google, "google.example", None),
            (SearchEngine::Bing, "www.bing.com", Some("strict.bing.com")),
            (SearchEngine::Youtube, "m.youtube.com", Some("restrict.youtube.com")),
            (SearchEngine::Duckduckgo, "duckduckgo.com", Some("safe.duckduckgo.com")),
            (SearchEngine::Yandex, "ya.ru", Some("familysearch.yandex.ru")),
            (SearchEngine::Ecosia, "www.ecosia.org", Some("strict-safe-search.ecosia.org")),
            (SearchEngine::Ecosia, "www.bing.com", None),
        ] {
            assert_eq!(find(engine, name), target, "{name}");
        }
    }
}
