//! The state machine of a parent, message by message. Whole runs are in `skytether-sim`.

use std::collections::{BTreeMap, VecDeque};

use skytether_scheduler::ledger::Dropped;
use skytether_scheduler::message::{Completed, CseId, Down, EpochId, Order, PushdownLevel, Slice, SliceCost, SliceId, Up, Why};
use skytether_scheduler::profile::Profile;
use skytether_scheduler::query::{Action, Event, Limits, Policy, Query, Setup};
use skytether_scheduler::work::{Kind, Operator, Output, PRIORS, Work};

const ROWS: u32 = 65_536;

/// Bits per second of a link so slow for slices that drives rather process them.
const THIN: f64 = 1e7;

/// A query, and what it did in its first ten milliseconds, of `copies.len()` drives with one core each like the host's;
/// slice n of drive d is 100 d + n, and `copies[d]` can read it, too.
fn query(policy: Policy, slices: u32, copies: &[Option<u32>], retries: u32, link_bits_per_s: f64) -> (Query<u32>, Vec<Action<u32>>) {
    let profile =
        Profile { speed_per_core: 1.0, cores: 1, memory_bytes: 1 << 30, disk_bytes_per_s: 1e9, disk_seek_s: 0.0, link_bits_per_s, link_latency_s: 0.0 };
    let mut query = Query::new(Setup {
        work: Work {
            lower: vec![Operator { kind: Kind::Decode, units_per_row: 24.0 }],
            upper: vec![Operator { kind: Kind::HashAggregate { groups: 10.0 }, units_per_row: 1.0 }],
            filtered: Output::Rows { per_row: 1.0, bytes_per_row: 16.0 },
            result: Output::Groups { groups: 10.0, bytes_per_group: 32.0 },
        },
        host: profile,
        cses: vec![profile; copies.len()],
        policy,
        limits: Limits { retries, silence: 1.0, pause: 0.1, ..Limits::default() },
        priors: PRIORS,
        kinds: Vec::new(),
        fed: false,
    });
    let mut actions = Vec::new();
    for (at, copy) in copies.iter().enumerate() {
        let at = at as u32;
        let readers: Vec<CseId> = [at].into_iter().chain(*copy).map(CseId).collect();
        let slices = (0..slices).map(|n| Slice { id: SliceId(100 * at + n), rows: ROWS, bytes: 1 << 20, readers: readers.clone() }).collect();
        actions.extend(query.handle(0.0, Event::Surveyed { cse: CseId(at), slices }));
    }
    actions.extend(wait(&mut query, 0.01));
    (query, actions)
}

/// Time passes until `until`; all actions on the way.
fn wait(query: &mut Query<u32>, until: f64) -> Vec<Action<u32>> {
    let mut all = Vec::new();
    while let Some(wake) = query.wake().filter(|wake| *wake <= until) {
        all.extend(query.handle(wake, Event::Tick));
    }
    all
}

/// The epochs that were opened: drive, epoch, rung, slices.
fn opened(actions: &[Action<u32>]) -> Vec<(u32, EpochId, PushdownLevel, Vec<u32>)> {
    let open = actions.iter().filter_map(|action| match action {
        Action::Send { cse, down: Down { epoch, order: Order::Open { rung, slices, .. }, .. } } => {
            Some((cse.0, *epoch, *rung, slices.iter().map(|slice| slice.0).collect()))
        }
        _ => None,
    });
    open.collect()
}

fn up(cse: u32, up: Up) -> Event<u32> {
    Event::Up { cse: CseId(cse), up }
}

fn end(epoch: EpochId, rung: PushdownLevel, slices: &[u32]) -> Up {
    let slices = slices.iter().map(|slice| SliceId(*slice)).collect();
    Up::EpochDone(Completed { epoch, rung, slices, batches: 0, rows: 10, bytes: 320, cpu: 0.01, wall: 0.01, bytes_read: 0 })
}

#[test]
fn static_policy_keeps_its_level_and_ends_once() {
    for rung in [PushdownLevel::Full, PushdownLevel::Filter, PushdownLevel::Raw] {
        let (mut query, mut actions) = query(Policy::Static(rung), 3, &[None], 2, THIN);
        let mut finished = 0;
        let mut open = opened(&actions);
        assert!(!open.is_empty());
        while let Some((_, epoch, at, slices)) = open.pop() {
            assert_eq!(at, rung);
            actions = query.handle(0.02, up(0, end(epoch, at, &slices)));
            assert!(actions.iter().any(|action| matches!(action, Action::Count { .. })), "{actions:?}");
            finished += actions.iter().filter(|action| matches!(action, Action::Finish)).count();
            actions.extend(wait(&mut query, 0.1));
            open.extend(opened(&actions));
        }
        assert_eq!((finished, query.ended(), query.wake()), (1, true, None));
        assert_eq!(query.handle(1.0, Event::Tick), []);
    }
}

