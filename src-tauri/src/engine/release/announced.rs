//! What a releases' server says there is: one version, with the packages of some or all platforms.
//!
//! Both forms that Tauri's updater reads: `{"version", "url", "signature"}` of a server that knows who asks, and
//! `{"version", "platforms": {"linux-x86_64-deb": {"url", "signature"}}}` of a file that is the same for everybody.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

use crate::wire::agent::{Version, VersionError};

/// Ends of packages' file names, and the kind of each.
const KINDS: &[(&str, &str)] = &[
    (".deb", "deb"),
    (".rpm", "rpm"),
    (".AppImage", "appimage"),
    (".app.tar.gz", "app"),
    (".msi", "msi"),
    (".exe", "nsis"),
];
/// What packages call processors, and what the compiler does.
const ARCHITECTURES: &[(&str, &str)] =
    &[("x86_64", "x86_64"), ("amd64", "x86_64"), ("x64", "x86_64"), ("aarch64", "aarch64"), ("arm64", "aarch64")];

/// What this program runs on and how it came here.
#[derive(Clone, Debug)]
pub struct Platform {
    /// `linux`, `darwin` or `windows`.
    pub target: &'static str,
    /// Such as `x86_64`.
    pub arch: &'static str,
    /// `deb`, `rpm`, `appimage`, `app` or `nsis`; none where nobody packed it.
    pub bundle: Option<&'static str>,
}

impl Platform {
    /// This one.
    #[must_use]
    pub fn here(bundle: Option<&'static str>) -> Self {
        let target = if cfg!(target_os = "macos") { "darwin" } else { std::env::consts::OS };
        Self { target, arch: std::env::consts::ARCH, bundle }
    }

    /// Names of its packages, the best first.
    fn names(&self) -> Vec<String> {
        let any = format!("{}-{}", self.target, self.arch);
        self.bundle.map(|bundle| format!("{any}-{bundle}")).into_iter().chain([any]).collect()
    }

