//! Verify: is every message in exactly one place? And what is to be done about what is not.

use std::collections::BTreeSet;

use millstream_core::audit::{Check, Fault, Finding, Remedy, Scope};
use millstream_core::schedule::Shard;
use millstream_core::{Error, ErrorKind, QueueName, Result, TopicName};

use crate::Admin;

/// How a verification is made.
#[derive(Clone, Copy, Debug)]
pub struct VerifyOptions {
    /// Whether what can be repaired is repaired at once. Default: no.
    pub repair: bool,
    /// The most findings: at the next one it ends, and leaves that as it is. Default: 10,000.
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
    /// It could not be put right, or is so again: it is still wrong.
    Still,
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
    /// Checks a topic: its settings, every partition, every group on it. In bounded requests, while everything runs. Where
    /// something is repaired it looks again, and tells what is still wrong.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] for a topic of which nothing is there; [`ErrorKind::Unsupported`] for one that a newer
    /// version made; transient ones.
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
        let spec = match spec {
            Ok(spec) => spec,
            // What there is of it was looked at, and found to be wrong.
            Err(error) if error.kind() == ErrorKind::NotFound || pass.tells(&error) => {
                return Ok(pass.verified);
            }
            Err(error) => return Err(error),
        };
        let groups = match self.backend.catalog.groups(topic).await {
            Err(error) if pass.tells(&error) => Vec::new(),
            other => other?,
        };
        for tp in spec.iter() {
            pass.scope(&Scope::Partition(tp.clone())).await?;
            for group in &groups {
                pass.scope(&Scope::Group(tp.clone(), group.clone())).await?;
            }
            if pass.verified.cut {
                break;
            }
        }
        pass.end().await
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
            if pass.verified.cut {
                break;
            }
        }
        pass.end().await
    }
}

/// How often it is looked again at most: a repair may lay something else open.
const LOOKS: usize = 3;

/// One verification on its way.
struct Pass<'a> {
    admin: &'a Admin,
    options: VerifyOptions,
    verified: Verified,
    known: BTreeSet<(Fault, Scope, String)>,
    /// What is to be looked at once more, at the end: somebody may just be about it.
    suspects: Vec<(Scope, Check, Finding)>,
    /// Where something was repaired.
    touched: BTreeSet<Scope>,
    /// Whether it looks again.
    again: bool,
}

impl<'a> Pass<'a> {
    fn new(admin: &'a Admin, options: VerifyOptions) -> Self {
        let (verified, known) = (Verified::default(), BTreeSet::new());
        Self { admin, options, verified, known, suspects: Vec::new(), touched: BTreeSet::new(), again: false }
    }

    /// Whether what keeps something from being looked at is among the findings.
    fn tells(&self, error: &Error) -> bool {
        let fault = match error.kind() {
            ErrorKind::WrongType => Fault::WrongType,
            ErrorKind::Protocol | ErrorKind::Unsupported => Fault::SettingsDamaged,
            _ => return false,
        };
        self.verified.cut || self.known.iter().any(|(known, ..)| *known == fault)
    }

    /// What is behind the last scope.
    async fn end(mut self) -> Result<Verified> {
        self.second_look().await?;
        // Once more at where something was repaired: what is there again was not put right, what is new is dealt with as
        // before. The last look repairs nothing, so that everything was seen after it was repaired.
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
        for check in scope.checks() {
            match self.check(scope, *check).await {
                // The check of types tells of it; no other can be made there.
                Err(error) if self.tells(&error) => {}
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
            _ if !self.options.repair => Repaired::NotAsked,
            _ => {
                self.touched.insert(finding.scope.clone());
                let done = self.admin.backend.audit.repair(&finding).await?;
                if done { Repaired::Yes } else { Repaired::Gone }
            }
        };
        self.verified.verdicts.push(Verdict { finding, repaired });
        Ok(())
    }

    /// What was taken for right is seen again.
    fn still(&mut self, seen: &Finding) {
        let same = |it: &Finding| (it.fault, &it.scope, &it.id) == (seen.fault, &seen.scope, &seen.id);
        for verdict in self.verified.verdicts.iter_mut().filter(|it| same(&it.finding)) {
            if matches!(verdict.repaired, Repaired::Yes | Repaired::Gone) {
                verdict.repaired = Repaired::Still;
            }
        }
    }

    /// What is seen again was no change that was under way. Each place is looked at once.
    async fn second_look(&mut self) -> Result<()> {
        let suspects = std::mem::take(&mut self.suspects);
        for run in suspects.chunk_by(|a, b| (&a.0, a.1) == (&b.0, b.1)) {
            let Some((scope, check, _)) = run.first() else { continue };
            let again = match self.admin.backend.audit.audit(scope, *check, None).await {
                Err(error) if self.tells(&error) => continue,
                other => other?.findings,
            };
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