/// Nothing else is opened at full pushdown until the number of groups is known.
#[test]
fn probe_for_the_number_of_groups_takes_one_slice_per_core() {
    let (mut query, actions) = query(Policy::Adaptive, 100, &[None], 2, 0.1 * THIN);
    let [(0, epoch, PushdownLevel::Full, slices)] = &opened(&actions)[..] else { panic!("{actions:?}") };
    assert_eq!(slices.len(), 1);
    assert!(actions.iter().any(|action| matches!(action, Action::Send { down: Down { order: Order::Close { drain: true }, .. }, .. })), "{actions:?}");
    let later = wait(&mut query, 0.015);
    assert_eq!(opened(&later), [], "nothing before that is known");
    let mut actions = query.handle(0.02, up(0, end(*epoch, PushdownLevel::Full, slices)));
    actions.extend(wait(&mut query, 0.04));
    assert!(opened(&actions).iter().any(|(_, _, rung, more)| *rung == PushdownLevel::Full && more.len() > 1), "{actions:?}");
}

/// One drive has reported its number of groups. The probe of another one is cancelled if states are as many as rows,
/// and goes on if they are few.
#[test]
fn second_probe_is_cancelled_where_that_saves_time() {
    for (states, stops) in [(10, false), (ROWS, true)] {
        let (mut query, actions) = query(Policy::Adaptive, 100, &[None, None], 2, 0.1 * THIN);
        let [(first, epoch, PushdownLevel::Full, slices), (other, its, PushdownLevel::Full, _)] = &opened(&actions)[..] else { panic!("{actions:?}") };
        // It plans then, and not again within two milliseconds for any other reason.
        query.handle(0.0195, up(*other, beat(*its, &[(100 * *other, 0.001)])));
        let found = Completed {
            epoch: *epoch,
            rung: PushdownLevel::Full,
            slices: slices.iter().map(|slice| SliceId(*slice)).collect(),
            batches: 0,
            rows: u64::from(states),
            bytes: 32 * u64::from(states),
            cpu: 0.01,
            wall: 0.01,
            bytes_read: 0,
        };
        let mut actions = query.handle(0.02, up(*first, Up::EpochDone(found)));
        // With the next plan, not with the one after that: nothing is begun by the one that knew nothing of it.
        let begun = opened(&actions);
        assert_eq!(begun.iter().any(|(_, _, rung, _)| *rung == PushdownLevel::Full), !stops, "{states}: {begun:?}");
        actions.extend(wait(&mut query, 0.03));
        let cancelled =
            |action: &Action<u32>| matches!(action, Action::Send { cse, down: Down { epoch, order: Order::Cancel, .. } } if (cse.0, epoch) == (*other, its));
        assert_eq!(actions.iter().any(cancelled), stops, "{states}: {actions:?}");
    }
}

#[test]
fn refusal_names_the_next_pushdown_level() {
    let (mut query, actions) = query(Policy::Adaptive, 100, &[None], 2, THIN);
    let first = opened(&actions).into_iter().find(|(_, _, rung, _)| *rung == PushdownLevel::Full).unwrap();
    let mut actions = query.handle(0.02, up(0, Up::Refused { epoch: first.1, accepts: Some(PushdownLevel::Filter), again: 0.5, why: Why::Memory }));
    actions.extend(wait(&mut query, 0.4));
    let then = opened(&actions);
    assert!(!then.is_empty() && then.iter().all(|(_, _, rung, _)| *rung <= PushdownLevel::Filter), "{then:?}");
    assert!(then.iter().any(|(_, _, _, slices)| slices.contains(&first.3[0])), "what was refused is asked again: {then:?}");
    // The query waits for the named time, and then orders all of it again.
    for (_, epoch, rung, slices) in then {
        query.handle(0.41, up(0, end(epoch, rung, &slices)));
    }
    let before = opened(&wait(&mut query, 0.51));
    assert!(before.iter().all(|(_, _, rung, _)| *rung <= PushdownLevel::Filter), "{before:?}");
    let mut full = false;
    let mut open = before;
    for step in 0..40 {
        let now = 0.52 + 0.01 * f64::from(step);
        let mut more = Vec::new();
        for (_, epoch, rung, slices) in std::mem::take(&mut open) {
            full |= rung == PushdownLevel::Full;
            more.extend(query.handle(now, up(0, end(epoch, rung, &slices))));
        }
        more.extend(wait(&mut query, now + 0.009));
        open = opened(&more);
    }
    assert!(full, "nothing more is ever asked of it than it took once");
}

