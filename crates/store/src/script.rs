//! Lua scripts, tied to Rust by name.
//!
//! [`script!`](crate::script!) declares a script that lives in the calling crate's
//! `lua/NAME.lua`. The call has a field for each key and each argument, so two cannot be swapped,
//! and the header of the file is checked against the same names by a test. The script itself uses
//! those names too: they are locals before its first line. Functions that several scripts share are
//! in a [`Library`]; each file says in its header which of them it uses.
//!
//! A script is sent by its digest and only on `NOSCRIPT` as text; a `NOSCRIPT` means that nothing
//! ran, so that repeating is safe.

mod arg;
mod assemble;
mod lexer;
pub mod tidy;

pub use self::{arg::Arg, assemble::Library};

use std::{borrow::Borrow, cell::Cell, collections::BTreeMap, fmt, sync::OnceLock};

use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use redis::{
    Cmd, ErrorKind, FromRedisValue, ServerErrorKind, ToRedisArgs, Value, aio::ConnectionLike,
};
use tokio::time::Instant;

use self::assemble::AssembledSource;
use crate::{
    Error, Key, Store,
    trace::{SpanKind, SpanStart, TraceContext, TraceSpan},
};

/// A declared script. Made by [`script!`](crate::script!).
pub struct Script {
    name: &'static str,
    keys: &'static [&'static str],
    args: &'static [&'static str],
    library: Option<&'static Library>,
    body: &'static str,
    assembled: OnceLock<AssembledSource>,
}

/// The scripts that were used, by digest: name, and length of the source. Constants of the program, as the scripts are.
static NAMES: Mutex<BTreeMap<String, (&'static str, usize)>> = Mutex::new(BTreeMap::new());

/// Returns the name of a script of this program that was used, by its digest.
pub fn name_of(digest: &str) -> Option<&'static str> {
    NAMES.lock().get(digest).map(|(name, _)| *name)
}

/// Returns the name of a script of this program that was used, by the length of its source, which is how a log of slow
/// commands tells a source it has cut; `None` if several are that long.
pub fn name_of_length(bytes: usize) -> Option<&'static str> {
    let names = NAMES.lock();
    let mut fitting = names.values().filter(|(_, length)| *length == bytes);
    let (name, _) = fitting.next()?;
    fitting.next().is_none().then_some(*name)
}

