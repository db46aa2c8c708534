//! Texts of the waiting page in each language, and the format of numbers and durations.
//!
//! One table per language, so that none can lack a text. `{n}` and the like stand for what is
//! filled in.

use axum::http::{HeaderMap, header};
use room::Estimate;
use serde_json::{Map, Value};

/// A language of the waiting page.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Translation {
    /// Its tag, for `lang` attributes.
    pub(crate) lang: &'static str,
    /// Its own name.
    pub(crate) own_name: &'static str,
    separator: &'static str,
    /// Numbers below this are written without a separator.
    grouped_from: u64,

    pub(crate) waiting: &'static str,
    pub(crate) waiting_lead: &'static str,
    pub(crate) your_position: &'static str,
    ahead_none: &'static str,
    ahead_one: &'static str,
    ahead_many: &'static str,
    behind_none: &'static str,
    behind_one: &'static str,
    behind_many: &'static str,
    pub(crate) wait: &'static str,
    pub(crate) wait_unknown: &'static str,
    pub(crate) wait_paused: &'static str,
    under_a_minute: &'static str,
    about_a_minute: &'static str,
    about_minutes: &'static str,
    minutes_range: &'static str,
    over_an_hour: &'static str,
    over_hours: &'static str,
    pub(crate) progress: &'static str,
    pub(crate) message: &'static str,

    pub(crate) paused: &'static str,
    pub(crate) paused_lead: &'static str,
    pub(crate) closed: &'static str,
    pub(crate) closed_lead: &'static str,
    pub(crate) closed_kept: &'static str,

    pub(crate) your_turn: &'static str,
    pub(crate) your_turn_lead: &'static str,
    pub(crate) your_turn_until: &'static str,
    pub(crate) enter: &'static str,
    pub(crate) entering: &'static str,
    pub(crate) active: &'static str,
    pub(crate) active_lead: &'static str,
    pub(crate) go_on: &'static str,

    pub(crate) missed: &'static str,
    pub(crate) missed_lead: &'static str,
    pub(crate) lost: &'static str,
    pub(crate) lost_lead: &'static str,
    pub(crate) left: &'static str,
    pub(crate) left_lead: &'static str,
    pub(crate) ended: &'static str,
    pub(crate) ended_lead: &'static str,
    pub(crate) revoked: &'static str,
    pub(crate) revoked_lead: &'static str,
    pub(crate) reset: &'static str,
    pub(crate) reset_lead: &'static str,
    pub(crate) rejoin: &'static str,

    pub(crate) full: &'static str,
    pub(crate) full_lead: &'static str,
    pub(crate) unknown: &'static str,
    pub(crate) unknown_lead: &'static str,
    pub(crate) no_cookies: &'static str,
    pub(crate) no_cookies_lead: &'static str,
    pub(crate) try_again: &'static str,
    pub(crate) without_cookies: &'static str,
    pub(crate) bad_invite: &'static str,
    pub(crate) bad_invite_lead: &'static str,
    pub(crate) join: &'static str,
    pub(crate) not_queued: &'static str,
    pub(crate) not_queued_lead: &'static str,
    pub(crate) busy: &'static str,
    pub(crate) busy_lead: &'static str,
    pub(crate) away: &'static str,
    pub(crate) away_lead: &'static str,
    pub(crate) address_full: &'static str,
    pub(crate) address_full_lead: &'static str,

    pub(crate) keep_refresh: &'static str,
    pub(crate) keep_close: &'static str,
    pub(crate) keep_auto: &'static str,
    pub(crate) leave: &'static str,
    pub(crate) leave_sure: &'static str,
    pub(crate) stay: &'static str,
    pub(crate) updated: &'static str,
    pub(crate) offline: &'static str,
    pub(crate) language: &'static str,
    pub(crate) skip: &'static str,
}

