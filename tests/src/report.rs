//! The JSON report of a run.

use jsonschema::Validator;
use serde_json::Value;
use std::sync::LazyLock;

/// The published schema, but that no field may be there that the schema does not have.
static VALIDATOR: LazyLock<Validator> = LazyLock::new(|| {
    let text = include_str!("../../docs/reference/report.schema.json");
    let mut schema: Value = serde_json::from_str(text).expect("the schema is JSON");
    allow_no_more(&mut schema);
    jsonschema::validator_for(&schema).expect("it is a schema")
});

fn allow_no_more(schema: &mut Value) {
    match schema {
        Value::Object(object) => {
            if object.contains_key("properties") {
                object.insert("additionalProperties".into(), false.into());
            }
            object.values_mut().for_each(allow_no_more);
        }
        Value::Array(values) => values.iter_mut().for_each(allow_no_more),
        _ => {}
    }
}

/// The report of a run.
#[derive(Debug)]
pub struct Report(Value);

impl Report {
    /// Reads a report, and compares it with its schema.
    pub(crate) fn parse(text: &[u8]) -> Self {
        let report = serde_json::from_slice(text).unwrap_or_else(|e| {
            panic!("the report is not JSON ({e}): {}", String::from_utf8_lossy(text))
        });
        let mistakes: Vec<String> = VALIDATOR
            .iter_errors(&report)
            .map(|error| format!("{}: {error}", error.instance_path))
            .collect();
        assert!(mistakes.is_empty(), "the report is not as its schema says: {mistakes:#?}");
        Report(report)
    }

    /// A value by its path, e.g. `/moves/demoted_pages`.
    #[track_caller]
    pub fn at(&self, path: &str) -> &Value {
        self.0.pointer(path).unwrap_or_else(|| panic!("no {path} in the report {:#}", self.0))
    }

    /// A number by its path.
    #[track_caller]
    pub fn number(&self, path: &str) -> f64 {
        self.at(path)
            .as_f64()
            .unwrap_or_else(|| panic!("{path} is no number in the report {:#}", self.0))
    }

    /// Pages moved into a compressed tier.
    #[track_caller]
    pub fn demoted_pages(&self) -> u64 {
        self.number("/moves/demoted_pages") as u64
    }

    /// Pages brought back, by faults or ahead of them.
    #[track_caller]
    pub fn promoted_pages(&self) -> u64 {
        self.number("/moves/promoted_pages") as u64
    }

    /// Pages brought back by faults, from all tiers.
    #[track_caller]
    pub fn faults(&self) -> u64 {
        let tiers = self.at("/tiers").as_array().map_or(&[] as &[Value], Vec::as_slice);
        tiers.iter().filter_map(|tier| tier["faults"].as_u64()).sum()
    }

    /// Expects that the test tested something: the program was managed, nothing froze, and at least
    /// this many pages went out and came back.
    #[track_caller]
    pub fn expect_moves(&self, demoted: u64, promoted: u64) {
        self.expect_managed();
        assert!(
            self.demoted_pages() >= demoted,
            "only {} pages were demoted: {:#}",
            self.demoted_pages(),
            self.0
        );
        assert!(
            self.promoted_pages() >= promoted,
            "only {} pages were restored: {:#}",
            self.promoted_pages(),
            self.0
        );
    }

    /// Expects that the program was managed. Processes running `program` together demoted and
    /// promoted at least this many pages.
    #[track_caller]
    pub fn expect_moves_in(&self, program: &str, demoted: u64, promoted: u64) {
        self.expect_managed();
        let processes = self
            .at("/processes")
            .as_array()
            .into_iter()
            .flatten()
            .filter(|process| process["program"] == program);
        let (mut demoted_pages, mut promoted_pages) = (0, 0);
        for process in processes {
            demoted_pages += process["moves"]["demoted_pages"].as_u64().unwrap_or(0);
            promoted_pages += process["moves"]["promoted_pages"].as_u64().unwrap_or(0);
        }
        assert!(
            demoted_pages >= demoted,
            "only {demoted_pages} pages of {program} were demoted: {:#}",
            self.0
        );
        assert!(
            promoted_pages >= promoted,
            "only {promoted_pages} pages of {program} were restored: {:#}",
            self.0
        );
    }

    /// Expects that the program was managed, and that no internal check failed in any of its
    /// processes.
    #[track_caller]
    pub fn expect_managed(&self) {
        assert_eq!(self.at("/managed"), true, "not managed: {:#}", self.0);
        for process in self.at("/processes").as_array().into_iter().flatten() {
            assert_ne!(process["state"], "frozen", "an internal check failed: {:#}", self.0);
        }
    }
}

impl std::fmt::Display for Report {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:#}", self.0)
    }
}
