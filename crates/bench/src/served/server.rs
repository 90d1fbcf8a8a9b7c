//! The server as a process of its own, `lanekeeper server`, which can be killed and started anew on the
//! same port; what it costs, and what it counts.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::process::{Running, free_ports};
use crate::{BenchError, Stop};

/// How long it may take to start.
const START: Duration = Duration::from_secs(120);

/// Ticks of a second in `/proc/PID/stat`: `USER_HZ`, which is 100 on all that Linux offers to programs.
const TICKS: f64 = 100.0;

/// How it is started.
#[derive(Clone, Debug)]
pub struct Server {
    program: PathBuf,
    folder: PathBuf,
    port: u16,
    etcd: Vec<String>,
}

impl Server {
    /// One with its data in a folder; its store is there too, or in etcd.
    ///
    /// # Errors
    /// There is no port.
    pub fn new(program: &Path, folder: &Path, etcd: Vec<String>) -> Result<Self, BenchError> {
        fs::create_dir_all(folder).map_err(BenchError::io(folder.display()))?;
        let port = free_ports(1)?[0];
        Ok(Self { program: program.to_owned(), folder: folder.to_owned(), port, etcd })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.port))
    }

    /// Start it, and wait until it serves.
    ///
    /// # Errors
    /// It does not.
    pub fn start(&self, stop: &Stop) -> Result<Running, BenchError> {
        let mut command = vec![
            self.program.display().to_string(),
            "server".to_owned(),
            "--data".to_owned(),
            self.folder.display().to_string(),
            "--listen".to_owned(),
            self.address().to_string(),
            // Tokens for all hosts come from one operator.
            "--rate".to_owned(),
            "100000".to_owned(),
        ];
        for member in &self.etcd {
            command.extend(["--etcd".to_owned(), member.clone()]);
        }
        let mut server = Running::start("server", command, &self.folder)?;
        server.wait_for("serving", START, stop, |server| {
            Ok(server.output()?.contains("serving https://").then_some(()))
        })?;
        Ok(server)
    }

    /// The certificate of its authority, and the first operator's key.
    ///
    /// # Errors
    /// They are not there.
    pub fn secrets(&self) -> Result<(String, String), BenchError> {
        let read = |name: &str| {
            let path = self.folder.join(name);
            fs::read_to_string(&path).map_err(BenchError::io(path.display()))
        };
        Ok((read("authority.crt")?, read("operator.key")?.trim().to_owned()))
    }

    /// The file of an embedded store.
    pub fn database(&self) -> PathBuf {
        self.folder.join("store/store.redb")
    }
}

/// Seconds that a process has been on cores: `utime` and `stime` of `/proc/PID/stat` (proc(5)).
///
/// # Errors
/// The process is gone.
pub fn cpu(process: u32) -> Result<f64, BenchError> {
    let path = format!("/proc/{process}/stat");
    let text = fs::read_to_string(&path).map_err(BenchError::io(&path))?;
    // The name before it stands in parentheses and may hold anything.
    let after = text.rsplit(')').next().unwrap_or_default();
    let fields: Vec<u64> =
        after.split_whitespace().filter_map(|field| field.parse().ok()).collect();
    // State is no number: `ppid` is the first, `utime` the eleventh.
    match fields.get(10..12) {
        Some([user, system]) => Ok((user + system) as f64 / TICKS),
        _ => Err(BenchError::Unexpected { what: path, got: text }),
    }
}

/// Of a histogram of `/v1/metrics` the bound that so many of a thousand are within, in seconds, over all
/// its labels; none if nothing was counted.
pub fn bound(metrics: &str, name: &str, of_thousand: u64) -> Option<f64> {
    let mut counts: Vec<(f64, u64)> = Vec::new();
    for line in metrics.lines().filter(|line| line.starts_with(&format!("{name}_bucket{{"))) {
        let (labels, count) = line.rsplit_once(' ')?;
        let bound = labels.split("le=\"").nth(1)?.split('"').next()?;
        let bound = if bound == "+Inf" { f64::INFINITY } else { bound.parse().ok()? };
        let count: u64 = count.parse().ok()?;
        match counts.iter_mut().find(|(of, _)| of.total_cmp(&bound).is_eq()) {
            Some((_, all)) => *all += count,
            None => counts.push((bound, count)),
        }
    }
    let all = counts.last().map(|(_, count)| *count).filter(|all| *all > 0)?;
    let wanted = (all * of_thousand).div_ceil(1000);
    counts.iter().find(|(_, count)| *count >= wanted).map(|(bound, _)| *bound)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_holds_as_many_as_it_should_over_all_labels() {
        let text = "x_bucket{region=\"a\",le=\"0.1\"} 90\nx_bucket{region=\"a\",le=\"1\"} 99\n\
                    x_bucket{region=\"a\",le=\"+Inf\"} 100\nx_bucket{region=\"b\",le=\"0.1\"} 0\n\
                    x_bucket{region=\"b\",le=\"1\"} 0\nx_bucket{region=\"b\",le=\"+Inf\"} 0\n\
                    x_bucket_other{le=\"0.1\"} 7\n";
        let at = |of_thousand| bound(text, "x", of_thousand);
        assert_eq!((at(500), at(990), at(1000)), (Some(0.1), Some(1.0), Some(f64::INFINITY)));
        assert_eq!(bound(text, "y", 500), None);
    }

    #[test]
    fn a_process_that_works_has_been_on_a_core() {
        let own = std::process::id();
        let before = cpu(own).expect("there");
        let began = std::time::Instant::now();
        while cpu(own).expect("there") <= before {
            assert!(began.elapsed() < Duration::from_secs(60));
        }
    }
}
