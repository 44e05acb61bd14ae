//! Keys at rest: owner-only, never overwritten, never replaced, never shown.

use std::fs;
use std::path::Path;

use kvasir::types::PublicKey;
use kvasir::wallet::{self, FileKeyStore, KeyStore, KeyStoreError, Phrase, PrivateFileError, Wallet, keyfile};
use kvasir::wire::handshake::AuthSigner;

/// RFC 8032, test 1.
const SEED: [u8; 32] = [
    0x9d, 0x61, 0xb1, 0x9d, 0xef, 0xfd, 0x5a, 0x60, 0xba, 0x84, 0x4a, 0xf4, 0x92, 0xec, 0x2c, 0xc4, 0x44, 0x49, 0xc5,
    0x69, 0x7b, 0x32, 0x69, 0x19, 0x70, 0x3b, 0xac, 0x03, 0x1c, 0xae, 0x7f, 0x60,
];
const ADDRESS: &str = "FVen3X669xLzsi6N2V91DoiyzHzg1uAgqiT8jZ9nS96Z";

#[cfg(unix)]
fn mode(path: &Path) -> u32 {
    use std::os::unix::fs::PermissionsExt;
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[cfg(unix)]
fn chmod(path: &Path, mode: u32) {
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn an_address_is_base58_of_the_public_key_and_all_that_a_wallet_shows() {
    let wallet = Wallet::from_seed(&SEED);
    assert_eq!(wallet.address().to_string(), ADDRESS);
    assert_eq!(AuthSigner::address(&wallet), wallet.address());
    assert_eq!(format!("{wallet:?}"), format!("Wallet({ADDRESS})"));
}

#[test]
fn a_kept_wallet_comes_back_and_is_the_only_one_in_its_file() {
    let dir = tempfile::tempdir().unwrap();
    let store = FileKeyStore::new(dir.path().join("keys"));
    assert_eq!(store.list().unwrap(), []);
    let wallet = Wallet::from_seed(&SEED);
    store.store(&wallet).unwrap();
    store.store(&wallet).unwrap();
    assert_eq!(store.list().unwrap(), [wallet.address()]);
    assert_eq!(store.load(&wallet.address()).unwrap().address(), wallet.address());
    let files: Vec<_> = fs::read_dir(dir.path().join("keys")).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(files, [format!("{ADDRESS}.wallet").as_str()], "no temporary file is left");
    #[cfg(unix)]
    {
        assert_eq!(mode(&dir.path().join("keys")), 0o700);
        assert_eq!(mode(&dir.path().join(format!("keys/{ADDRESS}.wallet"))), 0o600);
    }
}

#[cfg(unix)]
#[test]
fn a_key_that_others_can_read_is_refused_and_the_cure_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let store = FileKeyStore::new(dir.path());
    let wallet = Wallet::from_seed(&SEED);
    store.store(&wallet).unwrap();
    let path = dir.path().join(format!("{ADDRESS}.wallet"));
    for open in [0o640, 0o604, 0o666] {
        chmod(&path, open);
        let error = store.load(&wallet.address()).unwrap_err();
        assert!(matches!(&error, KeyStoreError::File(PrivateFileError::Exposed { mode, .. }) if *mode == open));
        assert!(error.to_string().contains(&format!("chmod 600 {}", path.display())), "{error}");
    }
}

#[test]
fn a_file_with_another_key_is_neither_used_nor_overwritten() {
    let dir = tempfile::tempdir().unwrap();
    let store = FileKeyStore::new(dir.path());
    let other = Wallet::from_seed(&[7; 32]);
    store.store(&other).unwrap();
    let path = dir.path().join(format!("{ADDRESS}.wallet"));
    fs::rename(dir.path().join(format!("{}.wallet", other.address())), &path).unwrap();
    let before = fs::read(&path).unwrap();
    assert!(matches!(store.store(&Wallet::from_seed(&SEED)), Err(KeyStoreError::Damaged { .. })));
    assert_eq!(fs::read(&path).unwrap(), before);
}

#[test]
fn the_first_start_makes_a_wallet_and_every_later_one_opens_it() {
    let dir = tempfile::tempdir().unwrap();
    let (store, record) = (FileKeyStore::new(dir.path().join("keys")), dir.path().join("wallet"));
    let first = wallet::open(&store, &record).unwrap().address();
    #[cfg(unix)]
    chmod(&record, 0o644); // An address is no secret.
    assert_eq!(wallet::open(&store, &record).unwrap().address(), first);
    assert_eq!(fs::read_to_string(&record).unwrap().trim(), first.to_string());
}

#[test]
fn a_known_wallet_without_its_key_is_an_error_and_never_a_new_wallet() {
    let dir = tempfile::tempdir().unwrap();
    let (store, record) = (FileKeyStore::new(dir.path().join("keys")), dir.path().join("wallet"));
    let address = wallet::open(&store, &record).unwrap().address();
    fs::remove_file(dir.path().join(format!("keys/{address}.wallet"))).unwrap();
    let error = wallet::open(&store, &record).unwrap_err();
    assert!(matches!(&error, KeyStoreError::Missing { address: missing, .. } if *missing == address));
    assert_eq!(error.code(), "wallet_key_missing");
    assert!(error.to_string().contains("restore the key from its backup"), "{error}");
    assert_eq!(store.list().unwrap(), [], "no new wallet was made");
    store.store(&Wallet::from_seed(&SEED)).unwrap();
    assert!(wallet::open(&store, &record).is_err(), "another wallet will not do");
}

#[test]
fn several_wallets_without_a_record_must_be_chosen_from() {
    let dir = tempfile::tempdir().unwrap();
    let (store, record) = (FileKeyStore::new(dir.path().join("keys")), dir.path().join("wallet"));
    store.store(&Wallet::from_seed(&SEED)).unwrap();
    assert_eq!(wallet::open(&store, &dir.path().join("one")).unwrap().address().to_string(), ADDRESS);
    store.store(&Wallet::from_seed(&[7; 32])).unwrap();
    assert!(matches!(wallet::open(&store, &record), Err(KeyStoreError::Ambiguous { count: 2, .. })));
    assert!(!record.exists());
}

#[test]
fn a_server_key_is_made_once_and_then_loaded() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("state/hub.key");
    assert!(keyfile::load(&path).is_err());
    let made = keyfile::load_or_create(&path).unwrap();
    assert_eq!(keyfile::load_or_create(&path).unwrap().public(), made.public());
    assert_eq!(keyfile::load(&path).unwrap().public(), made.public());
    assert_eq!(format!("{made:?}"), format!("KeyPair({})", made.public()));
    #[cfg(unix)]
    assert_eq!(mode(&path), 0o600);
}

