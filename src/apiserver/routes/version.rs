//! `/version`: which Kubernetes this server is to its clients.

use apimachinery::codec::media::MediaType;
use http::{Response, StatusCode};
use serde_json::{Value, json};

use crate::body::Body;
use crate::front::negotiate::Accepted;
use crate::front::respond;

/// The Kubernetes version served.
pub const GIT_VERSION: &str = "v1.37.0";
const MAJOR: &str = "1";
const MINOR: &str = "37";
/// The minor version whose behaviour is shown.
pub const EMULATED: &str = "1.37";
/// What stands where upstream tells the version of Go.
pub const COMPILER: &str = "rustc";
/// The oldest version whose behaviour could be shown.
pub const OLDEST_COMPATIBLE: &str = "1.36";
const OLDEST_COMPATIBLE_MINOR: &str = "36";

/// Indented as upstream writes it, whatever the client likes.
pub fn answer() -> Response<Body> {
    let pretty = Accepted {
        media: MediaType::Json,
        pretty: true,
    };
    respond::value(StatusCode::OK, &document(), pretty)
}

/// What `/version` says.
pub fn document() -> Value {
    json!({
        "major": MAJOR,
        "minor": MINOR,
        "emulationMajor": MAJOR,
        "emulationMinor": MINOR,
        "minCompatibilityMajor": MAJOR,
        "minCompatibilityMinor": OLDEST_COMPATIBLE_MINOR,
        "gitVersion": GIT_VERSION,
        "gitCommit": "",
        "gitTreeState": "clean",
        "buildDate": "1970-01-01T00:00:00Z",
        "goVersion": "",
        "compiler": COMPILER,
        "platform": concat!("linux/", "amd64"),
    })
}
