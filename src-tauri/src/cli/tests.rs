//! How the command line reads.

use super::*;
use crate::model::BlockType;

#[test]
fn the_command_line_is_well_formed() {
    use clap::CommandFactory;
    Cli::command().debug_assert();
}

#[test]
fn commands_read_with_their_defaults() {
    let cli = Cli::try_parse_from(["kvasir", "demo"]).unwrap();
    let Some(Command::Demo(demo)) = cli.command else { panic!("not the demo") };
    assert_eq!((demo.workers, demo.tokens, demo.rtt, demo.device), (2, 32, 0.0, vec![Device::Auto]));
    assert_eq!(demo.remote_layers, LayerSelection::All);
    let cli = Cli::try_parse_from(["kvasir", "--headless", "hub", "--listen", "127.0.0.1:0"]).unwrap();
    assert_eq!(cli.headless, Some(Role::Hub));
    let cli = Cli::try_parse_from(["kvasir", "demo", "--device", "gpu,cpu", "--allow-software"]).unwrap();
    let Some(Command::Demo(demo)) = cli.command else { panic!("not the demo") };
    assert_eq!((demo.device, demo.gpu.allow_software), (vec![Device::Gpu, Device::Cpu], true));
    let cli = Cli::try_parse_from(["kvasir", "bench", "experts", "--types", "q4_k,BF16"]).unwrap();
    let Some(Command::Bench(BenchCommand::Experts(bench))) = cli.command else { panic!("not the bench") };
    assert_eq!((bench.types, bench.rows), (vec![BlockType::Q4_K, BlockType::BF16], vec![1, 8, 32, 64, 128, 512]));
    assert!(Cli::try_parse_from(["kvasir", "bench", "experts", "--types", "q9"]).is_err());
    let cli = Cli::try_parse_from(["kvasir", "model", "convert", "in", "out.gguf", "--to", "q4_k"]).unwrap();
    let Some(Command::Model(ModelCommand::Convert(convert))) = cli.command else { panic!("not a conversion") };
    assert_eq!((convert.to, convert.overwrite), (BlockType::Q4_K, false));
    assert!(Cli::try_parse_from(["kvasir", "model", "convert", "in", "out.gguf", "--to", "bf16"]).is_err());
    assert!(Cli::try_parse_from(["kvasir", "generate", "--ids", "1", "--experts", "q5_0"]).is_err());
    assert!(Cli::try_parse_from(["kvasir", "generate", "--prompt", "a", "--ids", "1"]).is_err());
    assert!(Cli::try_parse_from(["kvasir", "demo", "--tokens", "0"]).is_err());
}
