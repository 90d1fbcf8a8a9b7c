//! `lanekeeper-bench`: the command behind `./x bench softnic`, `control` and `served`.
#![forbid(unsafe_code)]

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, Subcommand};
use lanekeeper_bench::machine::{HugePages, end_in_any_case};
use lanekeeper_bench::peers::{ClientKind, Load, Peer};
use lanekeeper_bench::report::{Figures, OneCore, lines, write};
use lanekeeper_bench::testpmd::Ring;
use lanekeeper_bench::two_cores::{Effort, compare};
use lanekeeper_bench::{BenchError, Stop, control, one_core, served};

/// Three lanes at once: a client and a switch each, OVS with its packet pools.
const MEMORY_MIB: u64 = 3_072;

#[derive(Parser)]
#[command(about = "Measure Lanekeeper beside its peers")]
struct Options {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// One switching core between two VFs, an independent virtio driver on another core.
    Softnic(Softnic),
    /// The control plane's placement and claims, on each store, beside OpenStack Placement.
    Control(control::Options),
    /// A server of that measurement, started by it.
    #[command(name = control::server::COMMAND, hide = true)]
    ControlServer(control::server::Place),
    /// The whole server over HTTPS: simulated agents, and tenants whose VMs come and go.
    Served(served::Options),
}

#[derive(clap::Args)]
struct Softnic {
    /// Frame lengths in bytes, without FCS.
    #[arg(long, value_delimiter = ',', default_values_t = [64, 512, 1_500, 9_000])]
    lengths: Vec<usize>,
    /// Windows that each switch must have at one distance of the cores.
    #[arg(long, default_value_t = 15)]
    windows: usize,
    /// Core of the switch and core of the client.
    #[arg(long, value_delimiter = ',', num_args = 2, default_values_t = [0, 1])]
    cores: Vec<usize>,
    /// Descriptors in each ring.
    #[arg(long, default_value_t = 1_024)]
    ring_size: u16,
    /// Frames in flight in each direction, in bursts of 32.
    #[arg(long, default_value_t = 4)]
    bursts: u32,
    /// The program to measure; by default `lanekeeper` from the folder of this one.
    #[arg(long)]
    lanekeeper: Option<PathBuf>,
    /// Minutes after which it ends, done or not.
    #[arg(long, default_value_t = 60)]
    limit: u64,
    /// Leave the logs of every process behind.
    #[arg(long)]
    keep_logs: bool,
    /// Document to put the figures into.
    #[arg(long)]
    report: Option<PathBuf>,
}

fn main() -> ExitCode {
    let Options { what } = Options::parse();
    let limit = match &what {
        What::Softnic(options) => Some(options.limit),
        What::Control(options) => Some(options.limit),
        What::Served(options) => Some(options.limit),
        What::ControlServer(_) => None,
    };
    // First of all: a signal must never find children and no one to end them.
    let stop = limit.map_or_else(
        || Ok(Stop::default()),
        |minutes| Stop::on_signals(Some(Duration::from_secs(60 * minutes))),
    );
    let result = stop.and_then(|stop| {
        let result = match &what {
            What::Softnic(options) => softnic(options, &stop),
            What::Control(options) => control::run(options, &command_line(), &stop),
            What::Served(options) => served::run(options, &command_line(), &stop),
            What::ControlServer(place) => control::server::serve(place),
        };
        // Ctrl-C reaches the children too, and whatever they then do wrong is not an error.
        result.map_err(|error| if stop.asked() { BenchError::Interrupted } else { error })
    });
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(BenchError::Interrupted) => ExitCode::from(130),
        Err(error) => {
            eprintln!("lanekeeper-bench: {error}");
            ExitCode::FAILURE
        }
    }
}

fn softnic(options: &Softnic, stop: &Stop) -> Result<(), BenchError> {
    let pages = HugePages::reserve(MEMORY_MIB, stop)?;
    let mut folder = tempfile::Builder::new()
        .prefix("lanekeeper-bench.")
        .tempdir()
        .map_err(BenchError::io("temporary folder"))?;
    if options.keep_logs {
        folder.disable_cleanup(true);
        println!("logs are kept in {}", folder.path().display());
    }
    end_in_any_case(stop, &pages, (!options.keep_logs).then(|| folder.path().to_owned()))?;
    let lanekeeper = match &options.lanekeeper {
        Some(path) => path.clone(),
        None => std::env::current_exe()
            .map_err(BenchError::io("this program"))?
            .with_file_name("lanekeeper"),
    };
    let effort = Effort { window: Duration::from_millis(300), windows: options.windows };
    let mut figures =
        Figures { command: command_line(), effort, two_cores: Vec::new(), one_core: Vec::new() };
    for ring in Ring::ALL {
        for &length in &options.lengths {
            let load = |client| Load {
                client,
                ring,
                length,
                ring_size: options.ring_size,
                bursts: options.bursts,
                cores: [options.cores[0], options.cores[1]],
                lanekeeper: lanekeeper.clone(),
            };
            println!("{} rings, {length} bytes", ring.name());
            for client in ClientKind::ALL {
                let cell = folder.path().join(format!("{}-{length}-{client:?}", ring.name()));
                let comparison = compare(&Peer::ALL, &load(client), effort, &cell, stop)?;
                for line in lines(&comparison) {
                    println!("  {line} {}", client.name());
                }
                figures.two_cores.push(comparison);
            }
            let cell = folder.path().join(format!("{}-{length}", ring.name()));
            let load = load(ClientKind::Own);
            for (name, rate) in [
                ("Lanekeeper, own driver", one_core::softnic(&load, effort, &cell, stop)?),
                ("DPDK io, DPDK's driver", one_core::dpdk(&load, effort, &cell, stop)?),
            ] {
                println!("  one core, {name}: {:.2} million frames a second", rate.median / 1e6);
                figures.one_core.push(OneCore { name, load: load.clone(), rate });
            }
        }
    }
    if let Some(path) = &options.report {
        write(&figures, path)?;
        println!("written to {}", path.display());
    }
    Ok(())
}

fn command_line() -> String {
    let args = std::env::args().skip(1).collect::<Vec<_>>().join(" ");
    format!("lanekeeper-bench {args}")
}
