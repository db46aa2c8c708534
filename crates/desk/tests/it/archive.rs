//! Tools on the archive: check, backup, move, export, import.

use std::{
    io::{BufRead, Cursor},
    path::Path,
};

use desk::{
    Error, UserId,
    archive::{Archive, ArchivePlace, ArchiveSync},
    chat::{
        AgentRole, Chat, ChatPriority, ConversationChange, ConversationChannel, ConversationList,
        ConversationStatus, ExportScope, ImportReport, NewAgent, VisitorChange, export_archive,
        import_archive,
    },
};
use serde_json::{Value, json};
use sqlx::{AnyConnection, AssertSqlSafe, Connection};
use store::Millis;
use testkit::{TestArchive, TestStore, each_archive};

use crate::{
    chat::{agent, open_on, replies, says, start, visitor, walk},
    support::SECOND,
};

fn place(archive: &TestArchive) -> ArchivePlace {
    ArchivePlace::parse(archive.place()).unwrap()
}

async fn open(archive: &TestArchive) -> Archive {
    Archive::open(&place(archive), ArchiveSync::default()).await.unwrap()
}

/// Runs statements on an archive behind its back.
async fn meddle(archive: &TestArchive, statements: &[&str]) {
    sqlx::any::install_default_drivers();
    let url = match place(archive) {
        ArchivePlace::Postgres(url) => url,
        ArchivePlace::Sqlite(path) => format!("sqlite://{}", path.display()),
    };
    let mut connection = AnyConnection::connect(&url).await.unwrap();
    for statement in statements {
        let statement = AssertSqlSafe((*statement).to_owned());
        sqlx::raw_sql(statement).execute(&mut connection).await.unwrap();
    }
    connection.close().await.unwrap();
}

/// A chat with a bit of everything.
async fn furnish(t: &TestStore, chat: &Chat) {
    let team = chat.put_team(None, "Billing", Default::default()).await.unwrap();
    let new = NewAgent {
        email: "anna@example.org".to_owned(),
        name: "Anna".to_owned(),
        role: AgentRole::Supervisor,
        capacity: Some(7),
        skills: vec!["refunds".to_owned()],
        teams: vec![team.id.clone()],
    };
    let anna = chat.add_agent(new).await.unwrap().0.id;
    let ben = agent(chat, "ben", 3).await;
    chat.put_canned(None, "hello", "Hello {{visitor.name}}!").await.unwrap();
    for (n, name) in ["eva", "v~42", "otto"].iter().enumerate() {
        t.clock.advance(SECOND);
        let id = start(chat, name, ChatPriority::High).await.conversation.id;
        let change = VisitorChange {
            name: Some(format!("Name of {name}")),
            email: Some(format!("person{n}@example.org")),
            notes: Some("likes \"quotes\", and\nlines".to_owned()),
            attributes: Some(json!({ "plan": "gold", "seats": 3 })),
            ..VisitorChange::default()
        };
        chat.put_visitor(&visitor(name), change).await.unwrap();
        t.clock.advance(SECOND);
        chat.send(&id, replies(&anna, "Überraschung <b>!</b>\nzweite Zeile")).await.unwrap();
        let mut note = replies(&ben, "@anna look at this");
        note.is_note = true;
        chat.send(&id, note).await.unwrap();
        let bytes = format!("contents of {name}").into_bytes();
        let file = chat.put_file(name, "list.txt", bytes).await.unwrap();
        let mut draft = says(name, "and a file");
        (draft.attachments, draft.client_id) = (vec![file.id], Some(format!("c-{n}")));
        chat.send(&id, draft).await.unwrap();
        if n == 2 {
            let status = Some(ConversationStatus::Resolved);
            let change = ConversationChange {
                status,
                tags: Some(vec!["done".to_owned()]),
                ..Default::default()
            };
            chat.change_conversation(&id, change, None, Some(&anna)).await.unwrap();
            chat.rate(&id, &visitor(name), 5, Some("good".to_owned())).await.unwrap();
        }
    }
    chat.put_file("eva", "unsent.txt", b"not sent".to_vec()).await.unwrap();
    chat.settle().await;
}

