//! README's commands, run as they stand: each marked block by the Unix user that it names, in their own home.
//!
//! `<!-- run: NAME as USER and USER, until "WORDS" -->` marks the block that follows: with `until` it keeps running and is
//! ready once it printed the words, without it must end well. They have a network and a `/tmp` of their own, so that not
//! even ports are changed; that needs root, and so does being several users.

use std::collections::BTreeMap;
use std::fs;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::support::process::Process;

const README: &str = include_str!("../README.md");
/// Where users live, in the `/tmp` that only they see.
const HOMES: &str = "/tmp/home";
/// First of the users' numbers; no other program of this machine runs under them.
const FIRST_USER: u32 = 48_600;
/// Longest wait for pay.
const PATIENCE: Duration = Duration::from_secs(20);

/// A marked block.
#[derive(Debug, PartialEq, Eq)]
struct Block<'a> {
    name: &'a str,
    users: Vec<&'a str>,
    until: Option<&'a str>,
    script: &'a str,
}

fn blocks(text: &str) -> Vec<Block<'_>> {
    let read = |part| {
        let (mark, rest): (&str, &str) = str::split_once(part, " -->\n```sh\n").expect("a block follows its mark");
        let (mark, until) = mark.split_once(", until ").map_or((mark, None), |(mark, words)| (mark, Some(words)));
        let (name, users) = mark.split_once(" as ").expect("NAME as USER");
        let script = rest.split_once("```").expect("the block's end").0;
        Block { name, users: users.split(" and ").collect(), until: until.map(|words| words.trim_matches('"')), script }
    };
    text.split("<!-- run: ").skip(1).map(read).collect()
}

/// A network with nothing but loopback and a `/tmp` with users' homes, as long as its process lives.
struct World {
    holder: Process,
    users: BTreeMap<String, u32>,
}

impl World {
    fn new(blocks: &[Block<'_>]) -> Self {
        let names = blocks.iter().flat_map(|block| &block.users).map(|user| (*user).to_owned());
        let mut users: BTreeMap<String, u32> = names.map(|name| (name, 0)).collect();
        for (id, user) in (FIRST_USER..).zip(users.values_mut()) {
            *user = id;
        }
        // The program is copied: where it was built, others may not enter.
        let mut script = format!(
            "mount -t tmpfs -o mode=1777 tmpfs /tmp && ip link set lo up && mkdir -p {HOMES} /tmp/bin && \
             cp /proc/self/fd/3 /tmp/bin/kvasir && chmod 755 /tmp/bin/kvasir {HOMES}"
        );
        for (name, id) in &users {
            script += &format!(" && install -d -m 755 -o {id} -g {id} {HOMES}/{name}");
        }
        script += &format!(" && echo ready && exec sleep {}", PATIENCE.as_secs() * 6);
        let binary = env!("CARGO_BIN_EXE_kvasir");
        let mut command = Command::new("unshare");
        command.args(["--mount", "--net", "bash", "-c", &format!("exec 3<{binary}; {script}")]);
        let mut holder = Process::of(command);
        holder.after("ready");
        Self { holder, users }
    }

    /// `script` as `user`, in their home and with nothing of this process's environment.
    fn command(&self, user: &str, script: &str) -> Command {
        let (id, home) = (self.users[user].to_string(), format!("{HOMES}/{user}"));
        let mut command = Command::new("nsenter");
        command.args(["--mount", "--net", "--target", &self.holder.id().to_string(), "--"]);
        command.args(["setpriv", "--reuid", &id, "--regid", &id, "--clear-groups", "--no-new-privs"]);
        command.args(["env", "-i", &format!("HOME={home}"), "PATH=/tmp/bin:/usr/bin:/bin"]);
        command.args(["bash", "-euc", &format!("cd; {script}")]).stdin(Stdio::null());
        command
    }

    fn output(&self, user: &str, script: &str) -> Output {
        let output = self.command(user, script).output().expect("it runs");
        let said = [&output.stdout[..], &output.stderr[..]].map(String::from_utf8_lossy).join("\n");
        assert!(output.status.success(), "{user}: {script}{said}");
        output
    }
}

fn is_root() -> bool {
    std::os::unix::fs::MetadataExt::uid(&fs::metadata("/proc/self").expect("this process")) == 0
}

fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).expect("one JSON document")
}

/// Waits until the workers' owners see pay: it arrives with the next poll of the hub's meters.
fn paid(world: &World, block: &Block<'_>) {
    let start = Instant::now();
    loop {
        let statements = block.users.iter().map(|user| json(&world.output(user, block.script)));
        let bytes: u64 = statements
            .map(|statement| {
                let bytes = statement["work_bytes"].as_u64().expect("bytes");
                assert_eq!(statement["pending_nano_kvr"], bytes * 7, "{statement}");
                bytes
            })
            .sum();
        if bytes > 0 {
            return;
        }
        assert!(start.elapsed() < PATIENCE, "nobody was paid");
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn a_newcomer_who_types_what_readme_says_gets_text_and_pays_two_workers() {
    let possible = || Command::new("unshare").args(["--mount", "--net", "true"]).status().is_ok_and(|s| s.success());
    if !is_root() || !possible() {
        println!("skipped: several users and a network of their own need root");
        return;
    }
    let blocks = blocks(README);
    let world = World::new(&blocks);
    let mut running = Vec::new();
    let mut said = BTreeMap::new();
    for block in &blocks {
        for user in &block.users {
            if let Some(words) = block.until {
                // In the shell's place, so that a signal reaches the program itself.
                let mut process = Process::of(world.command(user, &format!("exec {}", block.script)));
                process.after(words);
                running.push(process);
            } else if block.name != "pay" {
                said.insert(block.name, world.output(user, block.script));
            }
        }
        if block.name == "pay" {
            paid(&world, block);
        }
    }
    let (remote, local) = (json(&said["remote"]), json(&said["local"]));
    let text = local["text"].as_str().expect("text");
    assert!(!text.is_empty());
    assert_eq!(remote["choices"][0]["text"], text);
    for process in running.into_iter().rev() {
        assert_eq!(process.terminate().code(), Some(0), "a role that drains exits 0");
    }
}

#[test]
fn a_mark_names_users_and_the_words_to_wait_for() {
    let text = "x\n<!-- run: hub as ann and bob, until \"ready \" -->\n```sh\nkvasir\n```\n<!-- run: b as c -->\n```sh\nd\n```\n";
    let [hub, b] = &blocks(text)[..] else { panic!("two blocks") };
    assert_eq!(*hub, Block { name: "hub", users: vec!["ann", "bob"], until: Some("ready "), script: "kvasir\n" });
    assert_eq!((b.name, b.until, b.script), ("b", None, "d\n"));
    let names: Vec<&str> = blocks(README).iter().map(|block| block.name).collect();
    for name in ["backbone", "hub", "gateway", "worker", "remote", "local", "pay"] {
        assert!(names.contains(&name), "README has no block {name}");
    }
}
