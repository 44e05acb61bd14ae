//! Every kernel as text: parsed, validated, and translated for all three graphics systems, with and without checks.

use kvasir::kernel::gpu::bandwidth::{fill_source, read_source};
use kvasir::kernel::gpu::compose::{MatrixKernel, Op, TileRows, Tiling, Weights, quantise_source};
use kvasir::kernel::gpu::params::{ExactShape, FloatShape};
use kvasir::kernel::gpu::subgroups::probe_source;
use naga::back::{hlsl, msl, spv};
use naga::proc::BoundsCheckPolicy;
use naga::valid::{Capabilities, ModuleInfo, ValidationFlags, Validator};

/// Every kernel, in tilings of each kind that a tuner may choose.
fn sources() -> Vec<(String, String)> {
    let mut all = vec![
        ("quantise".to_owned(), quantise_source()),
        ("fill".to_owned(), fill_source(64)),
        ("read".to_owned(), read_source(256)),
        ("subgroups".to_owned(), probe_source().to_owned()),
    ];
    for weights in Weights::ALL {
        for op in [Op::GateUp, Op::Down] {
            for tile in TileRows::ALL {
                for (lanes, rows, shared_blocks) in [(1, 16, false), (4, 8, false), (8, 2, true), (32, 2, true)] {
                    let tiling = Tiling { lanes, rows, shared_blocks: shared_blocks && weights.is_exact() };
                    let kernel = MatrixKernel { op, weights, tile, tiling };
                    all.push((kernel.to_string(), kernel.source()));
                }
            }
        }
    }
    all
}

fn parse(label: &str, source: &str) -> (naga::Module, ModuleInfo) {
    let module = naga::front::wgsl::parse_str(source)
        .unwrap_or_else(|error| panic!("{label}: {}", error.emit_to_string_with_path(source, "kernel.wgsl")));
    let capabilities = Capabilities::SUBGROUP | Capabilities::SHADER_FLOAT16_IN_FLOAT32;
    let mut validator = Validator::new(ValidationFlags::all(), capabilities);
    validator
        .subgroup_stages(naga::valid::ShaderStages::COMPUTE)
        .subgroup_operations(naga::valid::SubgroupOperationSet::all());
    let info = validator.validate(&module).unwrap_or_else(|error| panic!("{label}: {error:?}"));
    (module, info)
}

/// The bindings of a module, in the order of their numbers.
fn bindings(module: &naga::Module) -> Vec<(naga::ResourceBinding, bool)> {
    let of = |(_, variable): (_, &naga::GlobalVariable)| {
        let writable = matches!(variable.space, naga::AddressSpace::Storage { access } if access.contains(naga::StorageAccess::STORE));
        variable.binding.map(|binding| (binding, writable))
    };
    module.global_variables.iter().filter_map(of).collect()
}

fn policies(checked: bool) -> naga::proc::BoundsCheckPolicies {
    let policy = if checked { BoundsCheckPolicy::Restrict } else { BoundsCheckPolicy::Unchecked };
    naga::proc::BoundsCheckPolicies { index: policy, buffer: policy, image_load: policy, binding_array: policy }
}

fn spirv(module: &naga::Module, info: &ModuleInfo, checked: bool) -> Vec<u32> {
    let options = spv::Options {
        lang_version: (1, 6),
        bounds_check_policies: policies(checked),
        force_loop_bounding: checked,
        ..spv::Options::default()
    };
    spv::write_vec(module, info, &options, None).expect("SPIR-V")
}

fn metal(module: &naga::Module, info: &ModuleInfo, checked: bool) -> String {
    let resources = bindings(module).into_iter().map(|(binding, mutable)| {
        let target =
            msl::BindTarget { buffer: Some(binding.binding as msl::Slot), mutable, ..msl::BindTarget::default() };
        (binding, target)
    });
    let entry = msl::EntryPointResources {
        resources: resources.collect(),
        sizes_buffer: Some(30),
        ..msl::EntryPointResources::default()
    };
    let options = msl::Options {
        lang_version: (2, 4),
        per_entry_point_map: [("main".to_owned(), entry)].into_iter().collect(),
        bounds_check_policies: policies(checked),
        force_loop_bounding: checked,
        ..msl::Options::default()
    };
    msl::write_string(module, info, &options, &msl::PipelineOptions::default()).expect("MSL").0
}