    /// Whether a package whose file has this name can be meant for it. A name that says nothing of kind or processor is
    /// no reason against it.
    pub(super) fn suits(&self, file: &str) -> bool {
        let of = |names: &[(&str, &'static str)], is_it: fn(&str, &str) -> bool| {
            names.iter().find(|(name, _)| is_it(file, name)).map(|(_, meaning)| *meaning)
        };
        let kind = of(KINDS, |file, ending| file.ends_with(ending));
        let arch = of(ARCHITECTURES, |file, name| file.contains(name));
        let fits_kind = kind.is_none() || self.bundle.is_none() || kind == self.bundle;
        fits_kind && arch.is_none_or(|arch| arch == self.arch)
    }

    /// The address to ask, with what an `endpoint` leaves open filled in.
    pub(super) fn fill(&self, endpoint: &str, version: Version) -> String {
        endpoint
            .replace("{{target}}", self.target)
            .replace("{{arch}}", self.arch)
            .replace("{{bundle_type}}", self.bundle.unwrap_or("unknown"))
            .replace("{{current_version}}", &version.to_string())
    }
}

/// A release that was announced, for one platform.
#[derive(Clone, Debug)]
pub struct Release {
    /// Its version.
    pub version: Version,
    /// Where its package is.
    pub(super) url: String,
    /// Base64 of a minisign signature.
    pub(super) signature: String,
    /// The whole announcement, for who installs.
    pub announced: Value,
}

#[derive(Deserialize)]
struct Package {
    url: String,
    signature: String,
}

#[derive(Deserialize)]
struct Announcement {
    version: String,
    url: Option<String>,
    signature: Option<String>,
    #[serde(default)]
    platforms: BTreeMap<String, Package>,
}

impl Release {
    /// What `text` announces for a platform.
    ///
    /// # Errors
    /// What is wrong with it, in words.
    pub(super) fn read(text: &[u8], platform: &Platform) -> Result<Self, String> {
        let announced: Value = serde_json::from_slice(text).map_err(|error| error.to_string())?;
        let read: Result<Announcement, _> = serde_json::from_value(announced.clone());
        let Announcement { version, url, signature, mut platforms } = read.map_err(|error| error.to_string())?;
        let version: Version =
            version.trim_start_matches('v').parse().map_err(|error: VersionError| error.to_string())?;
        let names = platform.names();
        // A server that names one package knows who asks.
        let named = url.zip(signature).map(|(url, signature)| Package { url, signature });
        let package = named.or_else(|| names.iter().find_map(|name| platforms.remove(name)));
        let Package { url, signature } =
            package.ok_or_else(|| format!("version {version} without a package for {}", names.join(" or ")))?;
        Ok(Self { version, url, signature, announced })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: Platform = Platform { target: "linux", arch: "x86_64", bundle: Some("deb") };

    #[test]
    fn a_package_of_the_same_kind_goes_before_one_for_the_platform() {
        let url = |text: &str| Release::read(text.as_bytes(), &HERE).map(|release| release.url);
        let package = |name: &str| format!(r#""{name}": {{"url": "https://{name}", "signature": "s"}}"#);
        let announce = |names: &[&str]| {
            let all: Vec<_> = names.iter().map(|name| package(name)).collect();
            format!(r#"{{"version": "v1.2.3", "platforms": {{{}}}}}"#, all.join(","))
        };
        assert_eq!(url(&announce(&["linux-x86_64", "linux-x86_64-deb"])).as_deref(), Ok("https://linux-x86_64-deb"));
        assert_eq!(url(&announce(&["linux-x86_64", "linux-x86_64-rpm"])).as_deref(), Ok("https://linux-x86_64"));
        assert_eq!(url(r#"{"version": "1.2.3", "url": "https://u", "signature": "s"}"#).as_deref(), Ok("https://u"));
        for (text, why) in [
            (announce(&["darwin-aarch64-app"]), "without a package for linux-x86_64-deb or linux-x86_64"),
            (r#"{"version": "1.2.3", "url": "https://u"}"#.to_owned(), "without a package"),
            (announce(&["linux-x86_64"]).replace("v1.2.3", "1.2.3-rc.1"), "such as 1.2.3"),
            ("{}".to_owned(), "version"),
            ("<html>".to_owned(), "expected value"),
        ] {
            let said = url(&text).unwrap_err();
            assert!(said.contains(why), "{said}");
        }
    }

    #[test]
    fn a_package_of_another_kind_or_processor_does_not_suit() {
        for file in ["Kvasir_1.2.3_amd64.deb", "kvasir.x86_64.deb", "package"] {
            assert!(HERE.suits(file), "{file}");
        }
        for file in ["Kvasir_1.2.3_arm64.deb", "Kvasir_1.2.3_amd64.AppImage", "Kvasir-1.2.3-1.x86_64.rpm", "aarch64"] {
            assert!(!HERE.suits(file), "{file}");
        }
        let image = Platform { bundle: Some("appimage"), ..HERE };
        assert!(image.suits("Kvasir_1.2.3_amd64.AppImage") && !image.suits("Kvasir_1.2.3_aarch64.AppImage"));
        let mac = Platform { target: "darwin", arch: "aarch64", bundle: Some("app") };
        assert!(mac.suits("Kvasir.app.tar.gz") && !mac.suits("Kvasir_1.2.3_x64-setup.exe"));
        assert!(Platform { bundle: None, ..HERE }.suits("Kvasir_1.2.3_amd64.deb"), "nobody packed it");
    }

    #[test]
    fn an_endpoint_is_told_who_asks() {
        let endpoint = "https://r/{{target}}/{{arch}}/{{bundle_type}}/{{current_version}}";
        assert_eq!(HERE.fill(endpoint, "0.1.0".parse().unwrap()), "https://r/linux/x86_64/deb/0.1.0");
        let unpacked = Platform { bundle: None, ..HERE };
        assert_eq!(unpacked.fill("https://r/{{bundle_type}}", "0.1.0".parse().unwrap()), "https://r/unknown");
    }
}
