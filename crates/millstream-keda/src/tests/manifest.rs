//! The manifests of the documentation have triggers that the scaler understands.

use std::path::Path;

use crate::Trigger;

/// Returns the metadata of each trigger of the type `external-push`, with its lines as they are written.
fn triggers(page: &str) -> Vec<Vec<(String, String)>> {
    let after = page.split("type: external-push").skip(1);
    let metadata = after.map(|text| {
        let lines = text.lines().skip(1).skip_while(|line| line.trim() != "metadata:").skip(1);
        let pairs = lines.map_while(|line| {
            let (key, value) = line.split(" #").next()?.trim().split_once(": ")?;
            Some((key.to_owned(), value.trim_matches('"').to_owned()))
        });
        pairs.collect()
    });
    metadata.collect()
}

#[test]
fn documented_triggers_are_understood() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for page in ["README.md", "../../docs/guides/deploy.md"] {
        let text = std::fs::read_to_string(root.join(page)).expect("a page");
        let triggers = triggers(&text);
        assert_eq!(triggers.len(), 1, "{page}");
        for metadata in triggers {
            let trigger = Trigger::from_metadata(metadata.iter().map(|(key, value)| (key, value)));
            trigger.unwrap_or_else(|error| panic!("{page}: {error}: {metadata:?}"));
            assert!(metadata.iter().any(|(key, _)| key == "scalerAddress"), "{page}: {metadata:?}");
        }
    }
}
