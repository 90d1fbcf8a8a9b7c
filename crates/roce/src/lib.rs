//! RoCE v1/v2.
#![forbid(unsafe_code)]

pub mod dcqcn;
pub mod sim;
pub mod time;
