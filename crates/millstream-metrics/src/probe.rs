//! Liveness and readiness of a process: pure functions of the state of its consumers and workers.

use std::time::Duration;

use millstream_core::health::{Health, LoopFailure, LoopHealth, WorkerHealth, WorkerLoop};
use millstream_core::{Backend as Roles, ErrorKind, Result, TopicName};
use serde::Serialize;

/// Answer to a probe.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Report {
    /// Whether all checks are ok.
    pub ok: bool,
    /// Results of all checks.
    pub checks: Vec<Check>,
}

/// Result of one check.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Check {
    /// Name of the subject: `backend`, `consumers`, a consumer by its name in the group, a worker of a delay queue, or
    /// `other loops`.
    pub name: String,
    /// Whether the check is ok.
    pub ok: bool,
    /// State of the subject.
    pub state: String,
    /// Problems, including errors of loops that try again.
    pub problems: Vec<String>,
}

/// State of the backend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Backend {
    /// It answers.
    Reached,
    /// It does not answer, for this reason.
    Failed(String),
}

impl Report {
    fn of(checks: Vec<Check>) -> Self {
        Self { ok: checks.iter().all(|check| check.ok), checks }
    }
}

/// Returns whether the process is live: no consumer or worker has ended by itself, and no loop hangs, theirs or others.
#[must_use]
pub fn live(consumers: &[Health], workers: &[WorkerHealth], loops: &[LoopHealth]) -> Report {
    let consumers = consumers.iter().map(|health| consumer(health, health.is_live()));
    let workers = workers.iter().map(|health| worker(health, health.is_live()));
    Report::of(consumers.chain(workers).chain(others(loops)).collect())
}

/// Returns whether the process is ready: the backend answers, at least `wanted` consumers have started, all of them
/// have joined their groups, all workers have received an answer of the server, and no loop hangs.
#[must_use]
pub fn ready(
    backend: &Backend,
    consumers: &[Health],
    workers: &[WorkerHealth],
    loops: &[LoopHealth],
    wanted: usize,
) -> Report {
    let (state, problems) = match backend {
        Backend::Reached => ("reached", Vec::new()),
        Backend::Failed(why) => ("failed", vec![why.clone()]),
    };
    let mut checks =
        vec![Check { name: "backend".into(), ok: problems.is_empty(), state: state.into(), problems }];
    if consumers.len() < wanted {
        let problems = vec![format!("{wanted} are to start")];
        let state = format!("{} started", consumers.len());
        checks.push(Check { name: "consumers".into(), ok: false, state, problems });
    }
    checks.extend(consumers.iter().map(|health| consumer(health, health.is_ready() && health.is_live())));
    checks.extend(workers.iter().map(|health| worker(health, health.is_ready() && health.is_live())));
    checks.extend(others(loops));
    Report::of(checks)
}

fn place(each: &LoopHealth) -> String {
    match each.partition {
        Some(partition) => format!("{} of {}/{}", each.operation, each.topic, partition.0),
        None => format!("{} of {}", each.operation, each.topic),
    }
}

/// Returns one check for all loops of producers, promoters and the like, if there are any.
fn others(loops: &[LoopHealth]) -> Option<Check> {
    let stalled =
        loops.iter().filter(|each| each.stalled).map(|each| hangs(&place(each), each.last_progress));
    let failing = loops.iter().filter_map(|each| each.failing.as_ref().map(|it| fails(&place(each), it)));
    let problems = stalled.chain(failing).collect();
    let (ok, state) = (loops.iter().all(|each| !each.stalled), format!("{} run", loops.len()));
    (!loops.is_empty()).then(|| Check { name: "other loops".into(), ok, state, problems })
}

fn consumer(health: &Health, ok: bool) -> Check {
    let stalled = health.stalled().map(|each| hangs(&place(each), each.last_progress));
    let failing = health.failing().map(|(each, failure)| fails(&place(each), failure));
    let mut problems: Vec<_> = stalled.chain(failing).collect();
    if !health.connected {
        problems.push("its heartbeats have been failing for longer than the ttl of a lease".into());
    }
    let name = format!("consumer {} of group {}", health.member, health.group);
    Check { name, ok, state: health.state.as_str().into(), problems }
}

fn worker(health: &WorkerHealth, ok: bool) -> Check {
    let place = |each: &WorkerLoop| match each.shard {
        Some(shard) => format!("{} of {}/{shard}", each.operation, health.queue),
        None => format!("{} of {}", each.operation, health.queue),
    };
    let stalled = health.stalled().map(|each| hangs(&place(each), each.last_progress));
    let failing = health.failing().map(|(each, failure)| fails(&place(each), failure));
    let mut problems: Vec<_> = stalled.chain(failing).collect();
    if !health.connected {
        problems.push("claiming has been failing for longer than a claim holds".into());
    }
    let name = format!("worker {} of queue {}", health.worker, health.queue);
    Check { name, ok, state: health.state.as_str().into(), problems }
}

fn hangs(what: &str, last_progress: Duration) -> String {
    format!("{what} hangs: its last round ended {} s ago", last_progress.as_secs())
}

fn fails(what: &str, failure: &LoopFailure) -> String {
    format!("{what} has been failing for {} s: {}", failure.lasts.as_secs(), failure.error)
}

