//! One entry for fuzzers and property tests: any bytes through the whole switch.
