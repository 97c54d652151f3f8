//! The steps of a simulation.

use std::sync::atomic::Ordering;

use skytether::{RepairOptions, RepairReport, ResizeOptions, ResizeReport, ScrubOptions, ScrubReport};
use skytether_common::{Error, Kind, Result};
use skytether_store::SliceStore;

use super::{Content, FLEET, Living, NAMES, Simulation, WORK};

impl Simulation {
    /// One work under faults; then the content of the fleet is checked.
    pub(super) async fn step(&mut self) {
        let name = NAMES[self.random.below(NAMES.len())];
        let before = self.known.get(name).copied();
        let what = self.what();
        let mut work = WORK[match what {
            0..=4 => usize::from(before.is_some()),
            5 => 2,
            6 | 7 => 3,
            8 => 4,
            9 => 5,
            10 => 6,
            _ => 7,
        }];
        let faults = self.random.below(4);
        // Faults may also hit a host while it begins.
        let early = self.random.below(3) == 0;
        self.versions += 2;
        let (one, other) = (self.versions, self.versions + 1);
        // The numbers alone decide, so that what is drawn stays what it was.
        let kept = before.filter(|_| what <= 4 && one / 2 % 3 == 0 && !self.pending.contains_key(name));
        if kept.is_some() {
            work = WORK[9];
        }
        if early {
            self.draw_faults(faults);
        }
        self.log.push(format!("{work} {name} {before:?} -> {one}; faults: {faults}{}; {}", if early { ", also while it begins" } else { "" }, self.redundancy));
        let mut may = vec![before];
        // Without faults, a host begins.
        let begun = if early { self.host().await } else { self.started().await };
        match begun {
            Err(e) => {
                assert!(early, "{}\na host can't begin: {}", self.log.join("\n"), e.report());
                self.note(e.report());
            }
            Ok(host) => {
                if !early {
                    self.draw_faults(faults);
                }
                match (what, kept) {
                    (_, Some(kept)) => {
                        let noted = Content { note: Some(one), ..kept };
                        match Self::add_note(&host, name, one).await {
                            Ok(()) => may = vec![Some(noted)],
                            Err(e) => {
                                self.note(e.report());
                                may.push(Some(noted));
                            }
                        }
                    }
                    (0..=4, _) => match Self::store(&host, name, one).await {
                        Ok(()) => may = vec![Some(one.into())],
                        Err(e) => {
                            self.note(e.report());
                            may.push(Some(one.into()));
                        }
                    },
                    (5, _) => match Self::remove(&host, name).await {
                        Ok(()) => may = vec![None],
                        Err(e) => {
                            self.note(e.report());
                            may.push(None);
                        }
                    },
                    // Two writers of one host: one wins, or one after the other.
                    (6 | 7, _) => {
                        let done = tokio::join!(Self::store(&host, name, one), Self::store(&host, name, other));
                        self.won(&done, (one, other), &mut may);
                    }
                    // A second host takes the fleet over in the middle.
                    (8, _) => {
                        let (first, second) = tokio::join!(Self::store(&host, name, one), async {
                            let newer = self.host().await?;
                            let done = Self::store(&newer, name, other).await;
                            Ok::<_, Error>((done, newer))
                        });
                        let second = second.and_then(|(done, _)| done);
                        self.won(&(first, second), (one, other), &mut may);
                    }
                    (9, _) => {
                        let scrubbed = async { host.host.scrub(&ScrubOptions::default(), &|_| ()).await };
                        let report = host.while_alive(scrubbed).await;
                        match report {
                            Ok(report) => {
                                self.note(ScrubReport { seconds: 0.0, ..report.clone() });
                                if report.left() == 0 && report.skipped.is_empty() {
                                    self.damaged = None;
                                }
                            }
                            Err(e) => self.note(e.report()),
                        }
                    }
                    _ => {
                        if self.other_drives(&host, what).await {
                            work = WORK[8];
                        }
                    }
                }
            }
        }
        if self.blank.is_some_and(|at| self.stores[at].has(FLEET).is_some()) {
            self.blank = None;
        }
        let back = self.random.below(3) > 0;
        self.calm(back, work);
        let host = self.started().await.unwrap_or_else(|e| panic!("{}\nno host can begin: {}", self.log.join("\n"), e.report()));
        self.settle(&host.host, name, &may).await;
        for other in NAMES.iter().filter(|other| **other != name) {
            let known = self.known.get(other).copied();
            self.settle(&host.host, other, &[known]).await;
        }
        if self.away().is_empty() && self.blank.is_none() {
            self.nothing_leaks(&host.host).await;
        }
    }

