//! What the server counts, as Prometheus reads it (its text exposition format, version 0.0.4).

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use axum::http::StatusCode;

/// Upper bounds of the latency histogram, in seconds.
const BOUNDS: [f64; 10] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0, 5.0];

#[derive(Default)]
struct Latency {
    counts: [u64; BOUNDS.len()],
    count: u64,
    sum: f64,
}

#[derive(Default)]
struct Counted {
    answers: BTreeMap<(String, &'static str, u16), u64>,
    latency: BTreeMap<(String, &'static str), Latency>,
    gauges: BTreeMap<String, (&'static str, f64)>,
    counters: BTreeMap<String, (&'static str, u64)>,
}

/// What is counted.
#[derive(Default)]
pub struct Metrics(Mutex<Counted>);

impl Metrics {
    fn with<T>(&self, change: impl FnOnce(&mut Counted) -> T) -> T {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// A call was answered.
    pub fn served(&self, method: &str, route: &'static str, status: StatusCode, took: Duration) {
        self.with(|counted| {
            *counted.answers.entry((method.to_owned(), route, status.as_u16())).or_default() += 1;
            let latency = counted.latency.entry((method.to_owned(), route)).or_default();
            let seconds = took.as_secs_f64();
            for (bound, count) in BOUNDS.iter().zip(&mut latency.counts) {
                *count += u64::from(seconds <= *bound);
            }
            latency.count += 1;
            latency.sum += seconds;
        });
    }

    /// Something is so many now. `series` is a name of Prometheus's, with its labels.
    pub fn set(&self, series: impl Into<String>, about: &'static str, value: f64) {
        self.with(|counted| counted.gauges.insert(series.into(), (about, value)));
    }

    /// Something happened once more.
    pub fn count(&self, series: impl Into<String>, about: &'static str) {
        self.with(|counted| {
            counted.counters.entry(series.into()).or_insert((about, 0)).1 += 1;
        });
    }

    /// All of it.
    pub fn text(&self) -> String {
        let mut text = String::new();
        // Writing to a string does not fail.
        let _ = self.with(|counted| counted.write(&mut text));
        text
    }
}

fn head(
    text: &mut String,
    last: &mut String,
    series: &str,
    about: &str,
    kind: &str,
) -> std::fmt::Result {
    let name = series.split('{').next().unwrap_or_default();
    if last != name {
        name.clone_into(last);
        writeln!(text, "# HELP {name} {about}\n# TYPE {name} {kind}")?;
    }
    Ok(())
}

impl Counted {
    fn write(&self, text: &mut String) -> std::fmt::Result {
        let name = "lanekeeper_api_requests_total";
        writeln!(text, "# HELP {name} Calls answered.\n# TYPE {name} counter")?;
        for ((method, route, status), count) in &self.answers {
            writeln!(
                text,
                "{name}{{method=\"{method}\",route=\"{route}\",status=\"{status}\"}} {count}"
            )?;
        }
        let name = "lanekeeper_api_request_seconds";
        writeln!(text, "# HELP {name} Time until an answer was ready.\n# TYPE {name} histogram")?;
        for ((method, route), latency) in &self.latency {
            let labels = format!("method=\"{method}\",route=\"{route}\"");
            for (bound, count) in BOUNDS.iter().zip(&latency.counts) {
                writeln!(text, "{name}_bucket{{{labels},le=\"{bound}\"}} {count}")?;
            }
            let Latency { count, sum, .. } = latency;
            writeln!(text, "{name}_bucket{{{labels},le=\"+Inf\"}} {count}")?;
            writeln!(text, "{name}_sum{{{labels}}} {sum}\n{name}_count{{{labels}}} {count}")?;
        }
        let mut last = String::new();
        for (series, (about, value)) in &self.gauges {
            head(text, &mut last, series, about, "gauge")?;
            writeln!(text, "{series} {value}")?;
        }
        for (series, (about, value)) in &self.counters {
            head(text, &mut last, series, about, "counter")?;
            writeln!(text, "{series} {value}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_counted_is_told_as_prometheus_reads_it() {
        let metrics = Metrics::default();
        metrics.served("GET", "/v1/vms/{vm}", StatusCode::OK, Duration::from_millis(3));
        metrics.set("lanekeeper_hosts{region=\"a\",state=\"alive\"}", "Hosts.", 2.0);
        metrics.set("lanekeeper_hosts{region=\"b\",state=\"alive\"}", "Hosts.", 1.0);
        metrics.count("lanekeeper_vms_moved_total", "VMs moved to a spare place.");
        let text = metrics.text();
        for line in [
            "lanekeeper_api_requests_total{method=\"GET\",route=\"/v1/vms/{vm}\",status=\"200\"} 1",
            "lanekeeper_api_request_seconds_bucket{method=\"GET\",route=\"/v1/vms/{vm}\",le=\"0.0025\"} 0",
            "lanekeeper_api_request_seconds_bucket{method=\"GET\",route=\"/v1/vms/{vm}\",le=\"0.005\"} 1",
            "lanekeeper_hosts{region=\"a\",state=\"alive\"} 2",
            "lanekeeper_vms_moved_total 1",
        ] {
            assert!(text.lines().any(|one| one == line), "{line} in\n{text}");
        }
        assert_eq!(text.matches("# TYPE lanekeeper_hosts gauge").count(), 1);
    }
}
