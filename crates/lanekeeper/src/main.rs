//! The `lanekeeper` binary: command line, and the wiring of every role.
#![forbid(unsafe_code)]

fn main() {}
