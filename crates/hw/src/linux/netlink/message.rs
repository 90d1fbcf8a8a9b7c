//! Netlink messages: the header before each, what one datagram holds, and what an acknowledgement
//! says (`struct nlmsghdr` and `struct nlmsgerr`, include/uapi/linux/netlink.h).

use super::attribute::{Attributes, padded, u16_at, u32_at};

/// Length, type, flags, sequence number, port.
pub(crate) const HEADER: usize = 16;

/// This is a request.
pub(crate) const REQUEST: u16 = 0x1;
/// Answer with an acknowledgement when done.
pub(crate) const ACK: u16 = 0x4;
/// Tell all there are (`NLM_F_ROOT | NLM_F_MATCH`).
pub(crate) const DUMP: u16 = 0x300;
/// In an answer: what is being told changed meanwhile.
const DUMP_INTERRUPTED: u16 = 0x10;
/// In an acknowledgement: the request is not repeated in it.
const CAPPED: u16 = 0x100;
/// In an acknowledgement: attributes follow.
const WITH_ATTRIBUTES: u16 = 0x200;

/// Acknowledgement, or refusal.
pub(crate) const ERROR: u16 = 2;
/// End of a list.
pub(crate) const DONE: u16 = 3;

/// A message's type, flags and payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Message<'a> {
    pub(crate) kind: u16,
    pub(crate) flags: u16,
    pub(crate) sequence: u32,
    pub(crate) payload: &'a [u8],
}

impl<'a> Message<'a> {
    /// As it goes over the socket. The kernel fills in the port.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let length = (HEADER + self.payload.len()) as u32;
        let mut bytes = Vec::with_capacity(padded(length as usize));
        bytes.extend_from_slice(&length.to_ne_bytes());
        bytes.extend_from_slice(&self.kind.to_ne_bytes());
        bytes.extend_from_slice(&self.flags.to_ne_bytes());
        bytes.extend_from_slice(&self.sequence.to_ne_bytes());
        bytes.extend_from_slice(&0_u32.to_ne_bytes());
        bytes.extend_from_slice(self.payload);
        bytes
    }

    /// Whether the list that it is part of changed while it was told.
    pub(crate) fn interrupted(&self) -> bool {
        self.flags & DUMP_INTERRUPTED != 0
    }

    /// What an acknowledgement, or the end of a list, says: nothing, or why not.
    pub(crate) fn verdict(&self) -> Result<(), Said> {
        // A list's end need not have a number; an acknowledgement without one is none.
        let code = match u32_at(self.payload, 0) {
            Some(code) => code.cast_signed(),
            None if self.kind == DONE => 0,
            None => return Err(Said { errno: EPROTO, text: None }),
        };
        if code >= 0 {
            return Ok(());
        }
        Err(Said { errno: code.saturating_neg(), text: self.extended_text() })
    }

    /// The kernel's own words (`NLMSGERR_ATTR_MSG`).
    fn extended_text(&self) -> Option<String> {
        if self.flags & WITH_ATTRIBUTES == 0 {
            return None;
        }
        let attributes = self.payload.get(self.before_attributes()?..)?;
        let text = Attributes(attributes).first(1)?.text();
        (!text.is_empty()).then_some(text)
    }

    /// The number, and in an acknowledgement the request's header and unless capped the rest of it.
    fn before_attributes(&self) -> Option<usize> {
        if self.kind == DONE {
            return Some(4);
        }
        let request = if self.flags & CAPPED == 0 { u32_at(self.payload, 4)? as usize } else { 0 };
        4_usize.checked_add(request.max(HEADER).checked_next_multiple_of(4)?)
    }

    /// The first message of some bytes, and the bytes after it.
    fn split_from(bytes: &'a [u8]) -> Option<(Self, &'a [u8])> {
        let length = u32_at(bytes, 0)? as usize;
        let message = Self {
            kind: u16_at(bytes, 4)?,
            flags: u16_at(bytes, 6)?,
            sequence: u32_at(bytes, 8)?,
            payload: bytes.get(HEADER..length)?,
        };
        Some((message, bytes.get(padded(length)..).unwrap_or_default()))
    }
}

/// `EPROTO`: what came is no netlink.
pub(crate) const EPROTO: i32 = 71;

/// A refusal: the errno, and the kernel's words beside it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Said {
    pub(crate) errno: i32,
    pub(crate) text: Option<String>,
}

/// The messages of one datagram, one after another.
#[derive(Clone, Debug)]
pub(crate) struct Messages<'a>(pub(crate) &'a [u8]);

impl<'a> Iterator for Messages<'a> {
    type Item = Message<'a>;

    fn next(&mut self) -> Option<Message<'a>> {
        let (message, rest) = Message::split_from(self.0)?;
        self.0 = rest;
        Some(message)
    }
}

#[cfg(test)]
mod tests {
    use super::super::attribute::Builder;
    use super::*;
    use proptest::prelude::*;

    fn refusal(flags: u16, request: &[u8], text: &str) -> Vec<u8> {
        let mut payload = (-16_i32).to_ne_bytes().to_vec();
        payload.extend((Message { kind: 16, flags: 5, sequence: 1, payload: request }).encode());
        let mut bytes = Builder::after(&payload);
        bytes.text(1, text);
        let payload = bytes.finish();
        Message { kind: ERROR, flags, sequence: 1, payload }.encode()
    }

    #[test]
    fn the_kernels_words_are_found_with_and_without_the_request() {
        for bytes in [
            refusal(WITH_ATTRIBUTES, &[9; 12], "VFs are in use"),
            refusal(WITH_ATTRIBUTES | CAPPED, &[], "VFs are in use"),
        ] {
            let message = Messages(&bytes).next().expect("one");
            let said = Said { errno: 16, text: Some("VFs are in use".to_owned()) };
            assert_eq!(message.verdict(), Err(said));
        }
    }

    #[test]
    fn without_the_flag_nothing_is_taken_for_words() {
        let bytes = refusal(0, &[9; 12], "not to be seen");
        let message = Messages(&bytes).next().expect("one");
        assert_eq!(message.verdict(), Err(Said { errno: 16, text: None }));
    }

    #[test]
    fn an_acknowledgement_without_its_number_is_no_success() {
        let message = Message { kind: ERROR, flags: 0, sequence: 1, payload: &[] };
        assert_eq!(message.verdict(), Err(Said { errno: EPROTO, text: None }));
    }

    #[test]
    fn several_messages_of_one_datagram_are_told_apart() {
        let mut bytes = Message { kind: 20, flags: 2, sequence: 4, payload: &[1, 2, 3] }.encode();
        bytes.resize(padded(bytes.len()), 0);
        bytes.extend(Message { kind: DONE, flags: 2, sequence: 4, payload: &[0; 4] }.encode());
        let kinds: Vec<_> = Messages(&bytes).map(|message| message.kind).collect();
        assert_eq!(kinds, [20, DONE]);
    }

    proptest! {
        #[test]
        fn any_datagram_can_be_read(bytes in proptest::collection::vec(any::<u8>(), 0..512)) {
            for message in Messages(&bytes) {
                let _ = (message.verdict(), message.interrupted());
            }
        }

        #[test]
        fn any_acknowledgement_can_be_read(
            kind in 2_u16..4, flags in any::<u16>(),
            payload in proptest::collection::vec(any::<u8>(), 0..128),
        ) {
            let _ = Message { kind, flags, sequence: 0, payload: &payload }.verdict();
        }
    }
}
