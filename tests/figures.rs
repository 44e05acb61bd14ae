//! README's figures of steps through the network say what was measured: its table and its plot are made from the
//! measured samples, here.
//!
//! `KVASIR_WRITE_FIGURES=1 cargo test --release --test kvasir figures` makes both anew.

mod far_layers;

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use plotters::prelude::*;
use serde_json::Value;

const SAMPLES: &str = "tests/data/figures/dispatch.json";
const PLOT: &str = "tests/data/figures/dispatch.svg";
const README: &str = "README.md";
const START: &str = "<!-- made from tests/data/figures/dispatch.json -->\n";
const END: &str = "<!-- end -->";
const ANEW: &str = "KVASIR_WRITE_FIGURES=1 cargo test --release --test kvasir figures";
/// Rows of the table; the plot has all.
const TABLE_ROWS: [u64; 4] = [1, 8, 64, 512];

struct Cell {
    rtt_ms: f64,
    layers: u64,
    rows: u64,
    beyond_rtt_ms: f64,
    rows_per_s: f64,
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

fn cells(samples: &Value) -> Vec<Cell> {
    let cell = |cell: &Value| Cell {
        rtt_ms: cell["rtt_ms"].as_f64().unwrap(),
        layers: cell["layers"].as_u64().unwrap(),
        rows: cell["rows"].as_u64().unwrap(),
        beyond_rtt_ms: cell["beyond_rtt_ms"].as_f64().unwrap(),
        rows_per_s: cell["rows_per_s"].as_f64().unwrap(),
    };
    samples["cells"].as_array().unwrap().iter().map(cell).collect()
}

fn round_trips(cells: &[Cell]) -> Vec<f64> {
    let all: BTreeSet<u64> = cells.iter().map(|cell| cell.rtt_ms as u64).collect();
    all.into_iter().map(|rtt| rtt as f64).collect()
}

fn table(samples: &Value) -> String {
    let cells = cells(samples);
    let rtts = round_trips(&cells);
    let text = |key: &str| samples[key].as_str().unwrap();
    let mut table = format!("| {}, one layer, rows at once |", text("model"));
    rtts.iter().for_each(|rtt| write!(table, " {rtt} ms |").unwrap());
    table += "\n|";
    table += &" --- |".repeat(rtts.len() + 1);
    for rows in TABLE_ROWS {
        write!(table, "\n| {rows} |").unwrap();
        for rtt in &rtts {
            let is_it = |cell: &&Cell| (cell.layers, cell.rows, cell.rtt_ms) == (1, rows, *rtt);
            let cell = cells.iter().find(is_it).unwrap();
            write!(table, " {:.0} ({:.1}) |", cell.rows_per_s, cell.beyond_rtt_ms).unwrap();
        }
    }
    let batched =
        |rows: u64| cells.iter().find(|c| (c.layers, c.rows, c.rtt_ms) == (1, rows, 13.0)).unwrap().rows_per_s;
    let times = batched(512) / batched(1);
    let (version, build, device) = (text("version"), text("build"), text("device"));
    write!(
        table,
        "\n\nRows per second, and in brackets the median time of a step beyond its round trip, in ms. At 13 ms, 512 rows at\n\
         once give {times:.0} times the rows of one. Version {version}, build {build}, {device}.\n"
    )
    .unwrap();
    table
}

/// One panel for each number of layers, one line for each round trip.
fn plot(samples: &Value) -> String {
    let cells = cells(samples);
    let layers: Vec<u64> = cells.iter().map(|cell| cell.layers).collect::<BTreeSet<_>>().into_iter().collect();
    let (least, most) = cells.iter().fold((f64::MAX, 0.0f64), |(a, b), c| (a.min(c.rows_per_s), b.max(c.rows_per_s)));
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, (380 * layers.len() as u32, 340)).into_drawing_area();
        area.fill(&WHITE).unwrap();
        for (panel, count) in area.split_evenly((1, layers.len())).iter().zip(&layers) {
            let title = format!("{count} remote layer{}", if *count == 1 { "" } else { "s" });
            let mut chart = ChartBuilder::on(panel)
                .caption(title, ("sans-serif", 15))
                .margin(8)
                .x_label_area_size(36)
                .y_label_area_size(56)
                .build_cartesian_2d((1f64..512.0).log_scale().base(2.0), (least / 1.5..most * 1.5).log_scale())
                .unwrap();
            chart
                .configure_mesh()
                .x_desc("rows at once")
                .y_desc("rows/s")
                .x_label_formatter(&|rows| format!("{rows:.0}"))
                .y_label_formatter(&|rate| format!("{rate:.0}"))
                .draw()
                .unwrap();
            for (index, rtt) in round_trips(&cells).into_iter().enumerate() {
                let color = Palette99::pick(index).to_rgba();
                let of = cells.iter().filter(|cell| cell.layers == *count && cell.rtt_ms == rtt);
                let points: Vec<(f64, f64)> = of.map(|cell| (cell.rows as f64, cell.rows_per_s)).collect();
                chart
                    .draw_series(LineSeries::new(points.iter().copied(), color.stroke_width(2)))
                    .unwrap()
                    .label(format!("{rtt} ms"))
                    .legend(move |(x, y)| PathElement::new([(x, y), (x + 14, y)], color.stroke_width(2)));
                chart.draw_series(points.into_iter().map(|point| Circle::new(point, 2, color.filled()))).unwrap();
            }
            chart
                .configure_series_labels()
                .position(SeriesLabelPosition::LowerRight)
                .background_style(WHITE.mix(0.8))
                .border_style(BLACK.mix(0.3))
                .draw()
                .unwrap();
        }
        area.present().unwrap();
    }
    svg
}

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap()
}

