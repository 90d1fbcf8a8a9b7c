//! `lanekeeper softnic` as a person uses it: what is said, on which stream, with which exit code.

mod nics;
mod run;
mod set;
mod show;