#[test]
fn refused_static_level_falls_back_to_the_accepted_one() {
    let (mut query, mut actions) = query(Policy::Static(PushdownLevel::Full), 4, &[None], 2, THIN);
    for (now, asked, takes) in [(0.02, PushdownLevel::Full, PushdownLevel::Filter), (0.12, PushdownLevel::Filter, PushdownLevel::Raw)] {
        let (_, epoch, rung, slices) = opened(&actions)[0].clone();
        assert_eq!(rung, asked);
        actions = query.handle(now, up(0, Up::Refused { epoch, accepts: Some(takes), again: 0.5, why: Why::Memory }));
        actions.extend(wait(&mut query, now + 0.05));
        let then = opened(&actions);
        assert!(then.iter().any(|(_, _, _, again)| again.contains(&slices[0])) && then.iter().all(|(_, _, rung, _)| *rung == takes), "{then:?}");
    }
}

/// The load of one drive of two rises by twenty and falls again. Slices are revoked from it, and later given to it.
#[test]
fn busy_drive_loses_work_and_regains_it_when_idle() {
    let (mut query, mut actions) = query(Policy::Adaptive, 400, &[None, None], 2, 3e9);
    let mut queues: BTreeMap<u32, (EpochId, VecDeque<u32>)> = BTreeMap::new();
    let (mut taken, mut done) = ([0; 3], [0; 3]);
    // Drive 0 is idle, so busy that sending raw is faster, and idle again. A slice takes a drive a millisecond, times
    // its load.
    for step in 0..240 {
        let (phase, now) = (step / 80, 0.01 + 0.001 * step as f64);
        let load = if phase == 1 { 20 } else { 1 };
        let mut answers = Vec::new();
        for action in &actions {
            let Action::Send { cse, down: Down { epoch, number, order } } = action else { continue };
            match order {
                // Links are quick.
                Order::Open { rung: PushdownLevel::Raw, slices, .. } => {
                    answers.push((cse.0, end(*epoch, PushdownLevel::Raw, &slices.iter().map(|slice| slice.0).collect::<Vec<_>>())))
                }
                Order::Open { slices, .. } => drop(queues.insert(cse.0, (*epoch, slices.iter().map(|slice| slice.0).collect()))),
                Order::Feed { slices } => queues.get_mut(&cse.0).unwrap().1.extend(slices.iter().map(|slice| slice.0)),
                Order::Take { slices } => {
                    taken[phase] += slices.len();
                    let queue = &mut queues.get_mut(&cse.0).unwrap().1;
                    let (gives, keeps) = queue.iter().partition(|slice| slices.contains(&SliceId(**slice)));
                    *queue = keeps;
                    let gives: VecDeque<u32> = gives;
                    answers.push((cse.0, Up::Taken { epoch: *epoch, number: *number, slices: gives.into_iter().map(SliceId).collect() }));
                }
                _ => {}
            }
        }
        actions = answers.into_iter().flat_map(|(cse, answer)| query.handle(now, up(cse, answer))).collect();
        for (cse, (epoch, queue)) in &mut queues {
            let load = if *cse == 0 { load } else { 1 };
            let over: Vec<u32> = if step % load == 0 { queue.pop_front().into_iter().collect() } else { Vec::new() };
            done[phase] += if *cse == 0 { over.len() } else { 0 };
            let costs = over.into_iter().map(|slice| SliceCost { slice: SliceId(slice), cpu: 0.001, rows_out: 0, bytes_out: 0 }).collect();
            let waits = queue.is_empty();
            let says = Up::Progress { epoch: *epoch, done: costs, running: vec![], load: load as f64, waits, pending_rows: 10, pending_bytes: 320, slack: 0.0 };
            actions.extend(query.handle(now, up(*cse, says)));
        }
        actions.extend(wait(&mut query, now));
    }
    assert!(taken[0] == 0 && taken[1] > 0, "{taken:?} taken");
    assert!(done[0] > 40 && done[1] < 10 && done[2] > 40, "{done:?} done there");
}

#[test]
fn drive_that_refuses_everything_for_long_is_given_up() {
    let (mut query, mut actions) = query(Policy::Adaptive, 2, &[None], 2, THIN);
    let mut now = 0.01;
    while !query.ended() {
        now += 1.0;
        assert!(now < 100.0, "it asks for ever");
        let mut next = Vec::new();
        for (cse, epoch, _, _) in opened(&actions) {
            next.extend(query.handle(now, up(cse, Up::Refused { epoch, accepts: None, again: 0.5, why: Why::Memory })));
        }
        next.extend(wait(&mut query, now + 0.9));
        actions = next;
    }
    assert!(actions.iter().any(|action| matches!(action, Action::Fail { cse: CseId(0), .. })), "{actions:?}");
}

