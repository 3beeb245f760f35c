//! libterrace.so: is it where `terrace run` will look?

use super::row::{Row, Status};

/// Row: libterrace.so.
pub fn rows() -> Vec<Row> {
    let name = "libterrace.so";
    vec![match crate::run::library::locate() {
        Ok(path) => {
            Row::ok(name, path.display().to_string(), "terrace run will preload it").required()
        }
        Err(error) => Row::new(
            name,
            Status::Missing,
            format!("{error:#}"),
            "terrace run refuses to start anything (exit status 125)",
            "install it beside the terrace command or in ../lib/terrace, or set TERRACE_LIBRARY",
        )
        .required(),
    }]
}
