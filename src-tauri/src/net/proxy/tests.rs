//! What people write about proxies, and what comes of it.

use super::desktop::Settings;
use super::*;

/// The proxies that an environment of these variables demands.
fn env(pairs: &'static [(&str, &str)]) -> Proxies {
    let value = |name: &str| pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
    Proxies::new(&ProxyChoice::Auto, value)
}

async fn towards(proxies: &Proxies, host: &str, port: u16) -> Option<String> {
    proxies.towards(host, port).await.unwrap().map(|proxy| proxy.to_string())
}

#[test]
fn a_proxys_url_is_read_as_people_write_it_and_its_password_is_never_shown() {
    for (text, shown, port) in [
        ("http://proxy.corp:3128", "http://proxy.corp:3128", 3128),
        ("proxy.corp:3128/", "http://proxy.corp:3128", 3128),
        ("HTTPS://proxy.corp", "https://proxy.corp:443", 443),
        ("http://[fd00::1]:8080", "http://[fd00::1]:8080", 8080),
        ("http://[fd00::1]", "http://[fd00::1]:80", 80),
        ("http://jo:s3cret@10.0.0.1:8080", "http://10.0.0.1:8080", 8080),
    ] {
        let proxy: Proxy = text.parse().unwrap();
        assert_eq!((proxy.to_string().as_str(), proxy.port), (shown, port));
        assert!(!format!("{proxy:?}").contains("s3cret"));
    }
    for (text, why) in [
        ("socks5://proxy:1080", "a socks5:// proxy"),
        ("http://proxy:s3cret", "no port number after the colon"),
        ("http://jo:s3cret@", "no host name"),
        ("http://a b:1", "no host name"),
        ("", "no host name"),
    ] {
        assert_eq!(text.parse::<Proxy>(), Err(why.to_owned()), "{text}");
    }
}

#[test]
fn user_and_password_are_percent_decoded() {
    let proxy: Proxy = "http://user%40corp:p%3Aa%2Fss@proxy:1".parse().unwrap();
    assert_eq!(proxy.credentials, Some(format!("Basic {}", BASE64_STANDARD.encode("user@corp:p:a/ss"))));
    let nameless: Proxy = "http://user@proxy:1".parse().unwrap();
    assert_eq!(nameless.credentials, Some(format!("Basic {}", BASE64_STANDARD.encode("user:"))));
}

#[tokio::test]
async fn the_environment_names_proxies_in_either_case_and_small_letters_count_first() {
    for variables in [
        &[("https_proxy", "http://p:1")] as &'static [_],
        &[("HTTPS_PROXY", "http://p:1")],
        &[("all_proxy", "http://p:1")],
        &[("ALL_PROXY", "http://p:1")],
        &[("https_proxy", "http://p:1"), ("HTTPS_PROXY", "http://q:1"), ("ALL_PROXY", "http://r:1")],
        &[("https_proxy", " "), ("HTTPS_PROXY", "http://p:1")],
        &[("HTTPS_PROXY", "p:1"), ("all_proxy", "http://q:1")],
    ] {
        assert_eq!(towards(&env(variables), "g.example", 443).await.as_deref(), Some("http://p:1"), "{variables:?}");
    }
    // A web server that runs programs sets HTTP_PROXY from a request's header; nobody else means us by it.
    assert!(matches!(env(&[("HTTP_PROXY", "http://p:1"), ("http_proxy", "http://p:1")]), Proxies::Desktop(_)));
}

#[tokio::test]
async fn a_setting_that_makes_no_sense_is_refused_and_not_bypassed() {
    for text in ["socks5://jo:s3cret@p:1080", "http://:3128", "http://p:s3cret"] {
        let name = String::from(text);
        let proxies = Proxies::new(&ProxyChoice::Auto, |key| (key == "ALL_PROXY").then(|| name.clone()));
        let error = proxies.towards("g.example", 443).await.unwrap_err().to_string();
        assert!(error.starts_with("ALL_PROXY: expected http://[user:password@]host:port"), "{error}");
        assert!(!error.contains("s3cret"), "{error}");
    }
}