/// Sends a small request to the backend.
///
/// # Errors
/// Those of the backend.
pub async fn reach(backend: &Roles) -> Result<()> {
    match backend.catalog().topic(&TopicName::new("reachable")?).await {
        Ok(_) => Ok(()),
        // The topic need not exist: any answer shows that the backend is reachable.
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use millstream_core::health::ConsumerState;

    fn of(state: ConsumerState) -> Health {
        let mut health = Health::new("billing".parse().expect("name"), "m-1".parse().expect("name"), state);
        let topic: TopicName = "orders".parse().expect("name");
        health.loops = vec![
            LoopHealth::new("heartbeat", topic.clone(), None),
            LoopHealth::new("fetch", topic, Some(millstream_core::Partition(3))),
        ];
        health
    }

    #[test]
    fn a_consumer_goes_through_its_states() {
        use ConsumerState::{Ended, Fenced, Joining, Leaving, Paused, Running};
        let states =
            [(Joining, true, false), (Running, true, true), (Paused, true, true), (Leaving, true, false)];
        for (state, is_live, is_ready) in
            states.into_iter().chain([(Ended, false, false), (Fenced, false, false)])
        {
            let healths = [of(Running), of(state)];
            assert_eq!(live(&healths, &[], &[]).ok, is_live, "{state:?}");
            assert_eq!(ready(&Backend::Reached, &healths, &[], &[], 2).ok, is_ready, "{state:?}");
        }
    }

    #[test]
    fn a_loop_that_hangs_ends_both_and_is_named() {
        let mut health = of(ConsumerState::Running);
        health.loops[1].stalled = true;
        health.loops[1].last_progress = Duration::from_secs(75);
        let report = live(&[health.clone()], &[], &[]);
        assert!(!report.ok && !ready(&Backend::Reached, &[health], &[], &[], 0).ok);
        assert_eq!(report.checks[0].problems, ["fetch of orders/3 hangs: its last round ended 75 s ago"]);
    }

    #[test]
    fn a_server_that_is_away_ends_readiness_alone() {
        let mut health = of(ConsumerState::Running);
        health.loops[0].failing = Some(LoopFailure::new(Duration::from_secs(2), "refused"));
        assert!(ready(&Backend::Reached, &[health.clone()], &[], &[], 1).ok, "it may pass by itself");
        health.connected = false;
        let away = Backend::Failed("refused".into());
        assert!(
            live(&[health.clone()], &[], &[]).ok
                && !ready(&Backend::Reached, &[health.clone()], &[], &[], 1).ok
        );
        let report = ready(&away, &[health], &[], &[], 1);
        assert!(!report.ok && report.checks[0].problems == ["refused"]);
    }

    #[test]
    fn who_waits_for_consumers_is_not_ready_without_them() {
        assert!(ready(&Backend::Reached, &[], &[], &[], 0).ok && live(&[], &[], &[]).ok);
        let report = ready(&Backend::Reached, &[of(ConsumerState::Running)], &[], &[], 2);
        assert!(!report.ok && report.checks.iter().any(|check| check.state == "1 started"));
    }

    #[test]
    fn a_worker_counts_like_a_consumer() {
        let mut health =
            WorkerHealth::new("mails".parse().expect("name"), "w-1".into(), ConsumerState::Joining);
        let probes = |health: &WorkerHealth| {
            let all = [health.clone()];
            (live(&[], &all, &[]).ok, ready(&Backend::Reached, &[], &all, &[], 0).ok)
        };
        assert_eq!(probes(&health), (true, false), "the server has not answered yet");
        health.state = ConsumerState::Running;
        assert_eq!(probes(&health), (true, true));
        health.connected = false;
        assert_eq!(probes(&health), (true, false));
        health.connected = true;
        let mut claim = WorkerLoop::new("claim", Some(2));
        (claim.stalled, claim.last_progress) = (true, Duration::from_secs(70));
        health.loops.push(claim);
        assert_eq!(probes(&health), (false, false));
        let report = live(&[], &[health], &[]);
        assert_eq!(report.checks[0].name, "worker w-1 of queue mails");
        assert_eq!(report.checks[0].problems, ["claim of mails/2 hangs: its last round ended 70 s ago"]);
    }
    #[test]
    fn a_loop_of_nobody_counts_when_it_hangs() {
        let mut refresh = LoopHealth::new("refresh", "orders".parse().expect("name"), None);
        refresh.failing = Some(LoopFailure::new(Duration::from_secs(3), "refused"));
        let probes = |each: &LoopHealth| {
            let loops = [each.clone()];
            (live(&[], &[], &loops), ready(&Backend::Reached, &[], &[], &loops, 0))
        };
        let (live, ready) = probes(&refresh);
        assert!(live.ok && ready.ok, "it is tried again");
        assert_eq!((&*live.checks[0].name, &*live.checks[0].state), ("other loops", "1 run"));
        assert_eq!(live.checks[0].problems, ["refresh of orders has been failing for 3 s: refused"]);
        (refresh.stalled, refresh.last_progress) = (true, Duration::from_secs(70));
        let (live, ready) = probes(&refresh);
        assert!(!live.ok && !ready.ok);
        assert_eq!(live.checks[0].problems[0], "refresh of orders hangs: its last round ended 70 s ago");
    }
}