async fn export(archive: &Archive, files: &Path, scope: &ExportScope) -> String {
    let mut lines = Vec::new();
    export_archive(archive, files, scope, Millis(1_800_000_000_000), &mut lines).await.unwrap();
    String::from_utf8(lines).unwrap()
}

async fn import(
    archive: &Archive,
    files: &Path,
    text: &str,
    skips_bad: bool,
) -> Result<ImportReport, Error> {
    let bytes = text.as_bytes().to_vec();
    let open = move || Ok(Box::new(Cursor::new(bytes.clone())) as Box<dyn BufRead + Send>);
    import_archive(archive, files, &open, 10, skips_bad).await
}

fn changed(text: &str, line: usize, change: impl Fn(&mut Value)) -> String {
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    let mut value: Value = serde_json::from_str(&lines[line - 1]).unwrap();
    change(&mut value);
    lines[line - 1] = value.to_string();
    lines.join("\n") + "\n"
}

fn line_of(text: &str, kind: &str, nth: usize) -> usize {
    let mark = format!("{{\"kind\":\"{kind}\"");
    let mut found = text.lines().enumerate().filter(|(_, line)| line.starts_with(&mark));
    found.nth(nth).unwrap().0 + 1
}

fn faults(check: &desk::archive::ArchiveCheck, name: &str) -> Vec<String> {
    check.results.iter().find(|one| one.name == name).unwrap().faults.clone()
}

