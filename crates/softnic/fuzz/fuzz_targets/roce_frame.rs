//! Fuzzes the codec of RoCE: any bytes as a frame, and what is read is written and read again.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    lanekeeper_roce::wire::fuzz_harness::any_frame(data);
});
