use proptest::prelude::*;

use super::*;

fn masked(values: Option<&AhoCorasick>, text: &str) -> String {
    let (mut out, mut at) = (String::new(), 0);
    for range in find_with(values, text) {
        out.push_str(&text[at..range.start]);
        out.push_str(MASK);
        at = range.end;
    }
    out + &text[at..]
}

#[test]
fn text_that_looks_like_a_secret_is_masked() {
    let key = "0123456789abcdef".repeat(4);
    for (text, shown) in [
        (format!("key rmd_{key} is unknown"), "key rmd_*** is unknown".to_owned()),
        (format!("authorization: Bearer rmd_{key}"), "authorization: Bearer ***".to_owned()),
        ("Authorization: Basic dXNlcjpwYXNz, x".into(), "Authorization: Basic ***, x".into()),
        (r#"{"authorization": "Bearer abc"}"#.into(), r#"{"authorization": "Bearer ***"}"#.into()),
        (r#"headers: {"x-api-key": "abcdefgh"}"#.into(), r#"headers: {"x-api-key": "***"}"#.into()),
        ("sent bearer abc.def-123".into(), "sent bearer ***".into()),
        ("sk-0123456789 and sk-ant-api03-abcdefgh_1".into(), "sk-*** and sk-***".into()),
        ("secret whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD=".into(), "secret whsec_***".into()),
        ("to postgres://remuda:p@ss/w?rd@db:5432/x".into(), "to postgres://remuda:***@db:5432/x".into()),
        ("[nats://one:two@h1, nats://token@h2]".into(), "[nats://one:***@h1, nats://***@h2]".into()),
        ("postgres:///x?password=hush&sslmode=on".into(), "postgres:///x?password=***&sslmode=on".into()),
        (r#"{"client_secret":"hush", "a":1}"#.into(), r#"{"client_secret":"***", "a":1}"#.into()),
        (
            "-----BEGIN RSA PRIVATE KEY-----\nMII\n-----END".into(),
            "-----BEGIN RSA PRIVATE KEY-----***-----END".into(),
        ),
        ("AKIAABCDEFGHIJKLMNOP.".into(), "AKIA***.".into()),
        (format!("seed SU{}", "A2B3".repeat(14)), "seed ***".into()),
        ("eyJhbGciOiJIUzI1.eyJzdWIiOiIx.c2ln x".into(), "*** x".into()),
    ] {
        let found = masked(None, &text);
        assert!(!found.contains(&key) && !found.contains("hush"), "{found}");
        assert_eq!(found, shown, "{text}");
    }
}

#[test]
fn text_that_only_resembles_a_secret_is_not_masked() {
    for text in [
        "expected `Bearer` and an API key",
        "a task-0123456789 and sk-1",
        "postgres://user@db/remuda, http://127.0.0.1:7777/api",
        "a token could not be kept alive: no token",
        "rmd_ is the prefix",
        "run_01k9z0000000000000000000 in ses_01k9z0000000000000000000",
        "cannot listen on 127.0.0.1:7777: is another remuda running?",
    ] {
        assert_eq!(masked(None, text), text);
    }
}

#[test]
fn short_values_are_ignored_and_the_oldest_are_evicted() {
    let mut known = KnownSecrets::default();
    known.add("none");
    known.add("staying-secret");
    for number in 0..=MAX_TEMPORARY {
        known.add_temporary(&format!("secret-number-{number:05}"));
        known.add_temporary(&format!("secret-number-{number:05}"));
    }
    assert_eq!(known.temporary.len(), MAX_TEMPORARY);
    let values = known.values();
    let values = values.as_deref();
    assert_eq!(masked(values, "secret-number-00001"), MASK);
    assert_eq!(masked(values, "secret-number-00000, none"), "secret-number-00000, none");
    assert_eq!(masked(values, "a staying-secret"), "a ***");
}

#[test]
fn temporary_secret_that_becomes_permanent_is_not_evicted() {
    let mut known = KnownSecrets::default();
    known.add_temporary("staying-secret");
    known.add("staying-secret");
    known.add_temporary("staying-secret");
    for number in 0..=MAX_TEMPORARY {
        known.add_temporary(&format!("secret-number-{number:05}"));
    }
    assert_eq!(masked(known.values().as_deref(), "a staying-secret"), "a ***");
}

/// Every model call registers its secrets.
#[test]
fn registering_known_secrets_does_not_rebuild_the_matcher() {
    let secrets = Secrets::default();
    secrets.mask_secrets_temporarily(&["the-key", "a-header"]);
    let values = secrets.values().unwrap();
    assert_eq!(masked(Some(&values), "the-key a-header"), "*** ***");
    secrets.mask_secrets_temporarily(&["a-header", "none", "the-key"]);
    assert!(Arc::ptr_eq(&values, &secrets.values().unwrap()));
    secrets.mask_secrets_temporarily(&["a-header", "another-key"]);
    assert_eq!(masked(secrets.values().as_deref(), "the-key another-key"), "*** ***");
}

#[test]
fn overlapping_secrets_are_masked_completely() {
    let mut known = KnownSecrets::default();
    known.add("abcdefgh");
    known.add("efghijkl");
    known.add("cdefgh");
    assert_eq!(masked(known.values().as_deref(), "<abcdefghijkl> <cdefghx>"), "<***> <***x>");
}

#[test]
fn long_secret_is_masked_completely() {
    let long: String = (0..3000).map(|number| format!("é{number}")).collect();
    let mut known = KnownSecrets::default();
    known.add(&long);
    assert_eq!(masked(known.values().as_deref(), &format!("a {long} b")), "a *** b");
    assert!(chunks(&long).into_iter().flat_map(encodings).all(|form| form.len() <= MAX_SECRET));
}

proptest! {
    #[test]
    fn registered_secret_is_masked_in_every_encoding(
        secret in "\\PC{6,60}",
        before in "\\PC{0,40}",
        after in "\\PC{0,40}",
    ) {
        prop_assume!(secret.len() >= MIN_SECRET && !before.contains(&secret) && !after.contains(&secret));
        let mut known = KnownSecrets::default();
        known.add(&secret);
        let values = known.values();
        let plain = format!("{before}{secret}{after}");
        let texts = [plain.clone(), format!("{plain:?}"), format!("{:?}", Some(format!("{plain:?}")))];
        for text in texts {
            let shown = masked(values.as_deref(), &text);
            for form in encodings(&secret) {
                prop_assert!(!shown.contains(&form), "{form:?} in {shown:?}");
            }
        }
    }

    #[test]
    fn ranges_are_disjoint_and_at_character_boundaries(text in "(?s).{0,300}") {
        let found = find_with(None, &text);
        for range in &found {
            prop_assert!(text.is_char_boundary(range.start) && text.is_char_boundary(range.end));
        }
        prop_assert!(found.windows(2).all(|pair| pair[0].end < pair[1].start));
    }
}