fn direct_x(module: &naga::Module, info: &ModuleInfo, checked: bool) -> String {
    let options = hlsl::Options {
        shader_model: hlsl::ShaderModel::V6_4,
        restrict_indexing: checked,
        force_loop_bounding: checked,
        ..hlsl::Options::default()
    };
    let mut text = String::new();
    let pipeline = hlsl::PipelineOptions::default();
    hlsl::Writer::new(&mut text, &options, &pipeline).write(module, info, None).expect("HLSL");
    text
}

#[test]
fn every_kernel_is_valid_and_translates_for_every_graphics_system() {
    for (label, source) in sources() {
        let (module, info) = parse(&label, &source);
        assert!(bindings(&module).len() <= 8, "{label} has more bindings than every adapter allows");
        for checked in [false, true] {
            assert!(spirv(&module, &info, checked).len() > 100, "{label}");
            assert!(metal(&module, &info, checked).contains("kernel void"), "{label}");
            assert!(direct_x(&module, &info, checked).contains("numthreads"), "{label}");
        }
    }
}

/// SPIR-V's `OpArrayLength`.
const ARRAY_LENGTH: u32 = 68;

/// The opcodes of a SPIR-V module: after a header of 5 words, each instruction has its length in the upper half of its
/// first word and its opcode in the lower.
fn instructions(words: &[u32]) -> Vec<u32> {
    let (mut at, mut all) = (5, Vec::new());
    while let Some(word) = words.get(at) {
        all.push(word & 0xffff);
        at += (word >> 16).max(1) as usize;
    }
    all
}

#[test]
fn unchecked_kernels_carry_no_bounds_checks() {
    let kernel = MatrixKernel {
        op: Op::GateUp,
        weights: Weights::Q4K,
        tile: TileRows::One,
        tiling: Tiling { lanes: 4, rows: 8, shared_blocks: false },
    };
    let (module, info) = parse("gate_up", &kernel.source());
    // A check of an index in a buffer asks for the buffer's length first.
    let asks_lengths = |checked| instructions(&spirv(&module, &info, checked)).contains(&ARRAY_LENGTH);
    assert!(asks_lengths(true) && !asks_lengths(false));
}

/// Byte offsets of the members of the module's `Shape`, and its size.
fn shape_layout(module: &naga::Module) -> (Vec<(String, u32)>, u32) {
    let shape = module.types.iter().find(|(_, ty)| ty.name.as_deref() == Some("Shape")).expect("a Shape").1;
    let naga::TypeInner::Struct { members, span } = &shape.inner else { panic!("Shape is a struct") };
    (members.iter().map(|m| (m.name.clone().expect("a name"), m.offset)).collect(), *span)
}

macro_rules! offsets {
    ($ty:ty: $($field:ident),+) => {
        (
            vec![$((stringify!($field).to_owned(), std::mem::offset_of!($ty, $field) as u32)),+],
            size_of::<$ty>() as u32,
        )
    };
}

#[test]
fn parameters_lie_in_memory_as_the_shaders_read_them() {
    let module = |weights| {
        let tiling = Tiling { lanes: 4, rows: 4, shared_blocks: false };
        let kernel = MatrixKernel { op: Op::Down, weights, tile: TileRows::One, tiling };
        parse("down", &kernel.source()).0
    };
    let exact = offsets!(ExactShape: outer_blocks, inner_blocks, inner_rows, outer_rows, up_at, down_at,
        gate_exponents_at, up_exponents_at, down_exponents_at, status_at, pad_a, pad_b);
    assert_eq!(shape_layout(&module(Weights::Q4K)), exact);
    assert_eq!(shape_layout(&parse("quantise", &quantise_source()).0), exact);
    let float = offsets!(FloatShape: outer_vec4s, inner_vec4s, hidden_vec4s, inner_row_vec4s, inner_rows, outer_rows,
        up_at, down_at);
    assert_eq!(shape_layout(&module(Weights::Bf16)), float);
}
