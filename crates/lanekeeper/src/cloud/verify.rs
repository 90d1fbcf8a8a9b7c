//! `lanekeeper verify`: have the lanes of VMs looked at by their hosts.

use clap::Subcommand;
use lanekeeper_control::protocol::{CheckVerdict, ProofCheck};
use lanekeeper_control::resource::{
    Group, Verification, VerificationSpec, VerificationState, VerificationView, Vm,
};
use serde_json::Value;

use super::connect::Session;
use super::kind::{self, Which};
use super::table::{Column, Row, maybe, print_json, print_one, print_rows, word};
use super::wait::{Seen, Wait};
use super::{One, Run};
use crate::Failure;
use crate::output::{micros, print};

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Look at all VMs of a group, and at whether each reaches each other.
    Group(OfGroup),
    /// Look at some VMs, and at whether each reaches each other.
    Vm(OfVms),
    /// List the runs.
    List,
    /// Show one, with what was found.
    Show(One),
    /// Delete one, finished or not.
    Delete(One),
}

#[derive(clap::Args)]
pub(crate) struct OfGroup {
    #[command(flatten)]
    one: One,
    #[command(flatten)]
    wait: Wait,
}

#[derive(clap::Args)]
pub(crate) struct OfVms {
    /// Names or ids of VMs of one region.
    #[arg(value_name = "NAME", required = true)]
    which: Vec<Which>,
    #[command(flatten)]
    wait: Wait,
}

impl Row for VerificationView {
    const COLUMNS: &'static [Column<Self>] = &[
        ("ID", |view| view.run.id.to_string()),
        ("STATE", |view| word(&view.state)),
        ("GROUP", |view| maybe(view.run.group.as_ref())),
        ("VMS", |view| view.run.vms.len().to_string()),
        ("REGION", |view| view.run.region.to_string()),
        ("CREATED", |view| view.run.created_at.to_string()),
    ];
}

/// A check, with the VM that it is of.
struct Line {
    vm: String,
    check: ProofCheck,
}

impl Row for Line {
    const COLUMNS: &'static [Column<Self>] = &[
        ("VM", |line| line.vm.clone()),
        ("PORT", |line| line.check.port.clone()),
        ("CHECK", |line| line.check.check.clone()),
        ("VERDICT", |line| match line.check.verdict {
            CheckVerdict::Held => "holds".to_owned(),
            CheckVerdict::Failed => "FAILS".to_owned(),
            CheckVerdict::Skipped => "skipped".to_owned(),
        }),
        ("ROUND TRIP", |line| line.check.round_trip_ns.map(micros).unwrap_or_default()),
        ("FOUND", |line| match &line.check.remedy {
            Some(remedy) => format!("{}; {remedy}", line.check.found),
            None => line.check.found.clone(),
        }),
    ];
}

impl Run for Command {
    fn run(self, session: &Session) -> Result<(), Failure> {
        match self {
            Self::Group(args) => {
                let group = Some(kind::id_of::<Group>(session, &args.one.which)?);
                start(session, &VerificationSpec { group, vms: Vec::new() }, &args.wait)
            }
            Self::Vm(args) => {
                let ids = args.which.iter().map(|which| kind::id_of::<Vm>(session, which));
                let vms = ids.collect::<Result<_, _>>()?;
                start(session, &VerificationSpec { group: None, vms }, &args.wait)
            }
            Self::List => {
                let items = kind::all(session, "/v1/verifications", &[])?;
                kind::print_all::<VerificationView>(session, &items)
            }
            Self::Show(One { which }) => {
                show(session, kind::id_of::<Verification>(session, &which)?).map(drop)
            }
            Self::Delete(One { which }) => kind::delete::<Verification>(session, &which),
        }
    }
}

fn path(id: u64) -> String {
    format!("/v1/verifications/{id}")
}

fn start(session: &Session, spec: &VerificationSpec, wait: &Wait) -> Result<(), Failure> {
    let body = serde_json::to_value(spec)
        .map_err(|error| Failure::Work(format!("it cannot be written as JSON: {error}")))?;
    let made: VerificationView = kind::read(&session.create("/v1/verifications", &body)?)?;
    let id = made.run.id;
    if !wait.wait {
        return show(session, id).map(drop);
    }
    wait.until(&format!("verification run {id}"), || {
        let view = session.get::<VerificationView>(&path(id))?;
        let (told, of) = (view.parts.len(), view.run.vms.len());
        // One that has failed goes on for the other VMs.
        let all = told == of || view.state == VerificationState::TimedOut;
        Ok(if all { Seen::Done } else { Seen::Yet(format!("has looked at {told} of {of} VMs")) })
    })?;
    match show(session, id)? {
        VerificationState::Passed => Ok(()),
        state => {
            let state = word(&state);
            Err(Failure::Work(format!("verification run {id} has not passed: it is {state}")))
        }
    }
}

fn show(session: &Session, id: u64) -> Result<VerificationState, Failure> {
    let value: Value = session.get(&path(id))?;
    let view: VerificationView = kind::read(&value)?;
    if session.json {
        print_json(&value)?;
        return Ok(view.state);
    }
    print_one(&view)?;
    let name = |vm: u64| {
        let of = view.run.vms.iter().find(|it| it.vm == vm);
        of.map_or_else(|| vm.to_string(), |it| it.name.clone())
    };
    let lines: Vec<Line> = view
        .parts
        .iter()
        .flat_map(|part| part.checks.iter().map(|it| Line { vm: name(part.vm), check: it.clone() }))
        .collect();
    if !lines.is_empty() {
        print("")?;
        print_rows(&lines)?;
    }
    Ok(view.state)
}
