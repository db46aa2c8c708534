use axum::body::Body;
use axum::http::{Request, StatusCode};
use serde_json::{Value, json};
use web::auth::Role;

use web::testing::{ADMIN, Answer, Fixture};

/// Posts the login form as a browser of the same origin does.
async fn log_in(f: &Fixture, token: &str) -> Answer {
    let body = format!("token={token}&next=%2Fstore");
    let request = Request::post("/login")
        .header("sec-fetch-site", "same-origin")
        .header("content-type", "application/x-www-form-urlencoded")
        .body(Body::from(body))
        .unwrap();
    f.send(request).await
}

fn cookie(answer: &Answer) -> String {
    answer.header("set-cookie").split(';').next().unwrap().to_owned()
}

async fn page(f: &Fixture, cookie: &str, path: &str) -> Answer {
    let request = Request::get(path)
        .header("accept", "text/html")
        .header("cookie", cookie)
        .body(Body::empty())
        .unwrap();
    f.send(request).await
}

testkit::each_store! {
    async fn a_stranger_is_sent_to_the_login_and_back(t: TestStore) {
        let f = Fixture::new(&t);
        let got = page(&f, "", "/store?pattern=a%20b").await;
        assert_eq!(got.status, StatusCode::SEE_OTHER);
        assert_eq!(got.header("location"), "/login?next=/store%3Fpattern%3Da%2520b");
        let form = page(&f, "", got.header("location")).await;
        assert!(form.text.contains(r#"name="next" value="/store?pattern=a%20b""#), "{}", form.text);
        assert!(form.header("content-security-policy").contains("script-src 'self'"));

        let entered = log_in(&f, ADMIN).await;
        assert_eq!((entered.status, entered.header("location")), (StatusCode::SEE_OTHER, "/store"));
        let set = entered.header("set-cookie");
        assert!(set.contains("HttpOnly") && set.contains("SameSite=Lax") && set.contains("Path=/"), "{set}");
        for path in ["/", "/store", "/audit", "/settings"] {
            let got = page(&f, &cookie(&entered), path).await;
            assert_eq!(got.status, StatusCode::OK, "{path}");
            assert!(got.text.contains("<!DOCTYPE html>"));
            assert!(!got.text.contains(" style=") && !got.text.contains("onclick"), "{path}: inline style or script");
        }
    }

    async fn logging_out_ends_the_session(t: TestStore) {
        let f = Fixture::new(&t);
        let cookie = cookie(&log_in(&f, ADMIN).await);
        let request = Request::post("/logout")
            .header("sec-fetch-site", "same-origin")
            .header("cookie", &cookie)
            .body(Body::empty())
            .unwrap();
        let out = f.send(request).await;
        assert_eq!(out.header("location"), "/login");
        assert!(out.header("set-cookie").contains("Max-Age=0"));
        assert_eq!(page(&f, &cookie, "/").await.status, StatusCode::SEE_OTHER);
    }

    async fn an_address_that_guesses_is_locked_out(t: TestStore) {
        let f = Fixture::new(&t);
        for _ in 0..5 {
            assert_eq!(log_in(&f, "tg_admin_guess").await.status, StatusCode::UNAUTHORIZED);
        }
        let locked = log_in(&f, ADMIN).await;
        assert_eq!(locked.status, StatusCode::TOO_MANY_REQUESTS, "even with the right token");
        assert!(locked.header("retry-after").parse::<u64>().unwrap() > 800);
        // Programs with the token are not held up by somebody's guesses.
        assert_eq!(f.admin("GET /api/v1/me", Value::Null).await.status, StatusCode::OK);
        let trail = f.trail().await;
        assert_eq!(trail.len(), 1, "the others are summed up later");
        assert_eq!((&trail[0]["action"], &trail[0]["outcome"]), (&json!("session.open"), &json!("refused")));
    }

    async fn all_instances_count_failed_logins_together(t: TestStore) {
        let one = Fixture::new(&t);
        let two = Fixture::on(t.another().await, web::Settings::default(), Vec::new());
        let mut codes = Vec::new();
        for n in 0..8 {
            let at = if n % 2 == 0 { &one } else { &two };
            codes.push(log_in(at, "tg_admin_guess").await.status.as_u16());
        }
        assert_eq!(codes, [401, 401, 401, 401, 401, 429, 429, 429]);
        t.clock.advance(std::time::Duration::from_secs(15 * 60 + 1));
        assert_eq!(log_in(&two, ADMIN).await.status, StatusCode::SEE_OTHER);
        // A good login forgives the failed ones.
        assert_eq!(log_in(&one, "tg_admin_guess").await.status, StatusCode::UNAUTHORIZED);
        assert_eq!(log_in(&one, ADMIN).await.status, StatusCode::SEE_OTHER);
    }

    async fn nobody_can_guess_while_the_store_is_away(t: TestStore) {
        let f = Fixture::new(&t);
        t.faults.go_away();
        let got = log_in(&f, "tg_admin_guess").await;
        t.faults.come_back();
        assert_eq!(got.status, StatusCode::SERVICE_UNAVAILABLE, "{}", got.text);
    }

    async fn a_login_from_another_site_is_refused(t: TestStore) {
        let f = Fixture::new(&t);
        let request = Request::post("/login")
            .header("sec-fetch-site", "cross-site")
            .header("content-type", "application/x-www-form-urlencoded")
            .body(Body::from(format!("token={ADMIN}")))
            .unwrap();
        let got = f.send(request).await;
        assert_eq!(got.status, StatusCode::FORBIDDEN);
        assert_eq!(got.header("set-cookie"), "");
    }

    async fn a_worker_cannot_use_the_dashboard(t: TestStore) {
        let f = Fixture::new(&t);
        let worker = f.token(Role::Worker).await;
        assert_eq!(log_in(&f, &worker).await.status, StatusCode::UNAUTHORIZED);
    }

    async fn a_viewer_sees_no_tokens_and_no_acts(t: TestStore) {
        let f = Fixture::new(&t);
        let viewer = f.token(Role::Viewer).await;
        let cookie = cookie(&log_in(&f, &viewer).await);
        let settings = page(&f, &cookie, "/settings").await.text;
        assert!(!settings.contains("new-token"), "{settings}");
    }

    async fn an_error_in_a_browser_is_a_page_and_elsewhere_json(t: TestStore) {
        let f = Fixture::new(&t);
        let got = page(&f, "", "/nowhere").await;
        assert_eq!(got.status, StatusCode::NOT_FOUND);
        assert!(got.header("content-type").starts_with("text/html"));
        assert!(got.text.contains(got.header("x-request-id")));
        assert_eq!(f.get("/nowhere").await.header("content-type"), "application/json");
    }

    async fn text_from_outside_is_never_markup(t: TestStore) {
        let f = Fixture::new(&t);
        let evil = "<img src=x onerror=alert(1)>\"'";
        f.admin("POST /api/v1/tokens", json!({"name": evil, "role": "viewer"})).await;
        let mut store = t.store.clone();
        let set = store::redis::cmd("HSET").arg(evil).arg(evil).arg(evil).to_owned();
        set.query_async::<()>(&mut store).await.unwrap();
        let cookie = cookie(&log_in(&f, ADMIN).await);
        let key = "/store/key?key=%3Cimg%20src%3Dx%20onerror%3Dalert(1)%3E%22%27";
        for path in ["/", "/store", "/store?pattern=%3Cimg", key, "/audit", "/settings"] {
            let got = page(&f, &cookie, path).await;
            assert_eq!(got.status, StatusCode::OK, "{path}");
            assert!(!got.text.contains("<img src=x"), "{path}");
        }
    }

    async fn assets_are_kept_for_good_under_a_name_of_their_own(t: TestStore) {
        let f = Fixture::new(&t);
        let login = f.get("/login").await.text;
        let start = login.find("/assets/").unwrap();
        let path: String = login[start..].chars().take_while(|c| *c != '"').collect();
        let got = f.get(&path).await;
        assert_eq!(got.status, StatusCode::OK);
        assert!(got.header("cache-control").contains("immutable"));
        let folder = path.rsplit_once('/').unwrap().0;
        assert_eq!(f.get(&format!("{folder}/../Cargo.toml")).await.status, StatusCode::NOT_FOUND);
        assert_eq!(f.get(&format!("{folder}/nope.js")).await.status, StatusCode::NOT_FOUND);
    }

    async fn a_login_link_is_good_once_and_only_here(t: TestStore) {
        let f = Fixture::new(&t);
        let here = "127.0.0.1".parse().unwrap();
        let link = f.app.auth().make_login_link(f.app.store(), ADMIN, here).unwrap();
        // A look ahead, a proxy and another machine do not use it up.
        let head = Request::head(&link).body(Body::empty()).unwrap();
        assert_eq!(f.send(head).await.status, StatusCode::OK);
        let ahead = Request::get(&link).header("sec-purpose", "prefetch;prerender").body(Body::empty()).unwrap();
        assert_eq!(f.send(ahead).await.header("set-cookie"), "");
        let proxied = Request::get(&link).header("x-forwarded-for", "127.0.0.1").body(Body::empty()).unwrap();
        let refused = f.send(proxied).await;
        assert_eq!(refused.status, StatusCode::UNAUTHORIZED);
        assert!(refused.text.contains("on the machine the server runs on"), "{}", refused.text);
        let elsewhere = web::client::Peer { addr: ([192, 0, 2, 7], 1).into(), tls: false };
        let away = Request::get(&link).extension(elsewhere).body(Body::empty()).unwrap();
        assert_eq!(f.send(away).await.status, StatusCode::UNAUTHORIZED);

        let opened = page(&f, "", &link).await;
        assert_eq!((opened.status, opened.header("location")), (StatusCode::SEE_OTHER, "/"));
        assert!(opened.header("set-cookie").contains("HttpOnly"));
        assert_eq!(page(&f, &cookie(&opened), "/audit").await.status, StatusCode::OK);

        let again = page(&f, "", &link).await;
        assert_eq!(again.status, StatusCode::UNAUTHORIZED);
        assert!(again.text.contains("was used already") && again.header("set-cookie").is_empty(), "{}", again.text);
        let late = f.app.auth().make_login_link(f.app.store(), ADMIN, here).unwrap();
        t.clock.advance(std::time::Duration::from_secs(601));
        assert_eq!(page(&f, "", &late).await.status, StatusCode::UNAUTHORIZED);

        let trail = f.trail().await;
        let opened: Vec<&Value> = trail.iter().filter(|line| line["action"] == "session.open" && line["outcome"] == "ok").collect();
        assert_eq!(opened.len(), 1, "{trail:?}");
        assert_eq!(opened[0]["target"], "dashboard, by a one-time link");
        let code = link.rsplit('/').next().unwrap();
        assert!(!json!(trail).to_string().contains(code), "the trail has no code");
        assert!(trail.iter().any(|line| line["action"] == "session.open" && line["outcome"] != "ok"), "refusals have lines: {trail:?}");
    }
}
