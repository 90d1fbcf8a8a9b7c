//! The smallest guest that boots from a disk: it says so, and does nothing more. It has no agent.

/// A boot sector that writes to the first serial line and halts (16-bit code, loaded at 0x7c00).
pub fn boot_sector(text: &str) -> Vec<u8> {
    let mut sector = vec![
        0xbe, 0x11, 0x7c, // mov si, text
        0xba, 0xf8, 0x03, // mov dx, 0x3f8
        0xac, // next: lodsb
        0x84, 0xc0, // test al, al
        0x74, 0x03, // jz stop
        0xee, // out dx, al
        0xeb, 0xf8, // jmp next
        0xf4, // stop: hlt
        0xeb, 0xfd, // jmp stop
    ];
    sector.extend_from_slice(text.as_bytes());
    sector.resize(510, 0);
    sector.extend_from_slice(&[0x55, 0xaa]);
    sector
}
