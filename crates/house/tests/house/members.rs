//! The manifests of the crates.

use cargo_metadata::{Metadata, MetadataCommand, Package};
use house::tree::root;

/// The members of the workspace.
pub(crate) fn members() -> Vec<Package> {
    let metadata: Metadata = MetadataCommand::new()
        .manifest_path(root().join("Cargo.toml"))
        .no_deps()
        .other_options(["--offline".to_owned()])
        .exec()
        .expect("cargo metadata");
    metadata.packages
}

/// Whether a member goes to a registry.
pub(crate) fn is_published(package: &Package) -> bool {
    package.publish.as_ref().is_none_or(|registries| !registries.is_empty())
}
