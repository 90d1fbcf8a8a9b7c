//! scapy, another's implementation of RoCE v2, computes the ICRC of our frames.

use std::fmt::Write as _;
use std::io::Write;
use std::process::{Command, Stdio};

use super::packets::{ethernet, samples};

/// Debian's own Python: there its package python3-scapy puts it.
const PYTHON: &str = "/usr/bin/python3";

fn has_scapy() -> bool {
    let mut probe = Command::new(PYTHON);
    probe.args(["-c", "import scapy.contrib.roce"]).stderr(Stdio::null());
    probe.status().is_ok_and(|status| status.success())
}

fn hexadecimal(bytes: &[u8]) -> String {
    let mut text = String::new();
    for byte in bytes {
        let _ = write!(text, "{byte:02x}");
    }
    text
}

#[test]
fn scapy_computes_the_icrc_that_we_send() {
    if !has_scapy() {
        eprintln!("skipped: no scapy; install the package python3-scapy");
        return;
    }
    let frames: Vec<String> = samples()
        .iter()
        .map(|(link, flow, packet)| ethernet(link, flow, packet))
        .map(|frame| hexadecimal(&frame))
        .collect();
    let mut scapy = Command::new(PYTHON)
        .args(["-c", include_str!("icrc.py")])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("it ran before");
    // It reads far ahead of what it writes, but not for ever.
    let mut input = scapy.stdin.take().expect("piped");
    let lines = frames.join("\n");
    let feeder = std::thread::spawn(move || input.write_all(lines.as_bytes()));
    let output = scapy.wait_with_output().expect("ends");
    feeder.join().expect("no panic").expect("read to the end");
    assert!(output.status.success());
    let theirs = String::from_utf8(output.stdout).expect("hexadecimal");
    assert_eq!(theirs.lines().count(), frames.len());
    for (frame, theirs) in frames.iter().zip(theirs.lines()) {
        assert_eq!(&frame[frame.len() - 8..], theirs, "ours and scapy's, of {frame}");
    }
}
