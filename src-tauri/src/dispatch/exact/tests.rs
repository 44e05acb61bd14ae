//! The rounds of a step, against answers made up by hand.

use super::*;
use crate::model;
use crate::wire::frame::BODY_BYTES_MAX;
use std::sync::Arc;

const WIDTH: usize = 256;

fn experts() -> ModelExperts {
    ModelExperts::new(Arc::new(model::embedded().unwrap()))
}

/// Two rows of layer 0 with four experts each, not in ascending order; one weight is too small to count.
fn step() -> MoeStep {
    let route = |(expert, weight)| Route { expert, weight };
    MoeStep {
        layer: 0,
        rows: 2,
        hidden: (0..2 * WIDTH).map(|i| (i % 17) as f32 / 8.0 - 1.0).collect(),
        rms: vec![1.0, 2.0],
        routes: [(9, 0.5), (3, 0.25), (12, 0.25), (1, 0.0), (2, 0.5), (9, 0.25), (0, 0.125), (5, 0.125)]
            .map(route)
            .to_vec(),
        generations: vec![],
        trusted_only: false,
    }
}

fn partials(part: &Part, value: i32) -> Partials {
    let values = PartialValues::Exact(vec![value; part.rows.len() * WIDTH]);
    Partials { status: vec![RowStatus::Ok; part.rows.len()], values }
}

fn exact_sum(sum: &RowSum) -> (i8, i32) {
    match sum {
        RowSum::Exact { grid, sum } if sum.iter().all(|v| *v == sum[0]) => (*grid, sum[0]),
        other => panic!("expected one exact value, got {other:?}"),
    }
}

#[test]
fn requests_name_experts_in_order_and_drop_weights_that_do_not_count() {
    let open = OpenStep::prepare(step(), Form::Exact, &experts()).unwrap();
    let [part] = &open.parts(|_| true)[..] else { panic!("one part") };
    let ids: Vec<u16> = part.dispatch.assignments.iter().map(|a| a.expert).collect();
    assert_eq!((part.rows.clone(), ids), (vec![0, 1], vec![3, 9, 12, 0, 2, 5, 9]));
    assert_eq!(part.dispatch.rows[1], RowHead { grid: part.dispatch.rows[0].grid + 1, count: 4, first: 3 });
    let [part] = &open.parts(|expert| expert == 12)[..] else { panic!("one part") };
    assert_eq!((part.rows.clone(), part.dispatch.assignments.len()), (vec![0], 1));
    assert!(open.parts(|expert| expert == 15).is_empty());
}

#[test]
fn a_part_of_floats_fits_its_frame_also_with_one_expert_per_row() {
    for (width, per_row) in [(512, 1), (512, 2), (256, 4)] {
        let rows = 1200;
        let routes = (0..rows * per_row).map(|i| Route { expert: (i % per_row) as u16, weight: 0.5 }).collect();
        let step = MoeStep {
            layer: 0,
            rows,
            hidden: vec![1.0; rows * width],
            rms: vec![1.0; rows],
            routes,
            generations: vec![],
            trusted_only: false,
        };
        let parts = OpenStep::prepare(step, Form::Float, &experts()).unwrap().parts(|_| true);
        assert!(parts.len() > 1);
        assert_eq!(parts.iter().map(|part| part.rows.len()).sum::<usize>(), rows);
        for part in &parts {
            let Dispatch { rows, assignments, .. } = &part.dispatch;
            let reply = rows.len() + 4 * width * assignments.len();
            let largest = part.dispatch.encode().len().max(reply);
            assert!(largest <= BODY_BYTES_MAX, "{width}, {per_row}: {largest}");
        }
    }
}

#[test]
fn sums_are_the_same_for_any_split_and_order() {
    let experts = experts();
    let mut sums = Vec::new();
    for order in [[0u16, 1, 2], [2, 0, 1]] {
        let mut open = OpenStep::prepare(step(), Form::Exact, &experts).unwrap();
        for third in order {
            for part in open.parts(|expert| expert % 3 == third) {
                open.add(&part, &partials(&part, 1 << (10 * third))).unwrap();
            }
        }
        open.close_round();
        assert!(!open.is_open());
        sums.push(open.finish(&experts).unwrap());
    }
    assert_eq!(sums[0], sums[1]);
}

