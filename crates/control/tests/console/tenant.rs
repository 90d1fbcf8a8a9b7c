//! What a tenant does with the console.

use lanekeeper_control::resource::{Role, Vm};

use super::browser::Browser;
use super::rig::Rig;

#[test]
fn a_member_makes_a_vm_sees_it_run_stops_it_reads_a_refusal_and_deletes_it() {
    let rig = Rig::new();
    rig.host("h1", "a");
    rig.environment("lab");
    let browser = rig.signed_in("acme", Role::Member);
    browser.until_shown("There are no VMs yet.");
    browser.press("New VM");
    browser.fill("Name", "trainer");
    browser.picture("console-new-vm.png");
    browser.press("Make");

    // Nobody reloads anything from here on.
    browser.until_shown("trainer");
    browser.until_shown("ACTIVE");
    browser.until_shown("10.64.");
    browser.press("Stop trainer");
    browser.until_shown("SHUTOFF");
    browser.press("Start trainer");
    browser.until_shown("ACTIVE");

    browser.press("New VM");
    browser.fill("Name", "trainer");
    browser.press("Make");
    browser.until_shown("'trainer'");
    let told = browser.script("return document.querySelector('form .problem').innerText", &[]);
    let told = told.as_str().expect("words").to_owned();
    assert!(told.contains("there is a VM 'trainer' already"), "the server's words: {told}");

    rig.visit(&browser, "vms");
    browser.press("Delete trainer");
    browser.until_shown("Delete the VM trainer?");
    browser.press("Cancel");
    browser.until_gone("Delete the VM trainer?");
    browser.press("Delete trainer");
    browser.click("dialog [data-confirm]");
    browser.until_shown("There are no VMs yet.");
    // A refusal is in the browser's log of its own accord.
    let others: Vec<_> =
        browser.complaints().into_iter().filter(|line| !line.contains("409")).collect();
    assert!(others.is_empty(), "{others:?}");
}

#[test]
fn a_count_makes_a_group_and_its_vms_have_ports_on_the_network() {
    let rig = Rig::new();
    rig.host("h1", "a");
    rig.host("h2", "a");
    rig.environment("lab");
    let browser = rig.signed_in("acme", Role::Member);
    rig.visit(&browser, "vms/new");
    browser.fill("Name", "ring");
    browser.fill("How many", "4");
    browser.press("Make");
    browser.until("document.querySelector('main h1').innerText === 'Groups'");
    browser
        .until("document.querySelector('td .badge.good')?.nextSibling.textContent.trim() === '4'");
    browser.picture("console-groups.png");
    browser.press("VMs");
    browser.until("document.querySelectorAll('tbody .badge.good').length === 4");
    browser.picture("console-vms.png");
    browser.click("tbody a");
    browser.until_shown("Status since");
    browser.until("document.querySelectorAll('table')[1].rows.length > 2");
    browser.picture("console-vm.png");
    browser.press("Networks");
    browser.click("tbody .link");
    browser.until("document.querySelectorAll('.detail tbody')[1]?.rows.length === 4");
    browser.picture("console-networks.png");
    browser.press("Overview");
    browser.until("document.querySelectorAll('.tiles li').length === 4");
    browser.until_shown("VFs");
    browser.dark(true);
    browser.picture("console-tenant-dark.png");
    let hosts = browser
        .script("return [...document.querySelectorAll('.side a')].map((a) => a.innerText)", &[]);
    assert!(!hosts.to_string().contains("Hosts"), "hosts are the operator's: {hosts}");
    assert_eq!(browser.complaints(), Vec::<String>::new());
}

#[test]
fn what_changed_while_the_connection_was_broken_is_shown_when_it_is_back() {
    let rig = Rig::new();
    rig.host("h1", "a");
    let environment = rig.environment("lab");
    rig.vm(&environment, "before");
    let browser = rig.signed_in("acme", Role::Reader);
    rig.visit(&browser, "vms");
    browser.until_shown("before");
    rig.cut();
    browser.until_shown("reconnecting");
    rig.vm(&environment, "meanwhile");
    let before = rig.wait(rig.cloud.get::<Vm>(&rig.acme, id_of(&browser))).expect("read");
    rig.wait(rig.cloud.delete_vm(&before)).expect("deleted");
    rig.mend();
    browser.until_shown("meanwhile");
    browser
        .until("![...document.querySelectorAll('tbody a')].some((a) => a.innerText === 'before')");
    let buttons =
        browser.script("return document.querySelectorAll('main button:not([hidden])').length", &[]);
    assert_eq!(buttons, 0, "a reader is offered nothing that it may not do");
}

/// The id of the VM that is first in the table.
fn id_of(browser: &Browser) -> u64 {
    let link = browser.script("return document.querySelector('tbody a').hash", &[]);
    link.as_str().and_then(|link| link.rsplit('/').next()?.parse().ok()).expect("an id")
}

#[test]
fn a_key_that_nobody_has_is_refused_and_one_that_is_revoked_signs_out() {
    use lanekeeper_control::resource::ApiKey;
    let rig = Rig::new();
    let browser = Browser::start();
    browser.open(&rig.url);
    browser.fill("API key", "lk_nobody");
    browser.press("Sign in");
    browser.until_shown("this API key is not known");
    browser.picture("console-sign-in.png");
    browser.fill("API key", &rig.key("acme", Role::Member));
    browser.press("Sign in");
    browser.until_shown("There are no VMs yet.");
    // The key is in the tab's session and nowhere else.
    let kept =
        browser.script("return [sessionStorage.length, localStorage.length, document.cookie]", &[]);
    assert_eq!(kept, serde_json::json!([2, 0, ""]));

    let keys = rig.wait(rig.cloud.all::<ApiKey>(&rig.acme)).expect("read");
    for key in keys {
        rig.wait(rig.cloud.delete_key(&key)).expect("revoked");
    }
    rig.cut();
    browser.until_shown("reconnecting");
    rig.mend();
    browser.until("document.querySelector('.sign-in')");
    assert_eq!(browser.script("return sessionStorage.length", &[]), 0);
}
