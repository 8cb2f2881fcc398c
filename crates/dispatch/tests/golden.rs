//! Messages that version 0.1.0 sent.

use remuda_store::Grant;
use remuda_transport::GrantBatch;
use serde_json::Value;

const BUS: &str = include_str!("golden/bus.tsv");

#[test]
fn grant_batches_of_version_0_1_0_are_read_unchanged() {
    let batches: Vec<&str> = BUS.lines().filter_map(|line| line.strip_prefix("grant_batch\t")).collect();
    assert!(batches.len() > 2);
    for json in batches {
        let golden: Value = serde_json::from_str(json).unwrap();
        let batch = GrantBatch::decode(json.into()).unwrap();
        assert_eq!(serde_json::to_value(batch.from).unwrap(), golden["from"]);
        assert_eq!(
            (Some(batch.stamp), Some(batch.sent)),
            (golden["stamp"].as_u64(), golden["sent"].as_u64())
        );
        let grants: Vec<Value> = batch
            .grants
            .iter()
            .map(|record| {
                let grant: Grant = serde_json::from_slice(record.body.as_ref().unwrap()).unwrap();
                assert_eq!(
                    (grant.fence.tenant, grant.fence.session, grant.fence.epoch),
                    (record.tenant, record.session, record.epoch)
                );
                serde_json::to_value(&grant).unwrap()
            })
            .collect();
        assert_eq!(Value::from(grants), golden["grants"]);
    }
}