impl Script {
    #[doc(hidden)]
    pub const fn new(
        name: &'static str,
        keys: &'static [&'static str],
        args: &'static [&'static str],
        library: Option<&'static Library>,
        body: &'static str,
    ) -> Self {
        Self { name, keys, args, library, body, assembled: OnceLock::new() }
    }

    /// The script's name: its file in `lua/` without the ending.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// The declared keys in order; a last one that starts with `..` stands for any number.
    pub fn keys(&self) -> &'static [&'static str] {
        self.keys
    }

    /// The declared arguments in order; a last one that starts with `..` stands for any number.
    pub fn args(&self) -> &'static [&'static str] {
        self.args
    }

    /// The names of the library files that are put in front, each behind those it uses.
    pub fn libs(&self) -> impl Iterator<Item = &'static str> {
        assemble::included(self).into_iter().map(|(name, _)| name)
    }

    /// The text of the script's own file.
    pub fn body(&self) -> &'static str {
        self.body
    }

    /// The text that is sent: the library functions, then the body, each with its names as locals.
    /// A Dragonfly flag line, which must come first, comes first.
    pub fn source(&self) -> &str {
        &self.assembled().source
    }

    /// The digest the store knows the script by.
    pub fn sha(&self) -> &str {
        &self.assembled().sha
    }

    fn assembled(&self) -> &AssembledSource {
        self.assembled.get_or_init(|| {
            let assembled = AssembledSource::new(self);
            NAMES.lock().insert(assembled.sha.clone(), (self.name, assembled.source.len()));
            assembled
        })
    }

    /// Runs a call and reads its reply.
    #[doc(hidden)]
    pub fn run<'a, T: FromRedisValue>(
        &'static self,
        store: &'a Store,
        call: ScriptCall,
    ) -> BoxFuture<'a, Result<T, Error>> {
        let mut store = store.clone();
        Box::pin(async move {
            let reply = self.reply(&mut store, call).await?;
            Ok(T::from_redis_value(reply)?)
        })
    }

    async fn reply(&self, store: &mut Store, call: ScriptCall) -> Result<Value, Error> {
        if let Some((arg, count)) = call.misfit {
            return Err(Error::Script {
                script: self.name,
                message: format!("argument {arg} is {count} values, not one"),
            });
        }
        let started = is_timed().then(Instant::now);
        let mut span = self.span();
        let answer = store.req_packed_command(&call.cmd).await.and_then(Value::extract_error);
        let answer = match answer {
            Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::NoScript) => {
                let text = self.with_text(&call.cmd);
                store.req_packed_command(&text).await.and_then(Value::extract_error)
            }
            answer => answer,
        };
        if let Some(started) = started {
            let seconds = started.elapsed().as_secs_f64();
            metrics::histogram!("tidegate_store_script_seconds", "script" => self.name)
                .record(seconds);
        }
        if let Err(error) = &answer {
            span.fail(|| error.to_string());
        }
        drop(span);
        answer.map_err(|error| match Error::from(error).in_script(self.name) {
            Error::Script { script, message } => {
                Error::Script { script, message: self.assembled().locate(&message) }
            }
            other => other,
        })
    }

    /// Begins the span of a call, if it is made in a trace.
    fn span(&self) -> TraceSpan {
        let mut span =
            TraceSpan::child(SpanKind::Client, || format!("script {}", self.name).into());
        self.describe(&mut span);
        span
    }

    /// Notes in a trace a call that was made for it, though not in it: a claim serves the jobs that
    /// it finds, and belongs to the worker that asks.
    pub fn note_call(&self, start: SpanStart, context: Option<TraceContext>) {
        if context.is_some_and(|context| context.sampled) {
            let name = || format!("script {}", self.name).into();
            let mut span = TraceSpan::begin_at(start, SpanKind::Client, context, name);
            self.describe(&mut span);
        }
    }

    fn describe(&self, span: &mut TraceSpan) {
        span.set("db.system.name", || "redis");
        span.set("db.operation.name", || "EVALSHA");
        span.set("db.stored_procedure.name", || self.name);
    }

    /// The same call with the text in place of the digest.
    fn with_text(&self, cmd: &Cmd) -> Cmd {
        let mut text = redis::cmd("EVAL");
        text.arg(self.source());
        for arg in cmd.args_iter().skip(2) {
            if let redis::Arg::Simple(bytes) = arg {
                text.arg(bytes);
            }
        }
        text
    }
}

/// Of so many calls one is timed: reading the clock twice costs as much as a short script in the
/// built-in store spends in one command.
const TIMED_ONE_IN: u8 = 16;

/// Tells whether this call is one of those that are timed.
fn is_timed() -> bool {
    thread_local! {
        static TURN: Cell<u8> = const { Cell::new(0) };
    }
    TURN.with(|turn| {
        let before = turn.get();
        turn.set((before + 1) % TIMED_ONE_IN);
        before == 0
    })
}

impl fmt::Debug for Script {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Script")
            .field("name", &self.name)
            .field("keys", &self.keys)
            .field("args", &self.args)
            .finish_non_exhaustive()
    }
}

/// A call being put together: keys first, then arguments.
#[doc(hidden)]
#[derive(Debug)]
pub struct ScriptCall {
    cmd: Cmd,
    misfit: Option<(&'static str, usize)>,
}

impl ScriptCall {
    pub fn new(script: &Script, keys: usize) -> Self {
        let mut cmd = redis::cmd("EVALSHA");
        cmd.arg(script.sha()).arg(keys);
        Self { cmd, misfit: None }
    }

    pub fn key(&mut self, key: impl Borrow<Key>) {
        self.cmd.arg(key.borrow());
    }

    /// One argument is one value: an absent one is sent as an empty string, and a list where one
    /// value belongs is an error, because it would move all that follow.
    pub fn arg(&mut self, name: &'static str, arg: impl ToRedisArgs) {
        match arg.num_of_args() {
            0 => _ = self.cmd.arg(""),
            1 => _ = self.cmd.arg(arg),
            count => self.misfit = Some((name, count)),
        }
    }

