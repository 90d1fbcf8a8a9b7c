//! ethtool netlink: link-level pause (kernel document `networking/ethtool-netlink`).

use super::generic::{Family, body};
use super::netlink::Failure;
use super::netlink::attribute::{Attribute, Builder};

/// Name of the family.
pub(crate) const NAME: &str = "ethtool";

const MSG_PAUSE_GET: u8 = 21;
const MSG_PAUSE_SET: u8 = 22;

const PAUSE_HEADER: u16 = 1;
const PAUSE_AUTONEG: u16 = 2;
const PAUSE_RX: u16 = 3;
const PAUSE_TX: u16 = 4;
/// Inside the header.
const HEADER_DEV_NAME: u16 = 2;

/// Whether an interface sends or heeds link-level pause: either direction counts, because either
/// stalls every priority at once.
pub(crate) fn pause(family: &mut Family, interface: &str) -> Result<Option<bool>, Failure> {
    let answer = family.get(MSG_PAUSE_GET, |request| header(request, interface))?;
    let direction = |kind| body(&answer).first(kind).and_then(Attribute::u8).map(|on| on != 0);
    Ok(direction(PAUSE_RX).zip(direction(PAUSE_TX)).map(|(rx, tx)| rx || tx))
}

/// Set both directions, and not by negotiation: that would leave it to the peer.
pub(crate) fn set_pause(family: &mut Family, interface: &str, on: bool) -> Result<(), Failure> {
    family.set(MSG_PAUSE_SET, |request| {
        header(request, interface);
        request.u8(PAUSE_AUTONEG, 0).u8(PAUSE_RX, on.into()).u8(PAUSE_TX, on.into());
    })
}

fn header(request: &mut Builder, interface: &str) {
    request.nest(PAUSE_HEADER, |header| {
        header.text(HEADER_DEV_NAME, interface);
    });
}
