//! Files of sysfs, procfs and configfs, read and written one at a time, below a root that is `/` on
//! a host and a folder in a test or a captured bundle. What is missing or odd reads as `None`:
//! devices come and go while they are read.

use std::fs::{self, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// Where the host's files begin.
#[derive(Clone, Debug)]
pub(crate) struct Tree {
    root: PathBuf,
}

impl Tree {
    pub(crate) fn at(root: &Path) -> Self {
        Self { root: root.to_owned() }
    }

    /// A path as the host has it, as in `sys/class/net`.
    pub(crate) fn path(&self, path: &str) -> PathBuf {
        self.root.join(path)
    }

    /// Where the PCI bus keeps a function.
    pub(crate) fn device(&self, address: impl std::fmt::Display) -> PathBuf {
        self.root.join(format!("sys/bus/pci/devices/{address}"))
    }
}

/// A file's text without the white space around it; `None` for none.
pub(crate) fn text(path: &Path) -> Option<String> {
    let text = fs::read(path).ok()?;
    let text = String::from_utf8_lossy(&text).trim().to_owned();
    (!text.is_empty()).then_some(text)
}

/// A file's text as a value.
pub(crate) fn value<T: FromStr>(path: &Path) -> Option<T> {
    text(path)?.parse().ok()
}

/// A file's text as a hexadecimal number with or without `0x` before it.
pub(crate) fn hex(path: &Path) -> Option<u32> {
    let text = text(path)?;
    u32::from_str_radix(text.strip_prefix("0x").unwrap_or(&text), 16).ok()
}

/// The last part of what a link points to.
pub(crate) fn target(link: &Path) -> Option<String> {
    let target = fs::read_link(link).ok()?;
    Some(target.file_name()?.to_string_lossy().into_owned())
}

/// Names in a folder, sorted; none if there is no such folder.
pub(crate) fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(folder)
        .into_iter()
        .flatten()
        .filter_map(Result::ok)
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

/// Up to `most` bytes from a file's beginning; fewer if it has no more.
pub(crate) fn bytes(path: &Path, most: u64) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    fs::File::open(path).ok()?.take(most).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

/// Write a file that is there, in one write: the kernel takes each as a whole.
///
/// # Errors
/// What the kernel says to the opening or the write.
pub(crate) fn write(path: &Path, text: &str) -> io::Result<()> {
    OpenOptions::new().write(true).truncate(true).open(path)?.write_all(text.as_bytes())
}
