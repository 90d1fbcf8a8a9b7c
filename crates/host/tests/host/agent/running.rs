//! The agent on real threads and a real clock.

use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use lanekeeper_host::agent::{Agent, Inbox, Line, Memory, Report, Running, Tuning, run};
use lanekeeper_host::{HostFile, Owner, Which};
use lanekeeper_hw::chaos::{Chaos, Fault};
use lanekeeper_hw::fake::{FakePf, Personality};
use lanekeeper_hw::guarded::{Deadlines, Guarded};

use crate::rig::{Rig, entry, request, token};

const LONG: Duration = Duration::from_secs(20);

struct Live {
    line: Line,
    told: Receiver<Report>,
    running: Arc<Running>,
    ended: std::thread::JoinHandle<()>,
}

impl Live {
    fn start(rig: &Rig, owner: Owner, file: HostFile) -> Self {
        let (line, inbox) = Inbox::new();
        let (teller, told) = mpsc::channel();
        let running = Arc::new(Running::default());
        let (watch, seen) = (Box::new(rig.fake.watch()), Arc::clone(&running));
        let ended = std::thread::spawn(move || {
            let owner = Arc::new(owner);
            let seat = owner.take_seat().expect("the only agent");
            let tuning = Tuning { rescan: Duration::from_millis(200), ..Tuning::default() };
            let agent = Agent::new(file, Memory::load(owner.ledger()), tuning);
            let tell = move |report: &Report| drop(teller.send(report.clone()));
            run(agent, &owner, &seat, watch, inbox, &seen, tell);
        });
        Self { line, told, running, ended }
    }

    fn wait_for(&self, wanted: impl Fn(&Report) -> bool) -> Report {
        let until = Instant::now() + LONG;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let report = self.told.recv_timeout(left).expect("it is told");
            if wanted(&report) {
                return report;
            }
        }
    }

    fn stop(self) -> Vec<Report> {
        self.line.stop();
        self.ended.join().expect("ended");
        self.told.into_iter().collect()
    }
}

#[test]
fn a_pf_that_hangs_from_the_start_holds_up_no_other() {
    let rig = Rig::new();
    let pfs = [0, 1].map(|_| rig.fake.add_pf(FakePf::new(Personality::I40e)));
    let mut file = entry(&rig.fake, pfs[0], "rail0", 2, "");
    file.pfs.extend(entry(&rig.fake, pfs[1], "rail1", 2, "").pfs);
    rig.fake.hang(pfs[0]).expect("hangs");
    let patient = Deadlines { read: Duration::from_secs(3), ..Deadlines::default() };
    let guarded = Guarded::with_deadlines(rig.fake.clone(), patient);
    let begun = Instant::now();
    let live = Live::start(&rig, rig.owner_over(Arc::new(guarded)), file);
    live.wait_for(|report| matches!(report, Report::Applied { pf, .. } if pf == "rail1"));
    assert!(begun.elapsed() < Duration::from_secs(3), "{:?}", begun.elapsed());
    assert_eq!(rig.read(pfs[1]).num_vfs, 2);
    live.wait_for(|report| *report == Report::Ready);
    rig.fake.heal(pfs[0]).expect("answers");
    live.wait_for(|report| matches!(report, Report::Applied { pf, .. } if pf == "rail0"));
    assert!(live.running.metrics().contains("lanekeeper_pf_hung{pf=\"rail0\"} 0"));
    assert_eq!(live.stop().pop(), Some(Report::Stopped));
}

