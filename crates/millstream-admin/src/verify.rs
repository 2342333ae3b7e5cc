//! Verification that every message is in exactly one place, and repair of what is not.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures_util::future::join_all;
use millstream_core::audit::{Audited, Check, Fault, Finding, Loss, Remedy, Scope};
use millstream_core::schedule::Shard;
use millstream_core::{Error, ErrorKind, QueueName, Result, TopicName};

use crate::Admin;

/// Options of a verification.
#[derive(Clone, Debug)]
pub struct VerifyOptions {
    /// Whether repairable findings are repaired immediately. Default: no.
    pub repair: bool,
    /// Maximum number of findings: the next one ends the verification and is not repaired. Default: 10,000.
    pub limit: usize,
    /// Counter to which the number of examined items is added while it runs, for a display of progress. Default: none.
    pub progress: Option<Arc<AtomicU64>>,
}

impl Default for VerifyOptions {
    fn default() -> Self {
        Self { repair: false, limit: 10_000, progress: None }
    }
}

/// Result of handling a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Repaired {
    /// No repair was requested.
    NotAsked,
    /// It was repaired.
    Yes,
    /// It no longer existed when it was to be repaired.
    Gone,
    /// It could not be repaired, or was found again after the repair.
    Still,
    /// It needs a decision of a person.
    Person,
    /// Nothing is to be repaired: it is the record of a loss.
    Record,
}

/// Finding, and the result of its repair.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// Fault that was found.
    pub finding: Finding,
    /// Result of its repair.
    pub repaired: Repaired,
}

/// Result of a verification.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verified {
    /// All findings.
    pub verdicts: Vec<Verdict>,
    /// Number of items examined.
    pub looked_at: u64,
    /// Whether it ended early because there were too many findings.
    pub cut: bool,
}

impl Verified {
    /// Returns whether no fault is left, and nothing was ever lost.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        self.is_repaired() && self.lost().is_nothing()
    }

    /// Returns whether no fault is left. Entries that were lost before are no fault: they cannot be brought back, and
    /// [`lost`](Self::lost) returns them.
    #[must_use]
    pub fn is_repaired(&self) -> bool {
        let right = |it: &Verdict| matches!(it.repaired, Repaired::Yes | Repaired::Gone | Repaired::Record);
        !self.cut && self.verdicts.iter().all(right)
    }

    /// Returns the sum of all entries whose loss is recorded.
    #[must_use]
    pub fn lost(&self) -> Loss {
        let records = self.verdicts.iter().filter(|it| it.repaired == Repaired::Record);
        records.filter_map(|it| it.finding.loss).fold(Loss::default(), Loss::and)
    }
}

impl Admin {
    /// Checks a topic: its settings, every partition, and every group on it. It uses bounded requests and runs beside
    /// producers and consumers. After a repair it checks again, and reports what is still wrong.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] for a topic that does not exist in any form; [`ErrorKind::Unsupported`] for one that a
    /// newer version created; transient ones.
    pub async fn verify(&self, topic: &TopicName, options: VerifyOptions) -> Result<Verified> {
        let mut pass = Pass::new(self, options);
        pass.scope(&Scope::Topic(topic.clone())).await?;
        let mut spec = self.backend.catalog().topic(topic).await;
        if spec.as_ref().is_err_and(|error| error.kind() == ErrorKind::NotFound) {
            // The topic is listed but has no settings: they are repaired first, since all other checks depend on them.
            pass.second_look().await?;
            if pass.verified.verdicts.is_empty() {
                return Err(crate::admin::not_found(topic));
            }
            spec = self.backend.catalog().topic(topic).await;
        }
        let spec = match spec {
            Ok(spec) => spec,
            // Everything that exists was checked, and the fault is among the findings.
            Err(error) if error.kind() == ErrorKind::NotFound || pass.tells(&error) => {
                return Ok(pass.verified);
            }
            Err(error) => return Err(error),
        };
        for tp in spec.iter() {
            pass.scope(&Scope::Partition(tp)).await?;
            if pass.verified.cut {
                return pass.end().await;
            }
        }
        // Groups that the list had lost are in it by now.
        pass.second_look().await?;
        let groups = match self.backend.catalog().groups(topic).await {
            Err(error) if pass.tells(&error) => Vec::new(),
            other => other?,
        };
        for tp in spec.iter() {
            for group in &groups {
                pass.scope(&Scope::Group(tp.clone(), group.clone())).await?;
                if pass.verified.cut {
                    return pass.end().await;
                }
            }
        }
        pass.end().await
    }

