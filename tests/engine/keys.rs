//! The wallet's errands: phrases, restoring, passwords where there is no keyring, and leaving for good.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use kvasir::engine::{Needs, Settings, Stored};
use kvasir::worker::courtesy::Rules;
use zeroize::Zeroizing;

use super::*;

const PHRASE: &str = "abandon abandon abandon abandon abandon abandon abandon abandon abandon abandon abandon about";
const PHRASE_ADDRESS: &str = "HAgk14JpMQLgt6rVgv7cBQFJWFto5Dqxi472uT3DKpqk";

fn secret(text: &str) -> Zeroizing<String> {
    Zeroizing::new(text.to_owned())
}

async fn code<T>(done: impl Future<Output = Result<T, kvasir::engine::EngineError>>) -> Option<&'static str> {
    done.await.err().map(|error| error.code())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_phrase_is_shown_verified_and_remembered_as_backed_up() {
    let dir = tempfile::tempdir().unwrap();
    let desk = Desk::start(dir.path());
    let status = desk.ready().await;
    let shown = |status: &Status| (status.wallet.backed_up, status.wallet.has_phrase, status.wallet.stored);
    assert_eq!(shown(&status), (false, true, Stored::Keyring));
    let words = desk.engine.show_phrase().await.unwrap();
    assert_eq!(words.len(), 12);
    let answer = |place: usize| (place, secret(&words[place - 1].to_uppercase()));
    assert_eq!(code(desk.engine.verify_phrase(vec![answer(1), answer(1), answer(2)])).await, Some("few_words"));
    let wrong = vec![answer(1), answer(7), (12, secret("zzz"))];
    assert_eq!(code(desk.engine.verify_phrase(wrong)).await, Some("wrong_word"));
    assert_eq!(
        code(desk.engine.verify_phrase(vec![answer(1), answer(7), (13, secret("zzz"))])).await,
        Some("wrong_word")
    );
    assert!(!desk.engine.status().wallet.backed_up);
    desk.engine.verify_phrase(vec![answer(1), answer(7), answer(12)]).await.unwrap();
    assert!(desk.engine.status().wallet.backed_up);
    desk.stop().await;
    let desk = Desk::start(dir.path());
    assert!(desk.ready().await.wallet.backed_up, "after a restart too");
    // Another wallet is another backup.
    desk.engine.new_wallet().await.unwrap();
    assert!(!desk.engine.status().wallet.backed_up);
    desk.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_key_comes_back_with_its_own_phrase_and_with_no_other() {
    let dir = tempfile::tempdir().unwrap();
    let desk = Desk::start(dir.path());
    desk.ready().await;
    assert_eq!(code(desk.engine.restore_wallet(secret("abandon about"))).await, Some("phrase_count"));
    desk.engine.restore_wallet(secret(PHRASE)).await.unwrap();
    let status = desk.engine.status();
    assert_eq!((address(&status).to_string(), status.wallet.backed_up), (PHRASE_ADDRESS.to_owned(), true));
    desk.stop().await;
    fs::remove_file(dir.path().join(format!("{PHRASE_ADDRESS}.wallet"))).unwrap();

    let desk = Desk::start(dir.path());
    let lost = desk.until("a missing key", |s| matches!(s.wallet.state, WalletState::KeyMissing { .. })).await;
    assert_eq!(lost.wallet.needs, Some(Needs::Restore));
    let other = Wallet::generate().unwrap().phrase().unwrap().words().join(" ");
    assert!(lost.wallet.backed_up, "its owner has the phrase, whatever became of the key");
    assert_eq!(code(desk.engine.restore_wallet(secret(&other))).await, Some("other_wallet"));
    assert_eq!(code(desk.engine.set_password(secret("correct horse"))).await, Some("keyring_keeps"));
    assert_eq!(desk.engine.status().wallet, lost.wallet, "a refusal changes nothing of what is missing");
    desk.engine.restore_wallet(secret(PHRASE)).await.unwrap();
    assert_eq!(address(&desk.engine.status()).to_string(), PHRASE_ADDRESS);
    desk.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_keyring_a_password_keeps_the_wallet() {
    let dir = tempfile::tempdir().unwrap();
    let start = || Desk::with_store(dir.path(), Arc::new(NoKeyring));
    let failed = |s: &Status| matches!(s.wallet.state, WalletState::Failed { .. });
    let desk = start();
    let status = desk.until("no keyring", failed).await;
    assert_eq!((status.wallet.needs, status.wallet.stored), (Some(Needs::Password), Stored::None));
    assert_eq!(code(desk.engine.set_password(secret("short"))).await, Some("weak_password"));
    desk.engine.set_password(secret("correct horse")).await.unwrap();
    let status = desk.engine.status();
    let wallet = address(&status);
    assert_eq!(status.wallet.stored, Stored::PasswordFile);
    let phrase = desk.engine.show_phrase().await.unwrap().join(" ");
    desk.stop().await;

    let desk = start();
    let locked = desk.until("a locked wallet", failed).await;
    assert_eq!((locked.wallet.needs, locked.wallet.stored), (Some(Needs::Password), Stored::PasswordFile));
    assert_eq!(code(desk.engine.unlock(secret("wrong horse 12"))).await, Some("wallet_password"));
    assert_eq!(code(desk.engine.new_wallet()).await, Some("wallet_locked"), "never a silent new wallet");
    assert_eq!(fs::read_dir(dir.path()).unwrap().filter(is_sealed).count(), 1);
    desk.engine.unlock(secret("correct horse")).await.unwrap();
    assert_eq!(address(&desk.engine.status()), wallet);
    desk.engine.set_password(secret("another horse")).await.unwrap();
    desk.stop().await;

    // The file is lost: the phrase brings the wallet back, under a new password.
    fs::remove_file(dir.path().join(format!("{wallet}.sealed"))).unwrap();
    let desk = start();
    desk.until("no keyring", failed).await;
    desk.engine.set_password(secret("third horse")).await.unwrap();
    assert_eq!(desk.engine.status().wallet.needs, Some(Needs::Restore));
    desk.engine.restore_wallet(secret(&phrase)).await.unwrap();
    assert_eq!(address(&desk.engine.status()), wallet);
    // Whoever leaves for good leaves none behind.
    desk.engine.new_wallet().await.unwrap();
    assert_eq!(fs::read_dir(dir.path()).unwrap().filter(is_sealed).count(), 2);
    assert_eq!(code(desk.engine.remove_everything(false)).await, Some("not_backed_up"));
    desk.engine.remove_everything(true).await.unwrap();
    assert_eq!(fs::read_dir(dir.path()).unwrap().filter(is_sealed).count(), 0);
    desk.stop().await;
    // Where the keyring works, no password is taken.
    let other = tempfile::tempdir().unwrap();
    let desk = Desk::start(other.path());
    desk.ready().await;
    assert_eq!(code(desk.engine.set_password(secret("correct horse"))).await, Some("keyring_keeps"));
    assert_eq!(code(desk.engine.unlock(secret("correct horse"))).await, Some("nothing_locked"));
    desk.stop().await;
}

fn is_sealed(entry: &std::io::Result<fs::DirEntry>) -> bool {
    entry.as_ref().unwrap().path().extension().is_some_and(|ending| ending == "sealed")
}

/// A keyring that is locked until it is opened, and whose owner may be asked for a long time.
struct Locked {
    keys: FileKeyStore,
    is_open: AtomicBool,
}

impl Locked {
    fn here(&self) -> Result<&FileKeyStore, KeyStoreError> {
        let reason = "its owner was asked in vain".to_owned();
        if self.is_open.load(SeqCst) { Ok(&self.keys) } else { Err(KeyStoreError::Unavailable { reason }) }
    }
}

impl KeyStore for Locked {
    fn load(&self, address: &PublicKey) -> Result<Wallet, KeyStoreError> {
        self.here()?.load(address)
    }

    fn store(&self, wallet: &Wallet) -> Result<(), KeyStoreError> {
        self.here()?.store(wallet)
    }

    fn remove(&self, address: &PublicKey) -> Result<(), KeyStoreError> {
        self.here()?.remove(address)
    }

    fn list(&self) -> Result<Vec<PublicKey>, KeyStoreError> {
        self.here()?.list()
    }

    fn name(&self) -> String {
        "a keyring".into()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_keyring_that_comes_back_opens_and_loses_its_key_only_when_it_is_open() {
    let (dir, keys) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let keyring = Arc::new(Locked { keys: FileKeyStore::new(keys.path()), is_open: AtomicBool::new(true) });
    let start = || Desk::with_store(dir.path(), Arc::clone(&keyring) as Arc<dyn KeyStore>);
    let desk = start();
    let wallet = address(&desk.ready().await);
    desk.stop().await;

    keyring.is_open.store(false, SeqCst);
    let desk = start();
    desk.until("no keyring", |s| matches!(s.wallet.state, WalletState::Failed { .. })).await;
    desk.engine.set_password(secret("correct horse")).await.unwrap();
    assert_eq!(desk.engine.status().wallet.needs, Some(Needs::Restore), "no new wallet in its place");
    // The password has sealed nothing, and is in nobody's way.
    keyring.is_open.store(true, SeqCst);
    desk.engine.open_wallet().await.unwrap();
    let status = desk.ready().await;
    assert_eq!((address(&status), status.wallet.stored), (wallet, Stored::Keyring));

    keyring.is_open.store(false, SeqCst);
    assert_eq!(code(desk.engine.remove_everything(true)).await, Some("keyring_unavailable"));
    assert_eq!(address(&desk.engine.status()), wallet, "nothing is gone that is said to be here");
    keyring.is_open.store(true, SeqCst);
    let busy = super::guest::wishing(Rules { duty_percent: 0, ..Rules::default() });
    desk.engine.save_settings(busy).await.unwrap();
    desk.engine.remove_everything(true).await.unwrap();
    assert_eq!(keyring.list().unwrap(), []);
    assert_eq!(desk.engine.status().settings, Settings::default());
    desk.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn leaving_for_good_wants_a_backup_or_a_word_and_takes_only_what_is_ours() {
    let dir = tempfile::tempdir().unwrap();
    let network = network().await;
    let desk = Desk::start(dir.path());
    // Its key would be the next start's wallet.
    let before = address(&desk.ready().await);
    desk.engine.new_wallet().await.unwrap();
    let wallet = address(&desk.engine.status());
    assert!(before != wallet && dir.path().join(format!("{before}.wallet")).exists());
    desk.join(&network.join_code().unwrap()).await;
    desk.engine.contribute(true).await.unwrap();
    desk.until("a slice", |s| matches!(s.slice, Slice::Held { .. })).await;
    fs::write(dir.path().join("holiday.jpg"), "mine").unwrap();
    // What crashes and windows left behind.
    for name in [".new-0123456789abcdef", "settings.new", "network.bad", "close-explained"] {
        fs::write(dir.path().join(name), "ours").unwrap();
    }
    fs::create_dir(dir.path().join("release")).unwrap();
    fs::write(dir.path().join("release/kvasir-9.9.9.deb"), "a package that was kept").unwrap();

    let experts = || fs::read_dir(dir.path().join("experts")).into_iter().flatten().count();
    assert!(experts() > 0);
    desk.engine.delete_slices().await.unwrap();
    let status = desk.engine.status();
    assert_eq!((experts(), status.contributing, status.link), (0, false, Link::Off));

    assert_eq!(code(desk.engine.remove_everything(false)).await, Some("not_backed_up"));
    assert_eq!(address(&desk.engine.status()), wallet);
    desk.engine.remove_everything(true).await.unwrap();
    let status = desk.engine.status();
    assert!(status.network.is_none() && !matches!(status.wallet.state, WalletState::Ready { .. }));
    desk.stop().await;
    let mut left: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    left.sort();
    assert_eq!(left, ["holiday.jpg", "lock"]);
    network.stop().await.unwrap();
}
