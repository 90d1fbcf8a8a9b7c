//! The back end over trees of files that a test makes, and over kernels that it plays; and over
//! this machine's own, in a network namespace.

mod fixture;
mod kernel;
mod reading;
mod writing;