/// The copy runs the slices of the silent drive. An end that the drive sends afterwards counts for nothing.
#[test]
fn silent_drive_fails_over_to_its_copy_and_late_ends_drop() {
    let (mut query, actions) = query(Policy::Static(PushdownLevel::Full), 2, &[Some(1), None], 0, THIN);
    let first = opened(&actions);
    let (_, epoch, _, slices) = first.iter().find(|(cse, ..)| *cse == 0).unwrap().clone();
    let (_, other, _, theirs) = first.iter().find(|(cse, ..)| *cse == 1).unwrap().clone();
    query.handle(0.5, up(1, end(other, PushdownLevel::Full, &theirs)));
    let then = wait(&mut query, 1.5);
    assert!(then.iter().any(|action| matches!(action, Action::Send { cse: CseId(0), down: Down { order: Order::Cancel, .. } })), "{then:?}");
    let again = opened(&then);
    let moved: Vec<u32> = again.iter().filter(|(cse, ..)| *cse == 1).flat_map(|(_, _, _, slices)| slices.clone()).collect();
    assert!(slices.iter().all(|slice| moved.contains(slice)), "{again:?}");
    let late = query.handle(1.6, up(0, end(epoch, PushdownLevel::Full, &slices)));
    assert!(late.contains(&Action::Dropped { epoch, why: Dropped::Revoked }) && !late.iter().any(|action| matches!(action, Action::Count { .. })), "{late:?}");
}

#[test]
fn silent_drive_without_copy_fails_the_query_by_name() {
    let (mut query, _) = query(Policy::Adaptive, 2, &[None, None], 0, THIN);
    let actions = query.handle(0.1, Event::Lost { cse: CseId(1), again: false });
    assert!(actions.iter().any(|action| matches!(action, Action::Fail { cse: CseId(1), slice: Some(SliceId(100..)) })), "{actions:?}");
    assert!(query.ended());
}

#[test]
fn drive_that_returns_is_asked_again() {
    let (mut query, actions) = query(Policy::Static(PushdownLevel::Full), 2, &[None], 1, THIN);
    let first = opened(&actions);
    assert_eq!(opened(&query.handle(0.02, Event::Lost { cse: CseId(0), again: true })), [], "not at once");
    let again = opened(&wait(&mut query, 0.5));
    assert_eq!(again.len(), first.len());
    assert!(again[0].1 != first[0].1 && again[0].3 == first[0].3, "{again:?}");
}

#[test]
fn corrupt_message_costs_the_epoch_and_a_strike() {
    let (mut query, actions) = query(Policy::Static(PushdownLevel::Full), 2, &[None], 1, THIN);
    let (_, epoch, rung, slices) = opened(&actions)[0].clone();
    let actions = query.handle(0.02, up(0, end(epoch, rung, &[77])));
    assert!(actions.contains(&Action::Dropped { epoch, why: Dropped::Garbage }) && !query.ended(), "{actions:?}");
    let (_, epoch, rung, again) = opened(&wait(&mut query, 0.5))[0].clone();
    assert_eq!(again, slices);
    let actions = query.handle(0.6, up(0, end(epoch, rung, &[77])));
    assert!(actions.iter().any(|action| matches!(action, Action::Fail { cse: CseId(0), .. })), "{actions:?}");
}

#[test]
fn stopped_epoch_returns_slices_that_it_had_not_begun() {
    let (mut query, actions) = query(Policy::Adaptive, 100, &[None], 2, THIN);
    let (_, probe, rung, slices) = opened(&actions).into_iter().find(|(_, _, rung, _)| *rung > PushdownLevel::Raw).unwrap();
    let mut actions = query.handle(0.012, up(0, end(probe, rung, &slices)));
    actions.extend(wait(&mut query, 0.018));
    let (_, epoch, rung, slices) = opened(&actions).into_iter().find(|(_, _, rung, slices)| *rung > PushdownLevel::Raw && slices.len() > 1).unwrap();
    let remaining: Vec<SliceId> = slices[1..].iter().map(|slice| SliceId(*slice)).collect();
    let mut actions = query.handle(0.02, up(0, Up::Stopped { epoch, remaining, accepts: Some(PushdownLevel::Raw), again: 5.0, why: Why::Speed }));
    actions.extend(query.handle(0.021, up(0, end(epoch, rung, &slices[..1]))));
    assert!(actions.iter().any(|action| matches!(action, Action::Count { .. })), "{actions:?}");
    actions.extend(wait(&mut query, 0.2));
    let raw = opened(&actions);
    assert!(!raw.is_empty() && raw.iter().all(|(_, _, rung, _)| *rung == PushdownLevel::Raw), "{raw:?}");
    assert!(raw.iter().any(|(_, _, _, taken)| taken.contains(&slices[1])), "{raw:?}");
}

