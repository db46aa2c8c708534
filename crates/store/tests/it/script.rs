//! Scripts: named keys and arguments, libraries, the way from digest to text, failures.
#![expect(clippy::disallowed_methods, reason = "keys are built here")]

use store::{
    Error, Key,
    redis::{self, AsyncCommands},
};

store::script_library!(LIBRARY {
    folder: "tests/lua",
    files: ["join", "double", "describe", "negate"],
    constants: [("COMMA", ",")],
});

store::script!(pub(crate) echo {
    folder: "tests/lua",
    keys: [first, ..rest],
    args: [number, text, ..more],
    library: LIBRARY,
});

store::script!(fail { folder: "tests/lua", keys: [key], args: [how], library: LIBRARY });

store::script!(nothing { folder: "tests/lua" });

store::script_library!(UNTIDY { folder: "tests/untidy", files: ["helper", "other"] });

store::script!(untidy { folder: "tests/untidy", keys: [key], args: [now_ms], library: UNTIDY });

type Echo = (String, String, String, i64, String, String);

testkit::each_store! {
    async fn keys_and_arguments_arrive_in_order(t: TestStore) {
        let first = Key::raw("{t}a");
        let reply: Echo = echo::run(
            &t.store,
            echo::Keys { first: &first, rest: [Key::raw("{t}b"), Key::raw("{t}c")] },
            echo::Args { number: 21, text: "word", more: vec!["x".to_owned(), String::new(), "z".to_owned()] },
        )
        .await
        .unwrap();
        let expected: Echo =
            ("echo".into(), "{t}a".into(), "{t}b,{t}c".into(), 42, "word".into(), "x,,z".into());
        assert_eq!(reply, expected);
    }

    async fn an_absent_argument_is_an_empty_string(t: TestStore) {
        let reply: Echo = echo::run(
            &t.store,
            echo::Keys { first: Key::raw("{t}a"), rest: Vec::<Key>::new() },
            echo::Args { number: 1, text: None::<String>, more: ["after"] },
        )
        .await
        .unwrap();
        assert_eq!((reply.4.as_str(), reply.5.as_str()), ("", "after"));
    }

    async fn a_list_in_place_of_one_argument_is_refused_before_it_runs(t: TestStore) {
        let error = fail::run::<()>(&t.store, fail::Keys { key: Key::raw("k") }, fail::Args { how: vec!["a", "b"] })
            .await
            .unwrap_err();
        assert_eq!(error.to_string(), "script fail failed: argument how is 2 values, not one");
        assert!(!t.store.clone().exists::<_, bool>("k").await.unwrap());
    }

    async fn a_script_without_keys_or_arguments_runs(t: TestStore) {
        let word: String = nothing::run(&t.store, nothing::Keys {}, nothing::Args {}).await.unwrap();
        assert_eq!(word, "done");
    }

    async fn a_script_survives_a_forgotten_cache(t: TestStore) {
        for _ in 0..2 {
            let word: String = nothing::run(&t.store, nothing::Keys {}, nothing::Args {}).await.unwrap();
            assert_eq!(word, "done");
            redis::cmd("SCRIPT").arg("FLUSH").query_async::<()>(&mut t.store.clone()).await.unwrap();
        }
    }

    async fn a_loaded_script_can_be_called_in_a_pipeline(t: TestStore) {
        nothing::load(&t.store).await.unwrap();
        let (word, n): (String, i64) = redis::pipe()
            .add_command(nothing::cmd(nothing::Keys {}, nothing::Args {}))
            .incr("n", 1)
            .query_async(&mut t.store.clone())
            .await
            .unwrap();
        assert_eq!((word.as_str(), n), ("done", 1));
    }

    async fn a_failing_script_is_named_and_does_not_roll_back(t: TestStore) {
        // An error that Lua raises names the file and the line.
        for (how, text) in [
            ("reply", "TAKEN by somebody else"),
            ("type", "WRONGTYPE"),
            ("error", "fail.lua:14: broken"),
            ("library", "lib/negate.lua:3:"),
        ] {
            let key = Key::raw(how);
            let error = fail::run::<()>(&t.store, fail::Keys { key: &key }, fail::Args { how }).await.unwrap_err();
            match error {
                Error::Script { script: "fail", message } => assert!(message.contains(text), "{message}"),
                other => panic!("{how}: {other:?}"),
            }
            let value: String = t.store.clone().get(&key).await.unwrap();
            assert_eq!(value, "written");
        }
    }

    async fn a_reply_of_another_shape_is_a_decode_error(t: TestStore) {
        let error = nothing::run::<i64>(&t.store, nothing::Keys {}, nothing::Args {}).await.unwrap_err();
        assert!(matches!(error, Error::Decode { .. }), "{error:?}");
    }
}

