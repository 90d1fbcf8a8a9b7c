//! The transport against a scripted kernel at the other end of a socket pair.

use super::attribute::Builder;
use super::*;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use std::thread::JoinHandle;

const PATIENCE: Duration = Duration::from_millis(200);
/// A type that the scripts below answer with.
const NEWS: u16 = 40;

/// Datagrams that answer a request with this sequence number.
type Reply = Box<dyn FnOnce(u32) -> Vec<Vec<u8>> + Send>;

/// A connection to a kernel that answers the n-th request with the n-th of these.
fn scripted(script: Vec<Reply>) -> (Connection, JoinHandle<Vec<Vec<u8>>>) {
    let (ours, kernels) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
            .expect("a pair");
    let kernel = std::thread::spawn(move || {
        let mut asked = Vec::new();
        for answer in script {
            let mut request = vec![0; 4096];
            let (_, size) = recv(&kernels, &mut request[..], RecvFlags::empty()).expect("asked");
            request.truncate(size);
            let sequence = Messages(&request).next().expect("a message").sequence;
            asked.push(request);
            for datagram in answer(sequence) {
                send(&kernels, &datagram, SendFlags::empty()).expect("answered");
            }
        }
        // Stay until the other side goes, so that silence is silence and no broken line.
        let _ = recv(&kernels, &mut [0; 16][..], RecvFlags::empty());
        asked
    });
    (Connection::over(ours, PATIENCE), kernel)
}

fn news(sequence: u32, flags: u16, payload: &[u8]) -> Vec<u8> {
    Message { kind: NEWS, flags, sequence, payload }.encode()
}

fn verdict(sequence: u32, kind: u16, code: i32) -> Vec<u8> {
    let mut payload = code.to_ne_bytes().to_vec();
    payload.extend([0; 16]);
    Message { kind, flags: 0x100, sequence, payload: &payload }.encode()
}

fn payloads(answers: &[Answer]) -> Vec<&[u8]> {
    answers.iter().map(|answer| &answer.payload[..]).collect()
}

#[test]
fn an_answer_comes_with_its_acknowledgement() {
    let (mut connection, _kernel) = scripted(vec![Box::new(|sequence| {
        vec![news(sequence, 0, b"four"), verdict(sequence, ERROR, 0)]
    })]);
    let answer = connection.get(7, b"ask!").expect("answered");
    assert_eq!(answer, Answer { kind: NEWS, payload: b"four".to_vec() });
}

#[test]
fn a_request_that_is_never_answered_ends_in_time() {
    let (mut connection, _kernel) = scripted(vec![Box::new(|_| Vec::new())]);
    let begun = Instant::now();
    let failure = connection.set(7, &[]).expect_err("silence");
    assert!(matches!(failure, Failure::Silent(after) if after == PATIENCE), "{failure:?}");
    assert!((PATIENCE..PATIENCE * 10).contains(&begun.elapsed()));
}

#[test]
fn a_kernel_that_only_tells_what_nobody_asked_for_does_not_hold_us() {
    let (mut connection, _kernel) =
        scripted(vec![Box::new(|sequence| vec![news(sequence + 9, 0, b"gossip"); 50])]);
    let failure = connection.set(7, &[]).expect_err("no answer");
    assert!(matches!(failure, Failure::Silent(_)), "{failure:?}");
}

#[test]
fn an_answer_that_comes_too_late_is_not_taken_for_the_next_one() {
    let (mut connection, _kernel) = scripted(vec![
        Box::new(|_| Vec::new()),
        Box::new(|sequence| {
            vec![
                news(sequence - 1, 0, b"late"),
                verdict(sequence - 1, ERROR, -5),
                news(sequence, 0, b"mine"),
                verdict(sequence, ERROR, 0),
            ]
        }),
    ]);
    assert!(connection.set(7, &[]).is_err());
    assert_eq!(connection.get(7, &[]).expect("answered").payload, b"mine");
}

#[test]
fn an_answer_of_more_than_64_kib_is_read_whole() {
    let big: Vec<u8> = (0..100 * 1024_u32).map(|n| (n % 251) as u8).collect();
    let told = big.clone();
    let (mut connection, _kernel) = scripted(vec![Box::new(move |sequence| {
        vec![news(sequence, 0, &told), verdict(sequence, ERROR, 0)]
    })]);
    let answer = connection.get(7, &[]).expect("answered");
    assert!(answer.payload == big, "{} bytes", answer.payload.len());
}

