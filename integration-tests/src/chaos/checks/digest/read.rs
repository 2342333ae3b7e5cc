//! Reading of the lines.

use std::collections::{BTreeMap, HashMap, HashSet};

use crate::chaos::record::{Handling, Line, Outcome, Phase, Place, Scope, What};

use super::{Delivery, Digest, Fault, Finish, Grant, Known, Life, LifeId, Moment, PlaceId, Sent};

/// Handlers that run: by life, place, number, attempt and epoch.
type Running = HashMap<(LifeId, PlaceId, u64, u32, u64), Vec<usize>>;

struct Reader<'a> {
    digest: Digest<'a>,
    running: Running,
    current: HashMap<u32, LifeId>,
}

pub(super) fn read(lines: &[Line]) -> Digest<'_> {
    let digest = Digest {
        lines,
        messages: BTreeMap::new(),
        places: Vec::new(),
        place_ids: HashMap::new(),
        deliveries: Vec::new(),
        by_message: BTreeMap::new(),
        unmatched: Vec::new(),
        grants: BTreeMap::new(),
        lives: Vec::new(),
        faults: Vec::new(),
        phases: Vec::new(),
        left: BTreeMap::new(),
        life_of: Vec::with_capacity(lines.len()),
        refused: HashSet::new(),
        end_us: lines.last().map_or(0, |line| line.at_us),
    };
    let mut reader = Reader { digest, running: HashMap::new(), current: HashMap::new() };
    for (index, line) in lines.iter().enumerate() {
        reader.line(Moment { index, us: line.at_us }, line);
    }
    if let Some(ended) = reader.digest.began(Phase::Ended) {
        reader.digest.end_us = ended.us;
    }
    reader.digest
}

impl<'a> Reader<'a> {
    fn line(&mut self, at: Moment, line: &'a Line) {
        let life = self.life(line.pid, at);
        let life = match &line.what {
            What::Runs { .. } if self.digest.lives[life].named.is_some() => self.start_life(line.pid, at),
            _ => life,
        };
        self.digest.life_of.push(life);
        // A process whose loops all fail does not work.
        if !matches!(line.what, What::Gone { .. } | What::Failing(_) | What::Tasks(_)) {
            self.digest.lives[life].last = at;
        }
        match &line.what {
            What::Phase(phase) => self.digest.phases.push((*phase, at)),
            What::Fault { fault, kind, scope } => {
                let hit = if let Scope::Process(pid) = scope { Some(self.life(*pid, at)) } else { None };
                let fault = Fault { number: *fault, kind, scope: *scope, life: hit, from: at, to: None };
                self.digest.faults.push(fault);
            }
            What::Kept { fault, scope, ended_us } => {
                let of = self.digest.faults.iter_mut().rev().find(|one| one.number == *fault);
                let to = Some(Moment { us: *ended_us, ..at });
                of.into_iter().for_each(|fault| (fault.scope, fault.to) = (*scope, to));
            }
            What::FaultEnded(number) => {
                let open = self.digest.faults.iter_mut().rev().find(|fault| fault.number == *number);
                open.into_iter().for_each(|fault| _ = fault.to.get_or_insert(at));
            }
            What::Runs { name, role } => self.digest.lives[life].named = Some((name, role)),
            What::Gone { orderly } => {
                self.digest.lives[life].gone.get_or_insert((at, *orderly));
            }
            What::Sending(message) => {
                let sent = Sent { message, from: at, to: None, known: Known::Unknown };
                self.digest.messages.entry(message.number).or_insert(sent);
            }
            What::Sent { number, outcome } => self.sent(at, *number, outcome),
            What::Begun { handling, intact, early_ms } => {
                let (place, running) = self.handling(life, handling);
                let Digest { deliveries, by_message, .. } = &mut self.digest;
                self.running.entry(running).or_default().push(deliveries.len());
                by_message.entry((place, handling.number)).or_default().push(deliveries.len());
                let (intact, early_ms) = (*intact, *early_ms);
                deliveries.push(Delivery { handling, place, life, at, intact, early_ms, finish: None });
            }
            What::Ended { handling, end } => {
                let (_, running) = self.handling(life, handling);
                match self.running.get_mut(&running).and_then(Vec::pop) {
                    Some(index) => self.digest.deliveries[index].finish = Some(Finish { at, end: *end }),
                    None => self.digest.unmatched.push(at.index),
                }
            }
            What::Assigned { place, partition, epoch } => {
                let place = self.place(place);
                let grant = Grant { epoch: *epoch, life, at, end: None };
                self.digest.grants.entry((place, *partition)).or_default().push(grant);
            }
            What::Unassigned { place, partition, epoch, lost } => {
                let place = self.place(place);
                let grants = self.digest.grants.entry((place, *partition)).or_default();
                let of = grants.iter_mut().rev().find(|grant| grant.epoch == *epoch && grant.life == life);
                of.into_iter().for_each(|grant| _ = grant.end.get_or_insert((at, *lost)));
            }
            What::Left { place, rest } => {
                let place = self.place(place);
                self.digest.left.insert(place, (at, rest));
            }
            What::Effect { handling, accepted } => {
                self.place(&handling.place);
                if !accepted {
                    self.digest.refused.insert(handling);
                }
            }
            What::Failing(_)
            | What::Disobeyed(_)
            | What::Releasing { .. }
            | What::Write { .. }
            | What::Locked { .. }
            | What::Unlocked { .. }
            | What::Audit { .. }
            | What::Tasks(_)
            | What::Usage { .. } => {}
        }
    }

    /// Merges the outcome. A message that is sent again under its number is stored if one of the sends was.
    fn sent(&mut self, at: Moment, number: u64, outcome: &'a Outcome) {
        let Some(sent) = self.digest.messages.get_mut(&number) else {
            self.digest.unmatched.push(at.index);
            return;
        };
        let known = match outcome {
            Outcome::Stored { partition, id } => Known::Stored(*partition, id),
            Outcome::Refused(_) => Known::Refused,
            Outcome::Unknown(_) => Known::Unknown,
        };
        let first = sent.to.is_none();
        sent.to = Some(at);
        sent.known = match (first, sent.known, known) {
            (true, _, known) | (_, Known::Refused, known) | (_, _, known @ Known::Stored(..)) => known,
            (_, before, _) => before,
        };
    }

    fn handling(
        &mut self,
        life: LifeId,
        handling: &'a Handling,
    ) -> (PlaceId, (LifeId, PlaceId, u64, u32, u64)) {
        let place = self.place(&handling.place);
        (place, (life, place, handling.number, handling.attempt, handling.epoch))
    }

    fn place(&mut self, place: &'a Place) -> PlaceId {
        let Digest { places, place_ids, .. } = &mut self.digest;
        *place_ids.entry(place).or_insert_with(|| {
            places.push(place);
            places.len() - 1
        })
    }

    fn life(&mut self, pid: u32, at: Moment) -> LifeId {
        match self.current.get(&pid) {
            Some(life) => *life,
            None => self.start_life(pid, at),
        }
    }

    fn start_life(&mut self, pid: u32, at: Moment) -> LifeId {
        self.digest.lives.push(Life { pid, named: None, gone: None, last: at });
        let life = self.digest.lives.len() - 1;
        self.current.insert(pid, life);
        life
    }
}
