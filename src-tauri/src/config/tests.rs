//! How flags, file and defaults come together.

use super::*;
use crate::cli::{Device, GpuFlags};
use crate::types::{Hours, Rules};

/// Flags as typed; the environment of whoever runs the tests does not count.
fn flags(args: &[&str]) -> RoleFlags {
    let cli = <crate::cli::Cli as clap::CommandFactory>::command().mut_args(|a| a.env(None::<&str>));
    let matches = cli.try_get_matches_from([&["kvasir"], args].concat()).unwrap();
    <RoleFlags as clap::FromArgMatches>::from_arg_matches(&matches).unwrap()
}

fn file(text: &str) -> Result<File, ConfigError> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("kvasir.toml");
    std::fs::write(&path, text).unwrap();
    File::read(Some(&path))
}

const OPERATOR: &str = "HAgk14JpMQLgt6rVgv7cBQFJWFto5Dqxi472uT3DKpqk";

#[test]
fn a_flag_beats_the_file_and_the_file_beats_the_default() {
    let text = "[hub]\nlisten = \"127.0.0.1:1\"\nbackbone = \"127.0.0.1:2\"\n";
    let hub = Hub::new(&flags(&["--listen", "127.0.0.1:9"]), file(text).unwrap()).unwrap();
    assert_eq!(hub.listen.port(), 9);
    assert_eq!(hub.backbone.port(), 2);
    assert_eq!(hub.public_hosts, [PUBLIC_HOST]);
    assert_eq!(hub.ledger, "sqlite:kvasir-state/hub/ledger.db");
}

#[test]
fn every_table_reads_as_the_readme_writes_it() {
    let readme = include_str!("../../../README.md");
    let (_, rest) = readme.split_once("```toml\n").unwrap();
    let (text, _) = rest.split_once("```").unwrap();
    let none = flags(&[]);
    let model = Backbone::new(&none, file(text).unwrap()).unwrap().model;
    assert_eq!(model, Some(PathBuf::from("model.gguf")));
    assert_eq!(Hub::new(&none, file(text).unwrap()).unwrap().public_hosts, ["gateway.example"]);
    assert!(matches!(Gateway::new(&none, file(text).unwrap()).unwrap().tls, Tls::Files { .. }));
    assert_eq!(Worker::new(&none, file(text).unwrap()).unwrap().memory_bytes, Some(4 << 30));
}

#[test]
fn experts_are_kept_where_and_as_much_as_flag_or_file_say() {
    let text = "[backbone]\nexpert_cache = \"1GiB\"\nexperts_local = \"none\"\n\
                [worker]\nweights = \"local.gguf\"\ncache = \"shared\"\ncache_size = \"5GB\"\n";
    let worker = |text: &str, args: &[&str]| {
        let full = [&["--gateway", "wss://localhost", "--operator", OPERATOR], args].concat();
        Worker::new(&flags(&full), file(text).unwrap()).unwrap()
    };
    let kept = |worker: Worker| (worker.weights, worker.site.cache, worker.cache_bytes);
    assert_eq!(kept(worker(text, &[])), (Some("local.gguf".into()), "shared".into(), Some(5_000_000_000)));
    assert_eq!(kept(worker("", &["--state", "s"])), (None, Path::new("s").join("experts"), None));
    let typed = ["--weights", "w", "--cache", "c", "--cache-size", "0"];
    assert_eq!(kept(worker(text, &typed)), (Some("w".into()), "c".into(), Some(0)));
    let backbone = |text: &str, args: &[&str]| {
        let backbone = Backbone::new(&flags(args), file(text).unwrap()).unwrap();
        (backbone.expert_cache_bytes, backbone.experts_local)
    };
    assert_eq!((backbone(text, &[]), backbone("", &[])), ((Some(1 << 30), false), (None, true)));
    assert_eq!(backbone(text, &["--expert-cache", "1MiB", "--experts-local", "all"]), (Some(1 << 20), true));
}

#[test]
fn a_gpu_is_named_by_flag_or_file() {
    let text = "[worker]\ndevice = \"gpu\"\ngpu = \"radeon\"\nallow_software = true\n";
    let worker = |args: &[&str]| {
        let full = [&["--gateway", "wss://localhost", "--operator", OPERATOR], args].concat();
        Worker::new(&flags(&full), file(text).unwrap()).unwrap()
    };
    let gpu = |name: &str| GpuFlags { name: Some(name.to_owned()), allow_software: true };
    assert_eq!((worker(&[]).device, worker(&[]).site.gpu), (Device::Gpu, gpu("radeon")));
    assert_eq!(worker(&["--gpu", "4090"]).site.gpu, gpu("4090"));
}