#[test]
fn last_slices_of_a_stalled_drive_are_hedged() {
    let (mut query, mut actions) = query(Policy::Adaptive, 100, &[None], 2, 1e9);
    let (_, epoch, rung, _) = opened(&actions).into_iter().find(|(_, _, rung, _)| *rung > PushdownLevel::Raw).unwrap();
    let mut now = 0.01;
    let mut begun = Vec::new();
    let mut hedged = false;
    while !query.ended() {
        assert!(now < 20.0, "nobody does {begun:?} again; missing {}", query.ledger().uncovered());
        now += 0.01;
        let mut next = Vec::new();
        for action in std::mem::take(&mut actions) {
            if let Action::Count { epoch, .. } = action {
                next.extend(query.handle(now, Event::Worked { epoch, cpu: 0.004, filtered: None, held: None }));
            }
            let Action::Send { down: Down { epoch: it, number, order }, .. } = action else { continue };
            let answer = match order {
                // Raw slices come at once; slices that the drive processes itself never end.
                Order::Open { rung: PushdownLevel::Raw, slices, .. } => {
                    let slices: Vec<u32> = slices.iter().map(|slice| slice.0).collect();
                    hedged |= slices.iter().any(|slice| begun.contains(slice));
                    end(it, PushdownLevel::Raw, &slices)
                }
                Order::Open { slices, .. } | Order::Feed { slices } if it == epoch => {
                    begun.extend(slices.iter().map(|slice| slice.0));
                    let running = begun.iter().map(|slice| (SliceId(*slice), 1e-4)).collect();
                    Up::Progress { epoch, done: vec![], running, load: 500.0, waits: false, pending_rows: 0, pending_bytes: 0, slack: 0.0 }
                }
                Order::Take { .. } => Up::Taken { epoch: it, number, slices: vec![] },
                _ => continue,
            };
            next.extend(query.handle(now, up(0, answer)));
        }
        let running = begun.iter().map(|slice| (SliceId(*slice), 1e-4)).collect();
        next.extend(
            query.handle(now, up(0, Up::Progress { epoch, done: vec![], running, load: 500.0, waits: false, pending_rows: 0, pending_bytes: 0, slack: 0.0 })),
        );
        next.extend(wait(&mut query, now + 0.009));
        actions = next;
    }
    assert!(hedged && rung > PushdownLevel::Raw && actions.contains(&Action::Finish), "{actions:?}");
}

#[test]
fn paused_parent_misses_no_message_and_sends_no_order() {
    let (mut query, actions) = query(Policy::Static(PushdownLevel::Full), 2, &[None], 0, THIN);
    let [(0, epoch, PushdownLevel::Full, _)] = &opened(&actions)[..] else { panic!("{actions:?}") };
    // Three times the longest permitted silence. One strike would be the end.
    let mut now = 0.01;
    while now < 3.0 {
        let actions = query.handle(now, Event::Alive { cse: CseId(0), epoch: None });
        assert_eq!(actions, [], "at {now}");
        let wake = query.wake().unwrap();
        assert!(wake > now, "it asks to be called at once, again and again");
        assert_eq!(wait(&mut query, wake - 1e-6), []);
        now = wake;
    }
    let mut actions = wait(&mut query, 3.5);
    let slices: Vec<u32> = (0..2).collect();
    actions.extend(query.handle(3.5, up(0, end(*epoch, PushdownLevel::Full, &slices))));
    assert!(actions.contains(&Action::Finish), "{actions:?}");
}

