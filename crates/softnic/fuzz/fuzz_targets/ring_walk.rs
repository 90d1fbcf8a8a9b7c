//! Fuzzes the device side of the rings with a hostile guest.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| lanekeeper_softnic::ring::fuzz_harness::ring_walk(data));
