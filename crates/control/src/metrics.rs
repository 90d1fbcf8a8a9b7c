//! What the server counts, as Prometheus reads it (its text exposition format, version 0.0.4).

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use axum::http::StatusCode;

/// Upper bounds of the latency histogram, in seconds.
const BOUNDS: [f64; 10] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0, 5.0];

/// Those of what a server does by itself, some of it in microseconds.
const FINE_BOUNDS: [f64; 18] = [
    0.00001, 0.000_025, 0.00005, 0.0001, 0.000_25, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05,
    0.1, 0.25, 0.5, 1.0, 2.5, 5.0,
];

#[derive(Default)]
struct Latency {
    /// For each bound, how many were no longer.
    counts: Vec<u64>,
    count: u64,
    sum: f64,
}

impl Latency {
    fn add(&mut self, bounds: &[f64], took: Duration) {
        let seconds = took.as_secs_f64();
        self.counts.resize(bounds.len(), 0);
        for (bound, count) in bounds.iter().zip(&mut self.counts) {
            *count += u64::from(seconds <= *bound);
        }
        self.count += 1;
        self.sum += seconds;
    }

    /// As a series of a histogram; `labels` may be none.
    fn write(
        &self,
        text: &mut String,
        name: &str,
        labels: &str,
        bounds: &[f64],
    ) -> std::fmt::Result {
        let comma = if labels.is_empty() { "" } else { "," };
        let Self { counts, count, sum } = self;
        for (bound, count) in bounds.iter().zip(counts) {
            writeln!(text, "{name}_bucket{{{labels}{comma}le=\"{bound}\"}} {count}")?;
        }
        writeln!(text, "{name}_bucket{{{labels}{comma}le=\"+Inf\"}} {count}")?;
        let labels = if labels.is_empty() { String::new() } else { format!("{{{labels}}}") };
        writeln!(text, "{name}_sum{labels} {sum}\n{name}_count{labels} {count}")
    }
}

#[derive(Default)]
struct Counted {
    answers: BTreeMap<(String, &'static str, u16), u64>,
    latency: BTreeMap<(String, &'static str), Latency>,
    times: BTreeMap<&'static str, (&'static str, BTreeMap<String, Latency>)>,
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
            counted.latency.entry((method.to_owned(), route)).or_default().add(&BOUNDS, took);
        });
    }

    /// Something took so long. `name` is one of Prometheus's; `labels` are as they stand in braces.
    pub fn took(
        &self,
        name: &'static str,
        labels: impl Into<String>,
        about: &'static str,
        took: Duration,
    ) {
        self.with(|counted| {
            let (_, times) = counted.times.entry(name).or_insert((about, BTreeMap::new()));
            times.entry(labels.into()).or_default().add(&FINE_BOUNDS, took);
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
            latency.write(text, name, &labels, &BOUNDS)?;
        }
        for (name, (about, times)) in &self.times {
            writeln!(text, "# HELP {name} {about}\n# TYPE {name} histogram")?;
            for (labels, latency) in times {
                latency.write(text, name, labels, &FINE_BOUNDS)?;
            }
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
        metrics.took("lanekeeper_x_seconds", "", "X.", Duration::from_micros(70));
        let text = metrics.text();
        for line in [
            "lanekeeper_x_seconds_bucket{le=\"0.00005\"} 0",
            "lanekeeper_x_seconds_bucket{le=\"0.0001\"} 1",
            "lanekeeper_x_seconds_count 1",
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
