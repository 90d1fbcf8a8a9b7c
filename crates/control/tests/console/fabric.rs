//! What an operator sees of the fabric and does with hosts.

use lanekeeper_control::resource::Role;
use serde_json::json;

use super::rig::{Rig, from};

/// VFs in the picture by state.
const VFS: &str = "Object.entries(Object.groupBy(document.querySelectorAll('.picture .vf'), \
                   (vf) => vf.classList[1])).map(([state, all]) => `${state} ${all.length}`).sort().join()";

#[test]
fn an_operator_sees_vfs_by_state_as_they_change_and_drains_a_host() {
    let rig = Rig::new();
    for number in 1..=6 {
        rig.host(&format!("h{number}"), if number <= 3 { "a" } else { "b" });
    }
    rig.silent_host("h7", "b");
    let browser = rig.signed_in("operators", Role::Operator);
    browser.until(&format!("{VFS} === 'free 96,lost 16'"));
    let environment = rig.environment("lab");
    let group = json!({"count": 6, "policy": {"spread": "strict"}, "vm": {"name": "ring",
        "environment": environment.id, "flavor": "small", "image": "guest"}});
    rig.wait(rig.cloud.create_group(&rig.acme, from(group), None)).expect("made");
    browser.until(&format!("{VFS} === 'claimed 6,free 90,lost 16'"));

    browser.press("Hosts");
    browser.press("Drain h2");
    browser.press("Open h2");
    browser.press("Drain h2");
    browser.until_shown("draining");
    browser.press("Token h7");
    browser.until("document.querySelector('dialog textarea')?.value.length > 20");
    browser.press("Done");
    browser.press("Overview");
    browser.until(&format!("{VFS} === 'claimed 6,closed 15,free 75,lost 16'"));

    // By keyboard: a host is chosen with Enter.
    browser.script("document.querySelector('.host[data-host=h1]').focus()", &[]);
    browser.keys("\u{e007}");
    browser.until("document.querySelector('.aside h2')?.innerText.startsWith('h1')");
    browser.until("document.querySelectorAll('.aside tbody .badge.good').length === 1");
    browser.picture("console-fabric.png");
    assert_eq!(browser.complaints(), Vec::<String>::new());
}

#[test]
fn an_operator_works_in_another_organization() {
    let rig = Rig::new();
    rig.environment("lab of acme");
    let browser = rig.signed_in("operators", Role::Operator);
    browser.press("Networks");
    browser.until_shown("There are no environments yet");
    browser.until("document.querySelector('header select option[value=acme]')");
    browser.script(
        "const select = document.querySelector('header select');
         select.value = 'acme'; select.dispatchEvent(new Event('change'))",
        &[],
    );
    browser.until_shown("lab of acme");
    browser.press("Events");
    browser.until("document.querySelector('main h1').innerText === 'Events'");
    browser.picture("console-events.png");
    // It is as it was after a reload: the tab remembers.
    browser.script("location.reload()", &[]);
    browser.press("Networks");
    browser.until_shown("lab of acme");
    browser.press("Sign out");
    browser.until("document.querySelector('.sign-in')");
}

#[test]
fn a_thousand_hosts_are_drawn_from_afar_and_looked_at_from_near() {
    let rig = Rig::new();
    rig.hosts(1000, |number| format!("pod{}", number / 128));
    let environment = rig.environment("lab");
    let group = json!({"count": 250, "vm": {"name": "many", "environment": environment.id,
        "flavor": "small", "image": "guest"}});
    rig.wait(rig.cloud.create_group(&rig.acme, from(group), None)).expect("made");
    let browser = rig.signed_in("operators", Role::Operator);
    browser.until("document.querySelectorAll('.tile').length === 1000");
    let asked = "performance.getEntriesByType('resource').filter((one) => /\\/(nics|vfs)$/.test(one.name)).length";
    assert_eq!(browser.script(&format!("return {asked}"), &[]), 0, "not a call a host");
    browser.picture("console-fabric-far.png");
    browser.script(
        "document.querySelector('.tile[data-host=h0500]').dispatchEvent(new MouseEvent('click', { bubbles: true }))",
        &[],
    );
    browser.until_shown("h0500");
    browser.click("[data-focus=pod-pod3]");
    browser.until("document.querySelectorAll('.host').length === 24");
    browser.until("document.querySelectorAll('.picture .vf').length === 24 * 16");
    browser.press("Next");
    browser.until("document.querySelector('.host[data-host=h0408]')");
    browser.press("Hosts");
    browser.until("document.querySelectorAll('tbody tr').length === 50");
    browser.until_shown("1–50 of 1000");
    assert_eq!(browser.complaints(), Vec::<String>::new());
}
