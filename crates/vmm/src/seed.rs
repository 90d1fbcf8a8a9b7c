//! First-boot data for cloud-init: a small FAT disk labelled CIDATA (the NoCloud data source;
//! cloud-init's documentation, "NoCloud": a vfat or iso9660 file system with the label cidata).

use std::io::{Cursor, Write};

use fatfs::{FatType, FileSystem, FormatVolumeOptions, FsOptions, format_volume};

/// Room on the disk in bytes; cloud-init's files are a few kilobytes.
const SIZE: usize = 2 << 20;

/// What cloud-init finds at the first boot.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Seed {
    /// `user-data`: a `#cloud-config` document or a script.
    pub user_data: String,
    /// `meta-data`: YAML with at least `instance-id`. A new one makes the guest begin anew.
    pub meta_data: String,
    /// `network-config`, version 1 or 2; without it the guest asks for DHCP on its first NIC.
    pub network_config: Option<String>,
}

impl Seed {
    /// The disk image.
    ///
    /// # Errors
    /// When the files do not fit into 2 MiB.
    pub fn image(&self) -> std::io::Result<Vec<u8>> {
        let mut disk = Cursor::new(vec![0; SIZE]);
        let options =
            FormatVolumeOptions::new().volume_label(*b"CIDATA     ").fat_type(FatType::Fat12);
        format_volume(&mut disk, options)?;
        {
            let system = FileSystem::new(&mut disk, FsOptions::new())?;
            let network = self.network_config.iter().map(|text| ("network-config", text));
            let files = [("user-data", &self.user_data), ("meta-data", &self.meta_data)];
            for (name, text) in files.into_iter().chain(network) {
                let mut file = system.root_dir().create_file(name)?;
                file.write_all(text.as_bytes())?;
                file.flush()?;
            }
            system.unmount()?;
        }
        Ok(disk.into_inner())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    #[test]
    fn the_files_and_the_label_are_as_cloud_init_looks_for_them() {
        let seed = Seed {
            user_data: "#cloud-config\n".repeat(1000),
            meta_data: "instance-id: one\n".to_owned(),
            network_config: Some("version: 2\n".to_owned()),
        };
        let image = Cursor::new(seed.image().expect("fits"));
        let system = FileSystem::new(image, FsOptions::new()).expect("a file system");
        assert_eq!(system.volume_label(), "CIDATA");
        let read = |name: &str| {
            let mut text = String::new();
            let mut file = system.root_dir().open_file(name).expect("is there");
            file.read_to_string(&mut text).expect("reads");
            text
        };
        assert_eq!(read("user-data"), seed.user_data);
        assert_eq!(read("meta-data"), seed.meta_data);
        assert_eq!(Some(read("network-config")), seed.network_config);
    }

    #[test]
    fn without_a_network_config_there_is_no_such_file() {
        let image = Cursor::new(Seed::default().image().expect("fits"));
        let system = FileSystem::new(image, FsOptions::new()).expect("a file system");
        assert!(system.root_dir().open_file("network-config").is_err());
    }

    #[test]
    fn more_than_the_disk_holds_is_an_error() {
        let seed = Seed { user_data: "x".repeat(3 << 20), ..Seed::default() };
        assert!(seed.image().is_err());
    }
}
