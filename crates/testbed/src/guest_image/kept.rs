//! Which images stay in the cache: the one in use, and for a while any other, since a VM may be
//! about to start from it (QEMU reads kernel and initramfs once, as it starts) and checkouts of
//! different age may take turns.

use std::fs::{self, File};
use std::path::Path;
use std::time::{Duration, SystemTime};

use super::ImageError;
use crate::debian::remove_folder;

/// How long an image stays after it was last asked for.
const GRACE: Duration = Duration::from_secs(60 * 60);

/// Note that an image was asked for, and remove those that were not for an hour.
///
/// # Errors
/// [`ImageError::File`] when one cannot be removed.
pub(super) fn mark_and_sweep(cache: &Path, image: &Path) -> Result<(), ImageError> {
    // A user who may not write here removes nothing either.
    let marked = File::open(image).and_then(|folder| folder.set_modified(SystemTime::now()));
    if marked.is_ok() { sweep(cache, image) } else { Ok(()) }
}

fn sweep(cache: &Path, image: &Path) -> Result<(), ImageError> {
    let listing = fs::read_dir(cache).map_err(|error| ImageError::file(cache, error))?;
    for entry in listing.filter_map(Result::ok) {
        let is_image = entry.file_name().to_string_lossy().starts_with("guest-");
        let status = entry.metadata().ok().filter(fs::Metadata::is_dir);
        let Some(asked_for) = status.and_then(|status| status.modified().ok()) else { continue };
        // A clock that was set back makes an image look new, not old.
        let unused = asked_for.elapsed().unwrap_or_default();
        if is_image && unused > GRACE && entry.path() != image {
            remove_folder(&entry.path())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_folders(ages: &[(&str, u64)]) -> tempfile::TempDir {
        let cache = tempfile::tempdir().expect("a folder");
        for (name, minutes) in ages {
            let path = cache.path().join(name);
            fs::create_dir(&path).expect("makes");
            let then = SystemTime::now() - Duration::from_secs(minutes * 60);
            File::open(&path).and_then(|folder| folder.set_modified(then)).expect("ages");
        }
        cache
    }

    fn left(cache: &tempfile::TempDir) -> Vec<String> {
        let listing = fs::read_dir(cache.path()).expect("lists");
        let mut left: Vec<String> = listing
            .map(|entry| entry.expect("reads").file_name().to_string_lossy().into_owned())
            .collect();
        left.sort();
        left
    }

    #[test]
    fn the_image_in_use_stays_and_one_not_asked_for_in_an_hour_goes() {
        let cache = with_folders(&[("guest-now", 500), ("guest-before", 10), ("guest-old", 61)]);
        mark_and_sweep(cache.path(), &cache.path().join("guest-now")).expect("sweeps");
        assert_eq!(left(&cache), ["guest-before", "guest-now"]);
    }

    #[test]
    fn using_an_image_makes_it_new_again() {
        let cache = with_folders(&[("guest-a", 500), ("guest-b", 500)]);
        let [a, b] = ["guest-a", "guest-b"].map(|name| cache.path().join(name));
        File::open(&b).and_then(|it| it.set_modified(SystemTime::now())).expect("as if asked for");
        mark_and_sweep(cache.path(), &a).expect("sweeps");
        mark_and_sweep(cache.path(), &b).expect("sweeps");
        assert_eq!(left(&cache), ["guest-a", "guest-b"]);
    }

    #[test]
    fn what_is_no_image_stays() {
        let cache = with_folders(&[("guest-now", 0), ("packages", 500), ("qemu-1", 500)]);
        fs::write(cache.path().join("guest-packages"), "").expect("writes");
        mark_and_sweep(cache.path(), &cache.path().join("guest-now")).expect("sweeps");
        assert_eq!(left(&cache), ["guest-now", "guest-packages", "packages", "qemu-1"]);
    }
}