#[test]
fn slices_that_wait_for_their_turn_do_not_count_as_lost() {
    let (mut query, actions) = query(Policy::Static(PushdownLevel::Raw), 6, &[None], 0, 0.6 * THIN);
    let first = opened(&actions);
    assert!(first.len() > 1 && first.iter().all(|open| open.2 == PushdownLevel::Raw), "{actions:?}");
    // Each takes 1.4 seconds through this link, and a drive may be silent for one.
    let mut epochs = first;
    let mut finished = false;
    for turn in 1..=6 {
        let now = 1.4 * f64::from(turn);
        let before = wait(&mut query, now);
        assert!(!before.iter().any(|action| matches!(action, Action::Fail { .. })), "{before:?}");
        epochs.extend(opened(&before));
        let (_, epoch, rung, slices) = epochs.remove(0);
        let actions = query.handle(now, Event::Batch { cse: CseId(0), epoch, number: 0, bytes: 1 << 20, batch: 7 });
        epochs.extend(opened(&actions));
        let Up::EpochDone(done) = end(epoch, rung, &slices) else { unreachable!() };
        let actions = query.handle(now, up(0, Up::EpochDone(Completed { batches: 1, ..done })));
        finished |= actions.contains(&Action::Finish);
        epochs.extend(opened(&actions));
        epochs.extend(opened(&query.handle(now, Event::Worked { epoch, cpu: 5e-3, filtered: None, held: None })));
    }
    assert!(finished);
    // A drive that sends no raw slice at all is found out as well.
    let (mut silent, _) = self::query(Policy::Static(PushdownLevel::Raw), 6, &[None], 0, THIN);
    assert!(wait(&mut silent, 60.0).iter().any(|action| matches!(action, Action::Fail { .. })));
}

/// A sign of life of an epoch.
fn beat(epoch: EpochId, running: &[(u32, f64)]) -> Up {
    let running = running.iter().map(|(slice, cpu)| (SliceId(*slice), *cpu)).collect();
    Up::Progress { epoch, done: vec![], running, load: 1.0, waits: false, pending_rows: 0, pending_bytes: 0, slack: 0.0 }
}

/// All actions if drive 0 sends `says` of `epoch` every 50 ms from `from` until `until`, and the time when it was found
/// to be stuck.
fn beats(query: &mut Query<u32>, from: f64, until: f64, says: impl Fn(f64) -> Up) -> (Vec<Action<u32>>, Option<f64>) {
    let (mut all, mut now, mut stuck) = (Vec::new(), from, None);
    while now < until && !query.ended() {
        let mut actions = query.handle(now, up(0, says(now)));
        now += 0.05;
        actions.extend(wait(query, now));
        if actions.iter().any(|action| matches!(action, Action::Stuck { cse: CseId(0), .. })) {
            stuck.get_or_insert(now);
        }
        all.extend(actions);
    }
    (all, stuck)
}

/// What was opened at drive 0, of two, once the other one is done with its own.
fn first_and_the_other_done(query: &mut Query<u32>, actions: &[Action<u32>]) -> (u32, EpochId, PushdownLevel, Vec<u32>) {
    let mut first = None;
    let mut open = opened(actions);
    while let Some((cse, epoch, rung, slices)) = open.pop() {
        if cse == 0 {
            first = Some((cse, epoch, rung, slices));
        } else {
            open.extend(opened(&query.handle(0.015, up(cse, end(epoch, rung, &slices)))));
            open.extend(opened(&wait(query, 0.02)).into_iter().filter(|(cse, ..)| *cse != 0));
        }
    }
    first.unwrap()
}

/// With a copy its slices move there. Without one the query fails within two seconds.
#[test]
fn stalled_drive_is_given_up_despite_heartbeats() {
    for policy in [Policy::Static(PushdownLevel::Full), Policy::Adaptive] {
        let (mut query, actions) = query(policy, 2, &[Some(1), None], 2, THIN);
        let (_, epoch, _, slices) = first_and_the_other_done(&mut query, &actions);
        let (actions, stuck) = beats(&mut query, 0.03, 1.9, |_| beat(epoch, &[(slices[0], 0.001)]));
        assert!(stuck.is_some_and(|at| at > 1.0), "{policy:?}: {stuck:?}");
        assert!(opened(&actions).iter().any(|(cse, _, _, moved)| *cse == 1 && moved.contains(&slices[0])), "{policy:?}: its copy does it: {actions:?}");
        // Without another reader, the query fails soon.
        let (mut query, actions) = self::query(policy, 2, &[None], 0, THIN);
        let (_, epoch, _, slices) = opened(&actions)[0].clone();
        let (actions, stuck) = beats(&mut query, 0.02, 60.0, |_| beat(epoch, &[(slices[0], 0.001)]));
        assert!(stuck.is_some_and(|at| at < 2.0), "{policy:?}: {stuck:?}");
        assert!(actions.iter().any(|action| matches!(action, Action::Fail { cse: CseId(0), .. })), "{policy:?}: {actions:?}");
    }
}

