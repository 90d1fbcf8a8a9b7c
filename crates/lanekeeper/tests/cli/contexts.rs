//! Contexts: the file that keeps them, whose key goes where, and answers that get lost.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use tempfile::TempDir;

use crate::cloud::{Cloud, at_home, words};
use crate::nics::Said;

fn run(home: &Path, arguments: &[&str]) -> Said {
    at_home(home, arguments).output().expect("runs").into()
}

fn done(home: &Path, arguments: &[&str]) -> String {
    let said = run(home, arguments);
    assert_eq!(said.code, Some(0), "{arguments:?}: {}", said.err);
    said.out
}

#[test]
fn a_context_is_all_one_needs_and_its_user_alone_can_read_it() {
    let cloud = Cloud::start();
    let home = TempDir::new().expect("a folder");
    let home = home.path();
    let (authority, key) = (cloud.path("data/authority.crt"), cloud.path("data/operator.key"));
    let add = ["context", "add", "lab", "--server", &cloud.url, "--authority", &authority];
    let said = done(home, &[&add[..], &["--key-file", &key]].concat());
    assert_eq!(said, "context lab is kept, and used from now on\n");
    let file = home.join(".config/lanekeeper/contexts.toml");
    let mode = std::fs::metadata(&file).expect("there").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    done(home, &["region", "list"]);

    let secret = std::fs::read_to_string(&key).expect("a key");
    for listed in ["context list", "context list --json"] {
        let out = done(home, &words(listed));
        assert!(out.contains("lab") && out.contains(&cloud.url), "{out}");
        assert!(!out.contains(secret.trim()), "{out}");
    }
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o640)).expect("changed");
    let said = run(home, &["region", "list"]);
    assert!(said.code == Some(0) && said.err.contains("chmod 600"), "{}", said.err);
}

#[test]
fn one_context_of_several_is_used_until_another_is_chosen() {
    let home = TempDir::new().expect("a folder");
    let home = home.path();
    for (name, port) in [("one", 1), ("two", 2)] {
        let server = format!("https://127.0.0.1:{port}");
        let said = run(home, &["context", "add", name, "--server", &server]);
        assert!(said.code == Some(0) && said.err.contains("no API key"), "{}", said.err);
    }
    let called = |arguments: &[&str]| run(home, &[&["vm", "list"], arguments].concat()).err;
    assert!(called(&[]).contains("127.0.0.1:1"));
    assert!(called(&["--context", "two"]).contains("127.0.0.1:2"));
    done(home, &["context", "use", "two"]);
    assert!(called(&[]).contains("127.0.0.1:2"));
    done(home, &["context", "delete", "two"]);
    assert!(called(&[]).contains("no server is named"));
    let said = run(home, &["context", "use", "two"]);
    assert_eq!(said.code, Some(2));
    assert!(said.err.contains("there is no context 'two'; there are: one"), "{}", said.err);
}

#[test]
fn what_cannot_be_a_server_is_not_kept() {
    let home = TempDir::new().expect("a folder");
    for (server, wanted) in [("http://example.org", "https://"), ("lab:8443", "https://HOST:PORT")]
    {
        let said = run(home.path(), &["context", "add", "lab", "--server", server]);
        assert_eq!(said.code, Some(2), "{}", said.err);
        assert!(said.err.contains(server) && said.err.contains(wanted), "{}", said.err);
    }
    assert!(!home.path().join(".config").exists());
}

#[test]
fn a_damaged_file_is_named_and_its_key_not_shown() {
    let home = TempDir::new().expect("a folder");
    let folder = home.path().join(".config/lanekeeper");
    std::fs::create_dir_all(&folder).expect("made");
    std::fs::write(folder.join("contexts.toml"), "current = lk_secret\n").expect("written");
    let said = run(home.path(), &["vm", "list"]);
    assert_eq!(said.code, Some(2));
    assert!(said.err.contains("contexts.toml is not as it should be"), "{}", said.err);
    assert!(!said.err.contains("lk_secret"), "{}", said.err);
}

/// The head of a request, in lower case.
fn head(stream: &TcpStream) -> Vec<String> {
    let mut reader = BufReader::new(stream);
    let lines = (&mut reader).lines().map(|line| line.expect("a line").to_lowercase());
    let head: Vec<String> = lines.take_while(|line| !line.is_empty()).collect();
    let length = head.iter().find_map(|line| line.strip_prefix("content-length: "));
    let length: usize = length.expect("a body").parse().expect("a length");
    reader.read_exact(&mut vec![0; length]).expect("the body");
    head
}

#[test]
fn a_creation_whose_answer_is_lost_is_asked_for_again_with_the_same_idempotency_key() {
    let home = TempDir::new().expect("a folder");
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let server = format!("http://{}", listener.local_addr().expect("its address"));
    let played = std::thread::spawn(move || {
        let answer = |body: &str| {
            let (mut stream, _) = listener.accept().expect("a client");
            let head = head(&stream);
            stream.write_all(body.as_bytes()).expect("sent");
            head.into_iter().find(|line| line.starts_with("idempotency-key: ")).expect("a key")
        };
        let made =
            r#"{"id": 7, "name": "acme", "description": "", "created_at": "2026-01-01T00:00:00Z"}"#;
        let whole = format!(
            "HTTP/1.1 201 Created\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{made}",
            made.len()
        );
        [answer(""), answer(&whole)]
    });
    let said: Said = at_home(home.path(), &["organization", "create", "acme", "--json"])
        .env("LANEKEEPER_SERVER", &server)
        .output()
        .expect("runs")
        .into();
    assert_eq!(said.code, Some(0), "{}", said.err);
    assert!(said.out.contains("\"id\": 7") && said.err.contains("asking again"), "{}", said.err);
    let [first, second] = played.join().expect("played");
    assert_eq!(first, second);
}

#[test]
fn shells_complete_what_there_is_for_the_cloud() {
    let home = TempDir::new().expect("a folder");
    for shell in ["bash", "zsh", "fish"] {
        let script = done(home.path(), &["completion", shell]);
        for wanted in ["fleet", "keypair", "infiniband", "context"] {
            assert!(script.contains(wanted), "{shell}: {wanted}");
        }
    }
}
