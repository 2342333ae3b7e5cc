//! The scaler as KEDA uses it: over gRPC.

use std::collections::HashMap;
use std::time::Duration;

use millstream_core::catalog::Start;
use millstream_core::log::Append;
use millstream_core::schedule::{Due, OnConflict, Scheduling};
use millstream_core::{Backend, Envelope, GroupName, TopicSpec, wire};
use millstream_memory::MemoryBackend;
use tonic::client::Grpc;
use tonic::transport::Channel;
use tonic::{Code, IntoRequest, Status, Streaming};
use tonic_prost::ProstCodec;

use crate::proto::{
    GetMetricSpecResponse, GetMetricsRequest, GetMetricsResponse, IsActiveResponse, MetricSpec, MetricValue,
    SERVICE, ScaledObjectRef,
};
use crate::{Scaler, Server};

/// Longest wait for something that has to come.
const LIMIT: Duration = Duration::from_secs(60);

struct Keda(Grpc<Channel>);

impl Keda {
    async fn connect(server: &Server) -> Self {
        let endpoint = Channel::from_shared(format!("http://{}", server.address())).expect("an address");
        Self(Grpc::new(endpoint.connect().await.expect("connected")))
    }

    async fn call<Q, A>(&mut self, method: &str, request: Q) -> Result<A, Status>
    where
        Q: prost::Message + Send + Sync + 'static,
        A: prost::Message + Default + Send + Sync + 'static,
    {
        self.0.ready().await.expect("ready");
        let path = format!("{SERVICE}{method}").parse().expect("a path");
        let answered = self.0.unary(request.into_request(), path, ProstCodec::<Q, A>::default()).await;
        answered.map(tonic::Response::into_inner)
    }

    async fn is_active(&mut self, object: &ScaledObjectRef) -> Result<bool, Status> {
        self.call("IsActive", object.clone()).await.map(|answer: IsActiveResponse| answer.result)
    }

    async fn backlog(&mut self, object: &ScaledObjectRef) -> Result<Vec<MetricValue>, Status> {
        let request = GetMetricsRequest {
            scaled_object_ref: Some(object.clone()),
            metric_name: "millstream-backlog".to_owned(),
        };
        self.call("GetMetrics", request).await.map(|answer: GetMetricsResponse| answer.metric_values)
    }

    async fn stream(&mut self, object: &ScaledObjectRef) -> Result<Streaming<IsActiveResponse>, Status> {
        self.0.ready().await.expect("ready");
        let path = format!("{SERVICE}StreamIsActive").parse().expect("a path");
        let codec = ProstCodec::<ScaledObjectRef, IsActiveResponse>::default();
        let opened = self.0.server_streaming(object.clone().into_request(), path, codec).await;
        opened.map(tonic::Response::into_inner)
    }
}

async fn next(stream: &mut Streaming<IsActiveResponse>) -> Option<bool> {
    let next = tokio::time::timeout(LIMIT, stream.message()).await.expect("an answer in time");
    next.expect("no error").map(|answer| answer.result)
}

fn object(metadata: &[(&str, &str)]) -> ScaledObjectRef {
    let metadata = metadata.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
    let scaler_metadata: HashMap<_, _> = metadata.collect();
    ScaledObjectRef { name: "billing".to_owned(), namespace: "shop".to_owned(), scaler_metadata }
}

fn billing() -> ScaledObjectRef {
    let address = ("scalerAddress", "scaler.shop.svc:9466");
    object(&[("topic", "orders"), ("group", "billing"), ("targetValue", "100"), address])
}

/// A server over a topic with a group.
async fn served() -> (Backend, TopicSpec, Server) {
    let backend = Backend::from(MemoryBackend::new());
    let spec = TopicSpec::new("orders".parse().expect("a name"), 2).expect("a topic");
    let group: GroupName = "billing".parse().expect("a name");
    backend.catalog().create_topic(&spec).await.expect("a topic");
    backend.catalog().create_group(&spec, &group, Start::Earliest).await.expect("a group");
    let scaler = Scaler::new(&backend).interval(Duration::from_millis(100));
    (backend, spec, scaler.serve(([127, 0, 0, 1], 0)).await.expect("it listens"))
}

async fn append(backend: &Backend, spec: &TopicSpec) {
    let topic_partition = spec.iter().nth(1).expect("two");
    let append = Append::new(topic_partition, wire::encode(&Envelope::new("x")));
    assert!(backend.log().append(&[append]).await[0].is_ok());
}

