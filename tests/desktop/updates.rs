//! From one version to the next, with packages as they are released: an installed app meets announcements and packages that
//! are not what they should be, then one that is. `tests/desktop/update` makes them, installs the older one on a copy of
//! this machine that is thrown away, and runs this.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::json;

use crate::menu::Menu;
use crate::page::Page;
use crate::session::Session;
use crate::site::{self, Site};
use crate::stories::has_window;
use crate::until;

/// Port of the endpoint that the older version was built with.
const PORT: u16 = 47613;
/// Of the announcement there; the app fills in what stands between.
const ANNOUNCED: &str = "/linux/x86_64/deb/0.0.9";
const NEW: &str = "0.1.0";

/// What the script has made.
struct Made(PathBuf);

impl Made {
    fn read(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.0.join(name)).unwrap()
    }

    fn announce(&self, site: &Site, version: &str, signature: &str) -> site::Page {
        let signature = String::from_utf8(self.read(signature)).unwrap();
        let package = json!({"url": site.url("/kvasir.deb"), "signature": signature});
        site::Page::File(json!({"version": version, "platforms": {"linux-x86_64-deb": package}}).to_string().into())
    }
}

/// The version that the system's package manager has.
fn installed() -> String {
    let asked = Command::new("dpkg-query").args(["-W", "-f", "${Version}", "kvasir"]).output().unwrap();
    String::from_utf8(asked.stdout).unwrap()
}

/// Clicks on the button that looks, until the window says that it is of this `kind`, in words with `why`.
async fn look(page: &Page, kind: &str, why: &str) {
    page.click("look-release").await;
    page.until_text("release-words", |text| text.contains(why)).await;
    page.until_data("release", "kind", kind).await;
}

