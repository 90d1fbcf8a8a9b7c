//! `lanekeeper server`: the control plane, from the command line and the signals that end it.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use lanekeeper_control::api::{Rate, Rates};
use lanekeeper_control::keys::ServerName;
use lanekeeper_control::server::{Config, Server, StoreConfig};

use crate::Failure;
use crate::otlp::Collector;
use crate::output::print;
use crate::unit;

/// Serve the API: inventory, tenants, networks, VMs and their placement.
///
/// At its first start it makes, in its data directory, an authority for certificates (authority.pem,
/// whose certificate alone is in authority.crt) and the first operator's API key (operator.key).
#[derive(clap::Args)]
#[command(
    after_help = "With more than one server on one etcd cluster, give each the same authority.pem. \
SIGTERM and SIGINT end it; what was begun is answered first. Nothing is lost by a kill either."
)]
pub(crate) struct Args {
    /// Directory of the store, the authority and the first operator's key.
    #[arg(long, value_name = "DIR", default_value = "/var/lib/lanekeeper/server")]
    data: PathBuf,
    /// Address and port to listen on. Port 0 takes a free one.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8443")]
    listen: SocketAddr,
    /// A host name or address that clients call it by; may be given several times. The listening
    /// address and localhost are always among them.
    #[arg(long = "name", value_name = "NAME")]
    names: Vec<String>,
    /// Certificate chain (PEM) to show instead of one of its own authority.
    #[arg(long, value_name = "FILE", requires = "key")]
    certificate: Option<PathBuf>,
    /// The key (PEM) of that certificate.
    #[arg(long, value_name = "FILE", requires = "certificate")]
    key: Option<PathBuf>,
    /// URL of an etcd member; may be given several times. Without, the store is a file of its own.
    #[cfg(feature = "etcd")]
    #[arg(long, value_name = "URL")]
    etcd: Vec<String>,
    /// Its name among other servers of the store; the machine's host name if not said.
    #[arg(long, value_name = "NAME")]
    server_name: Option<ServerName>,
    /// Calls a second that one API key may make in the long run; ten times as many at once.
    #[arg(long, value_name = "CALLS", default_value = "100", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    rate: u32,
    /// Send traces to a collector at this address, by OTLP over HTTP: a span for each request and for what
    /// is done for VMs, without secrets. Whether it takes them or not, no request waits for it.
    #[arg(long, value_name = "URL")]
    pub(crate) otlp: Option<Collector>,
    /// Print the systemd unit, and do nothing else.
    #[arg(long)]
    print_unit: bool,
}

impl Args {
    fn config(self) -> Result<Config, Failure> {
        #[cfg(feature = "etcd")]
        let store = store(self.etcd);
        #[cfg(not(feature = "etcd"))]
        let store = StoreConfig::Embedded;
        let mut names = self.names;
        let ip = self.listen.ip();
        if !ip.is_unspecified() {
            names.push(ip.to_string());
        }
        names.extend(["localhost".to_owned(), "127.0.0.1".to_owned()]);
        names.sort();
        names.dedup();
        let name = match self.server_name {
            Some(name) => name,
            None => host_name()?,
        };
        let rate = f64::from(self.rate);
        Ok(Config {
            data: self.data,
            listen: self.listen,
            names,
            certificate: self.certificate.zip(self.key),
            store,
            name,
            rates: Rates {
                callers: Rate { per_second: rate, burst: 10.0 * rate },
                ..Rates::default()
            },
        })
    }
}

/// Under which all is kept in etcd.
#[cfg(feature = "etcd")]
const ROOT: &str = "/lanekeeper";

#[cfg(feature = "etcd")]
fn store(endpoints: Vec<String>) -> StoreConfig {
    if endpoints.is_empty() {
        return StoreConfig::Embedded;
    }
    let root = ROOT.to_owned();
    StoreConfig::Etcd(lanekeeper_control::store::EtcdConfig { endpoints, root })
}

/// This machine's host name, with the process's number: two servers of one machine are two.
fn host_name() -> Result<ServerName, Failure> {
    let uname = rustix::system::uname();
    let name = format!("{}-{}", uname.nodename().to_string_lossy(), std::process::id());
    ServerName::new(&name).map_err(|error| Failure::Usage(format!("--server-name: {error}")))
}

/// Serve until a signal ends it.
///
/// # Errors
/// [`Failure::Work`] if it cannot start.
pub(crate) fn run(args: Args) -> Result<ExitCode, Failure> {
    if args.print_unit {
        print(unit::here(unit::SERVER).trim_end())?;
        return Ok(ExitCode::SUCCESS);
    }
    let config = args.config()?;
    open_as_many_files_as_may_be();
    let work = |error: &dyn std::error::Error| Failure::Work(error.to_string());
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| work(&error))?;
    runtime.block_on(async {
        let end = end().map_err(|error| work(&error))?;
        let data = config.data.clone();
        let server = Server::start(config).await.map_err(|error| work(&error))?;
        let certificate = data.join("authority.crt");
        std::fs::write(&certificate, server.authority())
            .map_err(|error| Failure::Work(format!("{}: {error}", certificate.display())))?;
        print(format!(
            "serving https://{}\nauthority {}\nfirst operator's API key {}",
            server.address(),
            certificate.display(),
            data.join("operator.key").display()
        ))?;
        server.run(end).await.map_err(|error| work(&error))
    })?;
    Ok(ExitCode::SUCCESS)
}

/// An agent holds two connections, and what a process may open is 1,024 files as most systems start it:
/// take what may be taken.
fn open_as_many_files_as_may_be() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    if let Err(error) = setrlimit(Resource::Nofile, limit) {
        tracing::warn!(%error, "the limit of open files, and so of connections, is as it was");
    }
}

/// Ready when a signal asks it to end.
fn end() -> std::io::Result<impl Future<Output = ()> + Send + 'static> {
    use tokio::signal::unix::{SignalKind, signal};
    let (mut term, mut int) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    Ok(async move {
        tokio::select! {
            _ = term.recv() => {}
            _ = int.recv() => {}
        }
        tracing::info!("asked to end");
    })
}
