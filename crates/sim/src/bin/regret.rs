//! `regret grid|equal|point|chaos`: the grid of issue 4, the curve of slow drives against one host, single points, single seeds.

use skytether_sim::grid::{Ground, measure_all, points, summary};

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.first().is_some_and(|word| word == "chaos") {
        let seed = arguments.get(1).and_then(|text| text.parse().ok()).unwrap_or(0);
        println!("{:?}", skytether_sim::chaos::check(seed, true));
        return;
    }
    if arguments.first().is_some_and(|word| word == "point") {
        let ground = Ground::default();
        for point in points() {
            let name = format!("{}/{}/{}/{}/{:?}", point.work.name, point.slower, point.gbit, point.drives, point.load);
            if arguments.get(1) == Some(&name) {
                let row = skytether_sim::grid::measure(&point, &ground, true);
                println!("{name} {:?} {} {:?}", row.fixed, row.adaptive, row.outcome.slices);
            }
        }
        return;
    }
    let every: usize = arguments.first().and_then(|text| text.parse().ok()).unwrap_or(1);
    let ground = Ground { seed: arguments.get(1).and_then(|text| text.parse().ok()).unwrap_or(1), ..Ground::default() };
    let points: Vec<_> = points().into_iter().step_by(every).collect();
    let began = std::time::Instant::now();
    let mut rows = measure_all(&points, &ground);
    println!("{:?} in {:.1} s, {} points", summary(&rows), began.elapsed().as_secs_f64(), rows.len());
    rows.sort_by(|a, b| b.regret().total_cmp(&a.regret()));
    for row in rows.iter().take(40) {
        println!(
            "{:14} {:3}x {:4} Gb/s {:2} drives {:14} full {:8.3} filter {:8.3} raw {:8.3} adaptive {:8.3} regret {:6.1}% {:?} epochs {:?}",
            row.point.work.name,
            row.point.slower,
            row.point.gbit,
            row.point.drives,
            format!("{:?}", row.point.load),
            row.fixed[0],
            row.fixed[1],
            row.fixed[2],
            row.adaptive,
            row.regret() * 100.0,
            row.outcome.slices,
            row.outcome.epochs
        );
    }
}
