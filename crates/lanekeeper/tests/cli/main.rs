//! The command line as a person uses it: what is said, on which stream, with which exit code.

mod cloud;
mod contexts;
mod host;
mod nics;
mod run;
mod set;
mod show;
