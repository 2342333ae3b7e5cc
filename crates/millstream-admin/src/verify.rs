//! Verify: is every message in exactly one place? And what is to be done about what is not.

use std::collections::BTreeSet;

use millstream_core::audit::{Check, Fault, Finding, Remedy, Scope};
use millstream_core::schedule::Shard;
use millstream_core::{ErrorKind, QueueName, Result, TopicName};

use crate::Admin;

/// How a verification is made.
#[derive(Clone, Copy, Debug)]
pub struct VerifyOptions {
    /// Whether what can be repaired is repaired at once. Default: no.
    pub repair: bool,
    /// The most findings that are kept: it ends behind them. Default: 10,000.
    pub limit: usize,
}

impl Default for VerifyOptions {
    fn default() -> Self {
        Self { repair: false, limit: 10_000 }
    }
}

/// What became of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Repaired {
    /// It was not to be repaired.
    NotAsked,
    /// It was put right.
    Yes,
    /// It was not so any more.
    Gone,
    /// A person has to decide.
    Person,
}

/// Something that is wrong, and what became of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// What is wrong.
    pub finding: Finding,
    /// What became of it.
    pub repaired: Repaired,
}

/// The result of a verification.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verified {
    /// What is wrong.
    pub verdicts: Vec<Verdict>,
    /// How many items were looked at.
    pub looked_at: u64,
    /// Whether it ended before everything was looked at, since there were too many findings.
    pub cut: bool,
}

impl Verified {
    /// Whether nothing is wrong (any more).
    #[must_use]
    pub fn is_sound(&self) -> bool {
        let right = |verdict: &Verdict| matches!(verdict.repaired, Repaired::Yes | Repaired::Gone);
        !self.cut && self.verdicts.iter().all(right)
    }
}

impl Admin {
    /// Checks a topic: its settings, every partition, every group on it. In bounded requests, while everything runs.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] for a topic of which nothing is there; transient ones.
    pub async fn verify(&self, topic: &TopicName, options: VerifyOptions) -> Result<Verified> {
        let mut pass = Pass::new(self, options);
        pass.scope(&Scope::Topic(topic.clone())).await?;
        let mut spec = self.backend.catalog.topic(topic).await;
        if spec.as_ref().is_err_and(|error| error.kind() == ErrorKind::NotFound) {
            // Listed, and nothing more: the settings first, since all else hangs on them.
            pass.second_look().await?;
            if pass.verified.verdicts.is_empty() {
                return Err(crate::admin::not_found(topic));
            }
            spec = self.backend.catalog.topic(topic).await;
        }
        let Ok(spec) = spec else { return Ok(pass.verified) };
        let groups = self.backend.catalog.groups(topic).await?;
        for tp in spec.iter() {
            pass.scope(&Scope::Partition(tp.clone())).await?;
            for group in &groups {
                pass.scope(&Scope::Group(tp.clone(), group.clone())).await?;
            }
            if pass.verified.cut {
                break;
            }
        }
        pass.second_look().await?;
        Ok(pass.verified)
    }

    /// Checks every shard of a delay queue.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] for a queue that is not there; transient ones.
    pub async fn verify_queue(&self, queue: &QueueName, options: VerifyOptions) -> Result<Verified> {
        let spec = self.backend.tasks.queue(queue).await?;
        let mut pass = Pass::new(self, options);
        for shard in 0..spec.shards {
            pass.scope(&Scope::Shard(Shard::new(queue.clone(), shard))).await?;
        }
        pass.second_look().await?;
        Ok(pass.verified)
    }
}

/// One verification on its way.
struct Pass<'a> {
    admin: &'a Admin,
    options: VerifyOptions,
    verified: Verified,
    known: BTreeSet<(Fault, Scope, String)>,
    /// What is to be looked at once more, at the end: somebody may just be about it.
    suspects: Vec<(Scope, Check, Finding)>,
}

impl<'a> Pass<'a> {
    fn new(admin: &'a Admin, options: VerifyOptions) -> Self {
        let (verified, known) = (Verified::default(), BTreeSet::new());
        Self { admin, options, verified, known, suspects: Vec::new() }
    }

    async fn scope(&mut self, scope: &Scope) -> Result<()> {
        for check in scope.checks() {
            match self.check(scope, *check).await {
                // The check of types tells of it; no other can be made there.
                Err(error) if error.kind() == ErrorKind::WrongType => {}
                other => other?,
            }
            if self.verified.cut {
                break;
            }
        }
        Ok(())
    }

    async fn check(&mut self, scope: &Scope, check: Check) -> Result<()> {
        let mut after = None;
        loop {
            let page = self.admin.backend.audit.audit(scope, check, after.as_deref()).await?;
            self.verified.looked_at += page.looked_at;
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
        // A walk may come to the same item twice.
        if !self.known.insert((finding.fault, finding.scope.clone(), finding.id.clone())) {
            return Ok(());
        }
        let repaired = match finding.fault.remedy() {
            Remedy::Person => Repaired::Person,
            _ if !self.options.repair => Repaired::NotAsked,
            _ if self.admin.backend.audit.repair(&finding).await? => Repaired::Yes,
            _ => Repaired::Gone,
        };
        self.verified.verdicts.push(Verdict { finding, repaired });
        self.verified.cut = self.verified.verdicts.len() >= self.options.limit;
        Ok(())
    }

    /// What is seen again was no change that was under way. Each place is looked at once.
    async fn second_look(&mut self) -> Result<()> {
        let suspects = std::mem::take(&mut self.suspects);
        for run in suspects.chunk_by(|a, b| (&a.0, a.1) == (&b.0, b.1)) {
            let Some((scope, check, _)) = run.first() else { continue };
            let again = self.admin.backend.audit.audit(scope, *check, None).await?.findings;
            for (_, _, finding) in run {
                let same = |it: &&Finding| (it.fault, &it.id) == (finding.fault, &finding.id);
                if let Some(confirmed) = again.iter().find(same) {
                    self.found(confirmed.clone()).await?;
                }
            }
        }
        Ok(())
    }
}

/// What a fault means for people: its name, and what is or can be done about it.
#[must_use]
pub fn advice(fault: Fault) -> String {
    let by = match fault.remedy() {
        Remedy::Repair => "repair",
        Remedy::Heals => "repair, or by itself when a consumer or worker comes to it",
        Remedy::Person => "by hand",
    };
    format!("{fault}: {} ({by})", fault.advice())
}
