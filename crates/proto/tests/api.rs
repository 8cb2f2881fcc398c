//! The public gRPC API against the committed descriptor: what clients were compiled against must stay.
//!
//! Additions are fine, but have to be accepted: `REMUDA_ACCEPT_API=1 cargo test -p remuda-proto --test api` writes the descriptor. It refuses to write a
//! breaking change, so that removing or changing anything needs a new package (`remuda.v2`).

#![expect(clippy::unwrap_used, reason = "a test")]

use std::{
    collections::{BTreeMap, BTreeSet},
    env, fs,
};

use prost::Message as _;
use prost_types::{DescriptorProto, EnumDescriptorProto, FileDescriptorSet};
use remuda_proto::FILE_DESCRIPTOR_SET;

const ACCEPTED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../proto/remuda.v1.binpb");

/// Everything that a client depends on, by a name that does not change: a removed key or another value breaks clients.
fn contract(set: &FileDescriptorSet) -> BTreeMap<String, String> {
    let mut contract = BTreeMap::new();
    for file in set.file.iter().filter(|file| file.package() == "remuda.v1") {
        let package = file.package();
        for message in &file.message_type {
            add_message(&mut contract, package, message);
        }
        for it in &file.enum_type {
            add_enum(&mut contract, package, it);
        }
        for service in &file.service {
            for method in &service.method {
                let kind = (method.client_streaming(), method.server_streaming());
                contract.insert(
                    format!("rpc {package}.{}/{}", service.name(), method.name()),
                    format!("{} -> {} {kind:?}", method.input_type(), method.output_type()),
                );
            }
        }
    }
    contract
}

fn add_message(contract: &mut BTreeMap<String, String>, scope: &str, message: &DescriptorProto) {
    let name = format!("{scope}.{}", message.name());
    contract.insert(format!("message {name}"), String::new());
    for field in &message.field {
        // The wire knows the number, JSON and generated code know the name.
        let oneof = field.oneof_index.filter(|_| !field.proto3_optional());
        let oneof = oneof.and_then(|index| message.oneof_decl.get(usize::try_from(index).ok()?));
        contract.insert(
            format!("field {name}.{}", field.name()),
            format!(
                "{} {:?} {:?} {} optional={} oneof={}",
                field.number(),
                field.label(),
                field.r#type(),
                field.type_name(),
                field.proto3_optional(),
                oneof.map_or("", |oneof| oneof.name())
            ),
        );
    }
    message.nested_type.iter().for_each(|nested| add_message(contract, &name, nested));
    message.enum_type.iter().for_each(|nested| add_enum(contract, &name, nested));
}

fn add_enum(contract: &mut BTreeMap<String, String>, scope: &str, it: &EnumDescriptorProto) {
    let name = format!("{scope}.{}", it.name());
    contract.insert(format!("enum {name}"), String::new());
    for value in &it.value {
        contract.insert(format!("value {name}.{}", value.name()), value.number().to_string());
    }
}

/// What of the old contract is gone or different.
fn broken(old: &BTreeMap<String, String>, new: &BTreeMap<String, String>) -> Vec<String> {
    let difference = |(name, was): (&String, &String)| match new.get(name) {
        None => Some(format!("{name} is gone")),
        Some(is) if is != was => Some(format!("{name} was `{was}`, is `{is}`")),
        Some(_) => None,
    };
    old.iter().filter_map(difference).collect()
}

fn decode(bytes: &[u8]) -> FileDescriptorSet {
    FileDescriptorSet::decode(bytes).unwrap()
}

#[test]
fn the_api_has_no_breaking_change_and_additions_are_accepted() {
    let new = contract(&decode(FILE_DESCRIPTOR_SET));
    assert!(new.len() > 300, "the descriptor holds the API");
    let old = fs::read(ACCEPTED).map(|bytes| contract(&decode(&bytes))).unwrap_or_default();
    let broken = broken(&old, &new);
    assert!(broken.is_empty(), "breaking changes of remuda.v1:\n{}", broken.join("\n"));
    let names = |contract: &BTreeMap<String, String>| contract.keys().cloned().collect::<BTreeSet<_>>();
    let added: Vec<String> = names(&new).difference(&names(&old)).cloned().collect();
    if !added.is_empty() && env::var_os("REMUDA_ACCEPT_API").is_some() {
        // Without comments: they are not the contract, and would change it with every word.
        let mut set = decode(FILE_DESCRIPTOR_SET);
        set.file.iter_mut().for_each(|file| file.source_code_info = None);
        fs::write(ACCEPTED, set.encode_to_vec()).unwrap();
        return;
    }
    assert!(added.is_empty(), "additions that are not accepted (REMUDA_ACCEPT_API=1):\n{}", added.join("\n"));
}

#[test]
fn a_removed_renumbered_or_retyped_field_is_a_breaking_change() {
    let api = decode(FILE_DESCRIPTOR_SET);
    let old = contract(&api);
    let breaks = |change: fn(&mut DescriptorProto)| {
        let mut changed = api.clone();
        let run = changed
            .file
            .iter_mut()
            .flat_map(|file| &mut file.message_type)
            .find(|it| it.name() == "Run")
            .unwrap();
        change(run);
        broken(&old, &contract(&changed)).len()
    };
    assert_eq!(breaks(|_| {}), 0);
    assert_eq!(breaks(|run| drop(run.field.remove(0))), 1);
    assert_eq!(breaks(|run| run.field[0].number = Some(99)), 1);
    assert_eq!(breaks(|run| run.field[0].r#type = Some(3)), 1);
    let mut added = api.clone();
    added.file[0]
        .message_type
        .push(DescriptorProto { name: Some("New".to_owned()), ..DescriptorProto::default() });
    assert_eq!(broken(&old, &contract(&added)), Vec::<String>::new());
}
