//! The built-in store over RESP: redis-cli and workers in other languages.
