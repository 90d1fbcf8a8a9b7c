//! Images on this machine, with qemu-img, and a server of images on loopback.

use std::io::{BufRead, BufReader};
use std::net::TcpListener;

use lanekeeper_control::protocol::DesiredVm;
use lanekeeper_testbed::packages;

use super::*;
use crate::samples::vm;

struct Rig {
    folder: tempfile::TempDir,
    images: Images,
}

impl Rig {
    fn new() -> Self {
        let said = packages::ensure(&["qemu-utils"], &mut |step| println!("{step}"));
        said.expect("qemu-img");
        let folder = tempfile::tempdir().expect("a folder");
        let images = Images::new(&folder.path().join("images"), None);
        fs::create_dir(folder.path().join("images")).expect("made");
        Self { folder, images }
    }

    fn image(&self, name: &str) -> PathBuf {
        self.folder.path().join("images").join(name)
    }

    fn disks(&self) -> PathBuf {
        self.folder.path().join("disks")
    }

    fn prepare(&self, vm: &DesiredVm) -> Result<(), NodeError> {
        self.images.prepare(vm, &self.disks(), &|| true)
    }
}

fn with_disk(file: &str, disk_gib: u64, from: Option<(&str, &str)>) -> DesiredVm {
    let mut vm = vm(1);
    vm.place.scalars.disk_gib = disk_gib;
    let (url, sha256) = from.map(|(url, sha256)| (url.to_owned(), sha256.to_owned())).unzip();
    vm.image = Image::Disk { file: file.to_owned(), format: ImageFormat::Raw, url, sha256 };
    vm
}

fn hash(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

#[test]
fn a_vm_gets_a_disk_of_its_own_on_top_of_the_image_and_keeps_it() {
    let rig = Rig::new();
    fs::write(rig.image("base.raw"), vec![7; 1 << 20]).expect("written");
    let vm = with_disk("base.raw", 2, None);
    assert!(!rig.images.is_ready(&vm, &rig.disks()));
    rig.prepare(&vm).expect("made");
    assert!(rig.images.is_ready(&vm, &rig.disks()));
    let Ok(Boot::Disk(disk)) = rig.images.boot(&vm, &rig.disks()) else { panic!("a disk") };
    assert!(!disk.throw_away);
    let made = info(&disk.image, ImageFormat::Qcow2).expect("sound");
    assert_eq!(made["virtual-size"], 2_u64 << 30);
    let base = rig.image("base.raw").display().to_string();
    assert_eq!(
        (&made["backing-filename"], &made["backing-filename-format"]),
        (&base.into(), &"raw".into())
    );

    let other = with_disk("other.raw", 2, None);
    assert!(!rig.images.is_ready(&other, &rig.disks()), "another image is another disk");
    fs::write(rig.image("large.raw"), []).expect("written");
    File::options()
        .write(true)
        .open(rig.image("large.raw"))
        .expect("opens")
        .set_len(3 << 30)
        .expect("grown");
    let error = rig.prepare(&with_disk("large.raw", 2, None)).expect_err("too small").to_string();
    assert!(error.contains("disk_gib '2'") && error.contains("3 GiB"), "{error}");
}

#[test]
fn an_image_that_stands_on_another_file_of_the_host_is_refused() {
    let rig = Rig::new();
    fs::write(rig.image("secret"), vec![7; 1 << 20]).expect("written");
    let (secret, bad) = (rig.image("secret"), rig.image("bad.qcow2"));
    let (secret, path) = (secret.to_string_lossy(), bad.to_string_lossy());
    qemu_img(&["create", "-f", "qcow2", "-F", "raw", "-b", &secret, &path]).expect("made");
    let mut vm = with_disk("bad.qcow2", 1, None);
    if let Image::Disk { format, .. } = &mut vm.image {
        *format = ImageFormat::Qcow2;
    }
    let error = rig.prepare(&vm).expect_err("refused").to_string();
    assert!(error.contains("stands on another file") && error.contains("secret"), "{error}");
    assert!(!rig.images.is_ready(&vm, &rig.disks()));
}

#[test]
fn a_name_that_leads_out_of_the_folder_and_an_image_that_is_not_there_are_refused() {
    let rig = Rig::new();
    for name in ["../x", "/etc/shadow", "", ".hidden", "a/b"] {
        let error = rig.prepare(&with_disk(name, 1, None)).expect_err(name);
        assert!(matches!(error, NodeError::Refused { .. }), "{error}");
    }
    let error = rig.prepare(&with_disk("none.raw", 1, None)).expect_err("absent").to_string();
    assert!(error.contains("no url is given"), "{error}");
    let file = with_disk("none.raw", 1, Some(("file:///etc/shadow", "00")));
    let error = rig.prepare(&file).expect_err("not fetched").to_string();
    assert!(error.contains("use https:// or http://"), "{error}");
}

/// Serves these bytes to whoever asks, as often as is asked.
fn serve(bytes: Vec<u8>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}/image", listener.local_addr().expect("an address"));
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let lines = BufReader::new(stream.try_clone().expect("clones")).lines();
            lines.map_while(Result::ok).take_while(|line| !line.is_empty()).for_each(drop);
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", bytes.len());
            // A client that has enough hangs up.
            let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(&bytes));
        }
    });
    url
}

#[test]
fn an_image_is_fetched_once_and_counts_only_with_the_right_hash() {
    let rig = Rig::new();
    let bytes: Vec<u8> = (0..3_000_000_u32).map(|it| (it % 251) as u8).collect();
    let url = serve(bytes.clone());
    let wrong =
        rig.prepare(&with_disk("a.raw", 1, Some((&url, &hash(b"other"))))).expect_err("wrong");
    assert!(wrong.to_string().contains(&hash(&bytes)), "{wrong}");
    assert!(!wrong.may_pass() && !rig.image("a.raw").exists());

    let vm = with_disk("a.raw", 1, Some((&url, &hash(&bytes).to_uppercase())));
    let overtaken = rig.images.prepare(&vm, &rig.disks(), &|| false).expect_err("cut short");
    assert!(matches!(overtaken, NodeError::Overtaken) && !rig.image("a.raw").exists());
    rig.prepare(&vm).expect("fetched");
    assert_eq!(fs::read(rig.image("a.raw")).expect("there"), bytes);

    // It is there now: nobody has to be asked.
    let nowhere = with_disk("a.raw", 1, Some(("http://127.0.0.1:9/", &hash(&bytes))));
    rig.prepare(&nowhere).expect("is there");
    let absent = with_disk("b.raw", 1, Some(("http://127.0.0.1:9/", &hash(&bytes))));
    let error = rig.prepare(&absent).expect_err("no server");
    assert!(error.may_pass(), "{error}");
    fs::write(rig.image("a.raw"), b"changed").expect("written");
    assert!(rig.prepare(&nowhere).is_err(), "a file that was changed is not what is desired");
}