each_archive! {
    async fn a_check_finds_what_is_wrong(t: TestStore, a: TestArchive) {
        let chat = open_on(&t.store, &a, "i1").await;
        furnish(&t, &chat).await;
        let files = a.folder().join("files");
        let archive = chat.archive();
        let sound = archive.inspect(&files).await.unwrap();
        assert!(sound.is_sound(), "{sound:?}");
        let names: Vec<&str> = sound.results.iter().map(|one| one.name).collect();
        assert_eq!(names, ["schema", "pages", "sequences", "references", "files", "search"]);

        meddle(&a, &["UPDATE messages SET seq = 40 WHERE seq = 3"]).await;
        let check = archive.inspect(&files).await.unwrap();
        assert_eq!(faults(&check, "sequences").len(), 3, "{check:?}");
        meddle(&a, &["UPDATE messages SET seq = 3 WHERE seq = 40"]).await;

        meddle(&a, &["DELETE FROM visitors WHERE id = 'eva'", "UPDATE conversations SET team_id = 'nobody' WHERE visitor_id = 'otto'"]).await;
        let check = archive.inspect(&files).await.unwrap();
        assert_eq!(faults(&check, "references").len(), 2, "{check:?}");

        let found = walk(&files);
        assert_eq!(found.len(), 4);
        std::fs::write(&found[0], "something else").unwrap();
        std::fs::remove_file(&found[1]).unwrap();
        let check = archive.inspect(&files).await.unwrap();
        let told = faults(&check, "files");
        assert_eq!(told.len(), 2, "{told:?}");
        assert!(told.iter().any(|fault| fault.contains("damaged")), "{told:?}");
        assert!(told.iter().any(|fault| fault.contains("missing")), "{told:?}");

        match place(&a) {
            ArchivePlace::Sqlite(_) => {
                meddle(&a, &["DROP TRIGGER messages_text_update", "UPDATE messages SET content = 'other words' WHERE seq = 1"]).await;
            }
            ArchivePlace::Postgres(_) => meddle(&a, &["DROP INDEX messages_text"]).await,
        }
        let check = archive.inspect(&files).await.unwrap();
        assert_eq!(faults(&check, "search").len(), 1, "{check:?}");
        assert!(!check.is_sound());
    }

    async fn a_backup_is_whole_while_chats_go_on_and_is_finished_after_an_interruption(t: TestStore, a: TestArchive) {
        let chat = open_on(&t.store, &a, "i1").await;
        furnish(&t, &chat).await;
        let files = a.folder().join("files");
        let folder = a.folder().join("backup");
        // What an interrupted one left behind.
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("desk.sqlite3.part"), "half a backup").unwrap();
        let writer = chat.clone();
        let busy = tokio::spawn(async move {
            let id = start(&writer, "busy", ChatPriority::Low).await.conversation.id;
            for n in 0..60 {
                writer.send(&id, says("busy", &format!("message {n}"))).await.unwrap();
            }
        });
        let done = chat.archive().backup(&files, &folder, t.store.now()).await.unwrap();
        busy.await.unwrap();
        assert_eq!((done.files, done.missing.len()), (4, 0));
        assert_eq!(chat.archive().last_backup().await.unwrap(), Some(t.store.now().0 / 1_000));
        let copy = ArchivePlace::Sqlite(folder.join("desk.sqlite3"));
        let copy = Archive::open_existing(&copy, ArchiveSync::default()).await.unwrap();
        assert_eq!(copy.id(), chat.archive().id());
        let check = copy.inspect(&folder.join("files")).await.unwrap();
        assert!(check.is_sound(), "{check:?}");
        let mut names: Vec<String> = std::fs::read_dir(&folder).unwrap().map(|one| one.unwrap().file_name().into_string().unwrap()).collect();
        names.retain(|name| !name.ends_with("-wal") && !name.ends_with("-shm"));
        names.sort();
        assert_eq!(names, ["desk.sqlite3", "files"]);
        // A finished one is not overwritten.
        let again = chat.archive().backup(&files, &folder, t.store.now()).await;
        assert!(matches!(again, Err(Error::Invalid { field: "folder", .. })), "{again:?}");
    }

    async fn a_move_is_compared_and_begins_again_after_an_interruption(t: TestStore, a: TestArchive) {
        let chat = open_on(&t.store, &a, "i1").await;
        furnish(&t, &chat).await;
        let files = a.folder().join("files");
        let before = export(chat.archive(), &files, &ExportScope::All).await;
        drop(chat);
        let source = Archive::open_existing(&place(&a), ArchiveSync::default()).await.unwrap();
        let b = TestArchive::sqlite();

        // An archive that somebody uses is no target.
        let other = open(&b).await;
        import(&other, b.folder(), &before, false).await.unwrap();
        let refused = source.move_to(&other).await.unwrap_err().to_string();
        assert!(refused.contains("is not empty"), "{refused}");
        drop(other);

        // One that was interrupted: marked, with a part of the rows. Nobody else opens it.
        let c = TestArchive::sqlite();
        drop(open(&c).await);
        let begun = format!("INSERT INTO meta (name, value) VALUES ('copy_of', '{}')", source.id());
        meddle(&c, &[&begun, "INSERT INTO canned (id, short_code, content, created_ms) VALUES ('half', 'half', 'x', 1)"]).await;
        let refused = Archive::open(&place(&c), ArchiveSync::default()).await.unwrap_err().to_string();
        assert!(refused.contains("interrupted"), "{refused}");
        let target = Archive::open_target(&place(&c), ArchiveSync::default()).await.unwrap();
        let report = source.move_to(&target).await.unwrap();
        assert!(report.is_equal(), "{report:?}");
        let messages = report.tables.iter().find(|one| one.table == "messages").unwrap();
        assert_eq!((messages.from, messages.to), (12, 12));
        drop(target);
        let moved = open(&c).await;
        assert_eq!(moved.id(), source.id(), "the store knows the archive by its id");
        assert_eq!(export(&moved, &files, &ExportScope::All).await.lines().count(), before.lines().count());
        let check = moved.inspect(&files).await.unwrap();
        assert!(check.is_sound(), "{check:?}");
        if matches!(place(&a), ArchivePlace::Postgres(_)) {
            // And back to Postgres.
            let d = TestArchive::postgres();
            let target = Archive::open_target(&place(&d), ArchiveSync::default()).await.unwrap();
            let copied = Archive::open_existing(&place(&c), ArchiveSync::default()).await.unwrap();
            assert!(copied.move_to(&target).await.unwrap().is_equal());
            assert!(target.inspect(&files).await.unwrap().is_sound());
            meddle(&c, &["DELETE FROM meta WHERE name = 'moved_to'"]).await;
        }
        // The old one does not serve chats any more, and can still be looked at.
        let refused = Archive::open(&place(&a), ArchiveSync::default()).await.unwrap_err().to_string();
        assert!(refused.contains("was moved to"), "{refused}");
        assert!(Archive::open_existing(&place(&a), ArchiveSync::default()).await.is_ok());
        // Search works there, too.
        let chat = open_on(&t.another().await, &c, "i3").await;
        let find = ConversationList { text: Some("überrasch".to_owned()), ..ConversationList::default() };
        assert_eq!(chat.list(&find).await.unwrap().0.len(), 3);
    }

    async fn what_is_exported_is_imported_equal_and_once(t: TestStore, a: TestArchive) {
        let chat = open_on(&t.store, &a, "i1").await;
        furnish(&t, &chat).await;
        let files = a.folder().join("files");
        let text = export(chat.archive(), &files, &ExportScope::All).await;
        assert!(text.starts_with("{\"kind\":\"header\",\"format\":\"tidegate-desk\",\"version\":1"), "{text}");
        for secret in ["password", "totp", "invite"] {
            assert!(!text.contains(secret), "{secret}");
        }
        let b = match place(&a) {
            ArchivePlace::Sqlite(_) => TestArchive::sqlite(),
            ArchivePlace::Postgres(_) => TestArchive::postgres(),
        };
        let other = open(&b).await;
        let new_files = b.folder().join("files");
        let report = import(&other, &new_files, &text, false).await.unwrap();
        assert!(report.is_applied && report.bad_count == 0, "{report:?}");
        assert_eq!(report.counts["message"].added, 12);
        assert_eq!(report.counts["file"].added, 4);
        assert_eq!(export(&other, &new_files, &ExportScope::All).await, text, "round trip");
        let check = other.inspect(&new_files).await.unwrap();
        assert!(check.is_sound(), "{check:?}");
        // Twice is once.
        let again = import(&other, &new_files, &text, false).await.unwrap();
        assert!(again.counts.values().all(|count| count.added == 0), "{again:?}");
        assert_eq!(again.counts["conversation"].known, 3);
        assert_eq!(export(&other, &new_files, &ExportScope::All).await, text);
    }

    async fn a_bad_line_is_told_by_its_number_and_stops_everything_or_is_skipped(t: TestStore, a: TestArchive) {
        let chat = open_on(&t.store, &a, "i1").await;
        furnish(&t, &chat).await;
        let good = export(chat.archive(), &a.folder().join("files"), &ExportScope::All).await;
        let (message, conversation) = (line_of(&good, "message", 1), line_of(&good, "conversation", 1));
        let visitor_line = line_of(&good, "visitor", 0);
        let file = line_of(&good, "file", 0);
        type Change = fn(&mut Value);
        let cases: [(usize, Change, &str); 10] = [
            (message, |line| line["seq"] = json!(7), "seq"),
            (message, |line| line["sender_role"] = json!("boss"), "sender_role"),
            (message, |line| line["unknown"] = json!(1), "unknown field"),
            (message, |line| line["created_at"] = json!("yesterday"), "not a time such as"),
            (conversation, |line| line["status"] = json!("closed"), "status"),
            (conversation, |line| line["visitor_id"] = json!("stranger"), "line of kind visitor"),
            (conversation, |line| line["assignee"] = json!("agt_nobody"), "line of kind agent"),
            (visitor_line, |line| line["verified"] = json!(true), "v~"),
            (file, |line| line["data"] = json!("***"), "base64"),
            (file, |line| line["kind"] = json!("picture"), "none of agent"),
        ];
        let b = TestArchive::sqlite();
        let other = open(&b).await;
        let empty = export(&other, b.folder(), &ExportScope::All).await;
        for (line, change, expected) in cases {
            let text = changed(&good, line, change);
            let report = import(&other, &b.folder().join("files"), &text, false).await.unwrap();
            assert!(!report.is_applied && report.bad_count >= 1, "{expected}: {report:?}");
            assert_eq!(report.bad[0].line, line as u64, "{expected}: {report:?}");
            assert!(report.bad[0].message.contains(expected), "{expected}: {report:?}");
            assert_eq!(export(&other, b.folder(), &ExportScope::All).await, empty, "{expected}");
            assert!(walk(&b.folder().join("files")).is_empty(), "{expected}");
        }
        for (text, expected) in [
            ("", "no lines"),
            ("{\"kind\":\"visitor\",\"id\":\"x\"}\n", "begins with"),
            ("{\"kind\":\"header\",\"format\":\"tidegate-desk\",\"version\":9}\n", "version 9"),
            ("nonsense\n", "begins with"),
        ] {
            let refused = import(&other, b.folder(), text, true).await.unwrap_err().to_string();
            assert!(refused.contains(expected), "{refused}");
        }
        // Skipping it leaves out its conversation, and nothing else.
        let text = changed(&good, message, |line| line["type"] = json!("shout"));
        let report = import(&other, &b.folder().join("files"), &text, true).await.unwrap();
        assert!(report.is_applied && report.bad_count == 1, "{report:?}");
        assert_eq!(report.counts["conversation"].added, 2, "{report:?}");
        assert_eq!(report.counts["conversation"].skipped, 1, "{report:?}");
        let check = other.inspect(&b.folder().join("files")).await.unwrap();
        assert!(check.is_sound(), "{check:?}");
        // Mended and imported again, the rest comes.
        let report = import(&other, &b.folder().join("files"), &good, false).await.unwrap();
        assert_eq!((report.counts["conversation"].added, report.counts["conversation"].known), (1, 2));
        assert_eq!(export(&other, &b.folder().join("files"), &ExportScope::All).await, good);
    }

    async fn the_export_of_a_person_has_all_of_theirs_and_nothing_else(t: TestStore, a: TestArchive) {
        let chat = open_on(&t.store, &a, "i1").await;
        furnish(&t, &chat).await;
        let scope = ExportScope::User(UserId::parse("eva").unwrap());
        let text = export(chat.archive(), &a.folder().join("files"), &scope).await;
        let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let of = |kind: &str| lines.iter().filter(|line| line["kind"] == kind).collect::<Vec<_>>();
        assert_eq!((of("visitor").len(), of("conversation").len(), of("message").len(), of("file").len()), (1, 1, 4, 2));
        assert_eq!(of("visitor")[0]["notes"], "likes \"quotes\", and\nlines");
        assert_eq!(of("visitor")[0]["attributes"]["plan"], "gold");
        assert!(of("message").iter().any(|line| line["type"] == "note"), "notes about them");
        assert!(of("file").iter().all(|line| line["data"].is_string()));
        assert!(!text.contains("otto") && !text.contains("v~42"), "{text}");
        let nobody = ExportScope::User(UserId::parse("nobody").unwrap());
        assert_eq!(export(chat.archive(), a.folder(), &nobody).await.lines().count(), 1);
    }

    async fn a_running_chat_notices_an_import(t: TestStore, a: TestArchive) {
        let chat = open_on(&t.store, &a, "i1").await;
        start(&chat, "first", ChatPriority::Normal).await;
        chat.settle().await;
        let text = [
            json!({ "kind": "header", "format": "tidegate-desk", "version": 1 }),
            json!({ "kind": "agent", "id": "chatwoot-agent-7", "email": "Zoe@example.org", "name": "Zoe", "created_at": "2026-01-01T00:00:00Z" }),
            json!({ "kind": "visitor", "id": "chatwoot-contact-1", "name": "Jo", "created_at": "2026-01-01T00:00:00Z" }),
            json!({ "kind": "conversation", "id": "chatwoot-9", "visitor_id": "chatwoot-contact-1", "status": "open", "created_at": "2026-01-01T00:00:00Z" }),
            json!({ "kind": "message", "conversation_id": "chatwoot-9", "sender_role": "user", "content": "old question", "created_at": "2026-01-01T00:00:00Z" }),
            json!({ "kind": "message", "conversation_id": "chatwoot-9", "sender_role": "admin", "sender": { "id": "chatwoot-agent-7", "name": "Zoe" }, "content": "old answer", "created_at": "2026-01-01T00:01:00Z" }),
            json!({ "kind": "message", "conversation_id": "chatwoot-9", "sender_role": "user", "content": "one more", "created_at": "2026-01-01T00:02:00Z" }),
        ];
        let text: String = text.iter().map(|line| format!("{line}\n")).collect();
        let tool = open(&a).await;
        let report = import(&tool, &a.folder().join("files"), &text, false).await.unwrap();
        assert!(report.is_applied, "{report:?}");
        chat.maintain(0).await.unwrap();
        assert!(chat.agents().iter().any(|agent| agent.email == "zoe@example.org"));
        // It waits since the first message that nobody answered, before the one of today.
        let waiting = chat.waiting(0, 10).await.unwrap();
        assert_eq!(waiting.len(), 2);
        let first = waiting.iter().find(|(one, _)| one.id.as_str() == "chatwoot-9").unwrap();
        assert_eq!(first.0.unread_agent, 1);
        assert_eq!(first.0.waiting_since, Some(Millis(1_767_225_720_000)));
        // It goes on as any other.
        let sent = chat.send(&first.0.id, says("chatwoot-contact-1", "still there?")).await.unwrap();
        assert_eq!(sent.message.seq, 4);
        chat.settle().await;
        assert!(chat.archive().inspect(&a.folder().join("files")).await.unwrap().is_sound());
    }
}

