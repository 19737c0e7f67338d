//! How long the pure parts take: `cargo bench --package garm-bench`.

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use garm_bench::Workload;

fn pure(criterion: &mut Criterion) {
    for workload in Workload::all() {
        let mut group = criterion.benchmark_group(workload.name);
        group.throughput(Throughput::Elements(workload.elements));
        group.bench_function("run", |bencher| {
            bencher.iter(|| assert!(workload.run(), "it did not come to what it should"));
        });
        group.finish();
    }
}

criterion_group!(benches, pure);
criterion_main!(benches);
