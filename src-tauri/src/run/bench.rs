//! `kvasir bench …`: what its flags ask of the benches, and what they found, for people or as one JSON document.

use std::fmt::Display;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::Serialize;

use super::commands::{layers, one_way};
use super::device;
#[cfg(not(feature = "gpu"))]
use super::device::Devices;
use super::loading::load_model;
use super::{AnyError, all_threads, runtime, say, usage};
use crate::bench;
use crate::cli::{
    BenchCommand, BenchDecodeArgs, BenchDenseArgs, BenchDispatchArgs, BenchExpertsArgs, BenchLedgerArgs,
    BenchSpliceArgs, Device, GpuFlags, OutsideFlags,
};
use crate::kernel::{CpuPath, Crew, ExpertCompute};

/// `kvasir bench …`.
pub fn bench(command: BenchCommand) -> Result<ExitCode, AnyError> {
    match command {
        BenchCommand::Experts(args) => show(args.json, &bench_experts(args)?),
        BenchCommand::Dense(args) => show(args.json, &bench_dense(args)?),
        BenchCommand::Decode(args) => bench_decode(args),
        BenchCommand::Prefill(args) => {
            let (threads, rounds) = (args.threads, args.rounds);
            let sizes = Sizes { batches: args.batch, tokens: args.tokens, threads, rounds };
            batches(bench::Phase::Prefill, args.model.as_deref(), &sizes, args.json)
        }
        BenchCommand::Dispatch(args) => bench_dispatch(args),
        BenchCommand::Ledger(args) => bench_ledger(args),
        BenchCommand::Splice(args) => bench_splice(&args),
    }?;
    Ok(ExitCode::SUCCESS)
}

fn show(json: bool, found: &(impl Display + Serialize)) -> Result<(), AnyError> {
    if json {
        say(serde_json::to_string_pretty(found)?)?
    } else {
        say(found)?
    }
    Ok(())
}

fn bench_ledger(args: BenchLedgerArgs) -> Result<(), AnyError> {
    let (gateways, credits, transfers) = (args.gateways.into(), args.credits, args.transfers);
    let options = bench::LedgerOptions { url: args.ledger, gateways, credits, transfers };
    show(args.json, &runtime()?.block_on(bench::ledger(options))?)
}

/// `kvasir bench decode`, in its four forms.
fn bench_decode(args: BenchDecodeArgs) -> Result<(), AnyError> {
    let (tokens, json) = (args.tokens as usize, args.json);
    if !args.batch.is_empty() {
        let (threads, rounds) = (args.threads, args.rounds);
        let sizes = Sizes { batches: args.batch, tokens: args.tokens, threads, rounds };
        return batches(bench::Phase::Decode, args.model.as_deref(), &sizes, json);
    }
    let model = load_model(args.model.as_deref(), None)?;
    let (remote_layers, one_way) = (layers(&args.remote_layers, &model)?, one_way(args.rtt)?);
    let threads = args.threads.map(usize::from);
    let compute = device::cpu(threads.unwrap_or_else(all_threads))?;
    let workers = workers(args.workers, threads.unwrap_or(1))?;
    let far = bench::Far {
        model: Arc::clone(&model),
        compute,
        workers,
        remote_layers,
        one_way,
        bits_per_s: args.mbit.map(|mbit| u64::from(mbit) * 1_000_000),
        outside: outside(args.outside),
    };
    if let Some(who) = args.speculate {
        let Some(tokenizer) = &model.tokenizer else {
            return Err(usage("the model has no tokenizer: --speculate continues texts".to_owned()));
        };
        let prompts = args.prompt.iter().map(|text| tokenizer.encode(text)).collect::<Result<_, _>>()?;
        let options = bench::SpeculateOptions { far, speculation: super::speculation(who), prompts, tokens };
        return show(json, &runtime()?.block_on(bench::speculate(options))?);
    }
    if !args.streams.is_empty() {
        let streams = list(&args.streams);
        let options = bench::StreamsOptions { far, streams, tokens, rounds: args.rounds.into() };
        return show(json, &runtime()?.block_on(bench::streams(options))?);
    }
    if far.outside.is_some() {
        return Err(usage(
            "--outside: expected --streams or --speculate, which do not time the workers' kernels".to_owned(),
        ));
    }
    let options = bench::DecodeOptions { far, tokens };
    show(json, &runtime()?.block_on(bench::decode(options))?)
}