/// Every row of every table, and every word that the search index knows.
async fn dump(archive: &TestArchive) -> String {
    use sqlx::Row;
    sqlx::any::install_default_drivers();
    let (url, is_postgres) = match place(archive) {
        ArchivePlace::Postgres(url) => (url, true),
        ArchivePlace::Sqlite(path) => (format!("sqlite://{}", path.display()), false),
    };
    let mut connection = AnyConnection::connect(&url).await.unwrap();
    let tables = if is_postgres {
        "SELECT CAST(tablename AS TEXT) FROM pg_tables WHERE schemaname = 'public'"
    } else {
        "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'messages_text%' AND name NOT LIKE 'sqlite_%'"
    };
    let texts = async |connection: &mut AnyConnection, sql: String| -> Vec<String> {
        let rows = sqlx::query(AssertSqlSafe(sql)).fetch_all(connection).await.unwrap();
        rows.iter()
            .map(|row| row.try_get::<Option<String>, _>(0).unwrap().unwrap_or_default())
            .collect()
    };
    let mut all = Vec::new();
    for table in texts(&mut connection, tables.to_owned()).await {
        let select = if is_postgres {
            format!("SELECT CAST(t AS TEXT) FROM {table} t")
        } else {
            let columns =
                format!("SELECT 'quote(' || name || ')' FROM pragma_table_info('{table}')");
            let columns = texts(&mut connection, columns).await;
            format!("SELECT {} FROM {table}", columns.join(" || ' ' || "))
        };
        all.extend(texts(&mut connection, select).await);
    }
    if !is_postgres {
        let words =
            "CREATE VIRTUAL TABLE temp.known_words USING fts5vocab('main', 'messages_text', 'row')";
        sqlx::raw_sql(words).execute(&mut connection).await.unwrap();
        all.extend(texts(&mut connection, "SELECT term FROM temp.known_words".to_owned()).await);
    }
    all.join("\n").to_lowercase()
}

