//! README's table of a large model whose layers are far away says what was measured.

use std::fmt::Write as _;

use serde_json::Value;

const SAMPLES: &str = "tests/data/figures/far_48_layers.json";
const START: &str = "<!-- made from tests/data/figures/far_48_layers.json -->\n";

fn number(of: &Value, key: &str) -> f64 {
    of[key].as_f64().unwrap_or_else(|| panic!("{SAMPLES}: expected a number {key}, got {}", of[key]))
}

fn list<'a>(of: &'a Value, key: &str) -> &'a [Value] {
    of[key].as_array().unwrap_or_else(|| panic!("{SAMPLES}: expected a list {key}, got {}", of[key]))
}

/// Of the pairs of runs: both of a pair met the same machine.
fn median(ratios: &[Value]) -> f64 {
    let mut ratios: Vec<f64> = ratios.iter().map(|ratio| ratio.as_f64().unwrap()).collect();
    ratios.sort_by(f64::total_cmp);
    ratios[ratios.len() / 2]
}

/// One row: `way` is a way's round trip, as it is written; `rtt_ms` as it was measured over that way.
fn row(table: &mut String, way: &str, rtt_ms: f64, run: &Value, size: &Value) {
    let (streams, local, remote) =
        (number(size, "streams"), number(size, "local_tok_per_s"), number(size, "remote_tok_per_s"));
    let alone = streams / (number(run, "remote_layers") * rtt_ms + number(run, "local_step_ms")) * 1e3;
    writeln!(
        table,
        "| {way} | {} | {streams} | {local:.2} | {remote:.2} | {:.1} % | {:.2} | {:.1} | {:.3} |",
        number(run, "remote_layers"),
        100.0 * median(list(size, "of_local")),
        remote / local.min(alone),
        number(size, "lanes"),
        number(size, "wire_bytes_per_token") / 1e6,
    )
    .unwrap();
}

fn table(samples: &Value) -> String {
    let mut table = String::new();
    for arrangement in list(samples, "arrangements") {
        writeln!(table, "{}\n", arrangement["setup"].as_str().unwrap()).unwrap();
        table += "| way | remote layers | streams | local tokens/s | remote | of local | of bound | steps under way | MB a token |\n";
        table += &"| --- ".repeat(9);
        table += "|\n";
        for run in list(arrangement, "runs") {
            let (way, rtt_ms) = (run["way"].as_str().unwrap(), number(run, "way_rtt_ms"));
            list(&run["bench"], "sizes").iter().for_each(|size| row(&mut table, way, rtt_ms, &run["bench"], size));
        }
        for peer in list(arrangement, "llama_cpp") {
            let (local, remote) = (number(peer, "local_tok_per_s"), number(peer, "remote_tok_per_s"));
            let (way, of_local) = (peer["way"].as_str().unwrap(), 100.0 * remote / local);
            let alone = 1e3 / (48.0 * number(peer, "way_rtt_ms") + 1e3 / local);
            writeln!(
                table,
                "| {way}, llama.cpp RPC | 48 | 1 | {local:.2} | {remote:.2} | {of_local:.1} % | {:.2} | 1 | |",
                remote / alone
            )
            .unwrap();
        }
        table += "\n";
    }
    table
}

#[test]
fn the_figures_of_far_layers_are_those_that_were_measured() {
    let samples = serde_json::from_str(&super::read(SAMPLES)).unwrap();
    super::check_readme(START, &table(&samples), SAMPLES);
}

#[test]
fn no_token_of_the_far_layers_differed_from_the_local_run() {
    let samples: Value = serde_json::from_str(&super::read(SAMPLES)).unwrap();
    let mut sizes = 0;
    for run in list(&samples, "arrangements").iter().flat_map(|arrangement| list(arrangement, "runs")) {
        for size in list(&run["bench"], "sizes") {
            assert_eq!(size["streams_identical"], size["streams"], "{size}");
            sizes += 1;
        }
    }
    assert!(sizes >= 8, "{sizes} sizes");
}