static EN: Translation = Translation {
    lang: "en",
    own_name: "English",
    separator: ",",
    grouped_from: 1_000,
    waiting: "You are waiting in the queue",
    waiting_lead: "When it is your turn, this page will take you to the site automatically.",
    your_position: "Your position",
    ahead_none: "You are next",
    ahead_one: "1 person ahead of you",
    ahead_many: "{n} people ahead of you",
    behind_none: "Nobody behind you",
    behind_one: "1 person behind you",
    behind_many: "{n} people behind you",
    wait: "Estimated wait",
    wait_unknown: "Not known yet",
    wait_paused: "Not known while the queue is paused",
    under_a_minute: "Less than a minute",
    about_a_minute: "About a minute",
    about_minutes: "About {n} minutes",
    minutes_range: "{low} to {high} minutes",
    over_an_hour: "More than an hour",
    over_hours: "More than {n} hours",
    progress: "Progress of your wait",
    message: "Message from the organiser",
    paused: "The queue is paused",
    paused_lead: "Nobody is being admitted at the moment. You keep your position and do not have to do anything.",
    closed: "Closed for maintenance",
    closed_lead: "The queue is not accepting new visitors at the moment. This page will try again automatically.",
    closed_kept: "Nobody is being admitted at the moment. You keep your position until the queue reopens.",
    your_turn: "It is your turn",
    your_turn_lead: "You have been admitted. A spot on the site is reserved for you.",
    your_turn_until: "Enter within {time}.",
    enter: "Enter now",
    entering: "Taking you to the site…",
    active: "Your session is active",
    active_lead: "You are already on the site and can simply continue.",
    go_on: "Go to the site",
    missed: "You missed your turn",
    missed_lead: "It was your turn twice, but you did not enter. Your position has expired.",
    lost: "Your position has expired",
    lost_lead: "Your browser has not been in touch for a long time, so your position was released.",
    left: "You left the queue",
    left_lead: "Your position was released. You can join again at the end of the queue.",
    ended: "Your session has ended",
    ended_lead: "To return to the site, join the queue again.",
    revoked: "Your position was revoked",
    revoked_lead: "The organiser has removed you from this queue.",
    reset: "The queue was reset",
    reset_lead: "The organiser has emptied the queue. Everyone has to join again.",
    rejoin: "Join the queue again",
    full: "The queue is full",
    full_lead: "Nobody else can join at the moment. This page will try again automatically; you can leave it open.",
    unknown: "This queue does not exist",
    unknown_lead: "The address may be wrong, or the event may be over.",
    no_cookies: "Please allow cookies",
    no_cookies_lead: "Your browser did not keep our cookie. Without it we cannot keep your position when the page reloads. It is used for nothing else.",
    try_again: "Try again",
    without_cookies: "Wait without cookies",
    bad_invite: "This invite is not valid",
    bad_invite_lead: "It may have expired or already been used. You can join the queue without it.",
    join: "Join the queue",
    not_queued: "You are not in the queue yet",
    not_queued_lead: "Open this page in your browser to join.",
    busy: "One moment, please",
    busy_lead: "A lot of people are arriving right now. This page will try again automatically; if you have a position, you keep it.",
    away: "The queue is temporarily unavailable",
    away_lead: "This is our fault, not yours. This page will try again automatically; if you have a position, you keep it.",
    address_full: "Many people from your network are already on the site",
    address_full_lead: "You can enter as soon as one of them leaves. This page will try again automatically.",
    keep_refresh: "You can refresh this page. You keep your position.",
    keep_close: "If you close it, we will hold your position for {n} minutes.",
    keep_auto: "This page updates automatically.",
    leave: "Leave the queue",
    leave_sure: "Leave the queue and give up your position?",
    stay: "Stay in the queue",
    updated: "Updated",
    offline: "No connection at the moment. Your position is safe; we will keep trying.",
    language: "Language",
    skip: "Skip to content",
};

