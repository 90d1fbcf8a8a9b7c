//! `lanekeeper host` as a person uses it, over a recorded host or none: what is said, and with which
//! exit code, to input that is wrong.

use std::path::{Path, PathBuf};

use lanekeeper_host::{Health, HostFile, Owner};
use lanekeeper_hw::fake::{Fake, FakePf, Personality};
use lanekeeper_hw::recorded::{Bundle, Facts};
use tempfile::TempDir;

use crate::nics::{Said, lanekeeper};

const FILE: &str =
    "version: 1\npfs:\n- {name: rail0, select: {slot: '1'}, vfs: 4, pools: [lanes]}\n";

struct Place(TempDir);

impl Place {
    fn new() -> Self {
        Self(TempDir::new().expect("a folder"))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn file(&self, name: &str, text: impl AsRef<[u8]>) -> String {
        std::fs::write(self.path(name), text).expect("written");
        self.path(name).to_str().expect("text").to_owned()
    }

    /// A host with one PF, which this ledger knows.
    fn recorded(&self) -> String {
        let fake = Fake::new();
        fake.add_pf(FakePf::new(Personality::Igb).slot("1"));
        let file = HostFile::parse(FILE, Path::new("host.yaml")).expect("a file");
        let owner = Owner::open(std::sync::Arc::new(fake.clone()), &self.path("state"));
        let owner = owner.expect("a ledger");
        owner.apply(&owner.plan(&file).expect("a plan"), None).expect("applied");
        let bundle = Bundle::capture(&fake, Facts::here().expect("told")).expect("captured");
        self.file("bundle.json", bundle.to_json().expect("text"))
    }

    fn host(&self, arguments: &[&str]) -> Said {
        let mut command = lanekeeper();
        command.arg("host").arg("--state").arg(self.path("state")).args(arguments);
        command.env_remove("LANEKEEPER_TOKEN").output().expect("runs").into()
    }

    fn refused(&self, arguments: &[&str]) -> String {
        let said = self.host(arguments);
        assert!(matches!(said.code, Some(1 | 2)), "{arguments:?}: {:?} {}", said.code, said.err);
        assert_eq!(said.out, "", "{arguments:?}");
        said.err
    }
}

#[test]
fn what_is_no_bundle_is_refused_with_its_name_and_what_is_wrong() {
    let place = Place::new();
    let whole = std::fs::read_to_string(place.recorded()).expect("read");
    let other = whole.replacen("\"format\": 1", "\"format\": 9", 1);
    for (text, wanted) in [
        ("", "EOF"),
        (&whole[..whole.len() / 2], "EOF"),
        (&other, "format 9"),
        ("{\"format\": 1, \"surprise\": 2}", "surprise"),
        ("[1, 2]", "trailing"),
        (&"[".repeat(200_000), "invalid type"),
    ] {
        let bundle = place.file("wrong.json", text);
        let error = place.refused(&["--replay", &bundle, "show"]);
        assert!(error.contains("wrong.json") && error.contains(wanted), "{wanted}: {error}");
    }
    for (path, wanted) in [("/dev/zero", "more than"), ("/", "directory"), ("/nowhere", "No such")]
    {
        let error = place.refused(&["--replay", path, "show"]);
        assert!(error.contains(path) && error.contains(wanted), "{error}");
    }
}

#[test]
fn a_recording_is_looked_at_and_never_changed() {
    let place = Place::new();
    let bundle = place.recorded();
    let said = place.host(&["--replay", &bundle, "show"]);
    assert_eq!(said.code, Some(0), "{}", said.err);
    assert!(said.out.contains("pf rail0") && said.out.contains("igb"), "{}", said.out);
    let file = place.file("host.yaml", FILE);
    for command in
        [vec!["apply", &file], vec!["requalify", "rail0", "0"], vec!["give-back", "rail0"]]
    {
        let error = place.refused(&[&["--replay", &bundle][..], &command].concat());
        assert!(error.contains("looked at only"), "{error}");
    }
}

#[test]
fn a_text_from_elsewhere_does_not_command_the_terminal() {
    let place = Place::new();
    let text = std::fs::read_to_string(place.recorded()).expect("read");
    let evil = text.replacen("\"driver\": \"igb\"", "\"driver\": \"ig\\u001b[2J\\u009bb\"", 1);
    assert_ne!(evil, text);
    let bundle = place.file("evil.json", &evil);
    let said = place.host(&["--replay", &bundle, "show"]);
    assert!(said.out.contains("[2J"), "{}", said.out);
    let commands = |c: char| c.is_control() && c != '\n';
    assert!(!said.out.contains(commands) && !said.err.contains(commands), "{}", said.out);
}

#[test]
fn a_ledger_that_is_damaged_is_shown_beside_what_is_there() {
    let place = Place::new();
    let bundle = place.recorded();
    let ledger = std::fs::read_dir(place.path("state")).expect("listed");
    let mut files = ledger.map(|entry| entry.expect("listed").path());
    let file = files.find(|path| path.extension().is_some_and(|it| it == "json")).expect("one");
    let text = std::fs::read_to_string(&file).expect("read");
    let turned = text.replacen("\"rail0\"", "\"rail2\"", 1);
    assert_ne!(turned, text);
    std::fs::write(&file, &turned).expect("written");
    let said = place.host(&["--replay", &bundle, "show"]);
    assert_eq!(said.code, Some(1));
    assert!(said.out.contains("igb") && said.out.contains("is damaged"), "{}", said.out);
    assert_eq!(std::fs::read_to_string(&file).expect("kept"), turned, "nothing is overwritten");
}

#[test]
fn what_the_agent_holds_back_is_shown_with_the_reason_and_only_while_it_runs() {
    let place = Place::new();
    let bundle = place.recorded();
    let fake = std::sync::Arc::new(Fake::new());
    let agent = Owner::open(fake, &place.path("state")).expect("a ledger");
    let seat = agent.take_seat().expect("the only agent");
    let key = agent.ledger().keys().expect("listed").remove(0);
    let why = "its peer pauses priority 3 without end".to_owned();
    let since = std::time::SystemTime::now() - std::time::Duration::from_secs(7);
    let trouble = lanekeeper_host::Withheld { pf: "rail0".to_owned(), why: why.clone(), since };
    let withheld = [(key, trouble)].into();
    seat.publish(&Health { withheld, ..Health::default() }).expect("published");
    let said = place.host(&["--replay", &bundle, "show"]);
    assert_eq!(said.code, Some(0), "{}", said.err);
    assert!(said.out.contains(&why) && said.out.contains("IN TROUBLE for"), "{}", said.out);
    assert_eq!(said.out.matches("free, not offered").count(), 4, "{}", said.out);
    let said = place.host(&["--replay", &bundle, "--json", "show"]);
    let json: serde_json::Value = serde_json::from_str(&said.out).expect("JSON");
    assert_eq!(json["pfs"][0]["withheld"]["why"], why);
    drop(seat);
    let said = place.host(&["--replay", &bundle, "show"]);
    assert!(!said.out.contains("IN TROUBLE"), "{}", said.out);
}

#[test]
fn what_of_a_pf_is_fought_over_is_shown_with_who_and_since_when_and_what_resumes_it() {
    let place = Place::new();
    let bundle = place.recorded();
    let agent = Owner::open(std::sync::Arc::new(Fake::new()), &place.path("state"));
    let agent = agent.expect("a ledger");
    let seat = agent.take_seat().expect("the only agent");
    let key = agent.ledger().keys().expect("listed").remove(0);
    let what = vec!["VF 2: VLAN is not as claim c-1 asked".to_owned()];
    let since = std::time::SystemTime::now() - std::time::Duration::from_secs(7);
    let manager = Some("NetworkManager".to_owned());
    let fought = lanekeeper_host::FoughtOver { what: what.clone(), manager, since };
    let fought_over = [(key, fought)].into();
    seat.publish(&Health { fought_over, ..Health::default() }).expect("published");
    let said = place.host(&["--replay", &bundle, "show"]);
    assert_eq!(said.code, Some(0), "{}", said.err);
    for part in ["FOUGHT OVER for", &what[0], "NetworkManager", "host recover", "reload"] {
        assert!(said.out.contains(part), "{part}: {}", said.out);
    }
    assert!(!said.out.contains("not offered"), "{}", said.out);
    let said = place.host(&["--replay", &bundle, "--json", "show"]);
    let json: serde_json::Value = serde_json::from_str(&said.out).expect("JSON");
    assert_eq!(json["pfs"][0]["fought_over"]["what"][0], what[0]);
    drop(seat);
    let said = place.host(&["--replay", &bundle, "show"]);
    assert!(!said.out.contains("FOUGHT"), "{}", said.out);
}

#[test]
fn whose_a_claim_is_comes_from_the_command_line_before_the_environment() {
    let place = Place::new();
    let wrong = place.file("token", "no token\n");
    let mut command = lanekeeper();
    command.args(["host", "--state"]).arg(place.path("state")).args(["claim", "--token-file"]);
    let said: Said =
        command.arg(&wrong).env("LANEKEEPER_TOKEN", "environment").output().expect("runs").into();
    assert_eq!(said.code, Some(2), "{}", said.err);
    assert!(said.err.contains("number 3"), "the file's was read: {}", said.err);
    let error = place.refused(&["claim", "--token", "from-the-line", "--token-file", &wrong]);
    assert!(error.contains("cannot be used with"), "{error}");
    assert!(place.refused(&["claim"]).contains("LANEKEEPER_TOKEN"));
    let error = place.refused(&["claim", "--token-file", "/dev/zero"]);
    assert!(error.contains("/dev/zero") && error.contains("more than"), "{error}");
}

#[test]
fn options_beside_a_request_file_are_refused_rather_than_ignored() {
    let place = Place::new();
    let request = place.file("request.json", "{}");
    let token = place.file("token", "token-of-somebody\n");
    for more in [["--vlan", "100"], ["--driver", "kernel"], ["--vm-devices", "2"]] {
        let line = [&["claim", "--token-file", &token, "--request", &request][..], &more].concat();
        let error = place.refused(&line);
        assert!(error.contains("cannot be used with") && error.contains(more[0]), "{error}");
    }
}

#[test]
fn a_time_that_is_no_time_is_refused() {
    let place = Place::new();
    let file = place.file("host.yaml", "version: 1\npfs: []\n");
    for time in ["0", "-1", "86401", "18446744073709551615", "soon"] {
        let error = place.refused(&["apply", &file, &format!("--timeout={time}")]);
        assert!(error.contains(time), "{error}");
    }
}