#[cfg(unix)]
#[test]
fn a_file_that_is_no_key_is_refused_and_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("hub.key");
    let long = "a".repeat(300);
    for content in ["", "secret", "ZZ", &"A".repeat(64), long.as_str()] {
        fs::write(&path, content).unwrap();
        chmod(&path, 0o600);
        let error = keyfile::load_or_create(&path).unwrap_err();
        assert!(matches!(error, PrivateFileError::Content { .. }), "{content:?}: {error}");
        assert!(content.is_empty() || !error.to_string().contains(content), "the content is not repeated");
        assert_eq!(fs::read_to_string(&path).unwrap(), content);
    }
}

#[test]
fn processes_that_start_at_once_end_up_with_one_key() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("hub.key");
    let start = std::sync::Barrier::new(8);
    let keys: Vec<PublicKey> = std::thread::scope(|scope| {
        let one = || {
            start.wait();
            keyfile::load_or_create(&path).unwrap().public()
        };
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(one)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert!(keys.iter().all(|key| *key == keys[0]));
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "no temporary file is left");
}

/// Needs a real Secret Service, which a script starts around the tests and announces with the variable.
#[cfg(feature = "os-keyring")]
#[test]
fn the_system_keyring_keeps_a_wallet_and_its_address() {
    use kvasir::wallet::OsKeyStore;

    if std::env::var_os("KVASIR_TEST_SECRET_SERVICE").is_none_or(|value| value != "1") {
        eprintln!("skipped: KVASIR_TEST_SECRET_SERVICE=1 says when a Secret Service is there");
        return;
    }
    let store = OsKeyStore::new("net.kvasir.app.test");
    store.check().unwrap();
    let wallet = Wallet::generate().unwrap();
    assert!(matches!(store.load(&wallet.address()), Err(KeyStoreError::Missing { .. })));
    store.store(&wallet).unwrap();
    store.store(&wallet).unwrap();
    assert_eq!(store.load(&wallet.address()).unwrap().address(), wallet.address());
    assert!(store.list().unwrap().contains(&wallet.address()));
    let other = OsKeyStore::new("net.kvasir.app.test.other");
    assert!(matches!(other.load(&wallet.address()), Err(KeyStoreError::Missing { .. })), "services are apart");
}

const PHRASE: &str = "abandon abandon abandon abandon abandon abandon abandon abandon abandon abandon abandon about";
/// Where Solana wallets find that phrase's first account.
const PHRASE_ADDRESS: &str = "HAgk14JpMQLgt6rVgv7cBQFJWFto5Dqxi472uT3DKpqk";