#[test]
fn drive_that_works_or_waits_for_its_turn_is_not_stalled() {
    let first = || {
        let (query, actions) = query(Policy::Static(PushdownLevel::Full), 2, &[None], 0, THIN);
        let (_, epoch, _, slices) = opened(&actions)[0].clone();
        (query, epoch, slices)
    };
    // However slowly: a slice that takes a minute.
    let (mut query, epoch, slices) = first();
    let (_, stuck) = beats(&mut query, 0.02, 60.0, |now| beat(epoch, &[(slices[0], now / 1000.0)]));
    assert_eq!((stuck, query.ended()), (None, false));
    // Whose cores others have: some time, and not for ever.
    let (mut query, epoch, _) = first();
    let (_, stuck) = beats(&mut query, 0.02, 100.0, |_| beat(epoch, &[]));
    assert!(stuck.is_some_and(|at| at > 20.0 && at < 40.0), "{stuck:?}");
    // A drive that reports to wait, although it was given slices, has missed an order.
    let (mut query, epoch, _) = first();
    let missed = move |_| Up::Progress { epoch, done: vec![], running: vec![], load: 1.0, waits: true, pending_rows: 0, pending_bytes: 0, slack: 0.0 };
    assert!(beats(&mut query, 0.02, 100.0, missed).1.is_some_and(|at| at < 2.0));
    // An aggregator reports that its own drives may take this long.
    let (mut query, epoch, slices) = first();
    let running = vec![(SliceId(slices[0]), 0.001)];
    let patient =
        move |_| Up::Progress { epoch, done: vec![], running: running.clone(), load: 1.0, waits: false, pending_rows: 0, pending_bytes: 0, slack: 10.0 };
    let stuck = beats(&mut query, 0.02, 100.0, patient).1;
    assert!(stuck.is_some_and(|at| at > 11.0 && at < 12.0), "{stuck:?}");
}

/// Two epochs of one drive share its stream. While rows of one arrive, the other one makes no progress and is not
/// blamed.
#[test]
fn lanes_blocked_behind_rows_of_other_lanes_are_not_stalled() {
    // Two epochs of one drive: of one rows come, the other waits.
    let (mut query, actions) = query(Policy::Static(PushdownLevel::Filter), 400, &[None], 0, 1e9);
    let mut open = opened(&actions);
    let mut now = 0.01;
    while open.len() < 2 {
        now += 0.005;
        let (_, epoch, _, slices) = open[0].clone();
        let done = slices.iter().map(|slice| SliceCost { slice: SliceId(*slice), cpu: 0.001, rows_out: 10, bytes_out: 160 }).collect();
        let actions =
            query.handle(now, up(0, Up::Progress { epoch, done, running: vec![], load: 1.0, waits: false, pending_rows: 0, pending_bytes: 0, slack: 0.0 }));
        for action in actions.iter().chain(&wait(&mut query, now)) {
            if let Action::Send { down: Down { epoch: it, order: Order::Feed { slices }, .. }, .. } = action
                && *it == epoch
            {
                open[0].3.extend(slices.iter().map(|slice| slice.0));
            }
        }
        open.extend(opened(&actions));
        assert!(now < 5.0, "no second epoch: {open:?}");
    }
    let (waits, gives) = (open[1].clone(), open[0].1);
    let (mut number, from, mut stuck) = (0, now, None);
    while now < from + 100.0 && stuck.is_none() {
        now += 0.05;
        let mut actions = query.handle(now, Event::Batch { cse: CseId(0), epoch: gives, number, bytes: 1 << 18, batch: 1 });
        number += 1;
        actions.extend(query.handle(now, up(0, beat(waits.1, &[(waits.3[0], 0.001)]))));
        actions.extend(wait(&mut query, now + 0.049));
        stuck = actions.iter().any(|action| matches!(action, Action::Stuck { .. })).then_some(now - from);
    }
    // A quarter of a megabyte each 50 ms: 64 MB after 13 seconds.
    assert!(stuck.is_some_and(|after| after > 10.0 && after < 20.0), "{stuck:?}");
}

/// The end of an epoch announces more batches than arrive. After more than 20 seconds the copy runs its slices.
#[test]
fn announced_batch_that_never_arrives_times_out() {
    let (mut query, actions) = query(Policy::Static(PushdownLevel::Full), 2, &[Some(1), None], 2, THIN);
    let (_, epoch, rung, slices) = first_and_the_other_done(&mut query, &actions);
    let done = slices.iter().map(|slice| SliceCost { slice: SliceId(*slice), cpu: 0.001, rows_out: 0, bytes_out: 0 }).collect();
    query.handle(0.02, up(0, Up::Progress { epoch, done, running: vec![], load: 1.0, waits: false, pending_rows: 0, pending_bytes: 0, slack: 0.0 }));
    let Up::EpochDone(done) = end(epoch, rung, &slices) else { unreachable!() };
    query.handle(0.02, up(0, Up::EpochDone(Completed { batches: 3, ..done })));
    query.handle(0.03, Event::Batch { cse: CseId(0), epoch, number: 0, bytes: 100, batch: 7 });
    // States of unknown number may take a while to be given out.
    let (actions, stuck) = beats(&mut query, 0.05, 40.0, |_| beat(epoch, &[]));
    assert!(stuck.is_some_and(|at| at > 20.0), "{stuck:?}");
    assert!(opened(&actions).iter().any(|(cse, _, _, moved)| *cse == 1 && moved.contains(&slices[0])), "{actions:?}");
}

