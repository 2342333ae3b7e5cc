//! Style and script, whose names contain a hash of their content: a browser keeps them for ever.

use std::sync::LazyLock;

use axum::extract::Path;
use axum::http::{HeaderName, StatusCode, header};
use axum::response::{IntoResponse, Response};

/// A file of the dashboard.
#[derive(Debug)]
pub(crate) struct Asset {
    name: String,
    content_type: &'static str,
    bytes: &'static [u8],
}

impl Asset {
    fn new(stem: &str, extension: &str, content_type: &'static str, bytes: &'static [u8]) -> Self {
        let hash = sha1_smol::Sha1::from(bytes).digest().to_string();
        Self { name: format!("{stem}-{}.{extension}", &hash[..12]), content_type, bytes }
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }
}

static STYLE: LazyLock<Asset> = LazyLock::new(|| {
    Asset::new("style", "css", "text/css; charset=utf-8", include_bytes!("../assets/style.css"))
});
static SCRIPT: LazyLock<Asset> = LazyLock::new(|| {
    Asset::new("script", "js", "text/javascript; charset=utf-8", include_bytes!("../assets/script.js"))
});

pub(crate) fn style() -> &'static Asset {
    &STYLE
}

pub(crate) fn script() -> &'static Asset {
    &SCRIPT
}

/// Serves a file.
pub(crate) async fn serve(Path(name): Path<String>) -> Response {
    let Some(asset) = [style(), script()].into_iter().find(|asset| asset.name == name) else {
        return StatusCode::NOT_FOUND.into_response();
    };
    let headers: [(HeaderName, &str); 2] = [
        (header::CONTENT_TYPE, asset.content_type),
        (header::CACHE_CONTROL, "public, max-age=31536000, immutable"),
    ];
    (headers, asset.bytes).into_response()
}