each_archive! {
    async fn nothing_of_an_erased_person_is_left_in_rows_keys_files_or_search(t: TestStore, a: TestArchive) {
        let chat = open_on(&t.store, &a, "i1").await;
        furnish(&t, &chat).await;
        let gone = visitor("vis-gone-4711");
        let id = start(&chat, gone.as_str(), ChatPriority::Normal).await.conversation.id;
        let change = VisitorChange {
            name: Some("Wilhelmine Quastenflosser".to_owned()),
            email: Some("wilhelmine@quasten.example".to_owned()),
            notes: Some("prefers zwetschgendatschi".to_owned()),
            attributes: Some(json!({ "nickname": "quasti" })),
            page_url: Some("https://quasten.example/cart".to_owned()),
            ..VisitorChange::default()
        };
        chat.put_visitor(&gone, change).await.unwrap();
        let anna = chat.agents().into_iter().find(|agent| agent.name == "Anna").unwrap().id;
        let file = chat.put_file(gone.as_str(), "kochrezept.txt", b"zwetschgen".to_vec()).await.unwrap();
        let mut draft = says(gone.as_str(), "my zwetschgenmus is missing");
        draft.attachments = vec![file.id];
        chat.send(&id, draft).await.unwrap();
        chat.put_file(gone.as_str(), "unsent-quasten.txt", b"unsent quasten".to_vec()).await.unwrap();
        chat.send(&id, replies(&anna, "Dear Wilhelmine Quastenflosser, here it is")).await.unwrap();
        // A second one, merged into the first: copies are theirs, too.
        let other = desk::chat::NewConversation {
            visitor: gone.clone(),
            message: replies(&anna, "more zwetschgen for you"),
            priority: ChatPriority::Low,
            subject: Some("quastenflosser".to_owned()),
            team: None,
            skills: Vec::new(),
            channel: ConversationChannel::Api,
            bot: false,
            is_offline: false,
        };
        let other = chat.start_conversation(other).await.unwrap().conversation.id;
        chat.settle().await;
        chat.merge(&other, &id, None).await.unwrap();
        chat.settle().await;
        let traces = ["vis-gone-4711", "wilhelmine", "quast", "zwetschgen", "kochrezept", id.as_str(), other.as_str()];
        let rows = dump(&a).await;
        for trace in traces {
            assert!(rows.contains(trace), "{trace} is not found before: the scan cannot fail");
        }
        chat.users().open_session(&gone, desk::users::VerifiedLogin { device_id: "widget", ip_address: None, replaces: None }).await.unwrap();

        assert_eq!(chat.erase_visitor(&gone).await.unwrap(), 2);
        chat.users().erase(&gone).await.unwrap();
        chat.settle().await;
        let rows = dump(&a).await;
        let keys = format!("{:?}", testkit::content(&t.store).await).to_lowercase();
        for trace in traces {
            assert!(!rows.contains(trace), "{trace} is left in a row or in the search index");
            assert!(!keys.contains(trace), "{trace} is left in the store");
        }
        let files = walk(&a.folder().join("files"));
        assert_eq!(files.len(), 4, "those of the others: {files:?}");
        for file in files {
            let bytes = String::from_utf8(std::fs::read(file).unwrap()).unwrap();
            assert!(!bytes.contains("zwetschgen") && !bytes.contains("quasten"), "{bytes}");
        }
        assert!(chat.archive().inspect(&a.folder().join("files")).await.unwrap().is_sound());
    }
}

