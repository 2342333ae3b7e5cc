//! A script that the requests of producers carry.

/// Script of which the first call of each request carries the source, and the others name the hash: so no call finds that the server
/// does not know it.
pub(crate) struct Script {
    code: String,
    sha: String,
}

impl Script {
    pub(crate) fn new(code: String) -> Self {
        let sha = redis::Script::new(&code).get_hash().to_owned();
        Self { code, sha }
    }

    /// Returns the source.
    pub(crate) fn code(&self) -> &str {
        &self.code
    }

    /// Returns the hash of the source.
    pub(crate) fn sha(&self) -> &str {
        &self.sha
    }
}
