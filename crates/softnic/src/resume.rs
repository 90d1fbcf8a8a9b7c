//! Which ring a crash record belongs to, in a file that outlives this process, so that after
//! `kill -9` a new one goes on at the very descriptor where the old one stopped.
//!
//! The record itself is the ring's [`Journal`]. A record counts only for the same ring of the same
//! memory: its key is made of the identity of the memory's files and of the ring's addresses. A
//! ring that was stopped in good order has its key cleared; a VM that went away takes its memory,
//! and with it the key, along.

use std::fs::File;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use vm_memory::mmap::MmapRegionBuilder;
use vm_memory::{FileOffset, MmapRegion, VolatileMemory};

use crate::ring::{JOURNAL_BYTES, Journal, RingKind};

/// Rings of one VF: receive and transmit of each pair, and the control queue.
pub(crate) const RINGS_PER_VF: usize = 2 * crate::config::MAX_QUEUE_PAIRS + 1;

const MAGIC: u64 = u64::from_be_bytes(*b"LKrings1");
const WORD: usize = 8;

/// The file of one NIC: a magic word, one key a ring, then one journal a ring.
#[derive(Debug)]
pub(crate) struct ResumeFile {
    path: PathBuf,
    file: File,
    keys: MmapRegion,
    journals_at: u64,
}

/// One ring's place in it.
#[derive(Clone, Debug)]
pub(crate) struct ResumeSlot {
    file: Arc<ResumeFile>,
    ring: usize,
}

impl ResumeFile {
    /// Open the file of an earlier process of this NIC, or make a new one. It is sparse: journals
    /// of rings that never ran take no memory. What is used of it is reserved before, since a full
    /// disk would otherwise tell by SIGBUS, at a store.
    pub(crate) fn open(path: &Path, vfs: usize) -> std::io::Result<Arc<Self>> {
        let rings = vfs * RINGS_PER_VF;
        let keys_len = (WORD * (1 + rings)).next_multiple_of(JOURNAL_BYTES as usize);
        let length = keys_len as u64 + rings as u64 * JOURNAL_BYTES;
        let file = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .custom_flags(libc::O_NOFOLLOW)
            .open(path)?;
        if file.metadata()?.len() != length {
            file.set_len(0)?;
            file.set_len(length)?;
        }
        reserve(&file, 0, keys_len as u64)?;
        let keys = MmapRegionBuilder::new(keys_len)
            .with_file_offset(FileOffset::new(file.try_clone()?, 0))
            .with_mmap_prot(libc::PROT_READ | libc::PROT_WRITE)
            .with_mmap_flags(libc::MAP_SHARED)
            .build()
            .map_err(std::io::Error::other)?;
        let resume = Self { path: path.to_owned(), file, keys, journals_at: keys_len as u64 };
        if resume.word(0).load(Ordering::Relaxed) != MAGIC {
            for ring in 0..rings {
                resume.word(1 + ring).store(0, Ordering::Relaxed);
            }
            resume.word(0).store(MAGIC, Ordering::Release);
        }
        Ok(Arc::new(resume))
    }

    /// The place of one ring of one VF.
    pub(crate) fn slot(self: &Arc<Self>, vf: usize, ring: usize) -> ResumeSlot {
        assert!(ring < RINGS_PER_VF, "a VF has {RINGS_PER_VF} rings");
        ResumeSlot { file: Arc::clone(self), ring: vf * RINGS_PER_VF + ring }
    }

    fn word(&self, index: usize) -> &AtomicU64 {
        self.keys.get_atomic_ref(WORD * index).expect("keys lie inside the map and are aligned")
    }
}

impl ResumeSlot {
    /// Whether an earlier process was using just this ring when it ended.
    pub(crate) fn holds(&self, key: u64) -> bool {
        self.key().load(Ordering::Acquire) == key
    }

