//! The waiting page: what a browser gets, step by step, with a cookie jar of one cookie.

use axum::body::Body;
use axum::http::{Request, StatusCode};
use room_web::RoomService;
use serde_json::{Value, json};
use testkit::TestStore;
use web::Settings;

use web::testing::{Answer, Fixture};

const HOST: &str = "shop.example";

struct Browser<'f> {
    f: &'f Fixture,
    cookie: String,
    keeps_cookies: bool,
    headers: Vec<(&'static str, &'static str)>,
}

impl<'f> Browser<'f> {
    fn new(f: &'f Fixture) -> Browser<'f> {
        Browser { f, cookie: String::new(), keeps_cookies: true, headers: Vec::new() }
    }

    fn sending(mut self, name: &'static str, value: &'static str) -> Self {
        self.headers.push((name, value));
        self
    }

    /// One request, no redirect followed.
    async fn step(&mut self, what: &str) -> Answer {
        self.post(what, "").await
    }

    async fn post(&mut self, what: &str, form: &str) -> Answer {
        let (method, path) = what.split_once(' ').unwrap();
        let mut request = Request::builder().method(method).uri(path).header("host", HOST);
        if !self.cookie.is_empty() {
            request = request.header("cookie", &self.cookie);
        }
        if method == "POST" {
            request = request.header("content-type", "application/x-www-form-urlencoded");
        }
        for (name, value) in &self.headers {
            request = request.header(*name, *value);
        }
        let answer = self.f.send(request.body(Body::from(form.to_owned())).unwrap()).await;
        let set = answer.header("set-cookie");
        if self.keeps_cookies && !set.is_empty() {
            self.cookie = set.split(';').next().unwrap().to_owned();
        }
        answer
    }

    /// Follows redirects within the waiting page; ends on a page or outside.
    async fn open(&mut self, path: &str) -> Answer {
        let mut answer = self.step(&format!("GET {path}")).await;
        for _ in 0..5 {
            let location = answer.header("location").to_owned();
            if !location.starts_with("/_wr/") {
                return answer;
            }
            assert_eq!(answer.status, StatusCode::SEE_OTHER);
            answer = self.step(&format!("GET {location}")).await;
        }
        panic!("goes round in circles: {answer:?}");
    }
}

fn view(answer: &Answer) -> &str {
    let (_, rest) = answer.text.split_once("data-view=\"").unwrap_or(("", ""));
    rest.split('"').next().unwrap_or_default()
}

async fn fixture(t: &TestStore, more: Value) -> (Fixture, room::RoomMaintenance) {
    let room = room::Room::open(t.store.clone(), room::Options::default()).await.unwrap();
    let keeper = room::RoomMaintenance::new(room.clone());
    let services = vec![RoomService::on(room, 600)];
    let f = Fixture::running(t, Settings::default(), services);
    let mut body = json!({ "id": "concert", "name": "Concert & more", "max_active": 1,
        "target_url": "https://shop.example/sale", "admission": { "count": 60, "per_seconds": 60 } });
    for (name, value) in more.as_object().into_iter().flatten() {
        body[name] = value.clone();
    }
    let made = f.admin("POST /api/v1/admin/queues", body).await;
    assert_eq!(made.status, StatusCode::CREATED, "{}", made.text);
    (f, keeper)
}

/// A queue that lets nobody in by itself, with room for one more.
async fn still(t: &TestStore, more: Value) -> (Fixture, room::RoomMaintenance) {
    let (f, keeper) = fixture(t, more).await;
    let base = "/api/v1/admin/queues/concert";
    let rate = json!({ "admission": { "count": 0 }, "max_active": 2 });
    assert_eq!(f.admin(&format!("PATCH {base}"), rate).await.status, StatusCode::OK);
    let first = f.call("", "POST /api/v1/queues/concert/enqueue", Value::Null).await.json();
    assert_eq!(first["status"], "waiting", "a rate of 0 admits nobody");
    let admitted = f.admin(&format!("POST {base}/admit"), json!({ "count": 1 })).await;
    assert_eq!(admitted.status, StatusCode::OK, "{}", admitted.text);
    (f, keeper)
}

async fn waiting(f: &Fixture) -> u64 {
    f.admin("GET /api/v1/admin/queues/concert", Value::Null).await.json()["waiting"]
        .as_u64()
        .unwrap()
}

testkit::each_store! {
    async fn the_waiting_page_weighs_at_most_12_kb_cold(t: TestStore) {
        let (f, _keeper) = still(&t, Value::Null).await;
        let accepts = "gzip, deflate, br, zstd";
        let mut browser = Browser::new(&f);
        let page = browser.open("/_wr/concert").await;
        assert_eq!(view(&page), "waiting", "{}", page.text);
        // The visitor's token is the cookie; where it is in the page, the page goes as it is.
        let cookie = browser.cookie.clone();
        let ask = |path: &str| Request::get(path).header("host", HOST).header("accept-encoding", accepts);
        let whole = ask("/_wr/concert/wait").header("cookie", &cookie).body(Body::empty()).unwrap();
        let whole = f.weigh_request(whole).await;
        assert_eq!((whole.status, whole.coding.as_str()), (200, "gzip"));
        let token = cookie.split_once('=').unwrap().1;
        let carried = ask(&format!("/_wr/concert/wait?t={token}")).body(Body::empty()).unwrap();
        let carried = f.weigh_request(carried).await;
        assert_eq!((carried.status, carried.coding.as_str()), (200, ""));
        let mut sum = whole.bytes;
        let named = page.text.split('"').filter(|text| text.starts_with("/_wr/assets/"));
        let files: std::collections::BTreeSet<&str> = named.collect();
        assert_eq!(files.len(), 3, "style, script and icon: {files:?}");
        for file in files {
            let sent = f.weigh(file, "", "gzip, deflate, br, zstd").await;
            assert_eq!((sent.status, sent.coding.as_str()), (200, "br"), "{file}");
            assert!(sent.cache.contains("immutable"), "{file}: {}", sent.cache);
            sum += sent.bytes;
        }
        // The first heartbeat, and the heads of the six answers: two redirects, the page, its three files.
        let beat = Request::post("/_wr/api/v1/queues/concert/heartbeat?lang=en").header("cookie", &cookie);
        let beat = f.weigh_request(beat.header("host", HOST).body(Body::empty()).unwrap()).await;
        assert_eq!(beat.status, 200);
        sum += beat.bytes;
        assert!(sum <= 8_500, "{sum} bytes without heads, which are at most 3,500");
    }

    async fn a_queue_has_a_look_of_its_own(t: TestStore) {
        let (f, _keeper) = fixture(&t, Value::Null).await;
        let set = async |body: Value| f.admin("PATCH /api/v1/admin/queues/concert", body).await;
        let plain = Browser::new(&f).open("/_wr/concert").await;
        assert!(!plain.text.contains("brand.css") && !plain.text.contains("<img"), "{}", plain.text);

        let logo = "https://cdn.example/logo.svg";
        let done = set(json!({ "brand_color": "#FFB000", "brand_logo": logo })).await.json();
        assert_eq!((&done["brand_color"], &done["brand_logo"]), (&json!("#ffb000"), &json!(logo)));
        let page = Browser::new(&f).open("/_wr/concert").await;
        assert!(page.text.contains("/_wr/concert/brand.css?v=ffb000"), "{}", page.text);
        assert!(page.text.contains(&format!("src=\"{logo}\"")), "{}", page.text);
        let policy = page.header("content-security-policy");
        assert!(policy.contains("img-src 'self' https://cdn.example data:"), "{policy}");
        assert!(!policy.contains("unsafe"), "{policy}");
        let style = Browser::new(&f).open("/_wr/concert/brand.css").await;
        assert_eq!(style.header("content-type"), "text/css; charset=utf-8");
        assert!(style.text.contains("--accent:#") && style.text.contains("prefers-color-scheme:dark"));

        for bad in [json!({ "brand_color": "red;}" }), json!({ "brand_logo": "javascript:alert(1)" })] {
            assert_eq!(set(bad.clone()).await.status, StatusCode::BAD_REQUEST, "{bad}");
        }
        let cleared = set(json!({ "brand_color": "", "brand_logo": "" })).await.json();
        assert!(cleared["brand_color"].is_null() && cleared["brand_logo"].is_null());
    }

    async fn a_visitor_without_javascript_joins_waits_and_lands_on_the_target(t: TestStore) {
        let (f, keeper) = fixture(&t, Value::Null).await;
        let mut first = Browser::new(&f);
        let inside = first.open("/_wr/concert?return_to=%2Fcheckout%3Fsku%3D9").await;
        assert_eq!((inside.status, inside.header("location")), (StatusCode::SEE_OTHER, "/checkout?sku=9"));
        assert!(first.cookie.starts_with("wr_concert=eyJ"), "a pass: {}", first.cookie);
        let room = &room::Room::open(t.store.clone(), room::Options::default()).await.unwrap();
        let queue = room::QueueId::parse("concert").unwrap();
        assert!(room.check_pass(&queue, first.cookie.split_once('=').unwrap().1).await.is_ok());
        let back = first.open("/_wr/concert/wait?return_to=%2Fcheckout").await;
        assert_eq!(back.header("location"), "/checkout", "back goes to the target, not to a new position");

        let mut second = Browser::new(&f);
        let page = second.open("/_wr/concert?return_to=%2Fcheckout").await;
        assert_eq!((page.status, view(&page)), (StatusCode::OK, "waiting"), "{}", page.text);
        assert!(second.cookie.starts_with("wr_concert=wrp1."));
        assert!(page.text.contains("data-position=\"1\"") && page.text.contains("Concert &amp; more"));
        assert!(page.text.contains("<noscript><meta http-equiv=\"refresh\""));
        assert_eq!(page.header("cache-control"), "no-store");
        let policy = page.header("content-security-policy");
        assert!(policy.contains("script-src 'self'") && !policy.contains("unsafe"), "{policy}");
        assert!(!page.text.contains(" style=") && !page.text.contains("<script>"));
        let cookie = second.cookie.clone();
        for _ in 0..3 {
            let again = second.open("/_wr/concert?return_to=%2Fcheckout").await;
            assert_eq!((view(&again), waiting(&f).await), ("waiting", 1), "a refresh is no join");
        }
        assert_eq!(second.cookie, cookie);

        assert_eq!(f.admin("PATCH /api/v1/admin/queues/concert", json!({ "max_active": 2, "max_active_per_address": 0 })).await.status, StatusCode::OK);
        t.clock.advance(std::time::Duration::from_secs(3));
        keeper.tick().await.unwrap();
        let go = second.open("/_wr/concert/wait?return_to=%2Fcheckout").await;
        assert_eq!((go.status, go.header("location")), (StatusCode::SEE_OTHER, "/checkout"));
        assert!(second.cookie.starts_with("wr_concert=eyJ"));
    }

    async fn leaving_and_joining_again_are_forms(t: TestStore) {
        let (f, _) = still(&t, Value::Null).await;
        let mut b = Browser::new(&f);
        let page = b.open("/_wr/concert").await;
        assert!(page.text.contains("action=\"/_wr/concert/leave\""), "{}", page.text);
        let left = b.step("POST /_wr/concert/leave").await;
        assert_eq!((left.status, left.header("location")), (StatusCode::SEE_OTHER, "/_wr/concert/wait"));
        let page = b.open("/_wr/concert/wait").await;
        assert_eq!((view(&page), waiting(&f).await), ("over", 0));
        assert!(page.text.contains("You left the queue") && page.text.contains("action=\"/_wr/concert/enter\""));
        let key = page.text.split_once("name=\"key\" value=\"").unwrap().1.split('"').next().unwrap().to_owned();
        // Pressed twice, by two tabs.
        let old = b.cookie.clone();
        for _ in 0..2 {
            b.cookie = old.clone();
            let entered = b.post("POST /_wr/concert/enter", &format!("key={key}")).await;
            assert_eq!(entered.status, StatusCode::SEE_OTHER);
            let page = b.open(entered.header("location")).await;
            assert_eq!((view(&page), waiting(&f).await), ("waiting", 1));
        }
        let kept = b.cookie.clone();
        b.post("POST /_wr/concert/enter", "key=anotherkey").await;
        assert_eq!(b.cookie, kept, "whoever has a position keeps it");
    }

    async fn nothing_but_a_navigation_joins(t: TestStore) {
        let (f, _) = still(&t, Value::Null).await;
        for (name, value) in [("sec-purpose", "prefetch"), ("purpose", "prefetch"), ("sec-fetch-mode", "no-cors")] {
            let page = Browser::new(&f).sending(name, value).open("/_wr/concert").await;
            assert_eq!((page.status, view(&page)), (StatusCode::SERVICE_UNAVAILABLE, "outside"), "{name}");
        }
        let mut b = Browser::new(&f);
        assert_eq!(b.step("HEAD /_wr/concert").await.status, StatusCode::SERVICE_UNAVAILABLE);
        // A program that keeps no cookies, or never comes back.
        assert_eq!(b.step("GET /_wr/concert").await.status, StatusCode::SEE_OTHER);
        assert_eq!(waiting(&f).await, 0);
        let forged = Browser::new(&f).sending("sec-fetch-site", "cross-site").post("POST /_wr/concert/enter", "key=0123456789").await;
        assert_eq!((forged.status, waiting(&f).await), (StatusCode::SERVICE_UNAVAILABLE, 0));
        assert_eq!(forged.header("set-cookie"), "", "another site cannot change the cookie");
    }

    async fn without_cookies_the_place_is_in_the_address(t: TestStore) {
        let (f, keeper) = still(&t, Value::Null).await;
        let mut b = Browser { keeps_cookies: false, ..Browser::new(&f) };
        for _ in 0..3 {
            let page = b.open("/_wr/concert?return_to=/checkout").await;
            assert_eq!((view(&page), waiting(&f).await), ("cookies", 0), "joins only once cookies came back");
        }
        let enqueued = b.post("POST /_wr/concert/enter?return_to=%2Fcheckout", "key=0123456789&cookies=no").await;
        let location = enqueued.header("location").to_owned();
        assert!(location.contains("t=wrp1."), "{location}");
        for _ in 0..2 {
            let page = b.open(&location).await;
            assert_eq!((view(&page), waiting(&f).await), ("waiting", 1));
        }
        f.admin("POST /api/v1/admin/queues/concert/admit", json!({ "count": 1 })).await;
        keeper.tick().await.unwrap();
        let go = b.open(&location).await;
        assert!(go.header("location").starts_with("/checkout?wrtoken=wrr1."), "{go:?}");
    }

    async fn another_site_gets_a_token_for_one_arrival(t: TestStore) {
        let more = json!({ "target_url": "https://tickets.example/sale", "allowed_origins": ["https://Other.example:443"] });
        let (f, _) = fixture(&t, more).await;
        let mut b = Browser::new(&f);
        let go = b.open("/_wr/concert?return_to=%2Fa%3Fb%3Dc%23d").await;
        let location = go.header("location");
        assert!(location.starts_with("https://tickets.example/a?b=c&wrtoken=wrr1.") && location.ends_with("#d"), "{location}");
        let token = location.split_once("wrtoken=").unwrap().1.trim_end_matches("#d");
        let room = &room::Room::open(t.store.clone(), room::Options::default()).await.unwrap();
        let queue = room::QueueId::parse("concert").unwrap();
        let token = room.check_redirect_token(&queue, token).await.unwrap();
        assert!(b.cookie.starts_with("wr_concert=wrp1."), "the position stays known here");
        let other = b.open("/_wr/concert/wait?return_to=https%3A%2F%2Fother.example%2Fx").await;
        assert!(other.header("location").starts_with("https://other.example/x?wrtoken="));
        let evil = b.open("/_wr/concert/wait?return_to=https%3A%2F%2Fevil.example%2F").await;
        assert!(evil.header("location").starts_with("https://tickets.example/sale?wrtoken="), "{evil:?}");
        room.start_session(&queue, &token.position, &room::Visitor::default()).await.unwrap();
        let page = b.open("/_wr/concert/wait").await;
        assert_eq!(view(&page), "active", "no second token, and no circle");
        assert!(page.header("content-security-policy").contains("form-action 'self' https://tickets.example;"));
    }

    async fn every_state_has_its_page(t: TestStore) {
        let (f, keeper) = still(&t, json!({ "max_queue_size": 1 })).await;
        let base = "/api/v1/admin/queues/concert";
        let mut b = Browser::new(&f);
        b.open("/_wr/concert").await;
        let full = Browser::new(&f).open("/_wr/concert").await;
        assert_eq!((full.status, view(&full)), (StatusCode::SERVICE_UNAVAILABLE, "full"));
        assert!(!full.header("retry-after").is_empty() && full.text.contains("http-equiv=\"refresh\""));
        assert_eq!(view(&b.open("/_wr/concert").await), "waiting", "who has a position is not told it is full");
        f.admin(&format!("POST {base}/message"), json!({ "text": { "en": "Back <soon>", "de": "Gleich zurück" } })).await;
        f.admin(&format!("POST {base}/pause"), Value::Null).await;
        t.clock.advance(std::time::Duration::from_secs(2));
        let page = b.open("/_wr/concert/wait").await;
        assert_eq!(view(&page), "paused");
        assert!(page.text.contains("Back &lt;soon&gt;") && page.text.contains("Not known while"), "{}", page.text);
        let page = b.open("/_wr/concert/wait?lang=de").await;
        assert!(page.text.contains("Gleich zurück") && page.text.contains("<html lang=\"de\">"));
        assert!(page.text.contains("/_wr/concert/leave?lang=de"), "the language is carried on");
        let mut spanish = Browser { cookie: b.cookie.clone(), ..Browser::new(&f) }.sending("accept-language", "es-MX,en;q=0.5");
        assert!(spanish.open("/_wr/concert/wait").await.text.contains("La cola está en pausa"));
        f.admin(&format!("POST {base}/maintenance"), json!({ "confirm": "concert" })).await;
        t.clock.advance(std::time::Duration::from_secs(2));
        assert_eq!(view(&b.open("/_wr/concert/wait").await), "closed", "the position is kept");
        let closed = Browser::new(&f).open("/_wr/concert").await;
        assert_eq!((closed.status, view(&closed)), (StatusCode::SERVICE_UNAVAILABLE, "maintenance"));
        f.admin(&format!("POST {base}/resume"), Value::Null).await;
        keeper.tick().await.unwrap();

        f.admin(&format!("POST {base}/admit"), json!({ "count": 1 })).await;
        let fetched = Browser { cookie: b.cookie.clone(), ..Browser::new(&f) }.sending("sec-fetch-mode", "cors").open("/_wr/concert/wait").await;
        assert_eq!(view(&fetched), "admitted", "a script that looks does not come in");
        assert!(fetched.text.contains("data-until=\"") && fetched.text.contains("action=\"/_wr/concert/start-session\""));
        // Missed twice.
        for _ in 0..2 {
            // In small steps: a long gap would count as an outage, and clocks would start afresh.
            for _ in 0..26 {
                t.clock.advance(std::time::Duration::from_secs(5));
                keeper.tick().await.unwrap();
            }
            f.admin(&format!("POST {base}/admit"), json!({ "count": 2 })).await;
        }
        let missed = b.open("/_wr/concert").await;
        assert_eq!(view(&missed), "over");
        assert!(missed.text.contains("You missed your turn"), "{}", missed.text);
        let nowhere = Browser::new(&f).open("/_wr/nowhere").await;
        assert_eq!((nowhere.status, view(&nowhere)), (StatusCode::NOT_FOUND, "unknown"));
    }

    async fn a_page_whose_store_is_away_says_so_and_speaks_of_no_crowd(t: TestStore) {
        let (f, _) = still(&t, json!({})).await;
        let mut b = Browser::new(&f);
        assert_eq!(view(&b.open("/_wr/concert").await), "waiting");
        t.faults.go_away();
        for (lang, told) in [("en", "The queue is temporarily unavailable"), ("de", "nicht erreichbar"), ("es", "no está disponible")] {
            for path in ["/_wr/concert/wait", "/_wr/concert"] {
                let mut held = Browser { cookie: b.cookie.clone(), ..Browser::new(&f) };
                let page = held.open(&format!("{path}?lang={lang}")).await;
                assert_eq!((page.status, view(&page)), (StatusCode::SERVICE_UNAVAILABLE, "away"), "{}", page.text);
                assert!(page.text.contains(told), "{}", page.text);
                for crowd in ["A lot of people", "sehr viele", "muchísima gente"] {
                    assert!(!page.text.contains(crowd), "{}", page.text);
                }
                assert!(!page.header("retry-after").is_empty() && page.text.contains("http-equiv=\"refresh\""));
            }
        }
        t.faults.come_back();
        assert_eq!(view(&b.open("/_wr/concert/wait").await), "waiting", "the position was kept");
    }

    async fn an_offer_shows_no_time_left_while_the_queue_stands_still(t: TestStore) {
        let (f, keeper) = still(&t, json!({})).await;
        let base = "/api/v1/admin/queues/concert";
        let mut b = Browser::new(&f);
        b.open("/_wr/concert").await;
        f.admin(&format!("POST {base}/admit"), json!({ "count": 1 })).await;
        let look = |b: &Browser<'_>| Browser { cookie: b.cookie.clone(), ..Browser::new(&f) }.sending("sec-fetch-mode", "cors");
        let position = f.admin(&format!("GET {base}/positions?state=admitted"), Value::Null).await.json()["items"][0].clone();
        let path = format!("GET {base}/positions/{}", position["position_id"].as_str().unwrap());
        assert_eq!(f.admin(&path, Value::Null).await.json()["admission_expires_in_seconds"], 120);
        f.admin(&format!("POST {base}/pause"), Value::Null).await;
        for passed in [2, 130, 600] {
            t.clock.advance(std::time::Duration::from_secs(passed));
            keeper.tick().await.unwrap();
            let page = look(&b).open("/_wr/concert/wait").await;
            assert_eq!(view(&page), "admitted");
            assert!(!page.text.contains("data-until"), "{}", page.text);
            let shown = f.admin(&path, Value::Null).await.json();
            assert_eq!((&shown["status"], &shown["admission_expires_in_seconds"]), (&json!("admitted"), &Value::Null), "{shown}");
        }
        f.admin(&format!("POST {base}/resume"), Value::Null).await;
        keeper.tick().await.unwrap();
        let shown = f.admin(&path, Value::Null).await.json();
        assert_ne!(shown["admission_expires_in_seconds"], 0, "{shown}");
        // It was there all the time.
        let entered = b.open("/_wr/concert/wait").await;
        assert!(entered.status.is_redirection() || view(&entered) == "active", "{} {}", entered.status, entered.text);
    }

    async fn an_invite_in_a_link_gives_its_level(t: TestStore) {
        let (f, _) = still(&t, Value::Null).await;
        let mut normal = Browser::new(&f);
        normal.open("/_wr/concert").await;
        let invite = f.admin("POST /api/v1/admin/queues/concert/invites", json!({ "priority": 3 })).await.json();
        let invite = invite["invite"].as_str().unwrap().to_owned();
        let mut vip = Browser::new(&f);
        let page = vip.open(&format!("/_wr/concert?invite={invite}")).await;
        assert!(page.text.contains("data-position=\"1\""), "{}", page.text);
        assert!(!page.text.contains(&invite), "the invite does not stay in addresses");
        assert!(normal.open("/_wr/concert").await.text.contains("data-position=\"2\""));
        let used = Browser::new(&f).open(&format!("/_wr/concert?invite={invite}")).await;
        assert_eq!(view(&used), "invite");
        assert_eq!(waiting(&f).await, 2);
    }
}
