//! Mistakes of the audit role.

use async_trait::async_trait;
use millstream_core::Result;
use millstream_core::audit::{Audit, Audited, Check, Fault, Finding, Scope};

use super::{Broken, Mutant};

#[async_trait]
impl Audit for Broken {
    async fn audit(&self, scope: &Scope, check: Check, after: Option<&str>) -> Result<Audited> {
        let mut page = self.inner.audit()?.audit(scope, check, after).await?;
        match self.sabotage {
            Mutant::AuditBlind => page.findings.clear(),
            Mutant::AuditSuspects if page.findings.is_empty() && page.looked_at > 0 => {
                page.findings.push(Finding::new(Fault::Ghost, scope, "log:1-1", "made up"));
            }
            _ => {}
        }
        Ok(page)
    }

    async fn repair(&self, finding: &Finding) -> Result<bool> {
        match self.sabotage {
            Mutant::RepairForgotten => Ok(true),
            Mutant::RepairAlways => self.inner.audit()?.repair(finding).await.map(|_| true),
            _ => self.inner.audit()?.repair(finding).await,
        }
    }
}