    pub fn into_cmd(self) -> Cmd {
        self.cmd
    }
}

/// Declares the script in `lua/NAME.lua` of the calling crate.
///
/// ```ignore
/// tidegate_store::script!(pub(crate) claim {
///     keys: [ready, later, leased],
///     args: [now_ms, lease_until_ms, ..ids],
///     library: LIBRARY,
/// });
///
/// let (word, id): (String, String) = claim::run(
///     &store,
///     claim::Keys { ready: &keys.ready, later: &keys.later, leased: &keys.leased },
///     claim::Args { now_ms: store.now(), lease_until_ms: until, ids: ["a", "b"] },
/// )
/// .await?;
/// ```
///
/// Makes a module of that name with
/// - `Keys`: a field per key, each a `Key` or `&Key`; a last `..name` takes any number of them;
/// - `Args`: a field per argument, each anything redis-rs can send as one value (`None` is sent as
///   an empty string); a last `..name` takes any number of them;
/// - `run::<T>(&store, Keys, Args)`: runs the script and reads the reply as `T`;
/// - `cmd(Keys, Args)`: the same call as an `EVALSHA` for a pipeline, where the caller sees to it
///   that the store knows the script (`load`), because `NOSCRIPT` is not mended there;
/// - `load(&store)`: makes the store know the script;
/// - `SCRIPT`: what was declared.
///
/// In the file each key and argument is a local of that name. A last `..name` is the number of keys
/// or arguments before its first: `ARGV[ids + 1]` is the first id.
///
/// `keys`, `args` and `library` may each be left out, in this order. The library is a static of the
/// calling module, made by [`script_library!`](crate::script_library!); the files that a header
/// names after `-- uses:` are put in front. A `folder: "tests/lua",` before them names another folder
/// of the crate than `lua`.
#[macro_export]
macro_rules! script {
    (@in $folder:literal; $(#[$meta:meta])* $vis:vis $name:ident {
        $(keys: [$($key:ident),* $(,)? $(.. $keys:ident $(,)?)?] $(,)?)?
        $(args: [$($arg:ident),* $(,)? $(.. $args:ident $(,)?)?] $(,)?)?
        $(library: $library:ident $(,)?)?
    }) => {
        $(#[$meta])*
        #[allow(
            dead_code, missing_docs, unreachable_pub, non_camel_case_types, unused_mut,
            unused_variables, missing_debug_implementations
        )]
        $vis mod $name {
            /// The keys of this script, in its order.
            pub struct Keys<$($($key,)* $($keys,)?)?> {
                $($(pub $key: $key,)* $(pub $keys: $keys,)?)?
            }

            /// The arguments of this script, in its order.
            pub struct Args<$($($arg,)* $($args,)?)?> {
                $($(pub $arg: $arg,)* $(pub $args: $args,)?)?
            }

            /// This script's own keys; no other type has it.
            pub trait IsKeys {
                fn start(self) -> $crate::script::ScriptCall;
            }

            impl<$($($key,)* $($keys,)?)?> IsKeys for Keys<$($($key,)* $($keys,)?)?>
            where
                $($($key: ::std::borrow::Borrow<$crate::Key>,)*
                $($keys: ::std::iter::IntoIterator<Item: ::std::borrow::Borrow<$crate::Key>>,)?)?
            {
                fn start(self) -> $crate::script::ScriptCall {
                    let mut count = $crate::script!(@count $($($key)*)?);
                    $($(
                        let $keys: ::std::vec::Vec<_> = self.$keys.into_iter().collect();
                        count += $keys.len();
                    )?)?
                    let mut call = $crate::script::ScriptCall::new(SCRIPT, count);
                    $($(call.key(self.$key);)*)?
                    $($($keys.into_iter().for_each(|key| call.key(key));)?)?
                    call
                }
            }

            /// This script's own arguments; no other type has it.
            pub trait IsArgs {
                fn finish(self, call: &mut $crate::script::ScriptCall);
            }

            impl<$($($arg,)* $($args,)?)?> IsArgs for Args<$($($arg,)* $($args,)?)?>
            where
                $($($arg: $crate::redis::ToRedisArgs,)*
                $($args: ::std::iter::IntoIterator<Item: $crate::redis::ToRedisArgs>,)?)?
            {
                fn finish(self, call: &mut $crate::script::ScriptCall) {
                    $($(call.arg(stringify!($arg), self.$arg);)*)?
                    $($(self.$args.into_iter().for_each(|arg| call.arg(stringify!($args), arg));)?)?
                }
            }

            static DECLARED: $crate::Script = $crate::Script::new(
                stringify!($name),
                &[$($(stringify!($key),)* $(concat!("..", stringify!($keys)),)?)?],
                &[$($(stringify!($arg),)* $(concat!("..", stringify!($args)),)?)?],
                $crate::script!(@library $($library)?),
                include_str!(concat!(
                    env!("CARGO_MANIFEST_DIR"), "/", $folder, "/",
                    stringify!($name), ".lua"
                )),
            );

            /// The declared script.
            pub static SCRIPT: &$crate::Script = &DECLARED;

            /// Runs the script and reads its reply.
            pub fn run<T: $crate::redis::FromRedisValue>(
                store: &$crate::Store,
                keys: impl IsKeys,
                args: impl IsArgs,
            ) -> $crate::script::Running<'_, T> {
                let mut call = keys.start();
                args.finish(&mut call);
                SCRIPT.run(store, call)
            }

            /// The call as a command for a pipeline.
            pub fn cmd(keys: impl IsKeys, args: impl IsArgs) -> $crate::redis::Cmd {
                let mut call = keys.start();
                args.finish(&mut call);
                call.into_cmd()
            }

            /// Makes the store know the script.
            pub async fn load(store: &$crate::Store) -> ::std::result::Result<(), $crate::Error> {
                SCRIPT.load(store).await
            }
        }
    };
    (@library) => { ::std::option::Option::None };
    (@library $library:ident) => { ::std::option::Option::Some(&super::$library) };
    (@count) => { 0usize };
    (@count $first:ident $($rest:ident)*) => { 1usize + $crate::script!(@count $($rest)*) };
    ($(#[$meta:meta])* $vis:vis $name:ident { folder: $folder:literal $(, $($rest:tt)*)? }) => {
        $crate::script!(@in $folder; $(#[$meta])* $vis $name { $($($rest)*)? });
    };
    ($(#[$meta:meta])* $vis:vis $name:ident { $($rest:tt)* }) => {
        $crate::script!(@in "lua"; $(#[$meta])* $vis $name { $($rest)* });
    };
}

/// Declares the library of a crate's scripts: the files in `lua/lib/`, one function each.
///
/// ```ignore
/// tidegate_store::script_library!(pub(crate) LIBRARY {
///     files: ["emit", "take_due"],
///     constants: crate::keys::SCRIPT_CONSTANTS,
/// });
/// ```
///
/// A file uses others, and is used by scripts, by naming them in its header: `-- uses: emit`. What a
/// file needs of the keys and arguments of the script around it, it names too: `-- reads: now_ms`.
/// `constants`, which may be left out, are names and texts; every file may use them by name, a
/// library file after saying so in `-- reads:`. A `folder: "tests/lua",` before `files` names another
/// folder than `lua`.
#[macro_export]
macro_rules! script_library {
    (@in $folder:literal; $(#[$meta:meta])* $vis:vis $name:ident {
        files: [$($file:literal),* $(,)?] $(,)?
        $(constants: $constants:expr $(,)?)?
    }) => {
        $(#[$meta])*
        $vis static $name: $crate::script::Library = $crate::script::Library::new(
            &[$((
                $file,
                include_str!(concat!(
                    env!("CARGO_MANIFEST_DIR"), "/", $folder, "/lib/", $file, ".lua"
                )),
            ),)*],
            $crate::script_library!(@constants $($constants)?),
        );
    };
    (@constants) => { &[] };
    (@constants $constants:expr) => { &$constants };
    ($(#[$meta:meta])* $vis:vis $name:ident { folder: $folder:literal, $($rest:tt)* }) => {
        $crate::script_library!(@in $folder; $(#[$meta])* $vis $name { $($rest)* });
    };
    ($(#[$meta:meta])* $vis:vis $name:ident { $($rest:tt)* }) => {
        $crate::script_library!(@in "lua"; $(#[$meta])* $vis $name { $($rest)* });
    };
}

/// A script on its way.
pub type Running<'a, T> = BoxFuture<'a, Result<T, Error>>;

impl Script {
    /// Makes the store know the script, so that it can be called in a pipeline.
    pub async fn load(&self, store: &Store) -> Result<(), Error> {
        let mut store = store.clone();
        let sha: String =
            redis::cmd("SCRIPT").arg("LOAD").arg(self.source()).query_async(&mut store).await?;
        debug_assert_eq!(sha, self.sha());
        Ok(())
    }
}
