//! Fuzzes the embedded switch: any frame behind any net header, under any settings.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    lanekeeper_softnic::switch::fuzz_harness::whole_switch(data);
});
