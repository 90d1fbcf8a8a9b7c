//! Where these tests take place: in a guest with netdevsim, in which this very program runs again
//! out of a shared folder. Tests that run at the same time share the guest.

use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use lanekeeper_emulated::{HostPlan, Rig, Share, SriovHost};
use lanekeeper_testbed::{guest_image, netdevsim};
use lanekeeper_vmm::Host as _;
use tempfile::TempDir;

/// Far more than it takes on an idle machine, since tests share theirs.
const READY: Duration = Duration::from_secs(180);
const TEST: Duration = Duration::from_secs(180);

/// Set in the guest.
const IN_GUEST: &str = "LANEKEEPER_IN_GUEST";

/// Runs the test of this name, which is `test`, in the guest.
pub(crate) fn in_guest(name: &str, test: impl FnOnce()) {
    if std::env::var_os(IN_GUEST).is_some() {
        return test();
    }
    let program = std::env::current_exe().expect("this program");
    let program = program.file_name().expect("a file").to_string_lossy();
    let command = format!(
        "{IN_GUEST}=1 RUST_BACKTRACE=0 /shared/bin/{program} --exact {name} --include-ignored --nocapture"
    );
    let output = guest().host.run(&command, TEST).expect("it runs in the guest");
    println!("{}{}", output.stdout, output.stderr);
    // A name that is no test's would pass, too.
    assert!(output.success() && output.stdout.contains("1 passed"), "{name} failed in the guest");
}

struct Guest {
    host: SriovHost,
    _run_folder: TempDir,
}

/// The guest that runs, or one that is started now; it ends with the last test that uses it.
fn guest() -> Arc<Guest> {
    static GUEST: Mutex<Weak<Guest>> = Mutex::new(Weak::new());
    let mut known = GUEST.lock().unwrap_or_else(PoisonError::into_inner);
    known.upgrade().unwrap_or_else(|| {
        let guest = Arc::new(start());
        *known = Arc::downgrade(&guest);
        guest
    })
}

fn start() -> Guest {
    let mut progress = |step: &str| println!("{step}");
    let rig = Rig::prepare(&mut progress).expect("a rig");
    let modules = netdevsim::ensure(&guest_image::cache_folder(), &mut progress).expect("built");
    let program = std::env::current_exe().expect("this program");
    let run_folder = tempfile::tempdir().expect("a folder");
    let host = rig.start(HostPlan {
        name: "netdevsim".to_owned(),
        pfs: Vec::new(),
        switches: Vec::new(),
        shares: vec![
            Share { tag: "bin".to_owned(), folder: program.parent().expect("there").to_owned() },
            Share { tag: "modules".to_owned(), folder: modules },
        ],
        tenants: Vec::new(),
        run_folder: run_folder.path().to_owned(),
        namespace: None,
        dies_with_parent: true,
    });
    let host = host.expect("starts");
    let ready = host.wait_ready(READY).expect("gets ready");
    println!("the guest was ready after {ready:?}");
    let load = netdevsim::MODULES.map(|module| format!("insmod /shared/modules/{module}"));
    let load = format!("{} && mount -t debugfs none /sys/kernel/debug", load.join(" && "));
    host.check(&load, READY).expect("netdevsim is loaded");
    Guest { host, _run_folder: run_folder }
}
