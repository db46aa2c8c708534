//! Redis semantics in memory: data types, commands, Lua. No I/O, no clock, no tokio.
