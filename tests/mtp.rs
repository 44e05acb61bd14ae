//! The multi-token-prediction head against references that are not ours, and as something to draft with.

use crate::goldens::CASES;
use crate::reference::reference_dir;
use crate::support::{Golden, data, float_backbone, largest_difference, local};
use kvasir::backbone::{Backbone, Draft, ForwardError, Reach, Rows, Share, Want, argmax};
use kvasir::dispatch::Mode;
use std::sync::Arc;

/// What every row of `tokens` became behind the trunk's final norm.
async fn hidden_states(backbone: &Backbone, tokens: &[u32]) -> Rows {
    let (mut sequence, mut hidden) = (backbone.sequence(), Rows::default());
    let share = Share { sequence: &mut sequence, tokens, want: Want::Nothing, reach: Reach::Any };
    let output = backbone.step_with_hidden(&mut [share], &mut hidden).await.expect("a step");
    assert!(output.logits[0].is_empty());
    hidden
}

fn part(rows: &Rows, first: usize, count: usize) -> Rows {
    let mut out = Rows::zeros(count, rows.width());
    out.values_mut().copy_from_slice(rows.part(first, count));
    out
}

#[tokio::test]
async fn the_head_gives_the_reference_logits() {
    for case in CASES.iter().filter(|case| case.golden.starts_with("q35moe")) {
        let (model, golden) = case.open();
        let backbone = float_backbone(&model);
        let (ids, next) = (golden.ids("input_ids"), golden.ids("mtp_next_ids"));
        let hidden = hidden_states(&backbone, &ids).await;
        let mut state = backbone.draft_state().expect("a head");
        let draft = backbone.draft(&mut state, &hidden, &next, Want::Every, Reach::Any).await.expect("drafts");
        if golden.has("mtp_hidden") {
            case.close("final norm", hidden.values(), &golden.floats("final_norm"), case.rounded);
            let want = golden.floats("mtp_hidden");
            case.close("the head's hidden states", draft.hidden.values(), &want, case.rounded);
        }
        case.close("the head's logits", draft.logits.values(), &golden.floats("mtp_logits"), case.rounded);
        assert_eq!(state.position(), ids.len());
    }
}

#[tokio::test]
async fn drafts_do_not_depend_on_how_their_rows_arrive_and_can_be_taken_back() {
    let (model, golden) = CASES[1].open();
    let backbone = float_backbone(&model);
    let (ids, next) = (golden.ids("input_ids"), golden.ids("mtp_next_ids"));
    let hidden = hidden_states(&backbone, &ids).await;
    let mut state = backbone.draft_state().expect("a head");
    let all = backbone.draft(&mut state, &hidden, &next, Want::Every, Reach::Any).await.expect("drafts");
    let mut state = backbone.draft_state().expect("a head");
    let mut got = Draft::default();
    for (t, token) in next.iter().enumerate() {
        let row = part(&hidden, t, 1);
        // A draft over this draft, which the trunk does not confirm.
        got = backbone.draft(&mut state, &row, &[*token], Want::Last, Reach::Local).await.expect("a draft");
        let drafted = argmax(got.logits.row(0));
        backbone.draft(&mut state, &got.hidden, &[drafted], Want::Nothing, Reach::Local).await.expect("a draft");
        state.truncate(t + 1);
        assert_eq!(got.logits.row(0), all.logits.row(t), "row {t}");
    }
    assert_eq!(got.hidden.row(0), all.hidden.row(next.len() - 1));
}

#[tokio::test]
async fn what_the_head_cannot_draft_is_refused() {
    let (model, golden) = CASES[1].open();
    let backbone = float_backbone(&model);
    let hidden = hidden_states(&backbone, &golden.ids("input_ids")[..2]).await;
    let mut state = backbone.draft_state().expect("a head");
    let vocab = model.hyper.vocab_size as u32;
    for (next, message) in [
        (&[1u32, 2, 3][..], "expected hidden states of [3, 64] (rows, width), got [2, 64]"),
        (&[1, vocab], "expected a token below 288, got 288"),
        (&[], "expected at least one token, got none"),
    ] {
        let error = backbone.draft(&mut state, &hidden, next, Want::Last, Reach::Any).await.unwrap_err();
        assert_eq!(error.to_string(), message);
    }
    let (without, _) = CASES[4].open();
    let without = float_backbone(&without);
    assert!(without.draft_state().is_none());
    let error = without.draft(&mut state, &hidden, &[1, 2], Want::Last, Reach::Any).await.unwrap_err();
    assert!(matches!(error, ForwardError::NoHead));
}

