//! The host file: what is wrong in it is said with the key, the value and the remedy.

use std::path::Path;

use lanekeeper_host::HostFile;
use lanekeeper_host::file::Select;
use lanekeeper_hw::fake::{FakePf, Personality};
use lanekeeper_model::MacAddr;

use crate::rig::{Rig, parse};

fn refusal(text: &str) -> String {
    HostFile::parse(text, Path::new("host.yaml")).expect_err("refused").to_string()
}

const PF: &str = "version: 1\npfs:\n  - name: rail0\n    select: {slot: '3'}\n    vfs: 4\n";

#[test]
fn an_unknown_key_is_an_error_with_its_line_and_the_nearest_known_name() {
    let error = refusal("version: 1\npfs:\n  - name: rail0\n    select: {slot: '3'}\n    vsf: 4\n");
    assert!(error.contains("host.yaml") && error.contains('5'), "{error}");
    assert!(error.contains("vsf") && error.contains("did you mean `vfs`?"), "{error}");
    let error = refusal(
        "version: 1\npfs:\n  - name: rail0\n    select: {permanentmac: '02:00:00:00:00:01'}\n    vfs: 4\n",
    );
    assert!(error.contains("did you mean `permanent_mac`?"), "{error}");
    let error = refusal(&format!("{PF}roce_profiles:\n  a:\n    cnpdscp: 48\n"));
    assert!(error.contains("did you mean `cnp_dscp`?"), "{error}");
}

#[test]
fn a_newer_file_is_refused_with_a_word() {
    let error = refusal(&PF.replace("version: 1", "version: 2"));
    assert!(error.contains("update lanekeeper"), "{error}");
}

#[test]
fn a_wrong_value_is_refused_with_key_value_and_remedy() {
    for (text, parts) in [
        (PF.replace("rail0", "Rail_0"), vec!["pfs[0].name", "Rail_0", "a-z"]),
        (PF.replace("{slot: '3'}", "{}"), vec!["pfs[0].select", "permanent_mac"]),
        (format!("{PF}    roce: fast\n"), vec!["pfs[0].roce", "fast", "roce_profiles"]),
        (format!("{PF}    mtu: 20000\n"), vec!["20000", "9202"]),
        (format!("{PF}defaults: {{vlan: {{id: 4095}}}}\n"), vec!["4095", "4094"]),
        (
            format!("{PF}defaults: {{min_rate: 9, max_rate: 5}}\n"),
            vec!["defaults.min_rate", "9", "max_rate 5"],
        ),
        (
            format!("{PF}roce_profiles: {{a: {{ets: [50, 0, 0, 30, 0, 0, 0, 0]}}}}\n"),
            vec!["roce_profiles.a.ets", "80", "100"],
        ),
        (
            format!("{PF}roce_profiles: {{a: {{pfc: [3], global_pause: true}}}}\n"),
            vec!["roce_profiles.a.global_pause", "pfc"],
        ),
        (format!("{PF}roce_profiles: {{a: {{dscp_priority: {{64: 3}}}}}}\n"), vec!["64", "63"]),
        (format!("{PF}roce_profiles: {{a: {{cm_ecn: true}}}}\n"), vec!["cm_ecn", "cm_dscp"]),
    ] {
        let error = refusal(&text);
        for part in parts {
            assert!(error.contains(part), "'{part}' in: {error}");
        }
    }
}

#[test]
fn what_the_parser_says_is_said_in_the_words_of_a_files_author() {
    for (text, wanted) in [
        (PF.replace("vfs: 4", "vfs: 70000"), "not a whole number from 0 to 65535"),
        ("version: 1\npfs: {}\n".to_owned(), "a list is wanted here"),
        (format!("{PF}defaults: {{vlan: 100}}\n"), "keys with values are wanted here"),
        (format!("version: 1\n{PF}"), "version: give it once"),
        (format!("{PF}---\n{PF}"), "several YAML documents"),
        (String::new(), "the file ends before its first key"),
    ] {
        let error = refusal(&text);
        assert!(error.contains(wanted), "'{wanted}' in: {error}");
        assert!(!error.contains("Options") && !error.contains("from_str"), "{error}");
    }
}

