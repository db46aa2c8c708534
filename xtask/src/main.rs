//! Code generation and checks of the tree.

fn main() {}