testkit::scripts_test!("test", folder: "tests/lua", [echo, fail, nothing]);

#[test]
fn a_file_that_nobody_declares_and_a_wrong_header_are_found() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/lua");
    let faults = store::script::tidy::faults("other", &folder, &[fail::SCRIPT]);
    let has = |text: &str| faults.iter().any(|fault| fault.contains(text));
    assert!(has("echo: declared or used nowhere"), "{faults:?}");
    assert!(has("double: declared or used nowhere"), "{faults:?}");
    assert!(has("fail.lua: must open with `-- other/fail -- WHAT IT DOES`"), "{faults:?}");
}

#[test]
fn libraries_come_in_front_and_the_flag_line_first() {
    let source = echo::SCRIPT.source();
    let lines: Vec<_> = source.lines().collect();
    assert_eq!(lines[0], "--!df flags=allow-undeclared-keys");
    let line_of = |text: &str| lines.iter().position(|line| line.contains(text)).unwrap();
    assert!(line_of("function double") < line_of("function describe"));
    assert!(line_of("function join") < line_of("function describe"));
    assert!(line_of("function describe") < line_of("-- test/echo"));
    assert_eq!(source.matches("--!df").count(), 1);
    assert_eq!(echo::SCRIPT.keys(), ["first", "..rest"]);
    assert_eq!(echo::SCRIPT.args(), ["number", "text", "..more"]);
    assert_eq!(echo::SCRIPT.libs().collect::<Vec<_>>(), ["double", "join", "describe"]);
    assert_eq!(echo::SCRIPT.sha().len(), 40);
}

#[test]
fn names_are_locals_on_lines_that_exist_already() {
    let source = echo::SCRIPT.source();
    let files: Vec<&str> = ["lib/double", "lib/join", "lib/describe", "echo"]
        .iter()
        .map(|name| format!("{}/tests/lua/{name}.lua", env!("CARGO_MANIFEST_DIR")))
        .map(|path| std::fs::read_to_string(path).unwrap().leak() as &str)
        .collect();
    let lines: usize = files.iter().map(|text| text.lines().count()).sum();
    assert_eq!(source.lines().count(), lines);
    // The body mentions neither `number` nor `rest`, the library function all that it reads.
    assert!(
        source.contains("\nlocal first, text, more = KEYS[1], ARGV[2], 2 -- test/echo"),
        "{source}"
    );
    assert!(
        source.contains("local function describe() local rest, number, COMMA = 1, ARGV[1], ','\n")
    );
    assert!(!source.contains("double(n) local"), "{source}");
}

#[test]
fn a_file_that_names_what_it_does_not_use_or_uses_what_it_does_not_name_is_found() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/untidy");
    let faults = store::script::tidy::faults("test", &folder, &[untidy::SCRIPT]);
    assert_eq!(
        faults,
        [
            "untidy.lua: takes from ARGV by number: use the declared name",
            "untidy.lua: uses missing, which is no file of the library",
            "untidy.lua: says that it uses other, and does not",
            "untidy.lua: declares key again, as something else",
            "untidy.lua: knows no kye: declare it, or name it in `-- reads:`",
            "untidy.lua: lib/helper.lua reads limit, which is not declared here",
            "lib/helper.lua: takes other from other without `-- uses: other`",
            "lib/helper.lua: says that it reads limit, and does not",
        ]
    );
}
