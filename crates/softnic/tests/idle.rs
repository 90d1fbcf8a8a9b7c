//! What a NIC costs when nobody sends. Alone in its process, because it counts the CPU time of
//! every worker in it.

mod rig;

use std::time::Duration;

use rig::*;

#[test]
fn an_idle_nic_sleeps() {
    let rig = Rig::new(8);
    let _drivers: Vec<_> = (0..8).map(|vf| rig.plain(vf)).collect();
    std::thread::sleep(Duration::from_millis(200));
    let before = worker_cpu_time();
    std::thread::sleep(Duration::from_secs(2));
    let used = worker_cpu_time().saturating_sub(before);
    assert!(used < Duration::from_millis(20), "{used:?} of a core in 2 s of idleness");
}

/// CPU time of this process's workers.
fn worker_cpu_time() -> Duration {
    let tasks = std::fs::read_dir("/proc/self/task").expect("tasks");
    let mut total = 0;
    for task in tasks.filter_map(Result::ok) {
        let read = |file: &str| std::fs::read_to_string(task.path().join(file)).unwrap_or_default();
        let name = read("comm");
        if name.starts_with("worker-") {
            let first = read("schedstat").split(' ').next().and_then(|ns| ns.parse::<u64>().ok());
            total += first.unwrap_or(0);
        }
    }
    Duration::from_nanos(total)
}