#[derive(serde::Deserialize)]
struct Sequence {
    name: String,
    ids: Vec<u32>,
    first_row: usize,
    argmax: Vec<u32>,
    chain_rows: Vec<usize>,
    chain_tokens: Vec<[u32; 3]>,
}

fn sequences() -> Vec<Sequence> {
    let file = std::fs::read(data("kvasir-tiny/mtp_reference.json")).expect("a file of the repository");
    serde_json::from_slice(&file).expect("sequences")
}

/// The head's logits of every row of `sequence`, and of the second and third draft after each of its chain rows.
async fn drafts(backbone: &Backbone, sequence: &Sequence) -> (Rows, Vec<[Rows; 2]>) {
    let rows = sequence.first_row + sequence.argmax.len();
    let hidden = hidden_states(backbone, &sequence.ids[..rows]).await;
    let next = &sequence.ids[1..rows + 1];
    let mut state = backbone.draft_state().expect("a head");
    let all = backbone.draft(&mut state, &hidden, next, Want::Every, Reach::Any).await.expect("drafts");
    let mut chains = Vec::new();
    for (row, [first, second, _]) in sequence.chain_rows.iter().zip(&sequence.chain_tokens) {
        let mut state = state.clone();
        state.truncate(row + 1);
        let of_row = part(&all.hidden, *row, 1);
        let two = backbone.draft(&mut state, &of_row, &[*first], Want::Last, Reach::Any).await.expect("a draft");
        let three = backbone.draft(&mut state, &two.hidden, &[*second], Want::Last, Reach::Any).await.expect("a draft");
        chains.push([two.logits, three.logits]);
    }
    (all.logits, chains)
}

#[tokio::test]
async fn the_quantised_model_drafts_what_the_bf16_reference_drafts() {
    let model = Arc::new(kvasir::model::embedded().expect("the embedded model"));
    let backbone = Backbone::new(model.clone(), Arc::new(local(&model, Mode::Exact))).expect("a backbone");
    let (mut equal, mut rows, mut chained, mut chains) = (0, 0, 0, 0);
    for sequence in sequences() {
        let (logits, drafted) = drafts(&backbone, &sequence).await;
        let firsts = sequence.argmax.iter().zip(sequence.first_row..);
        equal += firsts.filter(|(token, row)| argmax(logits.row(*row)) == **token).count();
        rows += sequence.argmax.len();
        for ([two, three], tokens) in drafted.iter().zip(&sequence.chain_tokens) {
            chained += usize::from(argmax(two.row(0)) == tokens[1]) + usize::from(argmax(three.row(0)) == tokens[2]);
            chains += 2;
        }
    }
    eprintln!("first drafts {equal}/{rows}, later ones {chained}/{chains}");
    assert!(equal * 10 >= rows * 9 && chained * 10 >= chains * 8, "{equal}/{rows}, {chained}/{chains}");
}

#[tokio::test]
#[ignore = "needs the BF16 checkpoint in KVASIR_REFERENCE_DIR"]
async fn the_bf16_checkpoint_gives_the_logits_of_the_head_by_torch() {
    let dir = reference_dir();
    let model = Arc::new(kvasir::model::open(&dir.join("kvasir-tiny")).expect("the checkpoint"));
    let golden = Golden::read(&dir.join("mtp_reference.safetensors"));
    let backbone = float_backbone(&model);
    for sequence in sequences() {
        let (logits, chains) = drafts(&backbone, &sequence).await;
        let floats = |name: &str| golden.floats(&format!("{}.{name}", sequence.name));
        let first = largest_difference(logits.part(sequence.first_row, sequence.argmax.len()), &floats("mtp_logits"));
        let chained: Vec<f32> = chains.iter().flatten().flat_map(|rows| rows.values()).copied().collect();
        let later = largest_difference(&chained, &floats("chain_logits"));
        eprintln!("{}: first drafts are off by {first:e}, later ones by {later:e}", sequence.name);
        assert!(first < 5e-3 && later < 5e-3, "{}: {first:e}, {later:e}", sequence.name);
    }
}