#[tokio::test]
async fn a_tool_opens_what_there_is_and_makes_nothing() {
    let a = TestArchive::sqlite();
    drop(open(&a).await);
    assert!(Archive::open_existing(&place(&a), ArchiveSync::default()).await.is_ok());
    // Older tables are not brought up to date by looking at them, and newer ones are not touched.
    for version in ["1", "99"] {
        meddle(&a, &[&format!("UPDATE meta SET value = '{version}' WHERE name = 'schema'")]).await;
        let refused = Archive::open_existing(&place(&a), ArchiveSync::default()).await;
        assert!(refused.unwrap_err().to_string().contains(&format!("schema {version}")));
    }
    assert!(Archive::open(&place(&a), ArchiveSync::default()).await.is_err(), "newer");
    let none = ArchivePlace::Sqlite(a.folder().join("none.sqlite3"));
    assert!(Archive::open_existing(&none, ArchiveSync::default()).await.is_err());
    assert!(!a.folder().join("none.sqlite3").exists());
}

/// Instances that are started together make the archive together.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn several_open_a_new_archive_at_the_same_moment() {
    for round in 0..20 {
        let a = TestArchive::sqlite();
        let opening = (0..6).map(|_| {
            let place = place(&a);
            tokio::spawn(async move { Archive::open(&place, ArchiveSync::default()).await })
        });
        let opened = futures_util::future::join_all(opening.collect::<Vec<_>>()).await;
        let opened: Result<Vec<Archive>, Error> = opened.into_iter().map(Result::unwrap).collect();
        let opened = opened.unwrap_or_else(|error| panic!("round {round}: {error}"));
        assert!(opened.iter().all(|archive| archive.id() == opened[0].id()), "round {round}");
    }
}
