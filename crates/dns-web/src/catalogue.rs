//! Suggested lists, and what each choice costs at most. Lists change every day: before one was fetched
//! nothing but a bound is known, a preview or the first fetch shows the true figures.

/// A suggested list.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SuggestedList {
    /// Id it gets.
    pub(crate) id: &'static str,
    pub(crate) name: &'static str,
    /// One sentence on the names on it.
    pub(crate) text: &'static str,
    pub(crate) url: &'static str,
    /// Choice it belongs to.
    pub(crate) choice: Choice,
    /// Names on it are fewer than this.
    pub(crate) names_below: u64,
    /// Licence or terms of its maker.
    pub(crate) licence: &'static str,
}

/// A choice of lists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Choice {
    /// Blocks little, breaks nothing.
    Light,
    /// The usual choice.
    Balanced,
    /// Blocks a lot, breaks something now and then.
    Strict,
    /// Malware and phishing.
    Malware,
    /// Adult sites.
    Family,
}

impl Choice {
    /// Every choice, with what it means.
    pub(crate) const ALL: [(Choice, &'static str, &'static str); 5] = [
        (Choice::Light, "light", "Blocks what everybody calls an advertisement. Nothing breaks."),
        (Choice::Balanced, "balanced", "Ads and trackers. What most people want."),
        (
            Choice::Strict,
            "strict",
            "Everything that can be blocked. Now and then something has to be allowed again.",
        ),
        (Choice::Malware, "malware", "Malware, phishing and scams. Goes with any of the others."),
        (Choice::Family, "family", "Adult sites. For a group of children."),
    ];

    pub(crate) fn as_str(self) -> &'static str {
        Choice::ALL.iter().find(|(choice, ..)| *choice == self).map_or("", |(_, word, _)| word)
    }
}

impl SuggestedList {
    /// Returns the most memory it takes: ten bytes a name.
    pub(crate) fn memory_below(&self) -> u64 {
        self.names_below * 10
    }

    /// Returns the state of the list in use that has this source, if it is loaded.
    pub(crate) fn find_loaded<'a>(
        &self,
        lists: &[dns::ListSource],
        status: &'a [dns::ListStatus],
    ) -> Option<&'a dns::ListStatus> {
        let used = lists.iter().find(|list| list.url == self.url)?;
        status.iter().find(|one| one.id == used.id && one.is_loaded)
    }
}

/// Returns a suggested list.
pub(crate) fn find(id: &str) -> Option<&'static SuggestedList> {
    SUGGESTED.iter().find(|list| list.id == id)
}

/// The suggested lists.
pub(crate) const SUGGESTED: [SuggestedList; 9] = [
    SuggestedList {
        id: "default",
        name: "Built-in list",
        text: "Advertisers and trackers that everybody meets; part of the program, no network needed.",
        url: "embedded:default",
        choice: Choice::Light,
        names_below: 10_000,
        licence: "part of Tidegate",
    },
    SuggestedList {
        id: "oisd-small",
        name: "OISD small",
        text: "Ads, with an eye on not breaking anything.",
        url: "https://small.oisd.nl/",
        choice: Choice::Light,
        names_below: 100_000,
        licence: "GPL-3.0",
    },
    SuggestedList {
        id: "adguard-dns",
        name: "AdGuard DNS filter",
        text: "Ads and trackers; the default of AdGuard Home.",
        url: "https://adguardteam.github.io/AdGuardSDNSFilter/Filters/filter.txt",
        choice: Choice::Balanced,
        names_below: 500_000,
        licence: "GPL-3.0",
    },
    SuggestedList {
        id: "stevenblack",
        name: "StevenBlack hosts",
        text: "Ads and malware, merged of several sources; the default of Pi-hole.",
        url: "https://raw.githubusercontent.com/StevenBlack/hosts/master/hosts",
        choice: Choice::Balanced,
        names_below: 500_000,
        licence: "MIT",
    },
    SuggestedList {
        id: "oisd-big",
        name: "OISD big",
        text: "Ads, trackers, telemetry, some malware; kept so that shops and banks work.",
        url: "https://big.oisd.nl/",
        choice: Choice::Balanced,
        names_below: 500_000,
        licence: "GPL-3.0",
    },
    SuggestedList {
        id: "hagezi-pro-plus",
        name: "HaGeZi Multi Pro++",
        text: "Ads, trackers, telemetry and affiliates, without mercy.",
        url: "https://raw.githubusercontent.com/hagezi/dns-blocklists/main/adblock/pro.plus.txt",
        choice: Choice::Strict,
        names_below: 500_000,
        licence: "GPL-3.0",
    },
    SuggestedList {
        id: "urlhaus",
        name: "URLhaus",
        text: "Hosts that spread malware at this moment.",
        url: "https://urlhaus.abuse.ch/downloads/hostfile/",
        choice: Choice::Malware,
        names_below: 10_000,
        licence: "CC0",
    },
    SuggestedList {
        id: "hagezi-tif",
        name: "HaGeZi Threat Intelligence",
        text: "Malware, phishing, scams and cryptojacking.",
        url: "https://raw.githubusercontent.com/hagezi/dns-blocklists/main/adblock/tif.medium.txt",
        choice: Choice::Malware,
        names_below: 1_000_000,
        licence: "GPL-3.0",
    },
    SuggestedList {
        id: "oisd-nsfw",
        name: "OISD NSFW",
        text: "Adult sites.",
        url: "https://nsfw.oisd.nl/",
        choice: Choice::Family,
        names_below: 1_000_000,
        licence: "GPL-3.0",
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_choice_has_a_list_and_every_list_can_be_put_in_place() {
        for (choice, word, _) in Choice::ALL {
            assert_eq!(choice.as_str(), word);
            assert!(SUGGESTED.iter().any(|list| list.choice == choice), "{word}");
        }
        let lists = SUGGESTED.iter().map(|list| dns::ListSource {
            id: list.id.to_owned(),
            name: list.name.to_owned(),
            url: list.url.to_owned(),
            action: dns::ListAction::Block,
            enabled: true,
            schedule: None,
        });
        let policy = dns::Policy { lists: lists.collect(), ..dns::Policy::default() };
        policy.check().unwrap();
    }
}
