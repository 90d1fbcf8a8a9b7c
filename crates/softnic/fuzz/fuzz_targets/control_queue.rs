//! Fuzzes the control queue with a hostile driver: its ring and its commands.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    lanekeeper_softnic::control_queue::fuzz_harness::control_queue(data);
});