#[test]
fn wishes_are_told_by_flag_or_file_and_must_make_sense() {
    let rules = |args: &[&str], text: &str| Worker::new(&flags(args), file(text).unwrap()).map(|w| w.site.rules);
    assert_eq!(rules(&[], "").unwrap(), Rules::default());
    let text = "[worker]\nduty_percent = 50\nschedule = [\"mon-fri@22:00-07:30\"]\non_battery = true\n\
                on_metered = true\nonly_when_idle = true\npause_for_apps = [\"blender\"]\npause_for_fullscreen = true\n";
    let night = Hours { days: 31, from_min: 1320, to_min: 450 };
    let said = Rules {
        duty_percent: 50,
        schedule: vec![night],
        on_battery: true,
        on_metered: true,
        only_when_idle: true,
        pause_for_apps: vec!["blender".into()],
        pause_for_fullscreen: true,
    };
    assert_eq!(rules(&[], text).unwrap(), said);
    let typed =
        ["--duty-percent", "20", "--schedule", "sun@0:00-24:00", "--pause-for-app", "a", "--pause-for-app", "b"];
    let other = rules(&typed, text).unwrap();
    assert_eq!((other.duty_percent, other.schedule[0].days, other.pause_for_apps.len()), (20, 64, 2));
    assert_eq!((other.on_battery, other.only_when_idle), (true, true), "the file's word stays");
    let wrong = |args: &[&str], text| rules(args, text).unwrap_err().to_string();
    assert_eq!(wrong(&["--duty-percent", "3"], ""), "duty cycle: expected 0, or 5 to 100 percent, got \"3\"");
    let hours = "schedule: expected days and hours such as mon-fri@22:00-07:30, got \"nights\"";
    assert_eq!(wrong(&[], "[worker]\nschedule = [\"nights\"]\n"), hours);
}

#[test]
fn the_type_of_experts_is_named_by_flag_or_file() {
    let text = "[backbone]\nexperts = \"q6_k\"\n";
    let experts = |args: &[&str], text| Backbone::new(&flags(args), file(text).unwrap()).map(|config| config.experts);
    assert_eq!(experts(&[], text).unwrap(), Some(BlockType::Q6_K));
    assert_eq!(experts(&["--experts", "q4_k"], text).unwrap(), Some(BlockType::Q4_K));
    assert_eq!(experts(&[], "").unwrap(), None);
    let wrong = experts(&[], "[backbone]\nexperts = \"bf16\"\n").unwrap_err().to_string();
    assert_eq!(wrong, "experts: expected q8_0, q6_k, q5_k, q4_k or q4_0, got \"bf16\"");
}

#[test]
fn unknown_keys_and_tables_are_refused_by_name() {
    for (text, word) in [("[hub]\nlissten = 1", "lissten"), ("[hubb]\n", "hubb"), ("[worker]\ndevice = \"tpu\"", "tpu")]
    {
        let error = file(text).unwrap_err().to_string();
        assert!(error.contains(word), "{error}");
    }
}

#[test]
fn what_a_role_cannot_do_without_is_named() {
    let missing = |r: Result<(), ConfigError>| r.unwrap_err().to_string();
    let worker = |args: &[&str]| Worker::new(&flags(args), File::default()).map(drop);
    assert!(missing(worker(&["--gateway", "wss://localhost"])).contains("--operator"));
    assert!(missing(Gateway::new(&flags(&[]), File::default()).map(drop)).contains("--tls-cert"));
    assert!(missing(Hub::new(&flags(&["--peer", OPERATOR]), File::default()).map(drop)).contains("--peer-key"));
    let full = ["--gateway", "wss://localhost", "--operator", OPERATOR, "--memory", "3GiB"];
    assert_eq!(Worker::new(&flags(&full), File::default()).unwrap().memory_bytes, Some(3 << 30));
    assert_eq!(Worker::new(&flags(&full[..4]), File::default()).unwrap().memory_bytes, None);
}

