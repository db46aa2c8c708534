//! Lua scripts, tied to Rust by name.
//!
//! [`script!`](crate::script!) declares a script that lives in the calling crate's
//! `lua/NAME.lua`. The call has a field for each key and each argument, so two cannot be swapped,
//! and the header of the file is checked against the same names by a test. A script is sent by its
//! digest and only on `NOSCRIPT` as text; a `NOSCRIPT` means that nothing ran, so that repeating is
//! safe.

mod arg;
pub mod tidy;

pub use self::arg::Arg;

use std::{borrow::Borrow, fmt, sync::OnceLock};

use futures_util::future::BoxFuture;
use redis::{
    Cmd, ErrorKind, FromRedisValue, ServerErrorKind, ToRedisArgs, Value, aio::ConnectionLike,
};

use crate::{Error, Key, Store};

/// A declared script. Made by [`script!`](crate::script!).
pub struct Script {
    name: &'static str,
    keys: &'static [&'static str],
    args: &'static [&'static str],
    libs: &'static [(&'static str, &'static str)],
    body: &'static str,
    joined: OnceLock<AssembledSource>,
}

struct AssembledSource {
    source: String,
    sha: String,
}

impl Script {
    #[doc(hidden)]
    pub const fn new(
        name: &'static str,
        keys: &'static [&'static str],
        args: &'static [&'static str],
        libs: &'static [(&'static str, &'static str)],
        body: &'static str,
    ) -> Self {
        Self { name, keys, args, libs, body, joined: OnceLock::new() }
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

    /// The names of the files from `lua/lib/` that are joined in front.
    pub fn libs(&self) -> impl Iterator<Item = &'static str> {
        self.libs.iter().map(|(name, _)| *name)
    }

    /// The text of the script's own file.
    pub fn body(&self) -> &'static str {
        self.body
    }

    /// The text that is sent: the library functions, then the body. A Dragonfly flag line, which
    /// must come first, comes first.
    pub fn source(&self) -> &str {
        &self.joined().source
    }

    /// The digest the store knows the script by.
    pub fn sha(&self) -> &str {
        &self.joined().sha
    }

    fn joined(&self) -> &AssembledSource {
        self.joined.get_or_init(|| {
            let (flags, body) = match self.body.split_once('\n') {
                Some((first, rest)) if first.starts_with("--!df") => (Some(first), rest),
                _ => (None, self.body),
            };
            let mut source = String::new();
            for part in flags.into_iter().chain(self.libs.iter().map(|(_, text)| *text)) {
                source.push_str(part.trim_end());
                source.push('\n');
            }
            source.push_str(body);
            let sha = redis::Script::new(&source).get_hash().to_owned();
            AssembledSource { source, sha }
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
        let answer = store.req_packed_command(&call.cmd).await.and_then(Value::extract_error);
        let answer = match answer {
            Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::NoScript) => {
                let text = self.with_text(&call.cmd);
                store.req_packed_command(&text).await.and_then(Value::extract_error)
            }
            answer => answer,
        };
        answer.map_err(|error| Error::from(error).in_script(self.name))
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
/// store::script!(pub(crate) claim {
///     keys: [ready, later, leased],
///     args: [now_ms, lease_until_ms, ..ids],
///     lib: ["take_due"],
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
/// `keys`, `args` and `lib` may each be left out, in this order. The files in `lib` come from
/// `lua/lib/NAME.lua` and are joined in front. A `folder: "tests/lua",` before them names another
/// folder of the crate than `lua`.
#[macro_export]
macro_rules! script {
    (@in $folder:literal; $(#[$meta:meta])* $vis:vis $name:ident {
        $(keys: [$($key:ident),* $(,)? $(.. $keys:ident $(,)?)?] $(,)?)?
        $(args: [$($arg:ident),* $(,)? $(.. $args:ident $(,)?)?] $(,)?)?
        $(lib: [$($lib:literal),* $(,)?] $(,)?)?
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
                &[$($((
                    $lib,
                    include_str!(concat!(
                        env!("CARGO_MANIFEST_DIR"), "/", $folder,
                        "/lib/", $lib, ".lua"
                    )),
                ),)*)?],
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
    (@count) => { 0usize };
    (@count $first:ident $($rest:ident)*) => { 1usize + $crate::script!(@count $($rest)*) };
    ($(#[$meta:meta])* $vis:vis $name:ident { folder: $folder:literal $(, $($rest:tt)*)? }) => {
        $crate::script!(@in $folder; $(#[$meta])* $vis $name { $($($rest)*)? });
    };
    ($(#[$meta:meta])* $vis:vis $name:ident { $($rest:tt)* }) => {
        $crate::script!(@in "lua"; $(#[$meta])* $vis $name { $($rest)* });
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
