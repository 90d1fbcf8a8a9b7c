//! What the demo and the tests stand on: Debian packages, a small guest image, network namespaces, a
//! QEMU that emulates NICs with SR-IOV.
//!
//! Nothing here is part of the product's work on a host; it makes emulated machines and networks
//! on one machine, and leaves none of them behind.
#![forbid(unsafe_code)]

mod debian;
pub mod etcd;
pub mod guest_image;
pub mod netdevsim;
pub mod netns;
pub mod packages;
pub mod python;
pub mod qemu;
pub mod sdk;

/// What is being done, for a progress line: called at each step of a long task.
///
/// The text is short, lower-case and says what goes on now, as in `downloading 30 packages`.
pub type Progress<'a> = &'a mut dyn FnMut(&str);

/// A [`Progress`] that shows nothing.
pub fn silent(_: &str) {}