/// Installs what was found, and reads why it was not.
async fn refusal(page: &Page) -> String {
    page.click("install-release").await;
    page.until_data("release", "kind", "failed").await;
    page.text("release-words").await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the packages that tests/desktop/update makes and installs"]
async fn an_installed_app_goes_to_the_next_version_and_to_nothing_else() {
    let made = Made(std::env::var_os("KVASIR_UPDATE").unwrap().into());
    let site = Site::at(PORT).await;
    let new = made.read("new.deb");
    site.put(ANNOUNCED, made.announce(&site, NEW, "new.deb.sig"));
    site.put("/kvasir.deb", site::Page::File(new.clone()));

    let mut session = Session::usual().await;
    session.program = PathBuf::from("/usr/bin/kvasir");
    let ca = session.home.path().join("ca.pem");
    std::fs::write(&ca, &site.ca_pem).unwrap();
    let args = ["--ca", ca.to_str().unwrap()];
    let page = Page::open(&mut session, &args).await;
    assert_eq!((page.text("version").await.unwrap(), installed()), ("Kvasir 0.0.9".to_owned(), "0.0.9".to_owned()));
    let wallet = page.wallet().await;

    // By itself, a minute after the start: one line in the menu, one notice in the window, and nothing downloaded.
    tokio::time::sleep(Duration::from_secs(30)).await;
    page.until_data("release", "kind", "found").await;
    page.until_text("release-words", |text| text == "Version 0.1.0 of Kvasir is available.").await;
    let (connection, watcher) = session.host();
    let menu = Menu::of(connection, watcher).await;
    menu.line("Install version 0.1.0").await;
    assert_eq!(menu.lines().await.iter().filter(|line| line.label.contains(NEW)).count(), 1);
    assert_eq!(site.asked(), [ANNOUNCED]);
    page.shot("update-found").await;

    refused(&made, &site, &page, &new).await;
    kept(&made, &site, &page, &new, &session.state()).await;
    assert_eq!(installed(), "0.0.9");
    assert_eq!(page.wallet().await, wallet);
    until("the app still answers", async || page.can("look-release").await.then_some(())).await;

    unanswered(&made, &site, &page).await;
    // And now as it should be.
    let old = session.noted("pid").unwrap();
    look(&page, "found", NEW).await;
    page.press("install-release").await;
    until("the new version's process", async || process_of("/usr/bin/kvasir").filter(|pid| *pid != old)).await;
    until("its window", async || has_window(&session).then_some(())).await;
    assert_eq!(installed(), NEW);
    let restarted = process_of("/usr/bin/kvasir").unwrap();
    assert!(Command::new("kill").arg(restarted.to_string()).status().unwrap().success());
    until("its end", async || process_of("/usr/bin/kvasir").is_none().then_some(())).await;

    let page = Page::open(&mut session, &args).await;
    page.until_text("version", |text| text == "Kvasir 0.1.0").await;
    assert_eq!(page.wallet().await, wallet, "the wallet came along");
    assert!(!session.state().join("release").exists(), "what was kept for its owner is no longer needed");
    page.press("quit").await;
}

/// Packages and announcements that are not what they should be.
async fn refused(made: &Made, site: &Site, page: &Page, new: &[u8]) {
    let mut tampered = new.to_vec();
    let middle = tampered.len() / 2;
    tampered[middle] ^= 1;
    for (version, signature, package, why) in [
        (NEW, "new.deb.sig", site::Page::File(tampered), "verification failed"),
        (NEW, "another.sig", site::Page::File(new.to_vec()), "different key"),
        (NEW, "replayed.sig", site::Page::File(new.to_vec()), "signed as version 0.1.0, got one signed as 0.0.5"),
        ("0.2.0", "new.deb.sig", site::Page::File(new.to_vec()), "signed as version 0.2.0, got one signed as 0.1.0"),
        (NEW, "new.deb.sig", site::Page::Half(new.to_vec()), "127.0.0.1 does not answer"),
    ] {
        site.put(ANNOUNCED, made.announce(site, version, signature));
        site.put("/kvasir.deb", package);
        // The first one was found already.
        if page.data("release", "kind").await.as_deref() != Some("found") {
            look(page, "found", version).await;
        }
        let said = refusal(page).await;
        assert!(said.starts_with(&format!("Version {version} was not installed: ")) && said.contains(why), "{said}");
    }
    page.shot("update-refused").await;
}

/// Where the system does not install it, the package is kept and the window says how to.
async fn kept(made: &Made, site: &Site, page: &Page, new: &[u8], state: &Path) {
    site.put(ANNOUNCED, made.announce(site, NEW, "new.deb.sig"));
    site.put("/kvasir.deb", site::Page::File(new.to_vec()));
    let [sudo, away] = ["/usr/bin/sudo", "/usr/bin/sudo.away"];
    std::fs::rename(sudo, away).unwrap();
    look(page, "found", NEW).await;
    let said = refusal(page).await;
    std::fs::rename(away, sudo).unwrap();
    let package = state.join("release/kvasir-0.1.0.deb");
    assert!(said.contains(&format!("sudo apt install '{}'", package.display())), "{said}");
    assert!(std::fs::read(package).unwrap() == new, "another package was kept");
    page.shot("update-kept").await;
}

/// Servers that do not help, and one that offers an older version.
async fn unanswered(made: &Made, site: &Site, page: &Page) {
    for (answer, kind, why) in [
        (site::Page::Status("503 Service Unavailable", String::new()), "unknown", "got HTTP 503"),
        (site::Page::File(b"<html>".to_vec()), "unknown", "expected an announcement"),
        (site::Page::Silence, "unknown", "127.0.0.1 does not answer"),
        (made.announce(site, "0.0.5", "new.deb.sig"), "newest", "newest version"),
    ] {
        site.put(ANNOUNCED, answer);
        look(page, kind, why).await;
    }
    page.shot("update-newest").await;
    site.put(ANNOUNCED, made.announce(site, NEW, "new.deb.sig"));
}

/// The process that runs the program at `path`.
fn process_of(path: &str) -> Option<i32> {
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let mut runs = processes.filter(|process| {
        std::fs::read_link(process.path().join("exe")).is_ok_and(|program| program == Path::new(path))
    });
    runs.next()?.file_name().to_str()?.parse().ok()
}