#[tokio::test]
async fn what_was_typed_overrules_the_environment_and_this_machine_is_never_asked_for() {
    let environment = |name: &str| (name == "https_proxy").then(|| "http://p:1".to_owned());
    let none = Proxies::new(&"none".parse().unwrap(), environment);
    assert_eq!(towards(&none, "g.example", 443).await, None);
    let typed = Proxies::new(&"q:2".parse().unwrap(), environment);
    assert_eq!(towards(&typed, "g.example", 443).await.as_deref(), Some("http://q:2"));
    for host in ["localhost", "LOCALHOST.", "a.localhost", "127.0.0.1", "127.9.9.9", "[::1]", "::1"] {
        assert_eq!(towards(&typed, host, 443).await, None, "{host}");
    }
    for host in ["localhost.example", "notlocalhost", "10.0.0.1", "[::2]"] {
        assert!(towards(&typed, host, 443).await.is_some(), "{host}");
    }
}

#[test]
fn no_proxy_excepts_what_its_rules_say() {
    for (list, covered, others) in [
        ("*", &["g.example:443", "10.0.0.1:443"] as &[_], &[] as &[_]),
        ("example", &["example:443", "g.example:443", "a.g.EXAMPLE.:443"], &["gexample:443", "example.org:443"]),
        (".g.example", &["g.example:443", "a.g.example:443"], &["b.example:443"]),
        ("*.g.example", &["a.g.example:443"], &["b.example:443"]),
        ("g.example:7443", &["g.example:7443", "a.g.example:7443"], &["g.example:443"]),
        ("a.example, b.example c.example", &["a.example:1", "b.example:1", "c.example:1"], &["d.example:1"]),
        ("10.1.0.0/16", &["10.1.2.3:443"], &["10.2.0.1:443", "ten.example:443"]),
        ("0.0.0.0/0", &["10.1.2.3:443"], &["[fd00::1]:443"]),
        ("10.1.2.3", &["10.1.2.3:443", "[::ffff:10.1.2.3]:443"], &["10.1.2.30:443", "110.1.2.3:443"]),
        ("10.1.2.3:80", &["10.1.2.3:80"], &["10.1.2.3:443"]),
        ("fd00::/8", &["[fd12::1]:443"], &["[fe80::1]:443", "10.0.0.1:443"]),
        ("fd00::1", &["[fd00::1]:443"], &["[fd00::2]:443"]),
        ("[fd00::1]:8443", &["[fd00::1]:8443"], &["[fd00::1]:443"]),
        ("10.0.0.0/33, , a:b:c", &[], &["10.0.0.1:443", "a:443"]),
        ("", &[], &["g.example:443"]),
    ] {
        let except = Except::new(list);
        let covers = |place: &&&str| {
            let (host, port) = place.rsplit_once(':').unwrap();
            except.covers(host, port.parse().unwrap())
        };
        assert_eq!(covered.iter().find(|place| !covers(place)), None, "{list} covers");
        assert_eq!(others.iter().find(covers), None, "{list} does not cover");
    }
}

#[test]
fn gnomes_settings_are_read() {
    let said = |mode: &str, uses: &str| {
        Settings::of_gnome(&format!(
            "org.gnome.system.proxy autoconfig-url 'http://pac.corp/p.pac'\n\
             org.gnome.system.proxy ignore-hosts ['localhost', '127.0.0.0/8', '::1', '*.corp']\n\
             org.gnome.system.proxy mode '{mode}'\n\
             org.gnome.system.proxy.http authentication-password 'p:ss%41'\n\
             org.gnome.system.proxy.http authentication-user 'jo'\n\
             org.gnome.system.proxy.http use-authentication {uses}\n\
             org.gnome.system.proxy.https host 'proxy.corp'\n\
             org.gnome.system.proxy.https port 3128\n"
        ))
    };
    let found = |settings: Settings, host| settings.towards(host, 443).map_err(|error| error.to_string());
    assert_eq!(found(said("none", "true"), "g.example"), Ok(None));
    let proxy = found(said("manual", "false"), "g.example").unwrap().unwrap();
    assert_eq!((proxy.to_string().as_str(), &proxy.credentials), ("http://proxy.corp:3128", &None));
    assert_eq!(found(said("manual", "false"), "git.corp"), Ok(None));
    let proxy = found(said("manual", "true"), "g.example").unwrap().unwrap();
    assert_eq!(proxy.credentials, Some(format!("Basic {}", BASE64_STANDARD.encode("jo:p:ss%41"))));
    let error = found(said("auto", "false"), "g.example").unwrap_err();
    assert!(error.contains("http://pac.corp/p.pac"), "{error}");
    assert_eq!(Settings::of_gnome("No such schema"), Settings::default());
}
