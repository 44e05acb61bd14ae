//! Exact experts with criterion: one row and eight rows, Q4_K, every CPU path of this machine.

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use kvasir::kernel::bench::{BenchOptions, Workload};
use kvasir::kernel::{CpuKernel, CpuPath, ExpertCompute};
use kvasir::model::BlockType;

fn experts(criterion: &mut Criterion) {
    let options = BenchOptions::default();
    let host = CpuKernel::new(CpuPath::Portable, 1).expect("a thread");
    let mut workload = Workload::new(BlockType::Q4_K, &options, &host).expect("synthetic experts");
    for path in CpuPath::supported() {
        for rows in [1, 8] {
            let kernel = CpuKernel::new(path, 2).expect("threads");
            let parts: Vec<_> = (0..options.experts).map(|_| [workload.next(rows)]).collect();
            let mut turns = parts.iter().cycle();
            criterion.bench_function(&format!("{path}, {rows} rows, 8 experts each"), |bencher| {
                bencher.iter(|| {
                    let part = turns.next().expect("an endless cycle");
                    black_box(kernel.compute(workload.experts(), 0, part).expect("a legal request"))
                });
            });
        }
    }
}

criterion_group!(benches, experts);
criterion_main!(benches);
