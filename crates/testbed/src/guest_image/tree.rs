//! The unpacked packages, read as the guest will see them: links are followed within the tree and
//! never out of it, so that nothing of this machine's own system gets into the guest.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::ImageError;
use super::elf::{module_depends, module_name};
use super::kernel;

/// Links followed before a path counts as a loop (as in Linux, path_resolution(7)).
const MAX_LINKS: usize = 40;

/// Folders where Debian puts programs, and libraries of amd64.
const PROGRAM_FOLDERS: &[&str] = &["usr/bin", "usr/sbin", "bin", "sbin"];
const LIBRARY_FOLDERS: &[&str] =
    &["lib/x86_64-linux-gnu", "usr/lib/x86_64-linux-gnu", "usr/lib", "lib"];

/// A folder taken as the root of a file system.
pub(super) struct Tree {
    root: PathBuf,
}

impl Tree {
    pub(super) fn new(root: PathBuf) -> Self {
        Self { root }
    }

    /// Where a path leads to on this machine, with every link taken as relative to this root.
    pub(super) fn locate(&self, path: &str) -> io::Result<PathBuf> {
        let mut steps: Vec<String> = reversed(path);
        let mut at: Vec<String> = Vec::new();
        let mut links = 0;
        while let Some(step) = steps.pop() {
            match step.as_str() {
                "" | "." => {}
                ".." => {
                    at.pop();
                }
                _ => {
                    at.push(step);
                    let here = self.root.join(at.join("/"));
                    if !fs::symlink_metadata(&here)?.is_symlink() {
                        continue;
                    }
                    links += 1;
                    if links > MAX_LINKS {
                        return Err(io::Error::other(format!("{path} is a loop of links")));
                    }
                    let target = fs::read_link(&here)?;
                    let target = target.to_string_lossy();
                    at.pop();
                    if target.starts_with('/') {
                        at.clear();
                    }
                    steps.extend(reversed(&target));
                }
            }
        }
        Ok(self.root.join(at.join("/")))
    }

    /// The contents of a file.
    pub(super) fn read(&self, path: &str) -> Result<Vec<u8>, ImageError> {
        let read = || fs::read(self.locate(path)?);
        read().map_err(|error| ImageError::file(Path::new(path), error))
    }

    /// A program by its name, wherever the package has put it.
    pub(super) fn program(&self, name: &str) -> Result<Vec<u8>, ImageError> {
        self.find(PROGRAM_FOLDERS, name).ok_or_else(|| ImageError::NotInPackages(name.to_owned()))
    }

    /// A shared library by its SONAME.
    pub(super) fn library(&self, name: &str) -> Result<Vec<u8>, ImageError> {
        self.find(LIBRARY_FOLDERS, name).ok_or_else(|| ImageError::NotInPackages(name.to_owned()))
    }

    fn find(&self, folders: &[&str], name: &str) -> Option<Vec<u8>> {
        folders.iter().find_map(|folder| self.read(&format!("{folder}/{name}")).ok())
    }

    /// Names in a folder, sorted; none if it is not there.
    pub(super) fn list(&self, folder: &str) -> Vec<String> {
        let entries = self.locate(folder).and_then(fs::read_dir);
        let mut names: Vec<String> = entries
            .into_iter()
            .flatten()
            .filter_map(Result::ok)
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    }

    /// The modules named and all they need, unpacked, each after those it needs.
    pub(super) fn modules(&self, wanted: &[&str]) -> Result<Vec<Module>, ImageError> {
        let mut files = BTreeMap::new();
        let folder = self.root.join("lib/modules");
        index_modules(&folder, &mut files).map_err(|error| ImageError::file(&folder, error))?;
        let mut order = Order { files: &files, done: BTreeSet::new(), modules: Vec::new() };
        for name in wanted {
            order.add(&module_name(name))?;
        }
        Ok(order.modules)
    }
}

