//! The one-shot commands.

use std::ops::ControlFlow;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;

use super::device::{self, Devices};
use super::loading::{load_model, read_ahead};
use super::progress::bar;
use super::{AnyError, all_threads, runtime, say, usage};
use crate::backbone::{Backbone, GenerateOptions, Sampling};
use crate::cli::{DemoArgs, GenerateArgs, GpuArgs, LayerSelection};
use crate::config::parse_duration;
use crate::demo::{self, DemoOptions};
use crate::dispatch::{LocalDispatch, Mode};
use crate::model::{Model, Reach};

/// Tokens of a demo unless told otherwise.
const DEMO_TOKENS: u32 = 32;
/// The same of one in which workers die: long enough for several deaths.
const CHAOS_TOKENS: u32 = 256;

/// `kvasir demo`.
pub fn demo(args: DemoArgs) -> Result<ExitCode, AnyError> {
    let model = load_model(args.model.as_deref(), args.experts)?;
    let _reading = read_ahead(&model, Reach::Everything);
    let one_way = one_way(args.rtt)?;
    let mut devices = Devices::new(args.gpu);
    let dealt = args.device.iter().cycle().take(args.workers.into());
    let seed = match (args.chaos, args.seed) {
        (false, _) => None,
        (true, Some(seed)) => Some(seed),
        (true, None) => {
            let mut seed = [0; 4];
            getrandom::fill(&mut seed).map_err(|error| format!("no randomness for a seed: {error}"))?;
            Some(u32::from_le_bytes(seed).into())
        }
    };
    let lasts = args.soak.as_deref().map(|text| parse_duration("--soak", text)).transpose();
    let lasts = lasts.map_err(|error| usage(error.to_string()))?;
    let tokens = args.tokens.unwrap_or(if args.chaos && lasts.is_none() { CHAOS_TOKENS } else { DEMO_TOKENS });
    let options = DemoOptions {
        remote_layers: layers(&args.remote_layers, &model)?,
        prompt: args.prompt,
        tokens: tokens as usize,
        compute: device::cpu(all_threads())?,
        workers: dealt.map(|device| devices.open(*device, 1)).collect::<Result<_, _>>()?,
        one_way,
        chaos: seed,
        model,
    };
    if let (Some(lasts), Some(seed)) = (lasts, seed) {
        return soak(options, seed, lasts, args.json);
    }
    let bar = bar(tokens.into(), "decoding locally and through workers");
    let report = runtime()?.block_on(demo::run(options, |done| bar.set_position(done as u64)))?;
    bar.finish_and_clear();
    if args.json {
        say(serde_json::to_string_pretty(&report)?)?;
    } else {
        say(&report)?;
    }
    match report.failure() {
        None => Ok(ExitCode::SUCCESS),
        Some(failure) => Err(failure.into()),
    }
}

/// `kvasir demo --soak`.
fn soak(options: DemoOptions, seed: u64, lasts: Duration, json: bool) -> Result<ExitCode, AnyError> {
    let bar = bar(lasts.as_secs(), "seconds of decoding while workers die");
    let report = runtime()?.block_on(demo::soak::run(options, seed, lasts, |over_s| bar.set_position(over_s)))?;
    bar.finish_and_clear();
    if json {
        say(serde_json::to_string_pretty(&report)?)?;
    } else {
        say(&report)?;
    }
    match report.failure() {
        None => Ok(ExitCode::SUCCESS),
        Some(failure) => Err(failure.into()),
    }
}

