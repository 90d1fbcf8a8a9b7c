//! The control socket and the end of a NIC, whatever becomes of the socket's path and whoever holds
//! the socket up.

mod rig;

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use lanekeeper_hw::{Hardware, HardwareError};
use lanekeeper_softnic::{Client, Nic, NicError, SOCKET_NAME};
use rig::*;

/// Connections that are served at once.
const CONNECTIONS: usize = 32;
/// How long a request may take to arrive, and some time to notice.
const CUT_WITHIN: Duration = Duration::from_secs(15);

fn connect(rig: &Rig) -> UnixStream {
    UnixStream::connect(rig.config.run_dir().join(SOCKET_NAME)).expect("connects")
}

fn client(rig: &Rig) -> Client {
    Client::for_run_dir(rig.config.name.clone(), &rig.config.run_dir())
}

/// Connections that were answered once, so that each is known to be served.
fn served(rig: &Rig) -> Vec<UnixStream> {
    let all = (0..CONNECTIONS).map(|_| {
        let mut stream = connect(rig);
        stream.write_all(b"{\"op\":\"pf\"}\n").expect("asked");
        let mut answer = String::new();
        BufReader::new(&stream).read_line(&mut answer).expect("answered");
        assert!(answer.starts_with("{\"ok\""), "{answer}");
        stream
    });
    all.collect()
}

#[test]
fn one_connection_too_many_hears_that_the_nic_is_busy() {
    let rig = Rig::new(1);
    let all = served(&rig);
    let error = client(&rig).pfs().expect_err("one too many");
    assert!(
        matches!(&error, HardwareError::Refused { message, .. } if message.starts_with("busy"))
    );
    assert!(error.to_string().contains("try again"), "{error}");
    drop(all);
    rig.eventually("their places are free again", || client(&rig).pfs().is_ok());
}

#[test]
fn a_request_that_dribbles_in_is_cut_off_however_often_a_byte_comes() {
    let rig = Rig::new(1);
    let all = served(&rig);
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                for mut stream in &all {
                    // Fails once it is cut off.
                    let _ = stream.write_all(b" ");
                }
                std::thread::sleep(Duration::from_millis(100));
            }
        });
        let start = Instant::now();
        while client(&rig).pfs().is_err() && start.elapsed() < CUT_WITHIN {
            std::thread::sleep(Duration::from_millis(50));
        }
        over.store(true, Ordering::Relaxed);
        assert!(start.elapsed() < CUT_WITHIN, "the dribblers are served for ever");
    });
}

#[test]
fn a_nic_whose_folder_was_removed_ends_when_told_to() {
    let mut rig = Rig::new(1);
    std::fs::remove_dir_all(rig.config.run_dir()).expect("removed");
    let nic = rig.nic.take().expect("runs");
    let (done, ended) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        nic.stop();
        let _ = done.send(());
    });
    ended.recv_timeout(SOON).expect("it ends");
}

#[test]
fn a_nic_whose_folder_another_one_has_by_now_leaves_that_one_its_sockets() {
    let mut first = Rig::new(1);
    std::fs::remove_dir_all(first.config.run_dir()).expect("removed");
    let second = Nic::start(first.config.clone()).expect("a new folder, a new lock");
    drop(first.nic.take());
    assert!(client(&first).pfs().is_ok(), "the second one can be reached");
    assert!(UnixStream::connect(second.vf_socket(index(0))).is_ok());
    drop(second);
}

#[test]
fn a_second_nic_in_a_folder_is_told_whose_it_is() {
    let rig = Rig::new(1);
    let mut config = rig.config.clone();
    config.name = "other".parse().expect("a name");
    let error = Nic::start(config).err().expect("the folder is taken");
    let text = error.to_string();
    assert!(matches!(error, NicError::Running { .. }), "{text}");
    assert!(text.contains(&format!("software NIC '{}'", rig.config.name)), "{text}");
    assert!(text.contains("another folder (run_dir)"), "{text}");
    assert!(client(&rig).pfs().is_ok());
}
