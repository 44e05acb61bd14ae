//! Newer releases of the program, announced and signed as by a maintainer, over real TLS: which are taken, and what is
//! said of the others.

use kvasir::engine::release::{Platform, ReleaseError, Releases};
use kvasir::net::dial::Connector;
use kvasir::net::trust::Trust;
use serde_json::{Value, json};

use super::*;
use crate::support::site::{Page, Site};

const KEY: &str = include_str!("../data/release/key.pub");
const PACKAGE: &[u8] = include_bytes!("../data/release/package");
const NEWER: &str = include_str!("../data/release/newer.sig");
const OLDER: &str = include_str!("../data/release/older.sig");
const UNVERSIONED: &str = include_str!("../data/release/unversioned.sig");
const ANOTHER: &str = include_str!("../data/release/another.sig");
const HERE: Platform = Platform { target: "linux", arch: "x86_64", bundle: Some("deb") };

/// The releases of version 0.1.0 at `endpoints`, over TLS that trusts `site`.
fn releases(site: &Site, endpoints: &[String]) -> Releases {
    let connector = Arc::new(Connector::direct(Trust::only(&site.ca_pem).unwrap()));
    let settings = json!({"pubkey": KEY, "endpoints": endpoints, "requireSignedVersion": true});
    Releases::new(&settings, "0.1.0", HERE, connector).unwrap()
}

fn announce(site: &Site, version: &str, signature: &str) -> Value {
    let package = json!({"url": site.url("/package"), "signature": signature});
    json!({"version": version, "notes": "", "platforms": {"linux-x86_64-deb": package}})
}

fn file(value: &Value) -> Page {
    Page::File(value.to_string().into_bytes())
}

#[tokio::test]
async fn a_newer_release_is_found_and_fetched_wherever_its_server_keeps_it() {
    let site = Site::at(0).await;
    let releases = releases(&site, &[site.url("/{{target}}/{{arch}}/{{bundle_type}}/{{current_version}}")]);
    site.put("/linux/x86_64/deb/0.1.0", file(&announce(&site, "9.9.9", NEWER)));
    site.put("/package", Page::Status("302 Found", "/stored/elsewhere?token=1".to_owned()));
    site.put("/stored/elsewhere?token=1", Page::File(PACKAGE.to_vec()));
    let release = releases.look().await.unwrap().unwrap();
    assert_eq!(release.version.to_string(), "9.9.9");
    assert_eq!(site.asked(), ["/linux/x86_64/deb/0.1.0"], "nothing is downloaded before somebody asks");
    assert_eq!(&releases.fetch(&release).await.unwrap()[..], PACKAGE);
}

#[tokio::test]
async fn neither_an_older_version_nor_the_same_is_newer() {
    let site = Site::at(0).await;
    let releases = releases(&site, &[site.url("/latest")]);
    for version in ["0.0.1", "0.1.0", "v0.0.99"] {
        site.put("/latest", file(&announce(&site, version, OLDER)));
        assert!(releases.look().await.unwrap().is_none(), "{version}");
    }
    site.put("/latest", Page::Status("204 No Content", String::new()));
    assert!(releases.look().await.unwrap().is_none());
}

#[tokio::test]
async fn a_package_that_was_not_signed_as_what_was_announced_is_refused() {
    let site = Site::at(0).await;
    let releases = releases(&site, &[site.url("/latest")]);
    let mut tampered = PACKAGE.to_vec();
    tampered[3] ^= 1;
    for (package, signature, why) in [
        (PACKAGE, ANOTHER, "different key"),
        (&tampered[..], NEWER, "verification failed"),
        (&[][..], NEWER, "verification failed"),
        // An old package under a new number, and one that was signed without any.
        (PACKAGE, OLDER, "expected a package that was signed as version 9.9.9, got one signed as 0.0.1"),
        (PACKAGE, UNVERSIONED, "signed as none"),
        (PACKAGE, "dW5zaWduZWQ=", ".sig file"),
    ] {
        site.put("/latest", file(&announce(&site, "9.9.9", signature)));
        site.put("/package", Page::File(package.to_vec()));
        let release = releases.look().await.unwrap().unwrap();
        let refused = releases.fetch(&release).await.unwrap_err();
        assert_eq!(refused.code(), "release_untrusted");
        let said = refused.to_string();
        assert!(said.starts_with("version 9.9.9 was not taken: ") && said.contains(why), "{said}");
    }
}

#[tokio::test]
async fn a_server_that_does_not_help_is_named_and_the_next_one_is_asked() {
    let site = Site::at(0).await;
    let gone = Site::at(0).await.url("/latest");
    for (page, code, why) in [
        (Page::Status("503 Service Unavailable", String::new()), "release_unreachable", "got HTTP 503"),
        (Page::Status("302 Found", "/latest".to_owned()), "release_unreachable", "from server to server"),
        (Page::Status("302 Found", "http://127.0.0.1/".to_owned()), "release_unreachable", "such as https://"),
        (Page::Half(b"{\"version\": \"9.9.9\"}".to_vec()), "release_unreachable", "does not answer"),
        (Page::File(vec![b' '; 300 << 10]), "release_unreachable", "at most 262144 bytes"),
        (Page::File(b"<html>".to_vec()), "release_announcement", "expected value"),
        (file(&json!({"version": "9.9.9", "platforms": {}})), "release_announcement", "without a package for linux"),
    ] {
        site.put("/latest", page);
        let refused = releases(&site, &[gone.clone(), site.url("/latest")]).look().await.unwrap_err();
        assert_eq!(refused.code(), code, "{refused}");
        assert!(refused.to_string().contains(why), "{refused}");
    }
    let nobody = releases(&site, std::slice::from_ref(&gone)).look().await.unwrap_err();
    assert!(nobody.to_string().contains("127.0.0.1 does not answer"), "{nobody}");
    site.put("/latest", file(&announce(&site, "9.9.9", NEWER)));
    assert!(releases(&site, &[gone, site.url("/latest")]).look().await.unwrap().is_some());
}