#[test]
fn a_hub_that_dials_out_names_its_gateways_and_both_keys() {
    let hub = |args: &[&str]| Hub::new(&flags(args), File::default()).map(|hub| hub.rendezvous);
    let with_keys = |url| hub(&["--peer-key", "hub.peer", "--peer", OPERATOR, "--rendezvous", url]);
    for (url, listener) in [
        ("wss://gateway.example", "gateway.example:443"),
        ("wss://gateway.example/", "gateway.example:443"),
        ("wss://gateway.example:8443", "gateway.example:8443"),
        ("gateway.example:8443", "gateway.example:8443"),
        ("wss://[::1]", "[::1]:443"),
        ("wss://[::1]:8443", "[::1]:8443"),
    ] {
        assert_eq!(with_keys(url).unwrap(), [listener]);
    }
    for wrong in ["", "wss://", "https://gateway.example", "wss://gateway.example/v1/hub"] {
        assert!(with_keys(wrong).unwrap_err().to_string().contains("--rendezvous"), "{wrong}");
    }
    let without = hub(&["--rendezvous", "wss://gateway.example"]).unwrap_err().to_string();
    assert!(without.contains("--peer-key and --peer"), "{without}");
    let gateway = |args: &[&str]| Gateway::new(&flags(&[&["--tls-trial"], args].concat()), File::default()).unwrap();
    assert_eq!(gateway(&[]).hubs, [HUB_LISTEN]);
    assert_eq!(gateway(&["--peer-key", "gateway.peer", "--peer", OPERATOR]).hubs, [], "its hubs dial in");
}

#[test]
fn the_oldest_program_that_is_served_is_named_by_flag_or_file() {
    let oldest = |args: &[&str], text| Hub::new(&flags(args), file(text).unwrap()).map(|hub| hub.oldest_worker);
    let text = "[hub]\noldest_worker = \"0.2.0\"\n";
    assert_eq!(oldest(&[], text).unwrap(), "0.2.0".parse().ok());
    assert_eq!(oldest(&["--oldest-worker", "0.3.0"], text).unwrap(), "0.3.0".parse().ok());
    assert_eq!(oldest(&[], "").unwrap(), None);
    let wrong = oldest(&[], "[hub]\noldest_worker = \"new\"\n").unwrap_err().to_string();
    assert_eq!(wrong, "oldest_worker: expected a version such as 1.2.3, got \"new\"");
}

#[test]
fn times_read_as_people_write_them() {
    let seconds = |text| parse_duration("--expires", text).ok().map(|d| d.as_secs());
    assert_eq!(seconds("30d"), Some(30 * 86_400));
    assert_eq!(seconds("12h"), Some(12 * 3_600));
    assert_eq!(seconds("45m"), Some(45 * 60));
    assert_eq!(seconds("20s"), Some(20));
    for wrong in ["", "d", "30", "-1d", "1.5h", "0d", "3651d", "99999999999999999999d"] {
        assert_eq!(seconds(wrong), None, "{wrong:?}");
    }
}

#[test]
fn sizes_read_as_people_write_them() {
    let size = |t| parse_bytes("--memory", t).ok();
    assert_eq!(size("4GiB"), Some(4 << 30));
    assert_eq!(size("4g"), Some(4 << 30));
    assert_eq!(size("500MB"), Some(500_000_000));
    assert_eq!(size("12"), Some(12));
    for wrong in ["", "GiB", "4XB", "-1", "99999999999T"] {
        assert_eq!(size(wrong), None, "{wrong:?}");
    }
}

#[test]
fn audits_and_trusted_layers_are_told_by_flag_or_file() {
    let text = format!(
        "[backbone]\ntrusted_layers = \"0-3\"\ntrusted_wallets = [\"{OPERATOR}\"]\n[audit]\nrate = 0.02\nyoung_rate = 0.1\n"
    );
    let trust = |args: &[&str]| Backbone::new(&flags(args), file(&text).unwrap()).unwrap().trust;
    let said = trust(&[]);
    assert_eq!(said.trusted_layers.map(|layers| layers.resolve(8)), Some(Ok(vec![0, 1, 2, 3])));
    assert_eq!(said.trusted_wallets, [OPERATOR.parse().unwrap()]);
    assert_eq!((said.audit.rate, said.audit.young_rate, said.audit.before_use), (Some(0.02), Some(0.1), None));
    assert_eq!(trust(&["--audit", "before_use"]).audit.before_use, Some(true));
    let share = trust(&["--audit", "0.5", "--trusted-layers", "1"]);
    assert_eq!((share.audit.rate, share.audit.young_rate), (Some(0.5), Some(0.5)));
    assert_eq!(share.trusted_layers.map(|layers| layers.resolve(8)), Some(Ok(vec![1])));
    assert!("sometimes".parse::<crate::cli::AuditSelection>().is_err());
}
