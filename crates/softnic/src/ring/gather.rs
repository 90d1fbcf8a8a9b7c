//! A frame as scattered bytes: local parts that were judged already, then guest segments.
//!
//! The worker judges a local copy of a frame's head and must deliver just that copy, or a guest
//! could change the head between check and delivery. So a [`Gather`] replaces its head by local
//! bytes and leaves only the payload, which nobody judges, in guest memory.

use super::memory::Segment;

/// Local parts that one gather may have: the new head, what is left of an older head, and the body
/// of a frame that never was in guest memory.
const LOCAL_PARTS: usize = 3;

/// A frame as scattered bytes. Cheap to copy; owns nothing.
#[derive(Clone, Copy)]
pub struct Gather<'a> {
    local: [&'a [u8]; LOCAL_PARTS],
    segments: &'a [Segment],
    /// Bytes of the first segments that are not part of the frame (any more).
    skip: usize,
    len: usize,
}

impl std::fmt::Debug for Gather<'_> {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Gather")
            .field("len", &self.len)
            .field("segments", &self.segments.len())
            .finish_non_exhaustive()
    }
}

impl<'a> Gather<'a> {
    /// A frame of local bytes.
    pub fn from_slice(bytes: &'a [u8]) -> Self {
        Self { local: [bytes, &[], &[]], segments: &[], skip: 0, len: bytes.len() }
    }

    /// `len` bytes of guest segments; `len` is at most their sum.
    #[inline(always)]
    pub(crate) fn from_segments(segments: &'a [Segment], len: usize) -> Self {
        Self { local: [&[], &[], &[]], segments, skip: 0, len }
    }

    /// Bytes.
    #[inline(always)]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is no byte in it.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Calls `each` with the pieces that cover `offset..offset + limit` in order.
    #[inline(always)]
    fn pieces(&self, offset: usize, limit: usize, mut each: impl FnMut(Piece<'a>)) {
        let mut left = self.len.saturating_sub(offset).min(limit);
        let mut offset = offset;
        for part in self.local {
            if offset >= part.len() {
                offset -= part.len();
                continue;
            }
            let part = &part[offset..];
            let part = &part[..part.len().min(left)];
            offset = 0;
            left -= part.len();
            if !part.is_empty() {
                each(Piece::Local(part));
            }
        }
        let mut skip = self.skip + offset;
        for segment in self.segments {
            if left == 0 {
                return;
            }
            if skip >= segment.len() {
                skip -= segment.len();
                continue;
            }
            let part = segment.skip(skip).truncate(left);
            skip = 0;
            left -= part.len();
            each(Piece::Guest(part));
        }
    }

    /// Copies bytes from `offset` on; returns how many: fewer than asked where the frame ends.
    #[inline]
    pub fn copy_at(&self, offset: usize, into: &mut [u8]) -> usize {
        let mut done = 0;
        self.pieces(offset, into.len(), |piece| {
            let to = &mut into[done..];
            done += match piece {
                Piece::Local(part) => {
                    to[..part.len()].copy_from_slice(part);
                    part.len()
                }
                Piece::Guest(part) => part.read(0, to),
            };
        });
        done
    }

    /// The same frame with `head` instead of its first `skip` bytes (all of it if it is shorter).
    ///
    /// # Panics
    /// When heads were replaced three times over, each by less than the one before was long: a
    /// mistake in the caller that no frame can bring about.
    #[must_use]
    pub fn replace_head<'b>(&self, head: &'b [u8], skip: usize) -> Gather<'b>
    where
        'a: 'b,
    {
        let skip = skip.min(self.len);
        let mut left = skip;
        let mut local: [&'b [u8]; LOCAL_PARTS] = [head, &[], &[]];
        let mut used = 1;
        for part in self.local {
            let cut = left.min(part.len());
            left -= cut;
            if cut < part.len() {
                local[used] = &part[cut..];
                used += 1;
            }
        }
        Gather {
            local,
            segments: self.segments,
            skip: self.skip + left,
            len: self.len - skip + head.len(),
        }
    }

    /// Its first `len` bytes at most.
    #[must_use]
    pub fn truncate(&self, len: usize) -> Gather<'a> {
        Gather { len: self.len.min(len), ..*self }
    }

    /// Writes the frame's parts as a scatter list for the kernel and returns how many there are;
    /// `None` when `out` is too short for them.
    ///
    /// The list points into guest memory: it is good only as long as the frame itself is borrowed.
    pub fn io_slices(&self, out: &mut [libc::iovec]) -> Option<usize> {
        let mut count = 0;
        self.pieces(0, self.len, |piece| {
            if let Some(slot) = out.get_mut(count) {
                *slot = match piece {
                    Piece::Local(part) => libc::iovec {
                        iov_base: part.as_ptr().cast_mut().cast(),
                        iov_len: part.len(),
                    },
                    Piece::Guest(part) => part.io_slice(),
                };
            }
            count += 1;
        });
        (count <= out.len()).then_some(count)
    }

    /// Copies the frame into one segment from `offset` on; what does not fit is left out.
    #[inline(always)]
    pub(crate) fn deliver_to(&self, to: Segment, offset: usize) {
        let mut to = to.skip(offset);
        self.pieces(0, self.len, |piece| {
            let written = match piece {
                Piece::Local(part) => to.write(0, part),
                Piece::Guest(part) => to.write_from(0, part),
            };
            to = to.skip(written);
        });
    }

    /// Copies the frame to the front of `to`, a list of writable segments of which the first
    /// `skip` bytes are taken already. Returns the bytes copied.
    #[inline]
    pub(crate) fn deliver(&self, to: &[Segment], skip: usize) -> usize {
        let mut cursor = Cursor { segments: to, offset: skip };
        let mut done = 0;
        self.pieces(0, self.len, |piece| done += cursor.write(piece));
        done
    }
}

/// A part of a frame in one piece.
#[derive(Clone, Copy)]
enum Piece<'a> {
    Local(&'a [u8]),
    Guest(Segment),
}

/// A place in a list of writable segments.
struct Cursor<'a> {
    segments: &'a [Segment],
    offset: usize,
}

impl Cursor<'_> {
    #[inline(always)]
    fn write(&mut self, piece: Piece<'_>) -> usize {
        let mut done = 0;
        loop {
            let Some((first, rest)) = self.segments.split_first() else { return done };
            let (written, len) = match piece {
                Piece::Local(part) => (first.write(self.offset, &part[done..]), part.len()),
                Piece::Guest(part) => (first.write_from(self.offset, part.skip(done)), part.len()),
            };
            done += written;
            self.offset += written;
            if done == len {
                return done;
            }
            self.offset -= first.len().min(self.offset);
            self.segments = rest;
        }
    }
}
