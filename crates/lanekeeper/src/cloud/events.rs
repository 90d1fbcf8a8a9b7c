//! `lanekeeper event`: what has happened, and what happens.

use clap::Subcommand;
use lanekeeper_client::Error;
use lanekeeper_control::resource::Event;
use serde::Deserialize;
use serde_json::Value;

use super::Run;
use super::connect::Session;
use super::kind;
use super::table::{Column, Row, word};
use crate::Failure;
use crate::output::{harmless, note, print};

#[derive(Subcommand)]
pub(crate) enum Command {
    /// List what has happened.
    List {
        /// Go on with what happens from now on, one event a line.
        #[arg(long)]
        follow: bool,
    },
}

impl Row for Event {
    const COLUMNS: &'static [Column<Self>] = &[
        ("AT", |event| event.at.to_string()),
        ("SEVERITY", |event| word(&event.severity)),
        ("RESOURCE", |event| format!("{}/{}", event.kind, event.resource)),
        ("REASON", |event| event.reason.clone()),
        ("MESSAGE", |event| event.message.clone()),
    ];
}

impl Run for Command {
    fn run(self, session: &Session) -> Result<(), Failure> {
        match self {
            Self::List { follow: false } => kind::list::<Event>(session),
            Self::List { follow: true } => follow(session),
        }
    }
}

/// A change that the server tells of.
#[derive(Deserialize)]
struct Told {
    resource: Option<Value>,
}

/// What there is, then what comes. The stream says when it begins, and when changes were missed: all
/// that is not printed yet is read then.
fn follow(session: &Session) -> Result<(), Failure> {
    let mut printed = 0;
    let stream = session.client.events("/v1/watch?kinds=events");
    let mut last = None::<Error>;
    for next in stream {
        let told = match next {
            Ok(told) => told,
            Err(error) => {
                // It tries again by itself, as long as that may help.
                note(harmless(&error.to_string()));
                last = Some(error);
                continue;
            }
        };
        last = None;
        let new = match told.kind.as_str() {
            "put" => {
                let told: Told = serde_json::from_str(&told.data).map_err(|error| {
                    Failure::Work(format!("the server's event is not understood: {error}"))
                })?;
                told.resource.into_iter().collect()
            }
            "ready" | "reset" => {
                kind::all(session, "/v1/events", &[("after", &printed.to_string())])?
            }
            _ => Vec::new(),
        };
        for value in new {
            let event: Event = kind::read(&value)?;
            if event.id > printed {
                printed = event.id;
                print_line(session, &event, &value)?;
            }
        }
    }
    match last {
        Some(error) => Err(error.into()),
        None => Err(Failure::Work("the server has ended the stream of events".to_owned())),
    }
}

fn print_line(session: &Session, event: &Event, value: &Value) -> Result<(), Failure> {
    if session.json {
        return print(value);
    }
    let cells = Event::COLUMNS.iter().map(|(_, cell)| cell(event));
    print(harmless(&cells.collect::<Vec<_>>().join("  ")))
}
