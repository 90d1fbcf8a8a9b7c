//! The guest's root file system while it is put together, and its way into a cpio archive (format
//! newc), which is what the kernel unpacks. Written here and not by the cpio tool, so that neither
//! root nor a staging folder is needed.

use std::collections::BTreeMap;
use std::io::{self, Write};

use cpio::newc::{self, ModeFileType};

enum Node {
    Directory,
    File { mode: u32, bytes: Vec<u8> },
    Link { target: String },
}

/// Files by path, without the leading slash. The folders above each file come by themselves.
#[derive(Default)]
pub(super) struct Archive {
    nodes: BTreeMap<String, Node>,
}

impl Archive {
    pub(super) fn directory(&mut self, path: &str) {
        self.place(path, Node::Directory);
    }

    /// A file that may be executed by everybody.
    pub(super) fn program(&mut self, path: &str, bytes: Vec<u8>) {
        self.place(path, Node::File { mode: 0o755, bytes });
    }

    pub(super) fn file(&mut self, path: &str, bytes: Vec<u8>) {
        self.place(path, Node::File { mode: 0o644, bytes });
    }

    pub(super) fn link(&mut self, path: &str, target: &str) {
        self.place(path, Node::Link { target: target.to_owned() });
    }

    pub(super) fn contains(&self, path: &str) -> bool {
        self.nodes.contains_key(path)
    }

    fn place(&mut self, path: &str, node: Node) {
        let mut parent = path;
        while let Some((above, _)) = parent.rsplit_once('/') {
            self.nodes.entry(above.to_owned()).or_insert(Node::Directory);
            parent = above;
        }
        self.nodes.insert(path.to_owned(), node);
    }

    /// Writes the archive; equal contents give equal bytes. Parents sort before their children, as
    /// the kernel needs it.
    pub(super) fn write(&self, out: &mut impl Write) -> io::Result<()> {
        for (number, (path, node)) in (1..).zip(&self.nodes) {
            let entry = newc::Builder::new(path).ino(number);
            let (entry, bytes) = match node {
                Node::Directory => {
                    (entry.mode(0o755).set_mode_file_type(ModeFileType::Directory), &[][..])
                }
                Node::File { mode, bytes } => {
                    (entry.mode(*mode).set_mode_file_type(ModeFileType::Regular), bytes.as_slice())
                }
                Node::Link { target } => {
                    (entry.mode(0o777).set_mode_file_type(ModeFileType::Symlink), target.as_bytes())
                }
            };
            let length = u32::try_from(bytes.len())
                .map_err(|_| io::Error::other(format!("{path} is larger than cpio can hold")))?;
            let mut writer = entry.write(&mut *out, length);
            writer.write_all(bytes)?;
            writer.finish()?;
        }
        newc::trailer(out)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(archive: &Archive) -> Vec<(String, u32, Vec<u8>)> {
        let mut bytes = Vec::new();
        archive.write(&mut bytes).expect("memory takes it");
        let mut rest = bytes.as_slice();
        let mut found = Vec::new();
        loop {
            let reader = newc::Reader::new(rest).expect("well formed");
            if reader.entry().is_trailer() {
                return found;
            }
            let (name, mode) = (reader.entry().name().to_owned(), reader.entry().mode());
            let mut content = Vec::new();
            rest = reader.to_writer(&mut content).expect("well formed");
            found.push((name, mode, content));
        }
    }

    #[test]
    fn folders_come_before_what_is_in_them() {
        let mut archive = Archive::default();
        archive.program("usr/bin/tool", b"#!".to_vec());
        archive.link("bin", "usr/bin");
        let names: Vec<_> = entries(&archive).into_iter().map(|(name, ..)| name).collect();
        assert_eq!(names, ["bin", "usr", "usr/bin", "usr/bin/tool"]);
    }

    #[test]
    fn kinds_modes_and_contents_are_kept() {
        let mut archive = Archive::default();
        archive.file("etc/a", b"text".to_vec());
        archive.link("b", "etc/a");
        archive.program("init", b"#!/bin/sh".to_vec());
        let want = [
            ("b", 0o120_777, &b"etc/a"[..]),
            ("etc", 0o040_755, b""),
            ("etc/a", 0o100_644, b"text"),
            ("init", 0o100_755, b"#!/bin/sh"),
        ];
        let found = entries(&archive);
        let found: Vec<_> =
            found.iter().map(|(name, mode, bytes)| (name.as_str(), *mode, &bytes[..])).collect();
        assert_eq!(found, want);
    }
}
