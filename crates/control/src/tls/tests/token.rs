//! Secrets: what they look like, that one is only itself, and that nothing shows one.

use crate::tls::TlsError;
use crate::tls::token::{Kind, Secret, SecretHash};

#[test]
fn a_secret_is_read_back_as_it_was_made_and_matches_its_hash() {
    for (kind, prefix) in [(Kind::ApiKey, "lk_"), (Kind::Enrolment, "lke_")] {
        let made = Secret::generate(kind).expect("a secret");
        let read = Secret::parse(made.reveal()).expect("a secret");
        assert!(made.reveal().starts_with(prefix));
        assert_eq!(made.reveal().len(), prefix.len() + 16 + 1 + 43);
        assert_eq!((read.kind(), read.id()), (kind, made.id()));
        assert!(made.hash().matches(&read));
    }
}

#[test]
fn secrets_with_an_underscore_in_their_random_part_are_read_too() {
    let made = (0..64).map(|_| Secret::generate(Kind::ApiKey).expect("a secret"));
    let odd: Vec<Secret> = made.filter(|made| made.reveal().matches('_').count() > 2).collect();
    assert!(!odd.is_empty(), "half of all have one");
    assert!(odd.iter().all(|made| Secret::parse(made.reveal()).is_ok()));
}

#[test]
fn no_other_secret_matches_not_even_one_with_the_same_random_part() {
    let secret = Secret::generate(Kind::ApiKey).expect("a secret");
    let hash = secret.hash();
    assert!(!hash.matches(&Secret::generate(Kind::ApiKey).expect("a secret")));
    let promoted = secret.reveal().replace("lk_", "lke_");
    assert!(!hash.matches(&Secret::parse(&promoted).expect("a secret")));
    let renamed = secret.reveal().replace(secret.id(), "0123456789abcdef");
    assert!(!hash.matches(&Secret::parse(&renamed).expect("a secret")));
}

#[test]
fn what_is_no_secret_is_refused_without_being_repeated() {
    let good = Secret::generate(Kind::ApiKey).expect("a secret").reveal().to_owned();
    let (head, random) = (&good[..20], &good[20..]);
    for text in [
        String::new(),
        "lk".to_owned(),
        "lk_0123456789abcdef".to_owned(),
        format!("lk_0123456789abcde_{random}"),
        format!("lk_0123456789ABCDEF_{random}"),
        format!("xx_0123456789abcdef_{random}"),
        format!("{good}="),
        format!("{good}\n"),
        format!(" {good}"),
        good[..good.len() - 1].to_owned(),
        format!("{head}{}", random.replace(|_| true, "+")),
    ] {
        let error = Secret::parse(&text).expect_err("no secret");
        assert!(matches!(error, TlsError::Token), "{text}");
        assert!(!format!("{error} {error:?}").contains(random), "{error}");
    }
}

#[test]
fn neither_a_secret_nor_its_hash_is_in_what_debug_shows() {
    let secret = Secret::generate(Kind::Enrolment).expect("a secret");
    let hash = secret.hash();
    let shown = format!("{secret:?} {secret:#?} {hash:?}");
    let random = &secret.reveal()[21..];
    assert!(!shown.contains(random), "{shown}");
    assert!(!shown.contains(&String::from(hash)), "{shown}");
    assert!(shown.contains(secret.id()), "{shown}");
}

#[test]
fn a_hash_is_read_back_from_json_and_nothing_else_is_one() {
    let secret = Secret::generate(Kind::ApiKey).expect("a secret");
    let json = serde_json::to_string(&secret.hash()).expect("JSON");
    let hash: SecretHash = serde_json::from_str(&json).expect("a hash");
    assert!(hash.matches(&secret));
    for text in ["\"\"", "\"AAAA\"", "\"ä\"", "7"] {
        assert!(serde_json::from_str::<SecretHash>(text).is_err(), "{text}");
    }
}
