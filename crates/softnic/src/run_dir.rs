//! The folder of one software NIC: who may have it, what lies in it, and what of that is taken away
//! again.
//!
//! A NIC often runs as root, and its folder may be one that somebody else prepared. So a folder that
//! was there must belong to the NIC's user and be writable by nobody else, nothing but a socket is
//! ever removed to make room, no link is followed, and at the end only those sockets go that this
//! process has made: the path may be another NIC's by then.

use std::fs::{DirBuilder, File, Metadata};
use std::io::{Read, Write};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use crate::config::Config;
use crate::nic::{NicError, io};

/// The folder, locked for as long as the value lives.
#[derive(Debug)]
pub(crate) struct RunDir {
    path: PathBuf,
    /// Held; the kernel gives it up when the process ends in whatever way.
    _lock: File,
    /// The folder goes with the value: it was made for a NIC that has not started.
    temporary: bool,
    sockets: Vec<Socket>,
}

/// A socket this process has made, and what tells it from another at the same path.
#[derive(Debug)]
struct Socket {
    path: PathBuf,
    identity: (u64, u64),
}

impl RunDir {
    /// Make the NIC's folder, or take one that is fit, and lock it: one process owns a NIC.
    ///
    /// # Errors
    /// [`NicError::Folder`] for a folder that others own or may write to, [`NicError::Running`] for
    /// one that another NIC has, [`NicError::Io`].
    pub(crate) fn open(config: &Config) -> Result<Self, NicError> {
        let path = config.run_dir();
        let made = make(&path).map_err(io(format!("make {}", path.display())))?;
        if !made {
            check(&path)?;
        }
        let lock = lock(&path, config)?;
        Ok(Self { path, _lock: lock, temporary: made, sockets: Vec::new() })
    }

