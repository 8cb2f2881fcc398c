//! Definitions that version 0.1.0 stored are read, and serialized without a difference.

use remuda_workspace::Definitions;
use serde_json::Value;

const STORED: &str = include_str!("../golden/definitions.json");

#[test]
fn definitions_of_version_0_1_0_are_read_and_written_unchanged() {
    let definitions = Definitions::from_content(STORED).unwrap();
    assert_eq!(definitions.default_agent().unwrap().name, "planner");
    let golden: Value = serde_json::from_str(STORED).unwrap();
    assert_eq!(serde_json::to_value(&definitions).unwrap(), golden);
}