#[test]
fn a_row_out_of_range_is_asked_again_on_a_coarser_grid_and_ends_in_floats() {
    let experts = experts();
    let mut open = OpenStep::prepare(step(), Form::Exact, &experts).unwrap();
    let grid = open.parts(|_| true)[0].dispatch.rows[1].grid;
    for round in 0..4 {
        let parts = open.parts(|_| true);
        assert_eq!(parts[0].dispatch.rows.last().unwrap().grid, grid + 8 * round);
        assert_eq!(parts[0].rows, if round == 0 { vec![0, 1] } else { vec![1] });
        let mut answer = partials(&parts[0], 5);
        *answer.status.last_mut().unwrap() = RowStatus::Range;
        open.add(&parts[0], &answer).unwrap();
        open.close_round();
    }
    assert!(!open.is_open());
    let sums = open.finish(&experts).unwrap();
    assert_eq!(exact_sum(&sums[0]), (grid - 1, 5));
    assert!(matches!(&sums[1], RowSum::Float(values) if values.iter().any(|v| *v != 0.0)));
}

#[test]
fn a_retry_forgets_what_was_added_before() {
    let experts = experts();
    let mut open = OpenStep::prepare(step(), Form::Exact, &experts).unwrap();
    for (status, value) in [(RowStatus::Range, 7), (RowStatus::Ok, 3)] {
        let part = &open.parts(|_| true)[0];
        let answer = Partials { status: vec![status; 2], ..partials(part, value) };
        open.add(part, &answer).unwrap();
        open.close_round();
    }
    assert_eq!(open.finish(&experts).unwrap().iter().map(|sum| exact_sum(sum).1).collect::<Vec<_>>(), [3, 3]);
}

#[test]
fn a_poisoned_row_ends_in_floats_at_once_also_beside_a_row_out_of_range() {
    let experts = experts();
    let mut step = step();
    step.hidden[0] = f32::INFINITY;
    let mut open = OpenStep::prepare(step, Form::Exact, &experts).unwrap();
    let parts = [open.parts(|expert| expert < 5), open.parts(|expert| expert >= 5)].concat();
    assert!(parts.iter().all(|part| part.rows == [1]), "row 0 cannot be quantised");
    for (part, status) in parts.iter().zip([RowStatus::Poison, RowStatus::Range]) {
        open.add(part, &Partials { status: vec![status], ..partials(part, 0) }).unwrap();
    }
    open.close_round();
    assert!(!open.is_open());
    assert!(open.finish(&experts).unwrap().iter().all(|sum| matches!(sum, RowSum::Float(_))));
}

#[test]
fn partials_of_another_shape_or_beyond_any_holder_are_refused() {
    let experts = experts();
    let mut open = OpenStep::prepare(step(), Form::Exact, &experts).unwrap();
    let part = open.parts(|_| true).remove(0);
    let short = Partials { status: vec![RowStatus::Ok], ..partials(&part, 1) };
    let float = Partials { values: PartialValues::Float(vec![0.0; 7 * WIDTH]), ..partials(&part, 1) };
    for wrong in [short, float, partials(&part, i32::MIN), partials(&part, (3 << 27) + 1)] {
        open.add(&part, &wrong).unwrap_err();
    }
    open.add(&part, &partials(&part, 1)).unwrap();
    open.close_round();
    assert_eq!(exact_sum(&open.finish(&experts).unwrap()[0]).1, 1);
}

#[test]
fn weights_and_experts_that_cannot_be_end_the_step() {
    let experts = experts();
    for weight in [f32::NAN, f32::INFINITY, -0.5] {
        let mut step = step();
        step.routes[5].weight = weight;
        let error = OpenStep::prepare(step, Form::Exact, &experts).unwrap_err();
        assert!(matches!(error, DispatchError::GateWeight { layer: 0, row: 1, expert: 9, .. }), "{error}");
    }
    let mut step = step();
    step.routes[0].expert = 16;
    let error = OpenStep::prepare(step, Form::Exact, &experts).unwrap_err();
    assert!(matches!(error, DispatchError::NoExpert { layer: 0, expert: 16 }), "{error}");
}
