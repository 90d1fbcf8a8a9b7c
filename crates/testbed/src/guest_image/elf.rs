//! What an ELF file asks for: the shared libraries of a program, the modules a kernel module
//! stands on.

use goblin::elf::Elf;

/// Names (`DT_NEEDED`) of the libraries a program or library is linked with; none for a static
/// program, and none for a file that is no ELF file (a script).
pub(super) fn needed_libraries(bytes: &[u8]) -> Vec<String> {
    Elf::parse(bytes)
        .map(|elf| elf.libraries.iter().map(|name| (*name).to_owned()).collect())
        .unwrap_or_default()
}

/// Names of the modules a kernel module needs to be loaded first (`depends=` of its `.modinfo`
/// section, which modpost writes). `None` if the file is no kernel module.
pub(super) fn module_depends(bytes: &[u8]) -> Option<Vec<String>> {
    let elf = Elf::parse(bytes).ok()?;
    let section = elf
        .section_headers
        .iter()
        .find(|header| elf.shdr_strtab.get_at(header.sh_name) == Some(".modinfo"))?;
    let info = bytes.get(section.file_range()?)?;
    let depends = info
        .split(|byte| *byte == 0)
        .filter_map(|entry| std::str::from_utf8(entry).ok())
        .find_map(|entry| entry.strip_prefix("depends="))?;
    Some(depends.split(',').filter(|name| !name.is_empty()).map(module_name).collect())
}

/// The name of a module as the kernel spells it: file names may have hyphens, names never do.
pub(super) fn module_name(text: &str) -> String {
    text.replace('-', "_")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_test_program_needs_the_c_library() {
        let bytes = std::fs::read("/proc/self/exe").expect("this program can be read");
        let needed = needed_libraries(&bytes);
        assert!(needed.iter().any(|name| name.starts_with("libc.so")), "{needed:?}");
    }

    #[test]
    fn a_script_needs_no_library_and_is_no_module() {
        assert_eq!(needed_libraries(b"#!/bin/sh\n"), Vec::<String>::new());
        assert_eq!(module_depends(b"#!/bin/sh\n"), None);
    }

    #[test]
    fn a_program_is_no_module() {
        let bytes = std::fs::read("/proc/self/exe").expect("this program can be read");
        assert_eq!(module_depends(&bytes), None);
    }
}
