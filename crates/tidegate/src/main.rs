//! Flow control for whatever arrives faster than it can be served: the binary.

fn main() {}