    /// Checks all shards of a delay queue.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] for a queue that does not exist; transient ones.
    pub async fn verify_queue(&self, queue: &QueueName, options: VerifyOptions) -> Result<Verified> {
        let mut pass = Pass::new(self, options);
        pass.scope(&Scope::Queue(queue.clone())).await?;
        let spec = match self.backend.tasks()?.queue(queue).await {
            Err(error) if error.kind() != ErrorKind::NotFound && !error.is_transient() => {
                let verified = pass.end().await?;
                return if verified.verdicts.is_empty() { Err(error) } else { Ok(verified) };
            }
            other => other?,
        };
        for shard in 0..spec.shards {
            pass.scope(&Scope::Shard(Shard::new(queue.clone(), shard))).await?;
            if pass.verified.cut {
                break;
            }
        }
        pass.end().await
    }
}

/// Maximum number of checks after repairs: a repair may reveal another fault.
const LOOKS: usize = 3;

/// State of a running verification.
struct Pass<'a> {
    admin: &'a Admin,
    options: VerifyOptions,
    verified: Verified,
    known: BTreeSet<(Fault, Scope, String)>,
    /// Findings to check once more at the end, because they may be changes in progress.
    suspects: Vec<(Scope, Check, Finding)>,
    /// Scopes in which something was repaired.
    touched: BTreeSet<Scope>,
    /// Whether this is a check after repairs.
    again: bool,
}

impl<'a> Pass<'a> {
    fn new(admin: &'a Admin, options: VerifyOptions) -> Self {
        let (verified, known) = (Verified::default(), BTreeSet::new());
        Self { admin, options, verified, known, suspects: Vec::new(), touched: BTreeSet::new(), again: false }
    }

    /// Returns whether the fault that causes `error` is among the findings.
    fn tells(&self, error: &Error) -> bool {
        let fault = match error.kind() {
            ErrorKind::WrongType => Fault::WrongType,
            ErrorKind::Protocol | ErrorKind::Unsupported => Fault::SettingsDamaged,
            _ => return false,
        };
        self.verified.cut || self.known.iter().any(|(known, ..)| *known == fault)
    }

    /// Runs the final checks, after all scopes.
    async fn end(mut self) -> Result<Verified> {
        self.second_look().await?;
        // Check the scopes with repairs once more: a finding that is seen again was not repaired, and a new one is
        // handled as before. The last check repairs nothing, so every repair is followed by a check.
        let looked_at = self.verified.looked_at;
        self.again = true;
        for look in 1..=LOOKS {
            self.options.repair &= look < LOOKS;
            for scope in std::mem::take(&mut self.touched) {
                self.scope(&scope).await?;
            }
            self.second_look().await?;
        }
        Ok(Verified { looked_at, ..self.verified })
    }

    async fn scope(&mut self, scope: &Scope) -> Result<()> {
        let audit = self.admin.backend.audit()?.clone();
        let checks = scope.checks();
        // All at once, for as few requests as the backend makes of it. A repair changes what later checks see.
        let at_once = if self.options.repair { 0 } else { checks.len() };
        let first_pages = join_all(checks[..at_once].iter().map(|it| audit.audit(scope, *it, None))).await;
        let mut first_pages = first_pages.into_iter();
        for check in checks {
            let first = first_pages.next();
            match self.check(scope, *check, first).await {
                // The check of types reports this fault; no other check is possible in this scope.
                Err(error) if self.tells(&error) => {}
                other => other?,
            }
            if self.verified.cut {
                break;
            }
        }
        Ok(())
    }

