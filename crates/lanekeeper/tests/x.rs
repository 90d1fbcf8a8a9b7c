//! The project's own door, `./x`: what it does not know it names, and what cannot work it says
//! before it builds anything.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

/// Runs `./x` as a user of this number, where a build would leave a file `built`.
fn x(user: u32, arguments: &[&str]) -> (Output, bool) {
    let folder = tempfile::tempdir().expect("a folder");
    let built = folder.path().join("built");
    let programs = [
        ("id", format!("#!/bin/sh\necho {user}\n")),
        ("cargo", format!("#!/bin/sh\n: >'{}'\nexit 1\n", built.display())),
    ];
    for (name, script) in programs {
        let path = folder.path().join(name);
        fs::write(&path, script).expect("written");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("may be executed");
    }
    let path = std::env::var("PATH").expect("a PATH");
    let output = Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../x"))
        .args(arguments)
        .env("PATH", format!("{}:{path}", folder.path().display()))
        .env("CARGO_TARGET_DIR", folder.path().join("target"))
        .output()
        .expect("runs");
    (output, built.exists())
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn what_it_does_not_know_is_named_before_anything_is_built() {
    for arguments in [
        &["no-such"][..],
        &["demo", "--no-such"],
        &["demo", "--keep", "no-such"],
        &["test", "--no-such"],
        &["bench", "no-such"],
        &["lint", "no-such"],
        &["fuzz", "no-such"],
        &["fuzz", "switch", "no-such"],
    ] {
        let (output, built) = x(0, arguments);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {said}");
        assert!(said.contains("no-such'") && !built, "{arguments:?}: {said}");
    }
}

#[test]
fn what_needs_root_is_refused_before_anything_is_built() {
    for command in ["demo", "test"] {
        let (output, built) = x(1000, &[command]);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(3), "{said}");
        assert!(said.contains("needs root") && !built, "{said}");
    }
}

#[test]
fn help_is_had_without_a_build() {
    for arguments in
        [&["help"][..], &["demo", "--help"], &["demo", "--keep", "-h"], &["test", "-h"]]
    {
        let (output, built) = x(1000, arguments);
        assert!(output.status.success() && !built, "{}", text(&output.stderr));
        assert!(text(&output.stdout).starts_with("usage: ./x"), "{}", text(&output.stdout));
    }
}

/// Needs root as `./x demo` does: it looks whether packages are there.
#[test]
fn standard_output_has_results_alone() {
    let (output, built) = x(0, &["demo", "--json"]);
    assert!(built, "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("==> building"), "{}", text(&output.stderr));
    assert!(!text(&output.stdout).contains("==>"), "{}", text(&output.stdout));
}

#[test]
fn it_knows_every_argument_of_the_demo_and_no_other() {
    let output = Command::new(env!("CARGO_BIN_EXE_lanekeeper")).args(["demo", "--help"]).output();
    let demo = text(&output.expect("runs").stdout);
    let arguments = |prefix: &str| {
        let lines = demo.lines().map(str::trim_start);
        let words = lines.filter_map(|line| line.split([' ', ',']).next());
        let found: Vec<&str> = words.filter(|word| word.starts_with(prefix)).collect();
        assert!(!found.is_empty(), "{demo}");
        found.into_iter().map(str::to_owned).collect::<Vec<_>>()
    };
    let usage = text(&x(0, &["help"]).0.stdout);
    for argument in arguments("--").into_iter().chain(["exec", "console"].map(str::to_owned)) {
        assert!(demo.contains(&argument) && usage.contains(&argument), "{argument}: {usage}");
        // Known arguments get as far as the build, which fails here.
        let (output, built) =
            x(0, &["demo", &argument, "value"][..2 + usize::from(argument == "--svg")]);
        assert!(built, "{argument}: {}", text(&output.stderr));
    }
}
