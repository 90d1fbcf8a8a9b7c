//! The file a demo's table is drawn into. It is opened before the run, since a path that cannot be
//! written should not cost the minutes after which it is found out.

use std::fs::{self, File};
use std::io::{self, Seek, Write};
use std::path::{Path, PathBuf};

/// A file that takes a picture. What is in it stays until [`Self::write`]; one that was made for
/// this run and got no picture is removed.
#[derive(Debug)]
pub(super) struct Picture {
    path: PathBuf,
    file: File,
    made_for_nothing: bool,
}

impl Picture {
    /// # Errors
    /// When the file cannot be opened or made.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let mut options = File::options();
        options.write(true);
        let (file, made_for_nothing) = match options.clone().create_new(true).open(path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                (options.open(path)?, false)
            }
            made => (made?, true),
        };
        Ok(Self { path: path.to_owned(), file, made_for_nothing })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// # Errors
    /// When the disk is full, and the like.
    pub(super) fn write(&mut self, svg: &str) -> io::Result<()> {
        if self.file.metadata()?.is_file() {
            self.file.set_len(0)?;
            self.file.rewind()?;
        }
        self.file.write_all(svg.as_bytes())?;
        self.made_for_nothing = false;
        Ok(())
    }
}

impl Drop for Picture {
    fn drop(&mut self) {
        if self.made_for_nothing {
            // Nothing is lost if it stays: it is empty.
            let _ = fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_that_cannot_be_written_is_known_before_there_is_a_picture() {
        let folder = tempfile::tempdir().expect("a folder");
        assert!(Picture::open(&folder.path().join("none/x.svg")).is_err());
        assert!(Picture::open(folder.path()).is_err());
    }

    #[test]
    fn an_older_picture_stays_until_there_is_a_new_one() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("x.svg");
        fs::write(&path, "<svg>the older and longer</svg>").expect("written");
        drop(Picture::open(&path).expect("opens"));
        assert!(fs::read_to_string(&path).expect("reads").contains("older"));
        Picture::open(&path).expect("opens").write("<svg/>").expect("writes");
        assert_eq!(fs::read_to_string(&path).expect("reads"), "<svg/>");
    }

    #[test]
    fn a_run_without_a_picture_leaves_no_file() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("x.svg");
        drop(Picture::open(&path).expect("opens"));
        assert!(!path.exists());
    }
}