    /// Runs a check, of which the first page may be there.
    async fn check(&mut self, scope: &Scope, check: Check, mut first: Option<Result<Audited>>) -> Result<()> {
        let mut after = None;
        loop {
            let page = match first.take() {
                Some(first) => first?,
                None => self.admin.backend.audit()?.audit(scope, check, after.as_deref()).await?,
            };
            self.verified.looked_at += page.looked_at;
            if let Some(progress) = &self.options.progress {
                progress.fetch_add(page.looked_at, Ordering::Relaxed);
            }
            for finding in page.findings {
                if finding.fault.needs_second_look() {
                    self.suspects.push((scope.clone(), check, finding));
                } else {
                    self.found(finding).await?;
                }
            }
            after = page.next;
            if after.is_none() || self.verified.cut {
                return Ok(());
            }
        }
    }

    async fn found(&mut self, finding: Finding) -> Result<()> {
        // A record that a repair has extended replaces the one that was read before.
        let same = |it: &Verdict| it.repaired == Repaired::Record && it.finding.scope == finding.scope;
        if finding.fault.remedy() == Remedy::Record
            && let Some(known) = self.verified.verdicts.iter_mut().find(|it| same(it))
        {
            known.finding = finding;
            return Ok(());
        }
        // A scan may return the same item twice.
        if !self.known.insert((finding.fault, finding.scope.clone(), finding.id.clone())) {
            if self.again {
                self.still(&finding);
            }
            return Ok(());
        }
        if self.verified.verdicts.len() >= self.options.limit {
            self.verified.cut = true;
            return Ok(());
        }
        let repaired = match finding.fault.remedy() {
            Remedy::Person => Repaired::Person,
            Remedy::Record => Repaired::Record,
            _ if !self.options.repair => Repaired::NotAsked,
            _ => {
                self.touched.insert(finding.scope.clone());
                let done = self.admin.backend.audit()?.repair(&finding).await?;
                if done { Repaired::Yes } else { Repaired::Gone }
            }
        };
        self.verified.verdicts.push(Verdict { finding, repaired });
        Ok(())
    }

    /// Marks a finding as still present if it counted as repaired.
    fn still(&mut self, seen: &Finding) {
        let same = |it: &Finding| (it.fault, &it.scope, &it.id) == (seen.fault, &seen.scope, &seen.id);
        for verdict in self.verified.verdicts.iter_mut().filter(|it| same(&it.finding)) {
            if matches!(verdict.repaired, Repaired::Yes | Repaired::Gone) {
                verdict.repaired = Repaired::Still;
            }
        }
    }

    /// Checks suspects again: one that is still present was not a change in progress. Each place is checked once, before any
    /// of them is repaired: the repair of one may change how another one looks.
    async fn second_look(&mut self) -> Result<()> {
        let suspects = std::mem::take(&mut self.suspects);
        let mut confirmed = Vec::new();
        for run in suspects.chunk_by(|a, b| (&a.0, a.1) == (&b.0, b.1)) {
            let Some((scope, check, _)) = run.first() else { continue };
            let again = match self.admin.backend.audit()?.audit(scope, *check, None).await {
                Err(error) if self.tells(&error) => continue,
                other => other?.findings,
            };
            for (_, _, finding) in run {
                let same = |it: &&Finding| (it.fault, &it.id) == (finding.fault, &finding.id);
                confirmed.extend(again.iter().find(same).cloned());
            }
        }
        for finding in confirmed {
            self.found(finding).await?;
        }
        Ok(())
    }
}

/// Returns the name of a fault, and what is or can be done about it, as text for people.
#[must_use]
pub fn advice(fault: Fault) -> String {
    let by = match fault.remedy() {
        Remedy::Repair => "repair",
        Remedy::Heals => "repair, or by itself when a consumer or worker comes to it",
        Remedy::Record => "a record, nothing is to be done",
        _ => "by hand",
    };
    format!("{fault}: {} ({by})", fault.advice())
}
