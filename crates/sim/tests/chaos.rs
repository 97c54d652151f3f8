//! More than ten thousand runs to which a lot happens.

use skytether_adapt::query::Policy;
use skytether_sim::chaos::{check, must_answer, scenario};
use skytether_sim::fleet::Outcome;
use skytether_sim::parallel::parallel;

/// So many that ten thousand of them are answered: of the others every reader of some slice died.
const RUNS: usize = 10_600;

#[test]
fn every_run_ends_with_the_right_answer_but_for_those_whose_slices_died_with_their_drives() {
    let runs: Vec<(u64, Result<Outcome, String>)> = parallel(RUNS, |seed| (seed as u64, check(seed as u64, false)));
    let wrong: Vec<&String> = runs.iter().filter_map(|(_, run)| run.as_ref().err()).collect();
    assert!(wrong.is_empty(), "{} of {RUNS} runs are wrong: {:#?}", wrong.len(), &wrong[..wrong.len().min(12)]);

    // The runs show what they are to show.
    let right: Vec<(u64, &Outcome)> = runs.iter().filter_map(|(seed, run)| Some((*seed, run.as_ref().ok()?))).collect();
    let count = |what: &dyn Fn(u64, &Outcome) -> bool| right.iter().filter(|(seed, run)| what(*seed, run)).count();
    let lost_causes = count(&|seed, run| !must_answer(&scenario(seed).0, &run.readers));
    let answered = count(&|_, run| run.answer.is_some());
    assert!(answered + lost_causes >= RUNS && lost_causes < RUNS / 20, "{answered} answered, {lost_causes} may fail");
    assert!(answered >= 10_000, "{answered} answered");
    assert!(RUNS - answered > 50, "some must fail, and name who is lost: {answered} answered");
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
    assert!(survived > 2_000, "{survived} answered although a drive died before");
    assert!(without > 300, "{without} answered although a drive died before and never came back");
    assert!(alone > 2_500, "{alone} answered with one reader for each slice");
    assert!(fed > 2_000, "{fed} fed by a level above");
    assert!(dropped > 1_000, "{dropped} late, double or overlapping epochs");
    assert!(told.iter().all(|runs| *runs > 300), "refused, stopped, garbage, stuck in so many runs: {told:?}");
}

#[test]
fn a_run_follows_from_its_seed() {
    for seed in [3, 77, 4242] {
        assert_eq!(check(seed, false).map(|run| (run.end, run.events, run.epochs)), check(seed, false).map(|run| (run.end, run.events, run.epochs)));
    }
    assert!((0..50).any(|seed| scenario(seed).2 == Policy::Adaptive));
}