#[test]
fn claims_and_releases_of_other_processes_go_on_beside_it() {
    let (rig, pf) = Rig::with(FakePf::new(Personality::I40e));
    let file = entry(&rig.fake, pf, "rail0", 8, "");
    let live = Live::start(&rig, rig.owner(), file.clone());
    live.wait_for(|report| *report == Report::Ready);
    let together = Barrier::new(4);
    std::thread::scope(|scope| {
        for tenant in 0..4 {
            let (rig, together) = (&rig, &together);
            scope.spawn(move || {
                together.wait();
                for _ in 0..10 {
                    let name = format!("tenant-{tenant}");
                    // Each call as a process of its own.
                    let claim = rig.owner().claim(&request(&name)).expect("claimed");
                    let which = Which::Claim(claim.id);
                    rig.owner().release(&which, &token(&name)).expect("released");
                }
            });
        }
    });
    std::thread::sleep(Duration::from_secs(2));
    let told = live.stop();
    let harm = |report: &&Report| {
        matches!(
            report,
            Report::Recovered { .. } | Report::RepairFailed { .. } | Report::DriftRepaired { .. }
        )
    };
    assert_eq!(told.iter().filter(harm).count(), 0, "{told:?}");
    assert_eq!(rig.owner().check(&file).expect("checked"), []);
    assert_eq!(rig.owner().records().expect("ledger")[0].free_vfs().count(), 8);
}

#[test]
fn a_file_that_cannot_be_read_is_told_and_the_last_one_holds() {
    let (rig, pf) = Rig::with(FakePf::new(Personality::Igb));
    let live = Live::start(&rig, rig.owner(), entry(&rig.fake, pf, "rail0", 2, ""));
    live.wait_for(|report| *report == Report::Ready);
    live.line.reload(Err("line 3: no such key".to_owned()));
    live.wait_for(
        |report| matches!(report, Report::ReloadFailed { why } if why.contains("line 3")),
    );
    live.line.reload(Ok(entry(&rig.fake, pf, "rail0", 3, "")));
    live.wait_for(|report| matches!(report, Report::Applied { .. }));
    assert_eq!(rig.read(pf).num_vfs, 3);
    live.stop();
}

#[test]
fn work_that_breaks_off_is_told_and_holds_the_agent_up_no_longer() {
    for step in 0..6 {
        let (rig, pf) = Rig::with(FakePf::new(Personality::Igb));
        let file = entry(&rig.fake, pf, "rail0", 2, "");
        let chaos = Chaos::at(rig.fake.clone(), step, Fault::DieBefore);
        let live = Live::start(&rig, rig.owner_over(Arc::new(chaos)), file);
        live.wait_for(|report| {
            let (Report::Trouble { why }
            | Report::PfUnavailable { why, .. }
            | Report::RepairFailed { why, .. }) = report
            else {
                return false;
            };
            why.contains("broke off")
        });
        let begun = Instant::now();
        assert_eq!(live.stop().pop(), Some(Report::Stopped), "step {step}");
        assert!(begun.elapsed() < Duration::from_secs(5), "step {step}: {:?}", begun.elapsed());
    }
}

#[test]
fn a_state_folder_that_cannot_be_written_is_told_and_written_once_it_can() {
    let (rig, pf) = Rig::applied(FakePf::new(Personality::Igb), 2);
    let in_the_way = rig.folder.path().join("health.tmp");
    std::fs::create_dir(&in_the_way).expect("made");
    let live = Live::start(&rig, rig.owner(), entry(&rig.fake, pf, "rail0", 2, "pools: [fast]"));
    let wanted = in_the_way.display().to_string();
    live.wait_for(|report| matches!(report, Report::Trouble { why } if why.contains(&wanted)));
    live.wait_for(|report| *report == Report::Ready);
    rig.fake.set_cable(pf, false).expect("a PF");
    live.wait_for(|report| matches!(report, Report::PfUnavailable { .. }));
    std::fs::remove_dir(&in_the_way).expect("removed");
    let until = Instant::now() + LONG;
    while rig.owner().ledger().withheld().is_empty() {
        assert!(Instant::now() < until, "never written");
        std::thread::sleep(Duration::from_millis(50));
    }
    let troubles =
        live.stop().into_iter().filter(|report| matches!(report, Report::Trouble { .. }));
    assert_eq!(troubles.count(), 0, "told once");
}
