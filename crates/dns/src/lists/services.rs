//! Services that can be blocked with a click: the domains each is served from.

/// A service.
#[derive(Clone, Copy, Debug)]
pub struct BuiltInService {
    /// Id, as the original's where it has the service.
    pub id: &'static str,
    /// Name on pages.
    pub name: &'static str,
    /// Domains, with all names below them.
    pub domains: &'static [&'static str],
}

const fn service(
    id: &'static str,
    name: &'static str,
    domains: &'static [&'static str],
) -> BuiltInService {
    BuiltInService { id, name, domains }
}

/// The built-in services, by id.
pub const SERVICES: &[BuiltInService] = &[
    service(
        "amazon",
        "Amazon shopping",
        &[
            "amazon.com",
            "amazon.de",
            "amazon.co.uk",
            "amazon.es",
            "amazon.fr",
            "amazon.it",
            "amazon.co.jp",
            "amazon.in",
            "media-amazon.com",
            "ssl-images-amazon.com",
        ],
    ),
    service("bluesky", "Bluesky", &["bsky.app", "bsky.social", "bsky.network"]),
    service(
        "chatgpt",
        "ChatGPT",
        &["chatgpt.com", "chat.openai.com", "oaistatic.com", "oaiusercontent.com"],
    ),
    service(
        "discord",
        "Discord",
        &[
            "discord.com",
            "discord.gg",
            "discordapp.com",
            "discordapp.net",
            "discord.media",
            "discord.new",
            "discord.gift",
            "discordstatus.com",
            "dis.gd",
        ],
    ),
    service(
        "disneyplus",
        "Disney+",
        &[
            "disneyplus.com",
            "disney-plus.net",
            "dssott.com",
            "bamgrid.com",
            "disneystreaming.com",
            "disney-portal.my.onetrust.com",
        ],
    ),
    service(
        "ebay",
        "eBay",
        &["ebay.com", "ebay.de", "ebay.co.uk", "ebaystatic.com", "ebayimg.com", "ebayrtm.com"],
    ),
    service(
        "facebook",
        "Facebook",
        &[
            "facebook.com",
            "facebook.net",
            "fb.com",
            "fb.me",
            "fbcdn.net",
            "fbsbx.com",
            "fb.watch",
            "messenger.com",
            "m.me",
            "facebookcorewwwi.onion",
            "accountkit.com",
            "atdmt.com",
            "fb.gg",
            "facebook-hardware.com",
        ],
    ),
    service(
        "fortnite",
        "Fortnite",
        &[
            "fortnite.com",
            "epicgames.com",
            "epicgames.dev",
            "unrealengine.com",
            "epicgamescdn.com",
            "easyanticheat.net",
        ],
    ),
    service(
        "hulu",
        "Hulu",
        &["hulu.com", "huluim.com", "hulustream.com", "huluad.com", "hulu.hb.omtrdc.net"],
    ),
    service("imgur", "Imgur", &["imgur.com", "imgur.io"]),
    service(
        "instagram",
        "Instagram",
        &["instagram.com", "cdninstagram.com", "ig.me", "instagr.am", "threads.net", "threads.com"],
    ),
    service(
        "leagueoflegends",
        "League of Legends",
        &[
            "leagueoflegends.com",
            "riotgames.com",
            "riotcdn.net",
            "pvp.net",
            "lolesports.com",
            "lolstatic.com",
        ],
    ),
    service("linkedin", "LinkedIn", &["linkedin.com", "licdn.com", "lnkd.in", "bizographics.com"]),
    service(
        "mastodon",
        "Mastodon (large servers)",
        &["mastodon.social", "mastodon.online", "mstdn.social", "mas.to", "mastodon.world"],
    ),
    service(
        "minecraft",
        "Minecraft",
        &["minecraft.net", "mojang.com", "minecraftservices.com", "minecraft-services.net"],
    ),
    service(
        "netflix",
        "Netflix",
        &[
            "netflix.com",
            "netflix.net",
            "nflxext.com",
            "nflximg.com",
            "nflximg.net",
            "nflxso.net",
            "nflxvideo.net",
            "nflxsearch.net",
            "fast.com",
        ],
    ),
    service("onlyfans", "OnlyFans", &["onlyfans.com"]),
    service(
        "pinterest",
        "Pinterest",
        &[
            "pinterest.com",
            "pinimg.com",
            "pin.it",
            "pinterest.de",
            "pinterest.co.uk",
            "pinterest.es",
            "pinterest.fr",
            "pinterest.at",
            "pinterest.ch",
        ],
    ),
    service(
        "playstation",
        "PlayStation Network",
        &["playstation.com", "playstation.net", "sonyentertainmentnetwork.com", "sie-rd.com"],
    ),
    service(
        "primevideo",
        "Prime Video",
        &["primevideo.com", "amazonvideo.com", "aiv-cdn.net", "aiv-delivery.net", "pv-cdn.net"],
    ),
    service(
        "reddit",
        "Reddit",
        &[
            "reddit.com",
            "redd.it",
            "redditmedia.com",
            "redditstatic.com",
            "redditblog.com",
            "redditinc.com",
            "reddituploads.com",
            "redditspace.com",
        ],
    ),
    service(
        "roblox",
        "Roblox",
        &[
            "roblox.com",
            "rbxcdn.com",
            "robloxlabs.com",
            "rbx.com",
            "roblox.cn",
            "robloxcdn.com",
            "rblx.com",
        ],
    ),
    service("shein", "Shein", &["shein.com", "shein.co.uk", "ltwebstatic.com", "sheingsp.com"]),
    service("signal", "Signal", &["signal.org", "whispersystems.org", "signal.art", "signal.me"]),
    service("skype", "Skype", &["skype.com", "skype.net", "skypeassets.com", "lync.com"]),
    service(
        "snapchat",
        "Snapchat",
        &[
            "snapchat.com",
            "snap.com",
            "sc-cdn.net",
            "sc-gw.com",
            "sc-jpl.com",
            "sc-prod.net",
            "snapads.com",
            "snapkit.com",
            "snap-dev.net",
            "bitmoji.com",
            "bitstrips.com",
            "addlive.io",
        ],
    ),
    service("soundcloud", "SoundCloud", &["soundcloud.com", "sndcdn.com", "soundcloud.cloud"]),
    service(
        "spotify",
        "Spotify",
        &[
            "spotify.com",
            "spotifycdn.com",
            "scdn.co",
            "spotifycdn.net",
            "spoti.fi",
            "spotify.link",
            "pscdn.co",
            "audio-ak-spotify-com.akamaized.net",
        ],
    ),
    service(
        "steam",
        "Steam",
        &[
            "steampowered.com",
            "steamcommunity.com",
            "steamcontent.com",
            "steamstatic.com",
            "steamusercontent.com",
            "steamserver.net",
            "steamgames.com",
            "steam-chat.com",
            "valvesoftware.com",
            "s.team",
        ],
    ),
    service(
        "telegram",
        "Telegram",
        &[
            "telegram.org",
            "telegram.me",
            "t.me",
            "telegram.dog",
            "telesco.pe",
            "tdesktop.com",
            "telegra.ph",
            "graph.org",
            "cdn-telegram.org",
            "telegram-cdn.org",
            "comments.app",
            "contest.com",
            "fragment.com",
        ],
    ),
    service("temu", "Temu", &["temu.com", "kwcdn.com", "temu.to"]),
    service(
        "tiktok",
        "TikTok",
        &[
            "tiktok.com",
            "tiktokv.com",
            "tiktokv.us",
            "tiktokcdn.com",
            "tiktokcdn-us.com",
            "tiktokcdn-eu.com",
            "tiktokw.us",
            "muscdn.com",
            "musical.ly",
            "byteoversea.com",
            "ibytedtos.com",
            "ibyteimg.com",
            "ttwstatic.com",
            "ttlivecdn.com",
            "tiktokd.net",
            "tiktokd.org",
            "byteglb.com",
            "tik-tokapi.com",
            "bytefcdn-oversea.com",
            "bytegecko.com",
            "ttoversea.net",
            "p16-tiktokcdn-com.akamaized.net",
        ],
    ),
    service(
        "tinder",
        "Tinder",
        &["tinder.com", "gotinder.com", "tindersparks.com", "tinderapp.com"],
    ),
    service("tumblr", "Tumblr", &["tumblr.com", "tmblr.co", "srvcs.tumblr.com"]),
    service(
        "twitch",
        "Twitch",
        &[
            "twitch.tv",
            "ttvnw.net",
            "jtvnw.net",
            "twitchcdn.net",
            "twitchsvc.net",
            "ext-twitch.tv",
            "live-video.net",
            "twitch.com",
            "twitchapp.net",
        ],
    ),
    service(
        "twitter",
        "X (Twitter)",
        &[
            "twitter.com",
            "x.com",
            "t.co",
            "twimg.com",
            "twttr.com",
            "tweetdeck.com",
            "twitpic.com",
            "pscp.tv",
            "periscope.tv",
            "ads-twitter.com",
            "twitter.map.fastly.net",
            "twitterinc.com",
            "grok.com",
        ],
    ),
    service("valorant", "Valorant", &["playvalorant.com", "valorantesports.com"]),
    service("viber", "Viber", &["viber.com", "viber.io"]),
    service("vimeo", "Vimeo", &["vimeo.com", "vimeocdn.com", "vhx.tv"]),
    service(
        "vk",
        "VK",
        &[
            "vk.com",
            "vk.ru",
            "vkontakte.ru",
            "userapi.com",
            "vk-cdn.net",
            "vk.me",
            "vkuser.net",
            "vkuserlive.net",
            "vk.cc",
        ],
    ),
    service(
        "wechat",
        "WeChat",
        &[
            "wechat.com",
            "weixin.qq.com",
            "wx.qq.com",
            "weixinbridge.com",
            "wechatos.net",
            "servicewechat.com",
        ],
    ),
    service(
        "whatsapp",
        "WhatsApp",
        &[
            "whatsapp.com",
            "whatsapp.net",
            "wa.me",
            "whatsapp.org",
            "whatsapp.info",
            "whatsappbrand.com",
        ],
    ),
    service(
        "xbox",
        "Xbox",
        &["xbox.com", "xboxlive.com", "xboxservices.com", "xboxab.com", "gamepass.com"],
    ),
    service(
        "youtube",
        "YouTube",
        &[
            "youtube.com",
            "youtu.be",
            "ytimg.com",
            "googlevideo.com",
            "youtube-nocookie.com",
            "youtubei.googleapis.com",
            "youtube.googleapis.com",
            "youtubekids.com",
            "youtubeeducation.com",
            "yt.be",
            "wide-youtube.l.google.com",
            "youtube-ui.l.google.com",
            "ytimg.l.google.com",
            "youtubegaming.com",
        ],
    ),
    service("zoom", "Zoom", &["zoom.us", "zoom.com", "zoomgov.com", "zoomcdn.com"]),
];

/// Returns a service by id.
pub fn find(id: &str) -> Option<&'static BuiltInService> {
    SERVICES.iter().find(|service| service.id == id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn services_are_in_order_and_their_domains_are_names() {
        assert!(SERVICES.windows(2).all(|pair| pair[0].id < pair[1].id));
        // Those of the original.
        for id in [
            "tiktok",
            "roblox",
            "youtube",
            "instagram",
            "netflix",
            "facebook",
            "snapchat",
            "twitter",
            "discord",
            "twitch",
            "reddit",
            "pinterest",
            "whatsapp",
            "telegram",
            "linkedin",
            "spotify",
            "fortnite",
        ] {
            assert!(find(id).is_some(), "{id}");
        }
        for service in SERVICES {
            for domain in service.domains {
                let name: crate::DomainName = domain.parse().unwrap();
                assert_eq!(name.to_string(), *domain);
            }
        }
    }
}