fn reversed(path: &str) -> Vec<String> {
    path.split('/').rev().map(str::to_owned).collect()
}

/// Modules are `NAME.ko`, or `NAME.ko.xz` and `NAME.ko.zst` in later releases.
fn index_modules(folder: &Path, files: &mut BTreeMap<String, PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let kind = entry.file_type()?;
        if kind.is_dir() {
            index_modules(&entry.path(), files)?;
        } else if kind.is_file()
            && let Some((name, _)) = entry.file_name().to_string_lossy().split_once(".ko")
        {
            files.insert(module_name(name), entry.path());
        }
    }
    Ok(())
}

/// A kernel module.
pub(super) struct Module {
    pub(super) name: String,
    /// Modules it stands on directly.
    pub(super) needs: Vec<String>,
    pub(super) bytes: Vec<u8>,
}

struct Order<'a> {
    files: &'a BTreeMap<String, PathBuf>,
    done: BTreeSet<String>,
    modules: Vec<Module>,
}

impl Order<'_> {
    fn add(&mut self, name: &str) -> Result<(), ImageError> {
        if !self.done.insert(name.to_owned()) {
            return Ok(());
        }
        let path =
            self.files.get(name).ok_or_else(|| ImageError::NotInPackages(format!("{name}.ko")))?;
        let packed = fs::read(path).map_err(|error| ImageError::file(path, error))?;
        let bytes = kernel::module(&packed)
            .map_err(|why| ImageError::Unpack { what: path.display().to_string(), why })?;
        let needs = module_depends(&bytes).ok_or_else(|| ImageError::Unpack {
            what: path.display().to_string(),
            why: kernel::UnpackError::NotElf,
        })?;
        for needed in &needs {
            self.add(needed)?;
        }
        self.modules.push(Module { name: name.to_owned(), needs, bytes });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn tree() -> (tempfile::TempDir, Tree) {
        let folder = tempfile::tempdir().expect("a folder");
        fs::create_dir_all(folder.path().join("usr/lib/x86_64-linux-gnu")).expect("makes");
        fs::write(folder.path().join("usr/lib/x86_64-linux-gnu/liba.so.1.2"), "real")
            .expect("writes");
        let tree = Tree::new(folder.path().to_owned());
        (folder, tree)
    }

    #[test]
    fn an_absolute_link_stays_within_the_tree() {
        let (folder, tree) = tree();
        symlink("/usr/lib/x86_64-linux-gnu/liba.so.1.2", folder.path().join("liba.so"))
            .expect("links");
        symlink("/etc/hostname", folder.path().join("leak")).expect("links");
        assert_eq!(tree.read("liba.so").expect("in the tree"), b"real");
        assert!(tree.read("leak").is_err(), "this machine's own file was read");
    }

    #[test]
    fn dots_cannot_climb_out_of_the_tree() {
        let (_folder, tree) = tree();
        let path = "usr/../../../../usr/lib/x86_64-linux-gnu/liba.so.1.2";
        assert_eq!(tree.read(path).expect("in the tree"), b"real");
    }

    #[test]
    fn a_loop_of_links_is_an_error() {
        let (folder, tree) = tree();
        symlink("b", folder.path().join("a")).expect("links");
        symlink("a", folder.path().join("b")).expect("links");
        let error = tree.read("a").expect_err("never ends");
        assert!(error.to_string().contains("loop"), "{error}");
    }

    #[test]
    fn a_library_is_found_by_the_name_programs_ask_for() {
        let (folder, tree) = tree();
        symlink("liba.so.1.2", folder.path().join("usr/lib/x86_64-linux-gnu/liba.so.1"))
            .expect("links");
        assert_eq!(tree.library("liba.so.1").expect("is there"), b"real");
        assert!(
            matches!(tree.library("libz.so.1"), Err(ImageError::NotInPackages(name)) if name == "libz.so.1")
        );
    }
}
