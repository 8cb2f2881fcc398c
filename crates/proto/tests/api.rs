//! The committed descriptor and generated code against the protos, and the API against its own past.
//!
//! Both are committed, so that a build needs neither a proto compiler nor a code generator. After a change of a
//! proto, `REMUDA_ACCEPT_API=1 cargo test -p remuda-proto --test api` writes them. It refuses a breaking change:
//! removing or changing what clients were compiled against needs a new package (`remuda.v2`).

#![expect(clippy::unwrap_used, reason = "a test")]

use std::{
    collections::BTreeMap,
    env, fs,
    path::{Path, PathBuf},
};

use prost::Message as _;
use prost_types::{DescriptorProto, EnumDescriptorProto, FileDescriptorSet};
use remuda_proto::FILE_DESCRIPTOR_SET;

const PROTOS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../proto");
const DESCRIPTOR: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../proto/remuda.v1.binpb");
const CODE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/generated/remuda.v1.rs");

/// Compiles the protos in pure Rust: no `protoc` is needed on the machine.
fn compile() -> FileDescriptorSet {
    let directory = Path::new(PROTOS).join("remuda/v1");
    let mut files: Vec<PathBuf> =
        fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    protox::compile(files, [PROTOS]).unwrap()
}

fn generate(descriptors: FileDescriptorSet) -> String {
    let directory = tempfile::tempdir().unwrap();
    // Ordered maps, so that the output of a message is deterministic.
    let mut configuration = tonic_prost_build::configure().btree_map(".").out_dir(directory.path());
    // An event is as large as its largest body, so the large ones are boxed.
    for body in ["tool_completed", "tool_failed", "approval_requested"] {
        configuration = configuration.boxed(format!(".remuda.v1.Event.body.{body}"));
    }
    configuration.compile_fds(descriptors).unwrap();
    fs::read_to_string(directory.path().join("remuda.v1.rs")).unwrap()
}

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
fn descriptor_and_code_are_those_of_the_protos_and_nothing_broke() {
    let compiled = compile();
    let (new, old) = (contract(&compiled), contract(&decode(FILE_DESCRIPTOR_SET)));
    assert!(new.len() > 300, "the descriptor holds the API");
    let broken = broken(&old, &new);
    assert!(broken.is_empty(), "breaking changes of remuda.v1:\n{}", broken.join("\n"));

    let (descriptor, code) = (compiled.encode_to_vec(), generate(compiled));
    if env::var_os("REMUDA_ACCEPT_API").is_some() {
        fs::write(DESCRIPTOR, descriptor).unwrap();
        fs::write(CODE, code).unwrap();
        return;
    }
    let accepted = descriptor == FILE_DESCRIPTOR_SET && code == fs::read_to_string(CODE).unwrap();
    let added: Vec<&String> = new.keys().filter(|name| !old.contains_key(*name)).collect();
    assert!(
        accepted,
        "the protos changed: REMUDA_ACCEPT_API=1 cargo test -p remuda-proto --test api; new: {added:?}"
    );
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
