//! Runs with many faults: a thousand here, more than ten thousand in `make soak`.

use skytether_scheduler::query::Policy;
use skytether_sim::chaos::{check, must_answer, scenario};
use skytether_sim::fleet::Outcome;
use skytether_sim::parallel::{parallel, soak};

/// Runs of `make soak`: ten thousand of them are answered. Of the others every reader of some slice died.
const SOAK: usize = 10_600;

/// Runs of `make test`, the first of the same seeds.
const QUICK: usize = 1_000;

/// An error may only blame a drive that never comes back, for a slice that only such drives have.
#[test]
fn every_run_answers_right_or_blames_a_doomed_drive() {
    let all = if soak() { SOAK } else { QUICK };
    // What the soak shows at least, for this number of runs; a third less of a sample, which varies.
    let least = |of_soak: usize| if soak() { of_soak } else { of_soak * all / SOAK * 2 / 3 };
    let runs: Vec<(u64, Result<Outcome, String>)> = parallel(all, |seed| (seed as u64, check(seed as u64, false)));
    let wrong: Vec<&String> = runs.iter().filter_map(|(_, run)| run.as_ref().err()).collect();
    assert!(wrong.is_empty(), "{} of {all} runs are wrong: {:#?}", wrong.len(), &wrong[..wrong.len().min(12)]);

    // The runs show what they are to show.
    let right: Vec<(u64, &Outcome)> = runs.iter().filter_map(|(seed, run)| Some((*seed, run.as_ref().ok()?))).collect();
    let count = |what: &dyn Fn(u64, &Outcome) -> bool| right.iter().filter(|(seed, run)| what(*seed, run)).count();
    let lost_causes = count(&|seed, run| !must_answer(&scenario(seed).0, &run.readers));
    let answered = count(&|_, run| run.answer.is_some());
    assert!(answered + lost_causes >= all && lost_causes < all / 20, "{answered} answered, {lost_causes} may fail");
    assert!(answered >= least(10_000), "{answered} answered");
    assert!(all - answered > least(50), "some must fail, and name who is lost: {answered} answered");
    let survived = count(&|seed, run| run.answer.is_some() && scenario(seed).0.drives.iter().any(|drive| drive.kills.iter().any(|(at, _)| *at < run.end)));
    let without = count(&|seed, run| {
        run.answer.is_some() && scenario(seed).0.drives.iter().any(|drive| drive.kills.iter().any(|(at, back)| *at < run.end && back.is_none()))
    });
    let alone = count(&|seed, run| run.answer.is_some() && scenario(seed).0.copies == 0.0);
    let fed = count(&|seed, _| scenario(seed).0.fed);
    let dropped: usize = right.iter().map(|(_, run)| run.epochs.1).sum();
    let of = |what: fn(&Outcome) -> usize| right.iter().filter(|(_, run)| what(run) > 0).count();
    let told = [of(|run| run.told.refused), of(|run| run.told.stopped), of(|run| run.told.garbage), of(|run| run.told.stuck)];
    println!(
        "{answered} answered, {lost_causes} may fail; {survived} outlived a kill, {without} one for good; {alone} with one reader a slice; {fed} fed; {dropped} epochs dropped"
    );
    println!("refused, stopped, garbage, stuck in {told:?} runs");
    assert!(survived > least(2_000), "{survived} answered although a drive died before");
    assert!(without > least(300), "{without} answered although a drive died before and never came back");
    assert!(alone > least(2_500), "{alone} answered with one reader for each slice");
    assert!(fed > least(2_000), "{fed} fed by a level above");
    assert!(dropped > least(1_000), "{dropped} late, double or overlapping epochs");
    assert!(told.iter().all(|runs| *runs > least(300)), "refused, stopped, garbage, stuck in so many runs: {told:?}");
}

#[test]
fn run_follows_from_its_seed() {
    for seed in [3, 77, 4242] {
        assert_eq!(check(seed, false).map(|run| (run.end, run.events, run.epochs)), check(seed, false).map(|run| (run.end, run.events, run.epochs)));
    }
    assert!((0..50).any(|seed| scenario(seed).2 == Policy::Adaptive));
}
