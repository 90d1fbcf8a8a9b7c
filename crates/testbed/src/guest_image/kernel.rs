//! The kernel as QEMU boots it fastest: the plain ELF image out of the compressed one.
//!
//! A distribution ships a bzImage: a small loader with the compressed ELF image in it. QEMU can
//! start the ELF image directly (PVH entry note), which saves an emulated CPU the decompression.
//! Layout: Documentation/arch/x86/boot.rst of the Linux source, "The Real-Mode Kernel Header".

use std::io::Read;

/// Why a kernel or module could not be unpacked.
#[derive(Debug, thiserror::Error)]
pub enum UnpackError {
    /// Not a bzImage of boot protocol 2.08 or newer.
    #[error("it is no Linux bzImage with a payload (boot protocol 2.08 or newer): {0}")]
    NotBzImage(&'static str),
    /// A compression that is neither xz nor Zstandard.
    #[error("its compression is unknown (it begins with {0:02x?}); xz and zstd are known")]
    Compression(Vec<u8>),
    /// Compressed data that is damaged.
    #[error("its compressed data is damaged: {0}")]
    Damaged(String),
    /// What came out is no ELF image.
    #[error("what it holds is no ELF image")]
    NotElf,
}

const XZ: &[u8] = b"\xfd7zXZ\0";
const ZSTD: &[u8] = b"\x28\xb5\x2f\xfd";
const ELF: &[u8] = b"\x7fELF";

/// The ELF image inside a bzImage.
pub(super) fn vmlinux(bzimage: &[u8]) -> Result<Vec<u8>, UnpackError> {
    let image = expand(payload(bzimage)?)?;
    if image.starts_with(ELF) { Ok(image) } else { Err(UnpackError::NotElf) }
}

fn payload(bzimage: &[u8]) -> Result<&[u8], UnpackError> {
    let field = |offset: usize, length: usize| {
        let bytes = bzimage.get(offset..offset + length);
        let bytes = bytes.ok_or(UnpackError::NotBzImage("it ends within its header"))?;
        Ok(bytes.iter().rev().fold(0_usize, |value, byte| value << 8 | usize::from(*byte)))
    };
    if bzimage.get(0x202..0x206) != Some(b"HdrS") {
        return Err(UnpackError::NotBzImage("the mark HdrS is not there"));
    }
    if field(0x206, 2)? < 0x208 {
        return Err(UnpackError::NotBzImage("its boot protocol is too old"));
    }
    // A count of 0 stands for 4 (boot.rst, setup_sects).
    let setup_sectors = match field(0x1f1, 1)? {
        0 => 4,
        sectors => sectors,
    };
    let begin = (setup_sectors + 1) * 512 + field(0x248, 4)?;
    let length = field(0x24c, 4)?;
    bzimage.get(begin..begin + length).ok_or(UnpackError::NotBzImage("it is shorter than it says"))
}

/// Undoes xz or Zstandard, told apart by their marks; an ELF file comes back as it is. The build of
/// the kernel appends four bytes of length to the payload: anything after the stream is ignored.
fn expand(bytes: &[u8]) -> Result<Vec<u8>, UnpackError> {
    let mut image = Vec::new();
    if bytes.starts_with(XZ) {
        lzma_rust2::XzReader::new(bytes, false)
            .read_to_end(&mut image)
            .map_err(|error| UnpackError::Damaged(error.to_string()))?;
    } else if bytes.starts_with(ZSTD) {
        ruzstd::decoding::StreamingDecoder::new_with_max_window_size(bytes, 1 << 30)
            .map_err(|error| UnpackError::Damaged(error.to_string()))?
            .read_to_end(&mut image)
            .map_err(|error| UnpackError::Damaged(error.to_string()))?;
    } else if bytes.starts_with(ELF) {
        image.extend_from_slice(bytes);
    } else {
        return Err(UnpackError::Compression(bytes.iter().take(6).copied().collect()));
    }
    Ok(image)
}

/// What stands at the end of a signed module (include/linux/module_signature.h).
const SIGNED: &[u8] = b"~Module signature appended~\n";
/// `struct module_signature` before it: eight bytes, then the signature's length, big-endian.
const SIGNATURE_INFO: usize = 12;

/// A module out of its file, without its signature. To check the signatures of the guest's modules
/// was a third of all that its CPU did until it was ready; the kernel asks for them only where it is
/// locked down, and the packages they come from were checked.
pub(super) fn module(bytes: &[u8]) -> Result<Vec<u8>, UnpackError> {
    let mut module = expand(bytes)?;
    if let Some(signed) = module.strip_suffix(SIGNED) {
        let info = signed.len().checked_sub(SIGNATURE_INFO).and_then(|at| {
            let length = signed[at + 8..].try_into().map(u32::from_be_bytes).ok()?;
            at.checked_sub(length as usize)
        });
        let end = info.ok_or_else(|| {
            UnpackError::Damaged("its signature is longer than the module".to_owned())
        })?;
        module.truncate(end);
    }
    Ok(module)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `printf '\x7fELFx' | xz --x86 --lzma2 -C crc32`: with the filter the kernel's build uses.
    const XZ_OF_ELF: &[u8] = &[
        0xfd, 0x37, 0x7a, 0x58, 0x5a, 0x00, 0x00, 0x01, 0x69, 0x22, 0xde, 0x36, 0x02, 0x01, 0x04,
        0x00, 0x21, 0x01, 0x16, 0x00, 0x0d, 0x86, 0x35, 0x1f, 0x01, 0x00, 0x04, 0x7f, 0x45, 0x4c,
        0x46, 0x78, 0x00, 0x00, 0x00, 0x00, 0x25, 0x4d, 0x17, 0x90, 0x00, 0x01, 0x19, 0x05, 0xbc,
        0xe8, 0xec, 0xcb, 0x90, 0x42, 0x99, 0x0d, 0x01, 0x00, 0x00, 0x00, 0x00, 0x01, 0x59, 0x5a,
    ];

    /// `printf '\x7fELFx' | zstd -c`.
    const ZSTD_OF_ELF: &[u8] = &[
        0x28, 0xb5, 0x2f, 0xfd, 0x04, 0x58, 0x29, 0x00, 0x00, 0x7f, 0x45, 0x4c, 0x46, 0x78, 0x40,
        0xe9, 0x0b, 0xd6,
    ];

    fn bzimage(payload: &[u8]) -> Vec<u8> {
        let mut image = vec![0; 0x400];
        image[0x1f1] = 1;
        image[0x202..0x206].copy_from_slice(b"HdrS");
        image[0x206..0x208].copy_from_slice(&0x20f_u16.to_le_bytes());
        image[0x248..0x24c].copy_from_slice(&0_u32.to_le_bytes());
        image[0x24c..0x250]
            .copy_from_slice(&u32::try_from(payload.len()).expect("small").to_le_bytes());
        image.extend_from_slice(payload);
        image
    }

    #[test]
    fn the_payload_is_found_where_the_header_says() {
        assert_eq!(vmlinux(&bzimage(b"\x7fELF image")).expect("plain"), b"\x7fELF image");
    }

    #[test]
    fn both_compressions_are_undone_and_the_appended_length_is_ignored() {
        for stream in [XZ_OF_ELF, ZSTD_OF_ELF] {
            let payload = [stream, &5_u32.to_le_bytes()].concat();
            assert_eq!(vmlinux(&bzimage(&payload)).expect("sound"), b"\x7fELFx");
        }
    }

    #[test]
    fn a_file_that_is_no_kernel_is_refused() {
        for bytes in [&b""[..], b"\x7fELF", &[0; 0x1000]] {
            assert!(matches!(vmlinux(bytes), Err(UnpackError::NotBzImage(_))));
        }
    }

    #[test]
    fn a_payload_longer_than_the_file_is_refused() {
        let mut image = bzimage(b"\x7fELF");
        image[0x24c..0x250].copy_from_slice(&u32::MAX.to_le_bytes());
        assert!(matches!(vmlinux(&image), Err(UnpackError::NotBzImage(_))));
    }

    #[test]
    fn an_unknown_compression_is_named_by_its_first_bytes() {
        let error = vmlinux(&bzimage(b"BZh91AY&SY")).expect_err("bzip2 is not known");
        assert!(error.to_string().contains("[42, 5a, 68, 39, 31, 41]"), "{error}");
    }

    fn signed(length: u32) -> Vec<u8> {
        let info = [&[0, 0, 2, 0, 0, 0, 0, 0][..], &length.to_be_bytes()].concat();
        [&b"\x7fELF code"[..], b"PKCS7", &info, SIGNED].concat()
    }

    #[test]
    fn a_module_loses_its_signature_and_nothing_else() {
        assert_eq!(module(&signed(5)).expect("sound"), b"\x7fELF code");
        assert_eq!(module(b"\x7fELF code").expect("unsigned"), b"\x7fELF code");
    }

    #[test]
    fn a_signature_longer_than_its_module_is_damage() {
        assert!(matches!(module(&signed(500)), Err(UnpackError::Damaged(_))));
        let bare = [&b"\x7fELF"[..], SIGNED].concat();
        assert!(matches!(module(&bare), Err(UnpackError::Damaged(_))));
    }

    #[test]
    fn a_stream_that_breaks_off_is_damaged() {
        for stream in [XZ_OF_ELF, ZSTD_OF_ELF] {
            let half = &stream[..stream.len() / 2];
            assert!(matches!(vmlinux(&bzimage(half)), Err(UnpackError::Damaged(_))), "{half:x?}");
        }
    }
}
