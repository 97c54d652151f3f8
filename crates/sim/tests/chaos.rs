//! Ten thousand runs to which a lot happens.

use skytether_adapt::query::Policy;
use skytether_sim::chaos::{check, scenario};
use skytether_sim::fleet::Outcome;
use skytether_sim::parallel::parallel;

const RUNS: usize = 10_000;

fn all(seeds: usize) -> Vec<(u64, Result<Outcome, String>)> {
    parallel(seeds, |seed| (seed as u64, check(seed as u64, false)))
}

#[test]
fn every_run_ends_with_the_right_answer_or_names_a_lost_drive() {
    let runs = all(RUNS);
    let wrong: Vec<&String> = runs.iter().filter_map(|(_, run)| run.as_ref().err()).collect();
    assert!(wrong.is_empty(), "{} of {RUNS} runs are wrong: {:#?}", wrong.len(), &wrong[..wrong.len().min(12)]);

    // The runs show what they are to show.
    let right: Vec<&Outcome> = runs.iter().filter_map(|(_, run)| run.as_ref().ok()).collect();
    let answered = right.iter().filter(|run| run.answer.is_some()).count();
    let dropped: usize = right.iter().map(|run| run.epochs.1).sum();
    let survived = runs
        .iter()
        .filter(|(seed, run)| {
            run.as_ref().is_ok_and(|run| run.answer.is_some()) && scenario(*seed).0.drives.iter().any(|drive| drive.kills.iter().any(|(at, _)| *at < 0.05))
        })
        .count();
    assert!(answered > 6_000, "{answered} answered");
    assert!(survived > 1_000, "{survived} answered although a drive died early");
    assert!(dropped > 1_000, "{dropped} late, double or overlapping epochs");
}

#[test]
fn a_run_follows_from_its_seed() {
    for seed in [3, 77, 4242] {
        assert_eq!(check(seed, false).map(|run| (run.end, run.events, run.epochs)), check(seed, false).map(|run| (run.end, run.events, run.epochs)));
    }
    assert!((0..50).any(|seed| scenario(seed).2 == Policy::Adaptive));
}
