//! Work requests: what a consumer asks a queue pair to do (IBTA 10.8, 11.4).

use super::mr::{AccessFault, Regions};
use super::{Access, CompletionKind, Domain, EngineError};
use crate::wire::{Flow, Qpn};

/// The most pieces of memory a request gathers from or scatters to.
const PIECES: usize = 4;

/// A piece of registered memory of one's own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sge {
    /// Where it begins.
    pub address: u64,
    /// How long it is.
    pub length: u32,
    /// The key of its region.
    pub lkey: u32,
}

/// Up to four pieces of memory, in order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pieces {
    list: [Sge; PIECES],
    count: u8,
}

impl Pieces {
    /// No memory at all.
    pub const NONE: Pieces =
        Pieces { list: [Sge { address: 0, length: 0, lkey: 0 }; PIECES], count: 0 };

    /// One piece.
    pub fn one(address: u64, length: u32, lkey: u32) -> Pieces {
        let mut pieces = Pieces::NONE;
        pieces.list[0] = Sge { address, length, lkey };
        pieces.count = 1;
        pieces
    }

    /// Several pieces.
    ///
    /// # Errors
    ///
    /// When there are more than four.
    pub fn new(list: &[Sge]) -> Result<Pieces, EngineError> {
        let mut pieces = Pieces::NONE;
        let places = pieces.list.get_mut(..list.len());
        places.ok_or(EngineError::TooManyPieces { given: list.len() })?.copy_from_slice(list);
        pieces.count = list.len() as u8;
        Ok(pieces)
    }

    /// The pieces, as a list.
    pub fn list(&self) -> &[Sge] {
        &self.list[..usize::from(self.count)]
    }

    /// Bytes in all.
    pub fn length(&self) -> u64 {
        self.list().iter().map(|sge| u64::from(sge.length)).sum()
    }

    /// The parts that the bytes from `offset` on lie in.
    fn parts(&self, offset: u64, length: u64) -> impl Iterator<Item = Sge> {
        let (mut skip, mut left) = (offset, length);
        self.list().iter().filter_map(move |sge| {
            let whole = u64::from(sge.length);
            let from = skip.min(whole);
            skip -= from;
            let take = (whole - from).min(left);
            left -= take;
            let part = Sge { address: sge.address.wrapping_add(from), length: take as u32, ..*sge };
            (take > 0).then_some(part)
        })
    }

    /// The bytes from `offset` on, as slices.
    pub(crate) fn gather<'a>(
        &self,
        regions: &'a Regions,
        domain: Domain,
        offset: u64,
        length: u64,
    ) -> Result<Gathered<'a>, AccessFault> {
        let mut gathered = Gathered { slices: [&[]; PIECES], count: 0 };
        for part in self.parts(offset, length) {
            let length = u64::from(part.length);
            gathered.slices[gathered.count] =
                regions.read(domain, part.lkey, part.address, length, Access::NONE)?;
            gathered.count += 1;
        }
        Ok(gathered)
    }

    /// Writes `data` to the bytes from `offset` on. What does not fit must have been refused before.
    pub(crate) fn scatter(
        &self,
        regions: &mut Regions,
        domain: Domain,
        offset: u64,
        mut data: &[u8],
    ) -> Result<(), AccessFault> {
        for part in self.parts(offset, data.len() as u64) {
            let (now, later) = data.split_at(part.length as usize);
            let length = u64::from(part.length);
            regions
                .write(domain, part.lkey, part.address, length, Access::LOCAL_WRITE)?
                .copy_from_slice(now);
            data = later;
        }
        Ok(())
    }
}

/// Bytes of several pieces.
pub(crate) struct Gathered<'a> {
    slices: [&'a [u8]; PIECES],
    count: usize,
}

impl<'a> Gathered<'a> {
    /// The slices, in order.
    pub(crate) fn slices(&self) -> &[&'a [u8]] {
        &self.slices[..self.count]
    }
}

/// Memory of the peer's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remote {
    /// Where it begins.
    pub address: u64,
    /// The key of its region.
    pub rkey: u32,
}

/// What to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// A message into the peer's next receive.
    Send,
    /// The same, with 32 bits for its completion.
    SendImmediate(u32),
    /// The same, and a key of the peer's that becomes void.
    SendInvalidate(u32),
    /// Into the peer's memory, unseen by it.
    Write(Remote),
    /// The same, and a receive of the peer's completes with 32 bits.
    WriteImmediate(Remote, u32),
    /// From the peer's memory.
    Read(Remote),
    /// Swaps 64 bits of the peer's memory if they are as expected; the old ones come back.
    CompareSwap {
        /// The bits; aligned to 8 bytes.
        remote: Remote,
        /// What they are compared with.
        compare: u64,
        /// What they become if they are equal.
        swap: u64,
    },
    /// Adds to 64 bits of the peer's memory; the old ones come back.
    FetchAdd {
        /// The bits; aligned to 8 bytes.
        remote: Remote,
        /// What is added.
        add: u64,
    },
}

impl Verb {
    /// Whether the peer answers with data and not just with an acknowledgement.
    pub(crate) fn is_answered(&self) -> bool {
        matches!(self, Verb::Read(_) | Verb::CompareSwap { .. } | Verb::FetchAdd { .. })
    }

    /// Whether it uses up a receive of the peer's.
    pub(crate) fn uses_receive(&self) -> bool {
        matches!(
            self,
            Verb::Send
                | Verb::SendImmediate(_)
                | Verb::SendInvalidate(_)
                | Verb::WriteImmediate(..)
        )
    }

    /// What its completion is called.
    pub(crate) fn kind(&self) -> CompletionKind {
        match self {
            Verb::Send | Verb::SendImmediate(_) | Verb::SendInvalidate(_) => CompletionKind::Send,
            Verb::Write(_) | Verb::WriteImmediate(..) => CompletionKind::Write,
            Verb::Read(_) => CompletionKind::Read,
            Verb::CompareSwap { .. } => CompletionKind::CompareSwap,
            Verb::FetchAdd { .. } => CompletionKind::FetchAdd,
        }
    }
}

/// Where a datagram goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    /// By which addresses.
    pub flow: Flow,
    /// To which queue pair.
    pub peer: Qpn,
    /// With which Q_Key; one with its highest bit set means the sender's own (IBTA 10.2.5).
    pub qkey: u32,
}

/// A request for the send queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkRequest {
    /// Comes back in the completion.
    pub id: u64,
    /// What to do.
    pub verb: Verb,
    /// With which memory.
    pub local: Pieces,
    /// Whether success is worth a completion; failure always is.
    pub signaled: bool,
    /// Starts only when all READs and atomics before it are done (IBTA 10.8.3.3).
    pub fence: bool,
    /// Asks the peer to raise an event for its completion.
    pub solicited: bool,
    /// UD only: where to.
    pub to: Option<Address>,
}

impl WorkRequest {
    /// A signaled request.
    pub fn new(id: u64, verb: Verb, local: Pieces) -> WorkRequest {
        WorkRequest { id, verb, local, signaled: true, fence: false, solicited: false, to: None }
    }

    /// The same as a datagram.
    pub fn datagram(id: u64, verb: Verb, local: Pieces, to: Address) -> WorkRequest {
        WorkRequest { to: Some(to), ..WorkRequest::new(id, verb, local) }
    }
}

/// A request for the receive queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceiveRequest {
    /// Comes back in the completion.
    pub id: u64,
    /// Where a message goes. UD puts 40 bytes of addresses before it (IBTA 11.4.1.2).
    pub local: Pieces,
}
