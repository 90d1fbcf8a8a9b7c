//! `lanekeeper softnic` and `host` as a person uses it: what is said, on which stream, with which exit code.

mod host;
mod nics;
mod run;
mod set;
mod show;