#[tokio::test]
async fn a_stranger_is_not_asked_and_a_package_in_the_clear_is_not_fetched() {
    let (site, stranger) = (Site::at(0).await, Site::at(0).await);
    let refused = releases(&site, &[stranger.url("/latest")]).look().await.unwrap_err();
    assert!(refused.to_string().contains("certificate") && stranger.asked().is_empty(), "{refused}");
    let releases = releases(&site, &[site.url("/latest")]);
    let mut plain = announce(&site, "9.9.9", NEWER);
    plain["platforms"]["linux-x86_64-deb"]["url"] = json!(site.url("/package").replace("https", "http"));
    site.put("/latest", file(&plain));
    let release = releases.look().await.unwrap().unwrap();
    let refused = releases.fetch(&release).await.unwrap_err();
    assert!(refused.to_string().contains("expected an address such as https://host/path, got"), "{refused}");
}

#[tokio::test]
async fn a_server_that_falls_silent_is_given_up() {
    let site = Site::at(0).await;
    let connector = Connector::direct(Trust::only(&site.ca_pem).unwrap());
    site.put("/silence", Page::Silence);
    let wait = Duration::from_millis(300);
    let given_up = kvasir::net::download::get(&connector, &site.url("/silence"), 100, wait).await.unwrap_err();
    assert!(given_up.to_string().contains("not all came in 300ms"), "{given_up}");
}

#[test]
fn settings_that_make_no_sense_are_told() {
    let read = |settings: Value, version: &str| {
        let connector = Arc::new(Connector::direct(Trust::new(&[], None).unwrap()));
        Releases::new(&settings, version, HERE, connector).err().map(|error: ReleaseError| error.to_string())
    };
    let overlay: Value = serde_json::from_str(include_str!("../../src-tauri/tauri.release.conf.json")).unwrap();
    let placeholder = overlay["plugins"]["updater"].clone();
    assert_eq!(placeholder["requireSignedVersion"], true, "Tauri's part of it pins the version as well");
    assert!(read(placeholder, "0.1.0").unwrap().contains("expected the public key"));
    assert!(read(json!({"pubkey": KEY}), "0.1.0").unwrap().contains("endpoints"));
    assert!(read(json!({"pubkey": KEY, "endpoints": []}), "0.1.0").unwrap().contains("expected an endpoint"));
    assert!(read(json!({"pubkey": KEY, "endpoints": ["https://r"]}), "dev").unwrap().contains("such as 1.2.3"));
    assert_eq!(read(json!({"pubkey": KEY, "endpoints": ["https://r"]}), "0.1.0"), None);
}

#[cfg(unix)]
#[tokio::test]
async fn what_the_maintainers_script_announces_is_found_and_fetched() {
    let (site, dir) = (Site::at(0).await, tempfile::tempdir().unwrap());
    let names = ["Kvasir_9.9.9_amd64.deb", "Kvasir_9.9.9_arm64.deb", "Kvasir-9.9.9-1.x86_64.rpm", "Kvasir.app.tar.gz"];
    for name in names {
        let of = dir.path().join("packages").join(name.split('.').next_back().unwrap());
        std::fs::create_dir_all(&of).unwrap();
        std::fs::write(of.join(name), PACKAGE).unwrap();
        std::fs::write(of.join(format!("{name}.sig")), NEWER).unwrap();
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("packages/announcement");
    let run = |dir: &Path| {
        std::process::Command::new(&script).args(["9.9.9", &site.url("/9.9.9/")]).arg(dir).output().unwrap()
    };
    let said = run(dir.path());
    assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
    let announced: Value = serde_json::from_slice(&said.stdout).unwrap();
    assert_eq!(announced["platforms"].as_object().unwrap().len(), names.len());
    site.put("/latest.json", Page::File(said.stdout));
    site.put("/9.9.9/Kvasir_9.9.9_amd64.deb", Page::File(PACKAGE.to_vec()));
    let releases = releases(&site, &[site.url("/latest.json")]);
    let release = releases.look().await.unwrap().unwrap();
    assert_eq!(&releases.fetch(&release).await.unwrap()[..], PACKAGE);
    std::fs::write(dir.path().join("notes.txt.sig"), NEWER).unwrap();
    let refused = run(dir.path());
    assert!(!refused.status.success() && String::from_utf8_lossy(&refused.stderr).contains("got notes.txt"));
    std::fs::remove_file(dir.path().join("notes.txt.sig")).unwrap();
    for (version, url, why) in [
        ("9.9.8", site.url("/9.9.8/"), "signed as version 9.9.8, got Kvasir"),
        ("9.9.9", "/9.9.9".to_owned(), "expected an address such as https://"),
    ] {
        let refused = std::process::Command::new(&script).args([version, &url]).arg(dir.path()).output().unwrap();
        let said = String::from_utf8_lossy(&refused.stderr);
        assert!(!refused.status.success() && said.contains(why), "{said}");
    }
}