static DE: Translation = Translation {
    lang: "de",
    own_name: "Deutsch",
    separator: ".",
    grouped_from: 1_000,
    waiting: "Sie warten in der Warteschlange",
    waiting_lead: "Sobald Sie an der Reihe sind, leitet diese Seite Sie automatisch weiter.",
    your_position: "Ihre Position",
    ahead_none: "Sie sind als Nächstes dran",
    ahead_one: "1 Person vor Ihnen",
    ahead_many: "{n} Personen vor Ihnen",
    behind_none: "Niemand hinter Ihnen",
    behind_one: "1 Person hinter Ihnen",
    behind_many: "{n} Personen hinter Ihnen",
    wait: "Voraussichtliche Wartezeit",
    wait_unknown: "Noch nicht bekannt",
    wait_paused: "Während der Pause nicht bekannt",
    under_a_minute: "Weniger als eine Minute",
    about_a_minute: "Etwa eine Minute",
    about_minutes: "Etwa {n} Minuten",
    minutes_range: "{low} bis {high} Minuten",
    over_an_hour: "Mehr als eine Stunde",
    over_hours: "Mehr als {n} Stunden",
    progress: "Fortschritt Ihrer Wartezeit",
    message: "Nachricht des Veranstalters",
    paused: "Die Warteschlange pausiert",
    paused_lead: "Im Moment wird niemand eingelassen. Sie behalten Ihren Platz und müssen nichts tun.",
    closed: "Wegen Wartung geschlossen",
    closed_lead: "Die Warteschlange nimmt derzeit niemanden auf. Diese Seite versucht es automatisch erneut.",
    closed_kept: "Im Moment wird niemand eingelassen. Sie behalten Ihren Platz, bis es weitergeht.",
    your_turn: "Sie sind an der Reihe",
    your_turn_lead: "Sie können jetzt auf die Website. Ihr Platz ist reserviert.",
    your_turn_until: "Sie haben dafür {time} Zeit.",
    enter: "Jetzt zur Website",
    entering: "Sie werden weitergeleitet …",
    active: "Ihre Sitzung ist aktiv",
    active_lead: "Sie sind bereits auf der Website und können einfach weitermachen.",
    go_on: "Zur Website",
    missed: "Sie haben Ihren Einlass verpasst",
    missed_lead: "Sie waren zweimal an der Reihe, haben die Website aber nicht betreten. Ihr Platz ist verfallen.",
    lost: "Ihr Platz ist verfallen",
    lost_lead: "Ihr Browser hat sich lange nicht gemeldet, deshalb wurde Ihr Platz freigegeben.",
    left: "Sie haben die Warteschlange verlassen",
    left_lead: "Ihr Platz wurde freigegeben. Sie können sich hinten wieder anstellen.",
    ended: "Ihre Sitzung ist beendet",
    ended_lead: "Um zur Website zurückzukehren, stellen Sie sich bitte wieder an.",
    revoked: "Ihr Platz wurde entzogen",
    revoked_lead: "Der Veranstalter hat Sie aus dieser Warteschlange entfernt.",
    reset: "Die Warteschlange wurde zurückgesetzt",
    reset_lead: "Der Veranstalter hat die Warteschlange geleert. Bitte stellen Sie sich neu an.",
    rejoin: "Wieder anstellen",
    full: "Die Warteschlange ist voll",
    full_lead: "Im Moment kann sich niemand mehr anstellen. Diese Seite versucht es automatisch erneut; Sie können sie geöffnet lassen.",
    unknown: "Diese Warteschlange gibt es nicht",
    unknown_lead: "Vielleicht ist die Adresse falsch oder die Veranstaltung schon vorbei.",
    no_cookies: "Bitte erlauben Sie Cookies",
    no_cookies_lead: "Ihr Browser hat unser Cookie nicht gespeichert. Ohne dieses Cookie können wir Ihren Platz beim Neuladen nicht halten. Es dient nur diesem Zweck.",
    try_again: "Erneut versuchen",
    without_cookies: "Ohne Cookies warten",
    bad_invite: "Diese Einladung ist ungültig",
    bad_invite_lead: "Sie ist möglicherweise abgelaufen oder wurde bereits verwendet. Sie können sich auch ohne sie anstellen.",
    join: "Anstellen",
    not_queued: "Sie sind noch nicht in der Warteschlange",
    not_queued_lead: "Öffnen Sie diese Seite in Ihrem Browser, um sich anzustellen.",
    busy: "Einen Moment bitte",
    busy_lead: "Der Andrang ist gerade sehr groß. Diese Seite versucht es automatisch erneut; wenn Sie einen Platz haben, behalten Sie ihn.",
    away: "Die Warteschlange ist vorübergehend nicht erreichbar",
    away_lead: "Das liegt an uns, nicht an Ihnen. Diese Seite versucht es automatisch erneut; wenn Sie einen Platz haben, behalten Sie ihn.",
    address_full: "Aus Ihrem Netzwerk sind schon viele Personen auf der Website",
    address_full_lead: "Sie können hinein, sobald eine davon die Website verlässt. Diese Seite versucht es automatisch erneut.",
    keep_refresh: "Sie können die Seite neu laden. Sie behalten Ihren Platz.",
    keep_close: "Wenn Sie sie schließen, halten wir Ihren Platz {n} Minuten lang frei.",
    keep_auto: "Diese Seite aktualisiert sich automatisch.",
    leave: "Warteschlange verlassen",
    leave_sure: "Warteschlange verlassen und den Platz aufgeben?",
    stay: "In der Warteschlange bleiben",
    updated: "Stand",
    offline: "Derzeit keine Verbindung. Ihr Platz ist sicher; wir versuchen es weiter.",
    language: "Sprache",
    skip: "Zum Inhalt springen",
};