fn is_made_anew() -> bool {
    std::env::var_os("KVASIR_WRITE_FIGURES").is_some()
}

/// Whether README has `table` between `start` and the next end; writes it there when asked to.
fn check_readme(start: &str, table: &str, samples: &str) {
    // Tests of several tables run at once, and each writes README whole.
    static WRITES: Mutex<()> = Mutex::new(());
    let _writes = WRITES.lock().unwrap_or_else(PoisonError::into_inner);
    let readme = read(README);
    let (before, rest) = readme.split_once(start).expect("the table's start in README.md");
    let (shown, after) = rest.split_once(END).expect("the table's end in README.md");
    if is_made_anew() {
        return std::fs::write(root().join(README), format!("{before}{start}{table}{END}{after}")).unwrap();
    }
    assert_eq!(shown, table, "README's table is not what {samples} says; make it anew: {ANEW}");
}

#[test]
fn the_figures_of_readme_are_those_that_were_measured() {
    let samples: Value = serde_json::from_str(&read(SAMPLES)).unwrap();
    let plot = plot(&samples);
    check_readme(START, &table(&samples), SAMPLES);
    if is_made_anew() {
        return std::fs::write(root().join(PLOT), &plot).unwrap();
    }
    assert!(read(PLOT) == plot, "{PLOT} is not what {SAMPLES} says; make it anew: {ANEW}");
}

#[test]
fn every_cell_of_the_figures_was_computed_by_workers_and_the_grid_is_whole() {
    let samples: Value = serde_json::from_str(&read(SAMPLES)).unwrap();
    let found = cells(&samples);
    let sizes = |of: fn(&Cell) -> u64| found.iter().map(of).collect::<BTreeSet<_>>();
    let (rows, layers, rtts) = (sizes(|c| c.rows), sizes(|c| c.layers), sizes(|c| c.rtt_ms as u64));
    assert_eq!(rows, (0..10).map(|power| 1 << power).collect());
    assert_eq!(rtts, BTreeSet::from([0, 13, 50, 100, 150]));
    assert!(layers.len() > 1 && found.len() == rows.len() * layers.len() * rtts.len(), "{} cells", found.len());
    let k = samples["experts_per_row"].as_u64().unwrap();
    for cell in samples["cells"].as_array().unwrap() {
        let count = |key: &str| cell[key].as_u64().unwrap();
        let assignments = count("passes") * count("rows") * count("layers") * k;
        assert!(
            count("assignments_remote") == assignments && cell["wire_bytes_per_row"].as_f64() > Some(0.0),
            "{cell}"
        );
    }
}