    /// The ring's journal. A split ring stores nothing in it and needs no room.
    ///
    /// # Errors
    /// With the file's name, as when its disk is full.
    pub(crate) fn journal(&self, kind: RingKind) -> std::io::Result<Journal> {
        let ResumeFile { path, file, journals_at, .. } = &*self.file;
        let at = journals_at + self.ring as u64 * JOURNAL_BYTES;
        let open = || {
            if kind == RingKind::Packed {
                reserve(file, at, JOURNAL_BYTES)?;
            }
            Journal::open(file.try_clone()?, at).map_err(std::io::Error::other)
        };
        open().map_err(|error| {
            let text = format!("cannot make room for a ring in {}: {error}", path.display());
            std::io::Error::new(error.kind(), text)
        })
    }

    /// The journal is this ring's from now on.
    pub(crate) fn set(&self, key: u64) {
        self.key().store(key, Ordering::Release);
    }

    /// The ring was stopped in good order, or is about to be begun anew.
    pub(crate) fn clear(&self) {
        self.set(0);
    }

    fn key(&self) -> &AtomicU64 {
        self.file.word(1 + self.ring)
    }
}

/// Have the file system set blocks aside. Where it cannot do that there is nothing to reserve.
fn reserve(file: &File, at: u64, len: u64) -> std::io::Result<()> {
    match rustix::fs::fallocate(file, rustix::fs::FallocateFlags::empty(), at, len) {
        Err(rustix::io::Errno::OPNOTSUPP) => Ok(()),
        result => Ok(result?),
    }
}

/// Key of a ring: FNV-1a over what makes it this ring of this memory. Never zero.
pub(crate) fn ring_key(memory: &[(u64, u64)], ring: &[u64]) -> u64 {
    let words =
        memory.iter().flat_map(|&(device, inode)| [device, inode]).chain(ring.iter().copied());
    let hash = words.flat_map(u64::to_le_bytes).fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    hash | 1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scratch(name: &str) -> std::path::PathBuf {
        std::env::temp_dir().join(format!("lk-resume-{name}-{}", std::process::id()))
    }

    #[test]
    fn a_second_process_knows_the_rings_of_the_first() {
        let path = scratch("second");
        ResumeFile::open(&path, 2).expect("made").slot(1, 16).set(7);
        let slot = ResumeFile::open(&path, 2).expect("opened").slot(1, 16);
        assert!(slot.holds(7));
        assert!(!slot.holds(8), "another ring's key");
        assert!(slot.journal(RingKind::Packed).is_ok());
        slot.clear();
        assert!(!slot.holds(7), "stopped in good order");
        std::fs::remove_file(path).expect("removed");
    }

    #[test]
    fn a_file_of_another_shape_is_begun_anew() {
        let path = scratch("shape");
        ResumeFile::open(&path, 1).expect("made").slot(0, 0).set(7);
        let grown = ResumeFile::open(&path, 2).expect("opened");
        assert!(!grown.slot(0, 0).holds(7));
        std::fs::remove_file(path).expect("removed");
    }

    /// Blocks of 512 bytes that the file takes.
    fn blocks(path: &Path) -> u64 {
        std::os::unix::fs::MetadataExt::blocks(&std::fs::metadata(path).expect("there"))
    }

    #[test]
    fn what_is_stored_to_has_room_on_the_disk_before() {
        let path = scratch("room");
        let file = ResumeFile::open(&path, 64).expect("made");
        let keys = blocks(&path);
        assert!(keys * 512 >= JOURNAL_BYTES, "the keys: {keys} blocks");
        let _journal = file.slot(63, 15).journal(RingKind::Split).expect("opened");
        assert_eq!(blocks(&path), keys, "a split ring needs no room");
        let _journal = file.slot(63, 16).journal(RingKind::Packed).expect("opened");
        assert!((blocks(&path) - keys) * 512 >= JOURNAL_BYTES, "one journal");
        std::fs::remove_file(path).expect("removed");
    }

    #[test]
    fn the_key_changes_with_memory_and_ring() {
        let key = ring_key(&[(1, 2)], &[3, 4]);
        assert_ne!(key, ring_key(&[(1, 3)], &[3, 4]));
        assert_ne!(key, ring_key(&[(1, 2)], &[3, 5]));
        assert_eq!(key, ring_key(&[(1, 2)], &[3, 4]));
    }
}