static ES: Translation = Translation {
    lang: "es",
    own_name: "Español",
    separator: ".",
    grouped_from: 10_000,
    waiting: "Estás esperando en la cola",
    waiting_lead: "Cuando llegue tu turno, esta página te llevará al sitio automáticamente.",
    your_position: "Tu posición",
    ahead_none: "Eres la siguiente persona",
    ahead_one: "1 persona delante de ti",
    ahead_many: "{n} personas delante de ti",
    behind_none: "Nadie detrás de ti",
    behind_one: "1 persona detrás de ti",
    behind_many: "{n} personas detrás de ti",
    wait: "Espera estimada",
    wait_unknown: "Aún no se sabe",
    wait_paused: "Sin estimación durante la pausa",
    under_a_minute: "Menos de un minuto",
    about_a_minute: "Alrededor de un minuto",
    about_minutes: "Unos {n} minutos",
    minutes_range: "De {low} a {high} minutos",
    over_an_hour: "Más de una hora",
    over_hours: "Más de {n} horas",
    progress: "Progreso de tu espera",
    message: "Mensaje de la organización",
    paused: "La cola está en pausa",
    paused_lead: "Ahora mismo no entra nadie. Conservas tu lugar y no tienes que hacer nada.",
    closed: "Cerrado por mantenimiento",
    closed_lead: "La cola no admite a nadie por el momento. Esta página volverá a intentarlo automáticamente.",
    closed_kept: "Ahora mismo no entra nadie. Conservas tu lugar hasta que la cola se reabra.",
    your_turn: "Es tu turno",
    your_turn_lead: "Ya puedes entrar. Tienes un lugar reservado en el sitio.",
    your_turn_until: "Tienes {time} para entrar.",
    enter: "Entrar ahora",
    entering: "Te llevamos al sitio…",
    active: "Tu sesión está activa",
    active_lead: "Ya estás en el sitio y puedes continuar.",
    go_on: "Ir al sitio",
    missed: "Se te ha pasado el turno",
    missed_lead: "Te ha llegado el turno dos veces, pero no has entrado. Tu lugar ha caducado.",
    lost: "Tu lugar ha caducado",
    lost_lead: "Hace mucho que no sabemos nada de tu navegador, así que hemos liberado tu lugar.",
    left: "Has salido de la cola",
    left_lead: "Hemos liberado tu lugar. Puedes volver a ponerte al final de la cola.",
    ended: "Tu sesión ha terminado",
    ended_lead: "Para volver al sitio, ponte otra vez en la cola.",
    revoked: "Se ha anulado tu lugar",
    revoked_lead: "La organización te ha retirado de esta cola.",
    reset: "La cola se ha reiniciado",
    reset_lead: "La organización ha vaciado la cola. Hay que volver a ponerse en la cola.",
    rejoin: "Volver a la cola",
    full: "La cola está llena",
    full_lead: "Por ahora no puede ponerse nadie más en la cola. Esta página volverá a intentarlo automáticamente; puedes dejarla abierta.",
    unknown: "Esta cola no existe",
    unknown_lead: "Puede que la dirección sea incorrecta o que el evento haya terminado.",
    no_cookies: "Permite las cookies, por favor",
    no_cookies_lead: "Tu navegador no ha guardado nuestra cookie. Sin ella no podemos conservar tu lugar al recargar. No la usamos para nada más.",
    try_again: "Intentar otra vez",
    without_cookies: "Esperar sin cookies",
    bad_invite: "Esta invitación no es válida",
    bad_invite_lead: "Puede que haya caducado o que ya se haya usado. Puedes ponerte en la cola sin ella.",
    join: "Ponerse en la cola",
    not_queued: "Todavía no estás en la cola",
    not_queued_lead: "Abre esta página en tu navegador para ponerte en la cola.",
    busy: "Un momento, por favor",
    busy_lead: "Ahora mismo está llegando muchísima gente. Esta página volverá a intentarlo automáticamente; si tienes un lugar, lo conservas.",
    away: "La cola no está disponible por el momento",
    away_lead: "El fallo es nuestro, no tuyo. Esta página volverá a intentarlo automáticamente; si tienes un lugar, lo conservas.",
    address_full: "Ya hay muchas personas de tu red en el sitio",
    address_full_lead: "Podrás entrar en cuanto salga una de ellas. Esta página volverá a intentarlo automáticamente.",
    keep_refresh: "Puedes recargar la página. Conservas tu lugar.",
    keep_close: "Si la cierras, guardamos tu lugar {n} minutos.",
    keep_auto: "Esta página se actualiza automáticamente.",
    leave: "Salir de la cola",
    leave_sure: "¿Salir de la cola y renunciar a tu lugar?",
    stay: "Seguir en la cola",
    updated: "Actualizado",
    offline: "Sin conexión en este momento. Tu lugar está a salvo; seguimos intentándolo.",
    language: "Idioma",
    skip: "Ir al contenido",
};