#[test]
fn a_refusal_brings_the_errno_and_the_kernels_words() {
    let (mut connection, _kernel) = scripted(vec![Box::new(|sequence| {
        let mut payload = (-95_i32).to_ne_bytes().to_vec();
        payload.extend([0; 16]);
        let mut payload = Builder::after(&payload);
        payload.text(1, "switchdev is not for this device");
        vec![Message { kind: ERROR, flags: 0x300, sequence, payload: payload.finish() }.encode()]
    })]);
    let failure = connection.set(7, &[]).expect_err("refused");
    assert_eq!(failure.errno(), Some(95));
    assert!(
        matches!(&failure, Failure::Refused(said) if said.text.as_deref() == Some("switchdev is not for this device")),
        "{failure:?}"
    );
}

#[test]
fn a_list_of_several_parts_ends_with_its_end() {
    let (mut connection, _kernel) = scripted(vec![Box::new(|sequence| {
        let mut two = news(sequence, 2, b"one.");
        two.extend(news(sequence, 2, b"two."));
        vec![two, news(sequence, 2, b"last"), verdict(sequence, DONE, 0)]
    })]);
    let answers = connection.dump(7, &[]).expect("told");
    assert_eq!(payloads(&answers), [b"one.", b"two.", b"last"]);
}

#[test]
fn a_list_that_changed_while_it_was_told_is_asked_for_again() {
    let (mut connection, kernel) = scripted(vec![
        Box::new(|sequence| vec![news(sequence, 0x12, b"torn"), verdict(sequence, DONE, 0)]),
        Box::new(|sequence| vec![news(sequence, 2, b"good"), verdict(sequence, DONE, 0)]),
    ]);
    let answers = connection.dump(7, &[]).expect("told");
    assert_eq!(payloads(&answers), [b"good"]);
    drop(connection);
    assert_eq!(kernel.join().expect("ends").len(), 2);
}

#[test]
fn a_list_that_never_holds_still_is_an_error() {
    let torn = || -> Reply {
        Box::new(|sequence| vec![news(sequence, 0x12, b"torn"), verdict(sequence, DONE, 0)])
    };
    let (mut connection, _kernel) = scripted((0..ATTEMPTS).map(|_| torn()).collect());
    let failure = connection.dump(7, &[]).expect_err("torn each time");
    assert_eq!(failure.errno(), Some(Errno::INTR.raw_os_error()));
}

#[test]
fn a_list_that_ends_in_an_error_is_an_error() {
    let (mut connection, _kernel) = scripted(vec![Box::new(|sequence| {
        vec![news(sequence, 2, b"one."), verdict(sequence, DONE, -12)]
    })]);
    assert_eq!(connection.dump(7, &[]).expect_err("cut short").errno(), Some(12));
}

#[test]
fn what_was_lost_for_want_of_room_is_asked_for_again_but_never_set_again() {
    let lost = || -> Reply { Box::new(|sequence| vec![verdict(sequence, ERROR, -LOST)]) };
    let (mut connection, kernel) = scripted(vec![
        lost(),
        Box::new(|sequence| vec![news(sequence, 0, b"here"), verdict(sequence, ERROR, 0)]),
        lost(),
    ]);
    assert_eq!(connection.get(7, &[]).expect("answered").payload, b"here");
    assert_eq!(connection.set(7, &[]).expect_err("unknown").errno(), Some(LOST));
    drop(connection);
    assert_eq!(kernel.join().expect("ends").len(), 3);
}

#[test]
fn a_get_without_an_answer_is_an_error() {
    let (mut connection, _kernel) =
        scripted(vec![Box::new(|sequence| vec![verdict(sequence, ERROR, 0)])]);
    assert_eq!(connection.get(7, &[]).expect_err("nothing told").errno(), Some(71));
}

#[test]
fn a_line_that_breaks_is_an_error_at_once() {
    let (ours, theirs) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
            .expect("a pair");
    let kernel = std::thread::spawn(move || {
        recv(&theirs, &mut [0; 64][..], RecvFlags::empty()).expect("asked");
    });
    let mut connection = Connection::over(ours, Duration::from_secs(60));
    assert!(matches!(connection.set(7, &[]), Err(Failure::Io(_))));
    kernel.join().expect("ends");
}

#[test]
fn the_real_kernel_answers_and_refuses() {
    let mut connection =
        Connection::over(Protocol::Route.open().expect("a socket"), Duration::from_secs(5));
    let links = connection.dump(18, Builder::after(&[0; 16]).finish()).expect("told");
    assert!(!links.is_empty(), "there is always a loopback interface");
    // No interface has this number.
    let mut nowhere = [0_u8; 16];
    nowhere[4..8].copy_from_slice(&0x7fff_fff0_i32.to_ne_bytes());
    let failure = connection.get(18, &nowhere).expect_err("no such interface");
    assert_eq!(failure.errno(), Some(Errno::NODEV.raw_os_error()));
}