#[tokio::test]
async fn one_message_wakes_and_is_counted() {
    let (backend, spec, server) = served().await;
    let mut keda = Keda::connect(&server).await;
    let billing = billing();
    assert!(!keda.is_active(&billing).await.expect("answered"));
    let specs: GetMetricSpecResponse = keda.call("GetMetricSpec", billing.clone()).await.expect("answered");
    let metric_name = "millstream-backlog".to_owned();
    let target = MetricSpec { metric_name: metric_name.clone(), target_size: 100, target_size_float: 100.0 };
    assert_eq!(specs.metric_specs, [target]);
    let mut pushed = keda.stream(&billing).await.expect("opened");
    append(&backend, &spec).await;
    assert_eq!(next(&mut pushed).await, Some(true));
    let again = next(&mut keda.stream(&billing).await.expect("opened")).await;
    assert_eq!(again, Some(true), "one who comes later gets it at once");
    assert!(keda.is_active(&billing).await.expect("answered"));
    let value = MetricValue { metric_name, metric_value: 1, metric_value_float: 1.0 };
    assert_eq!(keda.backlog(&billing).await.expect("answered"), vec![value]);
    let mut patient = billing;
    patient.scaler_metadata.insert("activationTargetValue".to_owned(), "1".to_owned());
    assert!(!keda.is_active(&patient).await.expect("answered"), "not more than one");
    server.shutdown().await;
    assert_eq!(next(&mut pushed).await, None, "it ends with the server, without an error");
}

#[tokio::test]
async fn a_delayed_message_wakes_when_it_is_due() {
    let (backend, spec, server) = served().await;
    let mut keda = Keda::connect(&server).await;
    let scheduling = |id: &str, delay| Scheduling {
        place: spec.iter().next().expect("two").into(),
        id: id.parse().expect("an id"),
        due: Due::In(delay),
        fields: wire::encode(&Envelope::new("x")),
        on_conflict: OnConflict::Keep,
    };
    let later = [scheduling("later", Duration::from_secs(3_600))];
    assert!(backend.schedule().schedule(&later).await[0].is_ok());
    assert!(!keda.is_active(&billing()).await.expect("answered"), "nothing is due");
    let mut pushed = keda.stream(&billing()).await.expect("opened");
    let now = [scheduling("now", Duration::ZERO)];
    assert!(backend.schedule().schedule(&now).await[0].is_ok());
    assert_eq!(next(&mut pushed).await, Some(true));
}

#[tokio::test]
async fn what_is_wrong_has_its_status() {
    let (_backend, _, server) = served().await;
    let mut keda = Keda::connect(&server).await;
    let status = keda.is_active(&object(&[("group", "billing")])).await.expect_err("no topic");
    assert_eq!(status.code(), Code::InvalidArgument);
    assert!(status.message().contains("lack topic"), "{status}");
    let bad = object(&[("topic", "orders"), ("group", "billing"), ("targetValue", "many")]);
    for status in [
        keda.stream(&bad).await.map(drop).expect_err("no number"),
        keda.call::<_, GetMetricSpecResponse>("GetMetricSpec", bad.clone())
            .await
            .map(drop)
            .expect_err("no number"),
        keda.backlog(&bad).await.map(drop).expect_err("no number"),
    ] {
        assert_eq!(status.code(), Code::InvalidArgument);
        assert!(status.message().contains("targetValue of the trigger is \"many\""), "{status}");
    }
    let mut stranger = billing();
    stranger.scaler_metadata.insert("group".to_owned(), "nobody".to_owned());
    let status = keda.is_active(&stranger).await.expect_err("no group");
    assert_eq!(status.code(), Code::NotFound);
    assert!(status.message().contains("no group nobody"), "{status}");
    let request = GetMetricsRequest { scaled_object_ref: Some(billing()), metric_name: "cpu".to_owned() };
    let status = keda.call::<_, GetMetricsResponse>("GetMetrics", request).await.expect_err("no metric");
    assert_eq!(status.code(), Code::InvalidArgument);
    // KEDA takes this for a scaler that has no such stream, and goes on.
    let status = keda.call::<_, GetMetricSpecResponse>("StreamMetricSpec", billing()).await;
    assert_eq!(status.expect_err("no method").code(), Code::Unimplemented);
}

#[tokio::test]
async fn a_group_that_is_created_later_is_watched_from_then_on() {
    let (backend, spec, server) = served().await;
    let mut keda = Keda::connect(&server).await;
    let mut late = billing();
    late.scaler_metadata.insert("group".to_owned(), "late".to_owned());
    let mut pushed = keda.stream(&late).await.expect("a stream that ended would be opened again much later");
    append(&backend, &spec).await;
    backend
        .catalog()
        .create_group(&spec, &"late".parse().expect("a name"), Start::Earliest)
        .await
        .expect("a group");
    assert_eq!(next(&mut pushed).await, Some(true));
}

#[test]
fn messages_are_on_the_wire_as_protobuf_has_them() {
    use prost::Message as _;
    let object = object(&[("topic", "t")]);
    let bytes =
        [&[0x0a, 7][..], b"billing", &[0x12, 4], b"shop", &[0x1a, 10, 0x0a, 5], b"topic", &[0x12, 1], b"t"]
            .concat();
    assert_eq!(object.encode_to_vec(), bytes);
    let value = MetricValue { metric_name: "m".to_owned(), metric_value: 3, metric_value_float: 3.0 };
    let bytes = [&[0x0a, 1][..], b"m", &[0x10, 3, 0x19], &3f64.to_le_bytes()].concat();
    assert_eq!(value.encode_to_vec(), bytes);
}