    /// What is done next: see [`Self::step`]. A drive that was lost for good is rebuilt before another one can be; it
    /// is lost when all others are here and know all.
    fn what(&mut self) -> usize {
        let what = self.random.below(17);
        match what {
            // A name that nothing has is free for an ingest.
            15 | 16 if self.blank.is_none() && self.damaged.is_none() => 5,
            _ if self.blank.is_some() => 10,
            _ if self.damaged.is_some() => 9,
            9 => {
                if self.redundancy != "none" && self.away().is_empty() {
                    self.damage();
                }
                9
            }
            10 | 11 if self.redundancy == "none" || !self.away().is_empty() => 12,
            10 | 11 => {
                let members: Vec<usize> = self.members().into_iter().collect();
                let at = members[self.random.below(members.len())];
                self.put_blank(at);
                self.blank = Some(at);
                self.faults.gone.fetch_add(1, Ordering::SeqCst);
                self.log.push(format!("drive-{at} is lost for good"));
                10
            }
            what => what,
        }
    }

    /// Something of a drive is damaged, or lost: slices, parity, or a root record.
    fn damage(&mut self) {
        let members: Vec<usize> = self.members().into_iter().collect();
        let at = members[self.random.below(members.len())];
        let entries = self.stores[at].memory.list("", None, usize::MAX).unwrap();
        let keys: Vec<_> = entries.into_iter().map(|entry| entry.key).filter(|key| key.as_str().contains('/')).collect();
        if keys.is_empty() {
            return;
        }
        let (key, lost) = (&keys[self.random.below(keys.len())], self.random.below(2) == 0);
        self.stores[at].damage(key, lost);
        self.damaged = Some(at);
        self.faults.gone.fetch_add(1, Ordering::SeqCst);
        self.log.push(format!("drive-{at}: {key} is {}", if lost { "lost" } else { "damaged" }));
    }

    /// Repair, growth and retirement; whether it is the latter.
    async fn other_drives(&mut self, host: &Living, what: usize) -> bool {
        let mut retires = false;
        let members = self.members();
        let told = match what {
            10 => {
                let repaired =
                    async { host.host.repair(&RepairOptions::default(), &|_| ()).await.map(|report| RepairReport { seconds: 0.0, ..report }.to_string()) };
                host.while_alive(repaired).await
            }
            _ => {
                let spare = (0..self.drives.len()).find(|at| !members.contains(at) && !self.stores[*at].gone.load(Ordering::SeqCst));
                let leaves = members.len() > self.founders || (members.len() == self.founders && self.redundancy == "ec:2+1" && self.random.below(2) == 0);
                let (new, retire) = match spare {
                    Some(at) if !leaves => {
                        // Whatever is left on one that left is the operator's to remove.
                        if self.stores[at].has(FLEET).is_some() {
                            self.put_blank(at);
                        }
                        (vec![self.link(at, &host.lifetime)], Vec::new())
                    }
                    _ => {
                        let members: Vec<usize> = members.into_iter().collect();
                        (Vec::new(), vec![format!("drive-{}", members[self.random.below(members.len())])])
                    }
                };
                self.log.push(format!("  {} come, {retire:?} leave", new.len()));
                retires = new.is_empty();
                let to = (self.nodes > 0 && !retires).then(|| self.node_of(self.founders));
                let options = ResizeOptions { retire, node: to, ..ResizeOptions::default() };
                let resized = async { host.host.resize(new, &options, &|_| ()).await.map(|report| ResizeReport { seconds: 0.0, ..report }.to_string()) };
                host.while_alive(resized).await
            }
        };
        match told {
            Ok(report) => self.note(report.lines().last().unwrap_or_default()),
            Err(e) => self.note(e.report()),
        }
        retires
    }

    /// What may be there after two writers: what the one that won wrote, or, where neither knows, anything of it.
    fn won(&mut self, done: &(Result<()>, Result<()>), (one, other): (usize, usize), may: &mut Vec<Option<Content>>) {
        for result in [&done.0, &done.1] {
            if let Err(e) = result {
                self.note(e.report());
            }
        }
        let unknown = |result: &Result<()>| matches!(result, Err(e) if e.kind() != Kind::Conflict);
        match (done.0.is_ok(), done.1.is_ok()) {
            (false, false) => may.extend([Some(one.into()), Some(other.into())]),
            _ => {
                may.clear();
                may.extend((done.0.is_ok() || unknown(&done.0)).then_some(Some(one.into())));
                may.extend((done.1.is_ok() || unknown(&done.1)).then_some(Some(other.into())));
            }
        }
    }
}
