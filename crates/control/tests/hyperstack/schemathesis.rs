//! The served OpenAPI document, believed by a stranger: schemathesis (PyPI) calls every route with what
//! the document allows, and with what it does not, and finds no answer that the document does not have.

use std::process::{Command, Stdio};

use lanekeeper_control::api::{Rate, Rates};
use lanekeeper_control::resource::Role;
use lanekeeper_testbed::{guest_image, python};

use crate::served::serve;

/// What every answer must be. Whether the server takes all that the document allows cannot be asked: a
/// flavor's name is text, and not every text is a flavor's name.
const CHECKS: &str = "not_a_server_error,status_code_conformance,content_type_conformance,\
                      response_schema_conformance,unsupported_method,ignored_auth";

/// No limits: it calls faster than a person.
fn unlimited() -> Rates {
    let rate = Rate { per_second: 1e9, burst: 1e9 };
    Rates { callers: rate, strangers: rate, public: rate }
}

async fn believed(organization: &str, role: Role, examples: &str) {
    let served = serve(organization, role, unlimited()).await;
    let examples = examples.to_owned();
    let ended = tokio::task::spawn_blocking(move || {
        let cache = guest_image::cache_folder();
        let program = python::schemathesis(&cache, &mut |what| println!("{what}"));
        Command::new(program.expect("schemathesis"))
            .args(["run", &format!("{}/v1/openapi.json", served.url), "--checks", CHECKS])
            // A stream of events has no end.
            .args(["--exclude-path", "/v1/watch", "--phases", "examples,coverage,fuzzing"])
            .args([
                "--request-retries",
                "2",
                "--max-examples",
                &examples,
                "--seed",
                "1",
                "--workers",
                "2",
                "--no-shrink",
            ])
            .args(["--suppress-health-check", "all", "--request-timeout", "60"])
            .args(["--generation-database", "none", "--warnings", "off", "--no-color"])
            .args(["--header", &format!("Authorization:Bearer {}", served.key)])
            .arg("--tls-verify")
            .arg(&served.authority)
            .env("NO_PROXY", "127.0.0.1")
            .env("no_proxy", "127.0.0.1")
            .current_dir(served.folder.path())
            .stdin(Stdio::null())
            .output()
            .expect("it runs")
    })
    .await
    .expect("no panic");
    let said = String::from_utf8_lossy(&ended.stdout);
    println!("{said}");
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_gets_no_answer_that_the_document_does_not_have() {
    believed("acme", Role::Member, "6").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_gets_no_answer_that_the_document_does_not_have() {
    believed("operators", Role::Operator, "6").await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "minutes: many more calls"]
async fn not_for_many_calls_either() {
    believed("acme", Role::Admin, "50").await;
    believed("operators", Role::Operator, "50").await;
}
