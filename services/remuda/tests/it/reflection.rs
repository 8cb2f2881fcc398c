//! A generic gRPC client that learns the API through server reflection.

use std::collections::HashSet;

use bytes::Bytes;
use futures::{StreamExt as _, stream};
use prost_reflect::{
    DescriptorPool, DynamicMessage, MessageDescriptor, MethodDescriptor, Value, prost::Message as _,
    prost_types::FileDescriptorProto,
};
use tonic::Request;
use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};
use tonic_reflection::pb::v1::{
    ServerReflectionRequest, server_reflection_client::ServerReflectionClient,
    server_reflection_request::MessageRequest as Ask, server_reflection_response::MessageResponse as Answer,
};

use crate::{harness::Dev, raw_grpc::RawGrpc};

/// Sends one request to the reflection service.
async fn query(grpc: &RawGrpc, question: Ask) -> Answer {
    let request = ServerReflectionRequest { host: String::new(), message_request: Some(question) };
    let mut client = ServerReflectionClient::new(grpc.channel.clone());
    let mut answers = client.server_reflection_info(stream::iter([request])).await.unwrap().into_inner();
    answers.next().await.unwrap().unwrap().message_response.unwrap()
}

/// Loads the descriptors of the server: its services, the files that define them, and their imports.
async fn load_descriptors(grpc: &RawGrpc) -> DescriptorPool {
    let Answer::ListServicesResponse(services) = query(grpc, Ask::ListServices(String::new())).await else {
        panic!("no list of services")
    };
    let mut files: Vec<FileDescriptorProto> = Vec::new();
    let mut questions: Vec<Ask> =
        services.service.into_iter().map(|service| Ask::FileContainingSymbol(service.name)).collect();
    let mut known: HashSet<String> = HashSet::new();
    while let Some(question) = questions.pop() {
        let Answer::FileDescriptorResponse(answer) = query(grpc, question.clone()).await else {
            panic!("no answer to {question:?}")
        };
        for bytes in answer.file_descriptor_proto {
            let file = FileDescriptorProto::decode(bytes.as_slice()).unwrap();
            if known.insert(file.name().to_owned()) {
                questions.extend(file.dependency.iter().cloned().map(Ask::FileByFilename));
                files.push(file);
            }
        }
    }
    let mut pool = DescriptorPool::new();
    pool.add_file_descriptor_protos(files).unwrap();
    pool
}

fn method(pool: &DescriptorPool, service: &str, name: &str) -> MethodDescriptor {
    let service = pool.get_service_by_name(service).unwrap();
    service.methods().find(|method| method.name() == name).unwrap()
}

fn path(method: &MethodDescriptor) -> String {
    format!("{}/{}", method.parent_service().full_name(), method.name())
}

fn message<const N: usize>(descriptor: MessageDescriptor, fields: [(&str, Value); N]) -> DynamicMessage {
    let mut message = DynamicMessage::new(descriptor);
    for (name, value) in fields {
        message.try_set_field_by_name(name, value).unwrap();
    }
    message
}

/// Reads a string field through nested messages.
fn text(message: &DynamicMessage, path: &[&str]) -> String {
    let (last, parents) = path.split_last().unwrap();
    let mut message = message.clone();
    for field in parents {
        message = message.get_field_by_name(field).unwrap().as_message().unwrap().clone();
    }
    message.get_field_by_name(last).unwrap().as_str().unwrap().to_owned()
}

#[tokio::test]
async fn reflection_client_submits_and_follows_a_run() {
    let dev = Dev::start().await;
    let grpc = RawGrpc::connect(dev.server.endpoint()).await;
    let pool = load_descriptors(&grpc).await;

    let submit = method(&pool, "remuda.v1.RunService", "SubmitRun");
    let tools_field = submit.input().get_field_by_name("tools").unwrap();
    let tools_type = tools_field.kind().as_message().unwrap().clone();
    let calls_field = tools_type.get_field_by_name("calls").unwrap();
    let call = message(
        calls_field.kind().as_message().unwrap().clone(),
        [
            ("tool", Value::String("Bash".into())),
            ("arguments", Value::String(r#"{"command":"echo hi"}"#.into())),
        ],
    );
    let tools = message(tools_type, [("calls", Value::List(vec![Value::Message(call)]))]);
    let request = message(
        submit.input(),
        [
            ("session", Value::String("s1".into())),
            ("create_session", Value::Bool(true)),
            ("tools", Value::Message(tools)),
        ],
    );
    let bytes = Bytes::from(request.encode_to_vec());
    let answer = grpc.unary(&path(&submit), Request::new(bytes)).await.unwrap().into_inner();
    let answer = DynamicMessage::decode(submit.output(), answer).unwrap();
    let run = text(&answer, &["run", "id"]);

    let subscribe = method(&pool, "remuda.v1.StreamService", "Subscribe");
    assert!(subscribe.is_server_streaming());
    let request = message(subscribe.input(), [("run_id", Value::String(run))]);
    let mut events = grpc.stream(&path(&subscribe), request.encode_to_vec().into()).await.unwrap();
    let mut types = Vec::new();
    let mut output = String::new();
    while let Some(bytes) = events.message().await.unwrap() {
        let event = DynamicMessage::decode(subscribe.output(), bytes).unwrap();
        let kind = text(&event, &["event", "type"]);
        if kind == "tool.completed" {
            output = text(&event, &["event", "data"]);
        }
        types.push(kind);
    }
    assert_eq!(types, ["run.queued", "run.started", "tool.started", "tool.completed", "run.completed"]);
    assert!(output.contains(r#""stdout":"hi\n""#), "{output}");
}

#[tokio::test]
async fn grpc_health_service_answers() {
    let dev = Dev::start().await;
    let grpc = RawGrpc::connect(dev.server.endpoint()).await;
    let mut health = HealthClient::new(grpc.channel.clone());
    let answer = health.check(HealthCheckRequest::default()).await.unwrap().into_inner();
    assert_eq!(answer.status().as_str_name(), "SERVING");
    let unknown = HealthCheckRequest { service: "nobody".to_owned() };
    assert_eq!(health.check(unknown).await.unwrap_err().code(), tonic::Code::NotFound);
}