/// `kvasir generate`.
pub fn generate(args: GenerateArgs) -> Result<ExitCode, AnyError> {
    let model = load_model(args.model.as_deref(), args.experts)?;
    let _reading = read_ahead(&model, Reach::Everything);
    let compute = device::cpu(all_threads())?;
    let mode = if args.float { Mode::Float } else { Mode::Exact };
    let dispatch = LocalDispatch::new(Arc::clone(&model), compute, mode);
    let backbone = Backbone::new(Arc::clone(&model), Arc::new(dispatch))?;
    let prompt = match (&args.ids, &args.prompt, &model.tokenizer) {
        (Some(ids), ..) => ids.clone(),
        (None, Some(text), Some(tokenizer)) => tokenizer.encode(text)?,
        _ => return Err(usage("the model has no tokenizer: expected --ids, got --prompt".to_owned())),
    };
    let runtime = runtime()?;
    if let Some(path) = &args.logits {
        let record = runtime.block_on(backbone.record_logits(&prompt, args.tokens as usize))?;
        std::fs::write(path, record.to_safetensors()?)?;
        let path = path.display().to_string();
        if args.json {
            say(json!({"logits": path, "input_ids": prompt, "greedy_ids": record.greedy_ids}))?;
        } else {
            say(path)?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    let options = GenerateOptions {
        max_tokens: args.tokens as usize,
        sampling: sampling(&args)?,
        stop_ids: model.hyper.eos_token_ids.clone(),
    };
    let bar = bar(args.tokens.into(), "generating");
    let speculation = super::speculation(args.speculate);
    let generation = runtime.block_on(backbone.generate_with(speculation, &prompt, &options, |_| {
        bar.inc(1);
        ControlFlow::Continue(())
    }))?;
    bar.finish_and_clear();
    if args.json {
        say(json!({
            "model": model.name,
            "prompt_ids": prompt,
            "tokens": generation.tokens,
            "text": generation.text,
            "finish": format!("{:?}", generation.finish).to_lowercase(),
            "prefill_tok_per_s": generation.timing.prefill_tokens_per_s(),
            "tok_per_s": generation.timing.decode_tokens_per_s(),
            "drafted": generation.tally.drafted,
            "accepted": generation.tally.accepted,
            "acceptance": generation.tally.acceptance(),
            "tokens_per_step": generation.timing.tokens_per_step(),
        }))?;
    } else if model.tokenizer.is_some() {
        say(format_args!("{}{}", args.prompt.unwrap_or_default(), generation.text))?;
    } else {
        say(generation.tokens.iter().map(u32::to_string).collect::<Vec<_>>().join(","))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// How `generate` chooses: for people a little at random, for comparisons the most likely token.
fn sampling(args: &GenerateArgs) -> Result<Sampling, AnyError> {
    let compared = args.json || args.ids.is_some();
    let temperature = args.temperature.unwrap_or(if compared { 0.0 } else { Sampling::PEOPLE.temperature });
    if !(0.0..=2.0).contains(&temperature) {
        return Err(usage(format!("--temperature: expected 0 to 2, got {temperature}")));
    }
    if !(args.top_p > 0.0 && args.top_p <= 1.0) {
        return Err(usage(format!("--top-p: expected more than 0 and at most 1, got {}", args.top_p)));
    }
    let seed = args.seed.map_or_else(getrandom::u64, Ok)?;
    Ok(Sampling { temperature, top_p: args.top_p, top_k: args.top_k as usize, seed })
}

/// `kvasir gpu`.
#[cfg(feature = "gpu")]
pub fn gpu(args: GpuArgs) -> Result<ExitCode, AnyError> {
    use crate::kernel::gpu::{listing, report};
    let off = args.off.iter().cloned().collect();
    let options = device::Wanted { gpu: args.gpu, off, ..device::Wanted::default() }.options();
    if args.list {
        let listing = listing::list(&options)?;
        if args.json {
            say(serde_json::to_string(&listing)?)?
        } else {
            say(&listing)?
        }
        return Ok(ExitCode::SUCCESS);
    }
    let report = report(&options);
    if args.json {
        say(serde_json::to_string_pretty(&report)?)?
    } else {
        say(&report)?
    }
    Ok(ExitCode::SUCCESS)
}

/// `kvasir gpu` of a program that has no GPU code.
#[cfg(not(feature = "gpu"))]
pub fn gpu(args: GpuArgs) -> Result<ExitCode, AnyError> {
    let why = "this program was built without its feature gpu";
    if args.json {
        say(json!({"adapters": [], "why": why}))?
    } else {
        say(why)?
    }
    Ok(ExitCode::SUCCESS)
}

/// The chosen layers of `model`.
pub(super) fn layers(selection: &LayerSelection, model: &Model) -> Result<Vec<u16>, AnyError> {
    let count = model.hyper.layers;
    selection.resolve(count).map_err(|got| usage(format!("--remote-layers: expected layers below {count}, got {got}")))
}

/// Half of `--rtt`.
pub(super) fn one_way(rtt_ms: f64) -> Result<Duration, AnyError> {
    if !(0.0..=10_000.0).contains(&rtt_ms) {
        return Err(usage(format!("--rtt: expected 0 to 10000 ms, got {rtt_ms}")));
    }
    Ok(Duration::from_secs_f64(rtt_ms / 2e3))
}