/// It refuses or stops the very level that it names as accepted. It gets fewer than twenty orders.
#[test]
fn drive_that_refuses_what_it_accepts_is_dropped_soon() {
    for stops in [false, true] {
        let (mut query, mut actions) = query(Policy::Static(PushdownLevel::Full), 2, &[None], 2, THIN);
        let (mut now, mut asked) = (0.01, Vec::new());
        while !query.ended() {
            now += 0.01;
            assert!(now < 5.0 && asked.len() < 20, "it is asked for ever: {asked:?}");
            let mut next = Vec::new();
            for (cse, epoch, _, slices) in opened(&actions) {
                asked.push(now);
                if stops {
                    next.extend(query.handle(now, up(cse, Up::Accepted { epoch })));
                    let remaining = slices.iter().map(|slice| SliceId(*slice)).collect();
                    next.extend(query.handle(now, up(cse, Up::Stopped { epoch, remaining, accepts: Some(PushdownLevel::Full), again: 0.0, why: Why::Queue })));
                    next.extend(query.handle(now, up(cse, end(epoch, PushdownLevel::Full, &[]))));
                } else {
                    next.extend(query.handle(now, up(cse, Up::Refused { epoch, accepts: Some(PushdownLevel::Full), again: 0.0, why: Why::Queue })));
                }
            }
            next.extend(wait(&mut query, now + 0.009));
            actions = next;
        }
        assert!(actions.iter().any(|action| matches!(action, Action::Fail { cse: CseId(0), .. })), "{actions:?}");
        // With a pause in between, and thrice.
        assert!(asked.len() == 3 && asked.windows(2).all(|pair| pair[1] - pair[0] > 0.09), "{asked:?}");
    }
}

/// It names a lower level with each refusal, and finishes no slice.
#[test]
fn drive_that_only_lowers_its_level_is_given_up_in_the_end() {
    // It names a lower rung each time, as it must, and gets nothing done in half a minute.
    let (mut query, mut actions) = query(Policy::Adaptive, 2, &[None], 2, 0.001 * THIN);
    let (mut now, mut refused) = (0.01, 0);
    while !query.ended() {
        now += 0.05;
        assert!(now < 100.0, "it is asked for ever");
        let mut next = Vec::new();
        for (cse, epoch, rung, _) in opened(&actions) {
            let accepts = if rung == PushdownLevel::Full { Some(PushdownLevel::Filter) } else { (rung == PushdownLevel::Filter).then_some(PushdownLevel::Raw) };
            refused += 1;
            next.extend(query.handle(now, up(cse, Up::Refused { epoch, accepts, again: 0.01, why: Why::Memory })));
        }
        next.extend(wait(&mut query, now + 0.04));
        actions = next;
    }
    assert!(now > 29.0 && refused > 100, "{now} {refused}");
}

#[test]
fn recovered_disconnects_are_forgiven() {
    let (mut query, mut actions) = query(Policy::Static(PushdownLevel::Full), 60, &[None], 2, THIN);
    let (mut now, mut breaks) = (0.01, 0);
    while !query.ended() {
        assert!(now < 60.0);
        let (cse, epoch, rung, mut slices) = opened(&actions)[0].clone();
        slices.truncate(4);
        // One break, and then a part of its work; ten times.
        now += 0.01;
        let mut next = query.handle(now, Event::Lost { cse: CseId(cse), again: true });
        breaks += 1;
        assert!(!query.ended(), "it is given up after {breaks} breaks");
        next.extend(query.handle(now, up(cse, end(epoch, rung, &slices))));
        assert!(!next.iter().any(|action| matches!(action, Action::Count { .. })), "what was open is lost: {next:?}");
        next.extend(wait(&mut query, now + 0.2));
        now += 0.2;
        let (cse, epoch, rung, mut slices) = opened(&next)[0].clone();
        slices.truncate(4);
        actions = query.handle(now, up(cse, end(epoch, rung, &slices)));
        assert!(actions.iter().any(|action| matches!(action, Action::Count { .. })), "{actions:?}");
        actions.extend(wait(&mut query, now + 0.2));
        now += 0.2;
    }
    assert!(breaks >= 10 && query.ledger().complete(), "{breaks}");
}