/// All languages; the first is the fallback.
pub(crate) static ALL: [&Translation; 3] = [&EN, &DE, &ES];

/// Picks the language of a request: the one asked for, else the best of `Accept-Language`.
pub(crate) fn pick(asked: Option<&str>, headers: &HeaderMap) -> &'static Translation {
    let of = |tag: &str| {
        let primary = tag.split('-').next().unwrap_or_default();
        ALL.into_iter().find(|words| words.lang.eq_ignore_ascii_case(primary))
    };
    if let Some(words) = asked.and_then(of) {
        return words;
    }
    let accepted = headers.get(header::ACCEPT_LANGUAGE).and_then(|value| value.to_str().ok());
    let mut best: (f32, &'static Translation) = (0.0, &EN);
    for choice in accepted.unwrap_or_default().split(',').take(32) {
        let mut parts = choice.split(';');
        let tag = parts.next().unwrap_or_default().trim();
        let quality = parts
            .find_map(|part| part.trim().strip_prefix("q="))
            .map_or(1.0, |text| text.trim().parse::<f32>().unwrap_or(0.0));
        if let Some(words) = of(tag)
            && quality > best.0
        {
            best = (quality, words);
        }
    }
    best.1
}

impl Translation {
    /// Formats a number with the language's separator.
    pub(crate) fn number(&self, n: u64) -> String {
        let digits = n.to_string();
        if n < self.grouped_from {
            return digits;
        }
        let mut out = String::with_capacity(digits.len() + digits.len() / 3);
        for (index, digit) in digits.chars().enumerate() {
            if index > 0 && (digits.len() - index).is_multiple_of(3) {
                out.push_str(self.separator);
            }
            out.push(digit);
        }
        out
    }

    fn count(&self, n: u64, [none, one, many]: [&str; 3]) -> String {
        match n {
            0 => none.to_owned(),
            1 => one.to_owned(),
            n => many.replace("{n}", &self.number(n)),
        }
    }

    /// Formats the number of visitors ahead.
    pub(crate) fn ahead(&self, n: u64) -> String {
        self.count(n, [self.ahead_none, self.ahead_one, self.ahead_many])
    }

    /// Formats the number of visitors behind.
    pub(crate) fn behind(&self, n: u64) -> String {
        self.count(n, [self.behind_none, self.behind_one, self.behind_many])
    }

    /// Formats the estimated wait: a range where low and high are far apart.
    pub(crate) fn wait_text(&self, wait: &Estimate) -> String {
        let (low, likely, high) = (wait.low.as_secs(), wait.likely.as_secs(), wait.high.as_secs());
        if high < 60 {
            return self.under_a_minute.to_owned();
        }
        if likely > 2 * 3_600 {
            return self.over_hours.replace("{n}", &self.number(likely / 3_600));
        }
        if likely > 3_600 {
            return self.over_an_hour.to_owned();
        }
        let (from, to) = (minutes(low), minutes(high));
        if from != to && high * 2 > low * 3 {
            let text = self.minutes_range.replace("{low}", &from.to_string());
            return text.replace("{high}", &to.to_string());
        }
        match minutes(likely) {
            1 => self.about_a_minute.to_owned(),
            n => self.about_minutes.replace("{n}", &n.to_string()),
        }
    }