/// `kvasir bench dispatch`.
fn bench_dispatch(args: BenchDispatchArgs) -> Result<(), AnyError> {
    let threads = args.threads.map_or_else(all_threads, usize::from);
    let round_trips = args.rtt.iter().map(|rtt| Ok(2 * one_way(*rtt)?)).collect::<Result<_, AnyError>>()?;
    let outside = outside(args.outside);
    if outside.is_some() && args.rtt.len() != 1 {
        return Err(usage("--outside: expected one --rtt, that of the way to these workers".to_owned()));
    }
    let options = bench::DispatchOptions {
        outside,
        model: load_model(args.model.as_deref(), None)?,
        compute: device::cpu(threads)?,
        workers: workers(args.workers, threads)?,
        rows: list(&args.rows),
        round_trips,
        layers: args.layers,
        time: Duration::from_secs(args.seconds.into()),
    };
    show(args.json, &runtime()?.block_on(bench::dispatch(options))?)
}

/// `kvasir bench splice`.
fn bench_splice(args: &BenchSpliceArgs) -> Result<(), AnyError> {
    let options = bench::SpliceOptions {
        rounds: args.rounds.into(),
        pings: args.pings,
        messages: args.messages,
        idle: args.idle.into(),
        idle_time: Duration::from_secs(args.seconds.into()),
    };
    show(args.json, &bench::splice(&options)?)
}

/// The workers of other machines that were named.
fn outside(flags: OutsideFlags) -> Option<bench::Outside> {
    let named = flags.outside.zip(flags.listen).zip(flags.invitation);
    named.map(|((workers, gateway), invitation)| bench::Outside { gateway, workers: workers.into(), invitation })
}

/// Kernels of so many workers.
fn workers(count: u16, threads: usize) -> Result<Vec<Arc<dyn ExpertCompute>>, AnyError> {
    (0..count).map(|_| device::cpu(threads)).collect()
}

/// How much of what is measured with several streams.
struct Sizes {
    batches: Vec<u16>,
    tokens: u32,
    threads: Option<u16>,
    rounds: u16,
}

/// Several streams at once.
fn batches(phase: bench::Phase, model: Option<&Path>, sizes: &Sizes, json: bool) -> Result<(), AnyError> {
    let threads = sizes.threads.map_or_else(all_threads, usize::from);
    Crew::choose(threads)?;
    let options = bench::BatchOptions {
        started: Instant::now(),
        model: load_model(model, None)?,
        compute: device::cpu(threads)?,
        threads,
        phase,
        batches: sizes.batches.iter().map(|size| usize::from(*size)).collect(),
        tokens: sizes.tokens as usize,
        rounds: sizes.rounds.into(),
    };
    show(json, &runtime()?.block_on(bench::batches(options))?)
}

/// `kvasir bench dense`.
fn bench_dense(args: BenchDenseArgs) -> Result<bench::DenseBench, AnyError> {
    if let Some(threads) = args.threads {
        Crew::choose(threads.into())?;
    }
    let (rows, rounds) = (list(&args.rows), args.rounds.into());
    let shape = [args.output as usize, args.input as usize];
    Ok(bench::dense_on_cpu(&bench::DenseOptions { shape, types: args.types, rows, rounds })?)
}

/// `kvasir bench experts`.
fn bench_experts(args: BenchExpertsArgs) -> Result<bench::ExpertsBench, AnyError> {
    let threads = if args.threads.is_empty() { vec![all_threads()] } else { list(&args.threads) };
    let paths = if args.all_paths { CpuPath::supported() } else { vec![CpuPath::detect()?] };
    let (rows, rounds) = (list(&args.rows), args.rounds.into());
    let options = bench::BenchOptions { types: args.types, rows, threads, paths, rounds, ..Default::default() };
    match args.device {
        Device::Cpu => Ok(bench::experts_on_cpu(&options)?),
        Device::Gpu | Device::Auto => bench_on_gpu(&options, args.gpu, args.device),
    }
}

#[cfg(feature = "gpu")]
fn bench_on_gpu(options: &bench::BenchOptions, gpu: GpuFlags, device: Device) -> Result<bench::ExpertsBench, AnyError> {
    let wanted = device::Wanted { gpu, ..Default::default() };
    match bench::experts_on_gpu(options, &wanted.options()) {
        Err(error) if device == Device::Auto => {
            super::tell(format_args!("CPU because {error}"))?;
            Ok(bench::experts_on_cpu(options)?)
        }
        found => Ok(found?),
    }
}

#[cfg(not(feature = "gpu"))]
fn bench_on_gpu(options: &bench::BenchOptions, gpu: GpuFlags, device: Device) -> Result<bench::ExpertsBench, AnyError> {
    // Says why there is none, or that the CPU computes.
    Devices::new(gpu).open(device, 1)?;
    Ok(bench::experts_on_cpu(options)?)
}

fn list(numbers: &[u16]) -> Vec<usize> {
    numbers.iter().map(|n| usize::from(*n)).collect()
}
