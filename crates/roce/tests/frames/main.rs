//! Frames by the rules of the standard: what is written is read again, what is damaged is found out,
//! and what routers may change is not damage.

mod golden;
mod hostile;
mod oracle_scapy;
mod oracle_tshark;
mod packets;
mod properties;
