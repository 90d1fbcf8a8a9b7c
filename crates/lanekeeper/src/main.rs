//! The `lanekeeper` binary: command line, and the wiring of every role.
//!
//! Exit codes: 0 done; 1 the work failed or a check did not hold; 2 the command line or a
//! configuration file is wrong.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

mod agent;
mod cloud;
mod demo;
mod host;
mod otlp;
mod output;
mod server;
mod softnic;
mod unit;
mod values;

/// High-performance Ethernet for virtual machines: one owner from PF to VM.
#[derive(Parser)]
#[command(name = "lanekeeper", version, propagate_version = true)]
#[command(after_help = "Exit codes: 0 done; 1 the work failed or a check did not hold; \
2 the command line or a configuration file is wrong.\nLogs go to standard error; LANEKEEPER_LOG \
sets their level (error, warn, info, debug, trace).")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run a software NIC, or look at and change those that run.
    Softnic(softnic::Args),
    /// Own the VFs of this host's SR-IOV NICs: show, plan, apply, check, claim, release, recover.
    Host(host::Args),
    /// The control plane: inventory, tenants, networks, VMs on demand, behind one API.
    Server(server::Args),
    /// Keep the VFs of this host as the host file says, as a daemon; or be a host of a server.
    Agent(Box<agent::Args>),
    #[command(flatten)]
    Cloud(cloud::Command),
    /// Two emulated hosts, VMs on VFs, RoCE v2 between them: the whole on one machine.
    Demo(demo::Args),
    /// Print a completion script for your shell.
    Completion {
        /// Which shell.
        shell: clap_complete::Shell,
    },
}

/// Why a command ended without having done its work.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// The command line or a file is wrong (exit code 2).
    #[error("{0}")]
    Usage(String),
    /// The work failed (exit code 1).
    #[error("{0}")]
    Work(String),
    /// Nobody reads what it has to say any more; that is the reader's choice (exit code 0).
    #[error("standard output was closed by its reader")]
    Unread,
}

/// What this program was started by, for messages that name a command of it: it need not be on the
/// user's PATH.
pub(crate) fn program() -> String {
    let first = std::env::args_os().next();
    first.map_or_else(|| "lanekeeper".to_owned(), |name| name.to_string_lossy().into_owned())
}

impl Failure {
    fn exit_code(&self) -> u8 {
        match self {
            Self::Unread => 0,
            Self::Work(_) => 1,
            Self::Usage(_) => 2,
        }
    }
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let traces = match &cli.command {
        Command::Server(args) => args.otlp.as_ref().map(otlp::Traces::start).transpose(),
        _ => Ok(None),
    };
    let traces = match traces {
        Ok(traces) => traces,
        Err(why) => return ended(Err(Failure::Usage(format!("--otlp: {why}")))),
    };
    log(traces.as_ref());
    let result = match cli.command {
        Command::Softnic(args) => softnic::run(args).map(|()| ExitCode::SUCCESS),
        Command::Host(args) => host::run(args),
        Command::Server(args) => server::run(args),
        Command::Agent(args) => agent::run(*args),
        Command::Cloud(command) => cloud::run(command),
        Command::Demo(args) => demo::run(args),
        Command::Completion { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "lanekeeper", &mut script);
            output::print(String::from_utf8_lossy(&script).trim_end()).map(|()| ExitCode::SUCCESS)
        }
    };
    ended(result)
}

/// Log to standard error, and export spans if that is asked for.
fn log(traces: Option<&otlp::Traces>) {
    let filter = tracing_subscriber::EnvFilter::try_from_env("LANEKEEPER_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("info"));
    let lines = tracing_subscriber::fmt::layer()
        .with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()))
        .with_writer(std::io::stderr)
        // It would be said on standard error, which is what failed: a NIC must outlive its log.
        .log_internal_errors(false)
        .with_filter(filter);
    tracing_subscriber::registry().with(lines).with(traces.map(otlp::Traces::layer)).init();
}

fn ended(result: Result<ExitCode, Failure>) -> ExitCode {
    match result {
        Ok(code) => code,
        Err(failure) => {
            if !matches!(failure, Failure::Unread) {
                output::note(output::harmless(&format!("lanekeeper: {failure}")));
            }
            ExitCode::from(failure.exit_code())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