    /// Path of something in it.
    pub(crate) fn join(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Listen on a socket in it, in place of one that an earlier process left. Only the NIC's user
    /// may connect.
    pub(crate) fn listen(&mut self, path: PathBuf) -> Result<UnixListener, NicError> {
        let failed = |source| io(format!("listen on {}", path.display()))(source);
        match std::fs::symlink_metadata(&path) {
            Ok(found) if found.file_type().is_socket() => {
                std::fs::remove_file(&path).map_err(failed)?;
            }
            Ok(_) => {
                let reason = "is in the way and no socket; move it away, or name another run_dir";
                return Err(NicError::Folder { path, reason: reason.to_owned() });
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(failed(error)),
        }
        let listener = UnixListener::bind(&path).map_err(failed)?;
        let private = std::fs::Permissions::from_mode(0o600);
        std::fs::set_permissions(&path, private).map_err(failed)?;
        let identity = identity(&std::fs::symlink_metadata(&path).map_err(failed)?);
        self.sockets.push(Socket { path, identity });
        Ok(listener)
    }

    /// The NIC has started: its folder stays when it ends, with its state.
    pub(crate) fn keep(&mut self) {
        self.temporary = false;
    }
}

impl Drop for RunDir {
    fn drop(&mut self) {
        for socket in &self.sockets {
            let still_ours = std::fs::symlink_metadata(&socket.path)
                .is_ok_and(|found| identity(&found) == socket.identity);
            if still_ours {
                let _ = std::fs::remove_file(&socket.path);
            }
        }
        if self.temporary {
            // An error says what matters; a folder that stays is in nobody's way.
            let _ = std::fs::remove_dir_all(&self.path);
        }
    }
}

fn identity(found: &Metadata) -> (u64, u64) {
    (found.dev(), found.ino())
}

/// Whether the folder was not there and now is, for its owner alone.
fn make(path: &Path) -> std::io::Result<bool> {
    if let Some(parent) = path.parent() {
        DirBuilder::new().recursive(true).mode(0o755).create(parent)?;
    }
    match DirBuilder::new().mode(0o700).create(path) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Ok(false),
        Err(error) => Err(error),
    }
}

/// A folder that was there is left as it is, so it must be safe as it is.
fn check(path: &Path) -> Result<(), NicError> {
    let failed = |source| io(format!("look at {}", path.display()))(source);
    let unfit = |reason: String| Err(NicError::Folder { path: path.to_owned(), reason });
    let user = rustix::process::geteuid().as_raw();
    let link = std::fs::symlink_metadata(path).map_err(failed)?;
    let folder = std::fs::metadata(path).map_err(failed)?;
    if !folder.is_dir() {
        return unfit("is no folder; name another run_dir".to_owned());
    }
    for owner in [link.uid(), folder.uid()] {
        if owner != user {
            return unfit(format!(
                "belongs to user {owner}, but this NIC runs as user {user}: what others own they \
                 can put links into; name another run_dir, or make it anew"
            ));
        }
    }
    let mode = folder.mode() & 0o7777;
    if mode & 0o022 != 0 {
        return unfit(format!(
            "can be written to by others (mode {mode:o}); name a folder of this NIC's own, or: \
             chmod go-w {}",
            path.display()
        ));
    }
    Ok(())
}

fn lock(dir: &Path, config: &Config) -> Result<File, NicError> {
    let path = dir.join("lock");
    let mut lock = File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .custom_flags(libc::O_NOFOLLOW)
        .open(&path)
        .map_err(io(format!("open {}", path.display())))?;
    match rustix::fs::flock(&lock, rustix::fs::FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(rustix::io::Errno::WOULDBLOCK) => {
            let mut holder = String::new();
            // Without it the message says what it can.
            let _ = lock.take(256).read_to_string(&mut holder);
            return Err(running(dir, config, holder.trim()));
        }
        Err(error) => return Err(io(format!("lock {}", path.display()))(error.into())),
    }
    // Who it is, for whoever comes second. A full disk may leave it empty.
    let _ = lock.set_len(0).and_then(|()| write!(lock, "{}", config.name));
    Ok(lock)
}

/// The folder is the conflict. Its name follows from the NIC's unless the file gives one.
fn running(dir: &Path, config: &Config, holder: &str) -> NicError {
    let name = if holder.is_empty() { config.name.as_str() } else { holder }.to_owned();
    let instead = match (name == config.name.as_str(), config.run_dir.is_some()) {
        (_, true) => "give this one another folder (run_dir)",
        (true, false) => "give this one another name",
        (false, false) => "give this one a folder of its own (run_dir)",
    };
    NicError::Running { name, folder: dir.to_owned(), instead }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(dir: &Path, name: &str) -> Config {
        let mut config = Config::new(name.parse().expect("a name"), 1);
        config.run_dir = Some(dir.to_owned());
        config
    }

    fn mode(path: &Path) -> u32 {
        std::fs::metadata(path).expect("there").mode() & 0o7777
    }

    fn set_mode(path: &Path, mode: u32) {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("set");
    }

    #[test]
    fn a_folder_that_is_made_is_its_owners_alone() {
        let scratch = tempfile::tempdir().expect("a folder");
        let path = scratch.path().join("a/b");
        let mut dir = RunDir::open(&config(&path, "n")).expect("made");
        assert_eq!((mode(&path), mode(&path.join("lock"))), (0o700, 0o600));
        dir.keep();
        drop(dir);
        assert!(path.exists());
    }

    #[test]
    fn a_folder_that_was_made_for_a_nic_that_did_not_start_goes() {
        let scratch = tempfile::tempdir().expect("a folder");
        let path = scratch.path().join("a/b");
        drop(RunDir::open(&config(&path, "n")).expect("made"));
        assert!(!path.exists());
        assert!(scratch.path().join("a").exists());
    }

    #[test]
    fn a_folder_that_was_there_is_left_as_it_is() {
        let scratch = tempfile::tempdir().expect("a folder");
        set_mode(scratch.path(), 0o755);
        let dir = RunDir::open(&config(scratch.path(), "n")).expect("fit");
        assert_eq!(mode(scratch.path()), 0o755);
        drop(dir);
        assert!(scratch.path().exists());
    }

    #[test]
    fn a_folder_that_others_may_write_to_is_refused_untouched() {
        let scratch = tempfile::tempdir().expect("a folder");
        for unsafe_mode in [0o1777, 0o770, 0o702] {
            set_mode(scratch.path(), unsafe_mode);
            let error = RunDir::open(&config(scratch.path(), "n")).expect_err("unfit").to_string();
            assert!(error.contains(&format!("(mode {unsafe_mode:o})")), "{error}");
            assert!(error.contains(&scratch.path().display().to_string()), "{error}");
            assert_eq!(mode(scratch.path()), unsafe_mode);
            assert_eq!(std::fs::read_dir(scratch.path()).expect("read").count(), 0);
        }
    }

    #[test]
    fn a_folder_or_a_link_of_another_user_is_refused() {
        if !rustix::process::geteuid().is_root() {
            eprintln!("skipped: only root can give a folder away");
            return;
        }
        let scratch = tempfile::tempdir().expect("a folder");
        let theirs = scratch.path().join("theirs");
        std::fs::create_dir(&theirs).expect("made");
        std::os::unix::fs::chown(&theirs, Some(65_534), None).expect("given away");
        let error = RunDir::open(&config(&theirs, "n")).expect_err("unfit").to_string();
        assert!(error.contains("belongs to user 65534"), "{error}");
        let (ours, link) = (scratch.path().join("ours"), scratch.path().join("link"));
        std::fs::create_dir(&ours).expect("made");
        std::os::unix::fs::symlink(&ours, &link).expect("linked");
        std::os::unix::fs::lchown(&link, Some(65_534), None).expect("given away");
        let error = RunDir::open(&config(&link, "n")).expect_err("unfit").to_string();
        assert!(error.contains("belongs to user 65534"), "{error}");
        assert!(!ours.join("lock").exists());
    }

    #[test]
    fn what_is_no_socket_is_never_removed() {
        let scratch = tempfile::tempdir().expect("a folder");
        let mut dir = RunDir::open(&config(scratch.path(), "n")).expect("fit");
        let path = dir.join("vf0.sock");
        std::fs::write(&path, "precious").expect("written");
        let error = dir.listen(path.clone()).expect_err("in the way").to_string();
        assert!(error.contains("vf0.sock is in the way and no socket"), "{error}");
        assert_eq!(std::fs::read_to_string(path).expect("still there"), "precious");
    }

    #[test]
    fn a_socket_that_a_killed_process_left_is_replaced_and_goes_at_the_end() {
        let scratch = tempfile::tempdir().expect("a folder");
        let mut dir = RunDir::open(&config(scratch.path(), "n")).expect("fit");
        let path = dir.join("vf0.sock");
        drop(UnixListener::bind(&path).expect("an earlier process's"));
        let _listener = dir.listen(path.clone()).expect("replaced");
        assert_eq!(mode(&path), 0o600);
        drop(dir);
        assert!(!path.exists());
    }

    #[test]
    fn a_socket_that_another_process_made_meanwhile_stays() {
        let scratch = tempfile::tempdir().expect("a folder");
        let mut dir = RunDir::open(&config(scratch.path(), "n")).expect("fit");
        let path = dir.join("vf0.sock");
        let _listener = dir.listen(path.clone()).expect("made");
        // Both exist for a moment, so that the second cannot get the first one's inode.
        let theirs = dir.join("theirs");
        let _theirs = UnixListener::bind(&theirs).expect("made");
        std::fs::rename(&theirs, &path).expect("in its place");
        drop(dir);
        assert!(path.exists());
    }

    #[test]
    fn the_second_nic_of_a_folder_hears_who_has_it_and_what_to_do() {
        let scratch = tempfile::tempdir().expect("a folder");
        let _first = RunDir::open(&config(scratch.path(), "first")).expect("fit");
        for name in ["first", "other"] {
            let error = RunDir::open(&config(scratch.path(), name)).expect_err("locked");
            let text = error.to_string();
            assert!(text.contains("software NIC 'first'"), "{text}");
            assert!(text.contains(&scratch.path().display().to_string()), "{text}");
            assert!(text.contains("another folder (run_dir)"), "{text}");
        }
    }
}
