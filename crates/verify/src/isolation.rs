//! Checks that something must not be reachable.
//!
//! Silence alone proves nothing: a tool that is missing, an interface that is down and a wrong
//! address are silent too. So each check is made twice with the same command: once where it must
//! be answered, the control, and once where it must not.

use std::net::{IpAddr, Ipv4Addr};

use serde::Serialize;

use crate::{Host, ProbeError, arping, ping};

/// How one attempt to reach something ended.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Reach {
    /// Something answered.
    Answered,
    /// The attempt left and nothing answered, or it was refused; with what was seen.
    Silent(String),
    /// The attempt could not be made; with the tool's complaint.
    Broke(String),
}

impl Reach {
    /// By ARP, out of `netdev`.
    ///
    /// # Errors
    /// [`ProbeError::Host`].
    pub fn by_arp(
        from: &dyn Host,
        netdev: &str,
        to: Ipv4Addr,
        count: u32,
    ) -> Result<Self, ProbeError> {
        arping::reach(from, netdev, to, count)
    }

    /// By ICMP echo.
    ///
    /// # Errors
    /// [`ProbeError::Host`].
    pub fn by_ping(from: &dyn Host, to: IpAddr, count: u32) -> Result<Self, ProbeError> {
        ping::reach(from, to, count)
    }
}

/// A check that something is not reachable, with the control that makes it count.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Isolation {
    /// The same attempt where it must be answered.
    pub control: Reach,
    /// The attempt where it must not be.
    pub attempt: Reach,
}

impl Isolation {
    /// What was seen, if it proves that the target cannot be reached.
    ///
    /// # Errors
    /// Why it does not: the target answered, or the attempt or its control could not be made.
    pub fn proven(&self) -> Result<&str, String> {
        match (&self.control, &self.attempt) {
            (_, Reach::Answered) => Err("it was answered".to_owned()),
            (Reach::Answered, Reach::Silent(seen)) => Ok(seen),
            (Reach::Answered, Reach::Broke(why)) => Err(format!("it could not be tried: {why}")),
            (Reach::Silent(seen), _) => {
                Err(format!("nothing is proven, since the control was silent too: {seen}"))
            }
            (Reach::Broke(why), _) => {
                Err(format!("nothing is proven, since the control could not be made: {why}"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(control: Reach, attempt: Reach) -> Result<String, String> {
        Isolation { control, attempt }.proven().map(str::to_owned)
    }

    fn silent() -> Reach {
        Reach::Silent("3 requests unanswered".to_owned())
    }

    fn broke() -> Reach {
        Reach::Broke("not found".to_owned())
    }

    #[test]
    fn silence_beside_an_answered_control_is_proof() {
        assert_eq!(check(Reach::Answered, silent()), Ok("3 requests unanswered".to_owned()));
    }

    #[test]
    fn an_answer_is_no_isolation_whatever_the_control_did() {
        for control in [Reach::Answered, silent(), broke()] {
            assert!(check(control, Reach::Answered).is_err());
        }
    }

    #[test]
    fn silence_without_a_working_control_proves_nothing() {
        for control in [silent(), broke()] {
            let why = check(control, silent()).expect_err("no proof");
            assert!(why.contains("nothing is proven"), "{why}");
        }
    }

    #[test]
    fn a_tool_that_breaks_proves_nothing() {
        assert!(check(Reach::Answered, broke()).is_err());
    }
}