    /// Returns the operator's message in this language, else in English, else in any, with its language
    /// tag.
    pub(crate) fn message_of<'m>(
        &self,
        message: &'m Map<String, Value>,
    ) -> Option<(&'m str, &'m str)> {
        let of = |tag: &str| {
            message.iter().find(|(key, _)| {
                key.split('-').next().is_some_and(|primary| primary.eq_ignore_ascii_case(tag))
            })
        };
        let (tag, text) = of(self.lang).or_else(|| of("en")).or_else(|| message.iter().next())?;
        Some((tag.as_str(), text.as_str().filter(|text| !text.trim().is_empty())?))
    }
}

/// Rounds seconds up to whole minutes, from one; in steps of five above ten.
fn minutes(seconds: u64) -> u64 {
    match seconds.div_ceil(60) {
        0 => 1,
        n if n <= 10 => n,
        n => n.div_ceil(5) * 5,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use axum::http::HeaderValue;

    use super::*;

    #[test]
    fn the_language_is_the_one_asked_for_or_the_best_accepted() {
        let check = |asked: Option<&str>, accept: &str, expect: &str| {
            let headers =
                [(header::ACCEPT_LANGUAGE, HeaderValue::from_str(accept).unwrap())].into_iter();
            assert_eq!(pick(asked, &headers.collect()).lang, expect, "{asked:?} {accept}");
        };
        check(None, "", "en");
        check(None, "de-AT,de;q=0.9,en;q=0.8", "de");
        check(None, "fr;q=1.0, es-419;q=0.4, en;q=0.3", "es");
        check(None, "en;q=0.1, DE;q=0.2", "de");
        check(None, "fr, *;q=0.5", "en");
        check(None, "de;q=0, en;q=0.1", "en");
        check(None, "de;q=x", "en");
        check(Some("es"), "de", "es");
        check(Some("es-MX"), "de", "es");
        check(Some("xx"), "de", "de");
        check(Some(""), "de", "de");
    }

    #[test]
    fn numbers_are_written_as_the_language_does() {
        assert_eq!((EN.number(999).as_str(), EN.number(1_523).as_str()), ("999", "1,523"));
        assert_eq!(EN.number(1_234_567), "1,234,567");
        assert_eq!(DE.number(12_345), "12.345");
        assert_eq!((ES.number(1_523).as_str(), ES.number(12_345).as_str()), ("1523", "12.345"));
        assert_eq!(EN.ahead(0), "You are next");
        assert_eq!(DE.ahead(1), "1 Person vor Ihnen");
        assert_eq!(ES.behind(2_000), "2000 personas detrás de ti");
    }

    #[test]
    fn a_wait_is_said_as_a_range_or_about() {
        let say = |low: u64, likely: u64, high: u64| {
            let seconds = Duration::from_secs;
            let wait = Estimate { low: seconds(low), likely: seconds(likely), high: seconds(high) };
            EN.wait_text(&wait)
        };
        assert_eq!(say(1, 1, 2), "Less than a minute");
        assert_eq!(say(50, 55, 65), "About a minute");
        assert_eq!(say(200, 240, 290), "About 4 minutes");
        assert_eq!(say(240, 300, 390), "4 to 7 minutes");
        assert_eq!(say(700, 900, 1_400), "15 to 25 minutes");
        assert_eq!(say(3_000, 3_700, 4_000), "More than an hour");
        assert_eq!(say(7_000, 11_000, 14_000), "More than 3 hours");
        assert!(!say(0, 0, 0).contains('0'), "never nothing");
    }

    #[test]
    fn the_operators_word_is_found() {
        let message = |json: &str| serde_json::from_str::<Map<String, Value>>(json).unwrap();
        let both = message(r#"{"de-DE":"gleich","en":"soon"}"#);
        assert_eq!(DE.message_of(&both), Some(("de-DE", "gleich")));
        assert_eq!(ES.message_of(&both), Some(("en", "soon")));
        assert_eq!(EN.message_of(&message(r#"{"fr":"bientôt"}"#)), Some(("fr", "bientôt")));
        assert_eq!(EN.message_of(&Map::new()), None);
        assert_eq!(EN.message_of(&message(r#"{"en":" "}"#)), None);
    }
}
