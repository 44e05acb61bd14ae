//! Keys over a directory of their own.

use axum::http::StatusCode;

use super::{KeyError, KeyFile, KeyGuard, NewKey, Route, UsageFile};
use crate::backbone::Reach;

fn files(dir: &tempfile::TempDir) -> (KeyFile, UsageFile) {
    (KeyFile::within(dir.path()), UsageFile::within(dir.path()))
}

#[test]
fn a_key_opens_at_once_and_ends_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let (keys, usage) = files(&dir);
    let guard = KeyGuard::open(keys.clone(), usage).unwrap();
    assert!(guard.client(None).is_ok() && !guard.is_needed().unwrap());

    let (made, key) = keys.create(NewKey { name: "a".into(), ..NewKey::default() }, 1).unwrap();
    assert!(key.starts_with("kvk-") && key.len() > 40);
    assert!(guard.is_needed().unwrap());
    assert!(guard.client(Some(&key)).is_ok());
    for wrong in [None, Some("kvk-other"), Some(made.hash.as_str()), Some(made.id.as_str())] {
        assert_eq!(guard.client(wrong).unwrap_err().status, StatusCode::UNAUTHORIZED);
    }
    keys.revoke(&made.id).unwrap();
    assert!(guard.client(Some(&key)).unwrap_err().message.contains("revoked"));
    // The last key's end does not open the door.
    assert_eq!(guard.client(None).unwrap_err().status, StatusCode::UNAUTHORIZED);
    assert!(keys.revoke("nobody").is_err());

    std::fs::write(keys.path(), "{").unwrap();
    assert_eq!(guard.client(Some(&key)).unwrap_err().status, StatusCode::SERVICE_UNAVAILABLE);
}

#[test]
fn keys_that_are_gone_let_nobody_in() {
    let dir = tempfile::tempdir().unwrap();
    let (keys, usage) = files(&dir);
    let (_, key) = keys.create(NewKey::default(), 1).unwrap();
    let guard = KeyGuard::open(keys.clone(), usage.clone()).unwrap();
    drop(guard.client(Some(&key)).unwrap().begin().unwrap());
    guard.save().unwrap();
    let kept = std::fs::read(keys.path()).unwrap();
    std::fs::remove_file(keys.path()).unwrap();
    let refused = || {
        for shown in [None, Some(key.as_str())] {
            assert_eq!(guard.client(shown).unwrap_err().status, StatusCode::SERVICE_UNAVAILABLE);
        }
        assert!(matches!(guard.is_needed(), Err(KeyError::Gone { .. })));
        // A restart is no way around it.
        assert!(matches!(KeyGuard::open(keys.clone(), usage.clone()), Err(KeyError::Gone { .. })));
    };
    refused();
    std::fs::write(keys.path(), "[]").unwrap();
    refused();
    std::fs::write(keys.path(), kept).unwrap();
    assert!(guard.client(Some(&key)).is_ok() && guard.client(None).is_err());
}

#[test]
fn requests_at_once_share_the_tokens_of_their_key() {
    let dir = tempfile::tempdir().unwrap();
    let (keys, usage) = files(&dir);
    let (_, key) = keys.create(NewKey { tokens: Some(100), ..NewKey::default() }, 1).unwrap();
    let guard = KeyGuard::open(keys, usage).unwrap();
    let client = guard.client(Some(&key)).unwrap();
    let (mut first, mut second, mut third) =
        (client.begin().unwrap(), client.begin().unwrap(), client.begin().unwrap());
    assert_eq!(first.reserve(20, 30).unwrap(), 30);
    // As many as are left.
    assert_eq!(second.reserve(20, 4096).unwrap(), 30);
    let refused = third.reserve(1, 1).unwrap_err();
    assert!(refused.status == StatusCode::TOO_MANY_REQUESTS && refused.message.contains("100 of its other requests"));
    assert!(client.begin().is_err());
    // What was set aside and not used comes back.
    (first.usage.prompt_tokens, first.usage.new_tokens) = (20, 5);
    drop(first);
    assert_eq!(third.reserve(10, 4096).unwrap(), 15);
}

#[test]
fn the_file_holds_no_key_and_only_its_owner_reads_it() {
    let dir = tempfile::tempdir().unwrap();
    let (keys, _) = files(&dir);
    let (_, key) = keys.create(NewKey::default(), 1).unwrap();
    let text = std::fs::read_to_string(keys.path()).unwrap();
    assert!(!text.contains(&key) && !text.contains(&key[4..]));
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt as _;
        assert_eq!(std::fs::metadata(keys.path()).unwrap().permissions().mode() & 0o077, 0);
    }
}

#[test]
fn limits_hold_and_usage_outlives_the_process() {
    let dir = tempfile::tempdir().unwrap();
    let (keys, usage) = files(&dir);
    let limits = NewKey { streams: Some(1), requests_per_minute: Some(3), tokens: Some(100), ..NewKey::default() };
    let (made, key) = keys.create(limits, 1).unwrap();
    let guard = KeyGuard::open(keys.clone(), usage.clone()).unwrap();
    let client = guard.client(Some(&key)).unwrap();
    let refused = |what: &str| {
        let error = client.begin().unwrap_err();
        assert!(error.status == StatusCode::TOO_MANY_REQUESTS && error.message.contains(what), "{}", error.message);
    };
    let mut first = client.begin().unwrap();
    refused("1 streams at once");
    first.usage.prompt_tokens = 60;
    drop(first);
    let mut second = client.begin().unwrap();
    second.usage.new_tokens = 39;
    drop(second);
    drop(client.begin().unwrap());
    refused("3 requests a minute");
    guard.save().unwrap();

    let later = KeyGuard::open(keys, usage.clone()).unwrap();
    let client = later.client(Some(&key)).unwrap();
    let mut more = client.begin().unwrap();
    more.usage.new_tokens = 1;
    drop(more);
    let refused = client.begin().unwrap_err();
    assert!(refused.message.contains("100 tokens"), "{}", refused.message);
    later.save().unwrap();
    let used = usage.read().unwrap()[&made.id];
    assert_eq!((used.requests, used.prompt_tokens, used.new_tokens), (4, 60, 40));
}

#[test]
fn a_keys_route_and_a_requests_give_the_stricter() {
    for (key, asked, expected) in [
        (Route::Any, Reach::Any, Reach::Any),
        (Route::Any, Reach::Local, Reach::Local),
        (Route::Any, Reach::Trusted, Reach::Trusted),
        (Route::Trusted, Reach::Any, Reach::Trusted),
        (Route::Trusted, Reach::Local, Reach::Local),
        (Route::Local, Reach::Trusted, Reach::Local),
        (Route::Local, Reach::Any, Reach::Local),
        (Route::Local, Reach::Local, Reach::Local),
    ] {
        assert_eq!(key.limit(asked), expected);
    }
}
