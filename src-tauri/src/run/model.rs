//! `kvasir model …`.

use std::process::ExitCode;

use super::progress::{Progress, Unit};
use super::{AnyError, say};
use crate::cli::{ConvertArgs, InspectArgs, ModelCommand};
use crate::config::parse_bytes;
use crate::model::{self, Conversion, Inspection};

/// Looks into model files, or writes one.
pub(super) fn model(command: ModelCommand) -> Result<ExitCode, AnyError> {
    match command {
        ModelCommand::Inspect(args) => inspect(args)?,
        ModelCommand::Convert(args) => convert(&args)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn inspect(args: InspectArgs) -> Result<(), AnyError> {
    let slice = args.slice.map(|text| parse_bytes("--slice", &text)).transpose()?;
    let model = model::open(&args.path)?;
    let mut inspection = Inspection::of(&model);
    if let Some(bytes) = slice {
        inspection = inspection.with_slice(&model, bytes);
    }
    if args.json {
        say(serde_json::to_string_pretty(&inspection)?)?
    } else {
        say(&inspection)?
    }
    Ok(())
}

fn convert(args: &ConvertArgs) -> Result<(), AnyError> {
    let ConvertArgs { input, output, to, overwrite } = args;
    let order = Conversion { out: output, to: *to, overwrite: *overwrite };
    let mut progress = Progress::new("converting", Unit::Bytes);
    let bytes = model::convert(input, &order, |done, total| progress.set(done, total))?;
    drop(progress);
    say(format_args!("{}: {bytes} bytes, routed experts in {}", output.display(), to.name()))?;
    Ok(())
}