#[test]
fn a_wallet_of_a_phrase_is_kept_with_it_and_one_of_before_phrases_without() {
    let dir = tempfile::tempdir().unwrap();
    let store = FileKeyStore::new(dir.path());
    let wallet = Wallet::of_phrase(&Phrase::parse(PHRASE).unwrap());
    store.store(&wallet).unwrap();
    let kept = store.load(&PHRASE_ADDRESS.parse().unwrap()).unwrap();
    assert_eq!(kept.phrase().unwrap().words().join(" "), PHRASE);
    let line = fs::read_to_string(dir.path().join(format!("{PHRASE_ADDRESS}.wallet"))).unwrap();
    assert_eq!(line, format!("{}\n", "0".repeat(32)), "the entropy of that phrase is all zeros");
    // A file as it was written before there were phrases.
    let seed: String = SEED.iter().map(|byte| format!("{byte:02x}")).collect();
    let path = dir.path().join(format!("{ADDRESS}.wallet"));
    fs::write(&path, format!("{seed}\n")).unwrap();
    #[cfg(unix)]
    chmod(&path, 0o600);
    let before = store.load(&ADDRESS.parse().unwrap()).unwrap();
    assert!(before.phrase().is_none());
    assert_eq!(before.address().to_string(), ADDRESS);
    assert!(Wallet::generate().unwrap().phrase().is_some(), "every new wallet has a phrase");
}

#[test]
fn another_wallet_takes_the_place_of_the_first_once_its_key_is_kept() {
    let dir = tempfile::tempdir().unwrap();
    let (store, record) = (FileKeyStore::new(dir.path().join("keys")), dir.path().join("wallet"));
    let first = wallet::open(&store, &record).unwrap().address();
    let second = Wallet::generate().unwrap();
    wallet::switch(&store, &record, &second).unwrap();
    assert_eq!(wallet::open(&store, &record).unwrap().address(), second.address());
    assert!(store.load(&first).is_ok(), "the first one's key stays");
    // A key that cannot be kept changes nothing: its file's place is taken by a directory.
    let third = Wallet::generate().unwrap();
    fs::create_dir(dir.path().join(format!("keys/{}.wallet", third.address()))).unwrap();
    assert!(wallet::switch(&store, &record, &third).is_err());
    assert_eq!(wallet::open(&store, &record).unwrap().address(), second.address());
    let mark = dir.path().join("backed_up");
    assert!(!wallet::is_backed_up(&mark, &second.address()));
    wallet::mark_backed_up(&mark, &second.address()).unwrap();
    assert!(wallet::is_backed_up(&mark, &second.address()) && !wallet::is_backed_up(&mark, &first));
    store.remove(&first).unwrap();
    store.remove(&first).unwrap();
    assert!(matches!(store.load(&first), Err(KeyStoreError::Missing { .. })));
}

#[cfg(unix)]
#[test]
fn the_program_restores_a_wallet_from_a_phrase_that_is_piped_to_it() {
    use std::io::Write;
    use std::process::{Command, Stdio};

    let dir = tempfile::tempdir().unwrap();
    let run = |args: &[&str], input: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kvasir"));
        command.args(["wallet"]).args(args).args(["--state", "w"]).current_dir(dir.path());
        let piped = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = piped.spawn().unwrap();
        child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        let ended = child.wait_with_output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap().trim().to_owned();
        (ended.status.code(), text(ended.stdout), text(ended.stderr))
    };
    let (code, out, why) = run(&["restore"], &format!("{PHRASE}\n"));
    assert_eq!((code, out.as_str()), (Some(0), PHRASE_ADDRESS), "{why}");
    assert_eq!(run(&["show"], "").1, PHRASE_ADDRESS);
    assert_eq!(run(&["phrase"], "").1, PHRASE);
    assert!(dir.path().join("w/backed_up").exists(), "whoever typed it has it");
    let (code, _, why) = run(&["restore"], "abandon about\n");
    assert_eq!(code, Some(1));
    assert!(why.contains("expected 12 words, got 2"), "{why}");
    let other = Wallet::generate().unwrap().phrase().unwrap().words().join(" ");
    let (code, _, why) = run(&["restore"], &other);
    assert!(code == Some(1) && why.contains("--switch") && !why.contains(&other), "{why}");
    assert_eq!(run(&["restore", "--switch"], &other).0, Some(0));
    assert_ne!(run(&["show"], "").1, PHRASE_ADDRESS);
    assert_eq!(run(&["create"], "").0, Some(1));
    assert_eq!(run(&["new", "--switch"], "").0, Some(0));
}
