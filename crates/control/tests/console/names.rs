//! Names that tenants choose, and what the page may load: nothing of a name is ever more than a text.

use lanekeeper_control::cloud::Draft;
use lanekeeper_control::resource::{Role, Vm, VmStatus};
use serde_json::json;

use super::rig::{Rig, from};

const HOSTILE: &str = r#"<img src=x onerror="pwned=1"><script>pwned=1</script>"#;

/// Whether anything of a name came alive.
const ALIVE: &str =
    "return [typeof pwned, document.querySelectorAll('main img, main script').length]";

#[test]
fn a_hostile_name_is_a_name_and_nothing_else() {
    let rig = Rig::new();
    rig.host("h1", "a");
    let environment = rig.environment(&HOSTILE[..50]);
    let network = json!({"name": HOSTILE, "environment": environment.id});
    rig.wait(rig.cloud.create_network(&rig.acme, from(network), None)).expect("made");
    let id = rig.vm(&environment, "v1");
    // The API takes only host names for VMs; a store that somebody else has written may hold anything.
    rig.wait(async {
        let stored = loop {
            let stored = rig.cloud.get::<Vm>(&rig.acme, id).await.expect("read");
            if stored.value.status == VmStatus::Active {
                break stored;
            }
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        };
        let labels = vec![HOSTILE.to_owned()];
        let renamed = Vm { name: HOSTILE.to_owned(), labels, ..stored.value.clone() };
        let mut draft = Draft::new();
        draft.change(&stored, &renamed).expect("JSON");
        rig.cloud.commit(draft).await.expect("written");
    });
    let browser = rig.signed_in("acme", Role::Member);
    let pages =
        ["overview", "vms", &format!("vms/{id}"), "networks", "vms/new", "events", "groups"];
    for page in pages {
        rig.visit(&browser, page);
        browser.until("document.querySelector('main h1')");
        if !["groups", "events"].contains(&page) {
            browser.until(&format!(
                "document.querySelector('main').textContent.includes({})",
                json!(&HOSTILE[..50])
            ));
        }
        assert_eq!(browser.script(ALIVE, &[]), json!(["undefined", 0]), "on {page}");
    }
    // Words of a refusal hold what was typed.
    rig.visit(&browser, "vms/new");
    browser.fill("Name", "<b>bold</b>");
    browser.press("Make");
    browser.until("document.querySelector('form .problem').innerText.includes('<b>bold</b>')");
    assert_eq!(browser.script("return document.querySelectorAll('main b').length", &[]), 0);
    rig.visit(&browser, "vms");
    browser.press(&format!("Delete {HOSTILE}"));
    browser.until_shown(&format!("Delete the VM {HOSTILE}?"));
    assert_eq!(browser.script(ALIVE, &[]), json!(["undefined", 0]), "in a question");
}

#[test]
fn the_browser_refuses_to_make_elements_of_text_and_to_load_from_elsewhere() {
    let rig = Rig::new();
    let browser = rig.signed_in("acme", Role::Reader);
    let made = browser.script(
        "try { document.querySelector('main').innerHTML = '<b>x</b>'; return 'made'; }
         catch (error) { return error.name; }",
        &[],
    );
    assert_eq!(made, "TypeError", "Trusted Types are required");
    let inline = browser.script(
        "const script = document.createElement('script');
         try { script.text = 'ran = 1'; document.head.append(script); } catch {}
         return typeof ran;",
        &[],
    );
    assert_eq!(inline, "undefined", "no script in the page itself runs");
    let loaded = browser.script(
        "return performance.getEntriesByType('resource').map((one) => new URL(one.name).origin)
           .filter((origin) => origin !== location.origin)",
        &[],
    );
    assert_eq!(loaded, json!([]), "everything is the server's own");
    let elsewhere = browser
        .script("return fetch('https://127.0.0.1:1/').then(() => 'sent', () => 'refused')", &[]);
    assert_eq!(elsewhere, "refused");
    let complaints = browser.complaints();
    assert!(
        complaints
            .iter()
            .any(|line| line.contains("127.0.0.1:1") && line.contains("Content Security Policy")),
        "by the policy, not for want of a server: {complaints:?}"
    );
}