#[test]
fn a_file_that_is_made_to_fill_the_memory_is_refused_at_once() {
    let level = |depth: u32| {
        let before = depth - 1;
        format!("a{depth}: &a{depth} [{}]\n", vec![format!("*a{before}"); 10].join(", "))
    };
    let bomb: String = (1..12).map(level).collect();
    refusal(&format!("version: 1\na0: &a0 [x]\n{bomb}pfs: *a11\n"));
    refusal(&format!("version: 1\npfs: {}{}\n", "[".repeat(100_000), "]".repeat(100_000)));
    for (path, wanted) in [("/dev/zero", "more than"), ("/dev", "directory")] {
        let error = HostFile::load(Path::new(path)).expect_err("refused").to_string();
        assert!(error.contains(path) && error.contains(wanted), "{error}");
    }
}

#[test]
fn the_schema_says_which_roce_settings_are_the_pfs_alone() {
    let schema = serde_json::to_string(&HostFile::schema()).expect("JSON");
    for word in ["additionalProperties\":false", "PF only.", "cm_ecn", "vendor_device"] {
        assert!(schema.contains(word), "{word}");
    }
}

#[test]
fn dscp_and_ecn_are_two_keys_and_one_tos_byte() {
    use lanekeeper_model::RoceSetting;
    let tos = |text: &str| {
        let file = parse(&format!("{PF}roce_profiles: {{a: {text}}}\n"));
        file.roce_profiles["a"].settings()
    };
    assert_eq!(tos("{cm_dscp: 26}"), [RoceSetting::CmTos(104)]);
    assert_eq!(tos("{cm_dscp: 26, cm_ecn: true}"), [RoceSetting::CmTos(106)]);
}

fn twins() -> Rig {
    let rig = Rig::new();
    for slot in ["1", "2"] {
        let pf = FakePf::new(Personality::Mlx5).mac(MacAddr([2, 0, 0, 0, 0, 7])).slot(slot);
        rig.fake.add_pf(pf.serial("MT2225"));
    }
    rig
}

fn choose(rig: &Rig, select: &Select) -> Result<String, String> {
    let pfs: Vec<_> = rig.owner().readings().expect("readings");
    let readings = pfs.iter().filter_map(|pf| pf.reading.as_ref().ok());
    let chosen = select.choose("rail0", readings).map(|pf| pf.slot.clone().unwrap_or_default());
    chosen.map_err(|error| error.to_string())
}

#[test]
fn everything_that_is_given_must_match_and_one_pf_only() {
    let rig = twins();
    let mac = Some(MacAddr([2, 0, 0, 0, 0, 7]));
    let select = Select { permanent_mac: mac, ..Select::default() };
    let several = choose(&rig, &select).expect_err("both match");
    assert!(several.contains("2 PFs match") && several.contains("slot 2"), "{several}");
    let select = Select { slot: Some("2".to_owned()), ..select };
    assert_eq!(choose(&rig, &select), Ok("2".to_owned()));
    let select = Select { slot: Some("9".to_owned()), ..select };
    let none = choose(&rig, &select).expect_err("none matches");
    assert!(none.contains("slot is 1, not 9") && none.contains("slot is 2, not 9"), "{none}");
}

#[test]
fn the_annotated_file_in_docs_is_right_and_shows_every_key_of_the_schema() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/host.yaml");
    HostFile::load(path.as_ref()).expect("a sound file");
    let text = std::fs::read_to_string(path).expect("read");
    let schema = serde_json::to_value(HostFile::schema()).expect("as JSON");
    let definitions = schema["$defs"].as_object().expect("definitions");
    let objects = definitions.values().chain([&schema]);
    for key in
        objects.filter_map(|object| object["properties"].as_object()).flat_map(|it| it.keys())
    {
        assert!(text.contains(&format!("{key}:")) || text.contains(&format!("or {key}")), "{key}");
    }
}
