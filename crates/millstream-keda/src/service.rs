//! The gRPC service: four methods, by their paths.

use std::convert::Infallible;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::StreamExt as _;
use millstream_core::{Error, ErrorKind};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tonic::body::Body;
use tonic::codegen::{BoxFuture, BoxStream, Service, http};
use tonic::server::Grpc;
use tonic::{Request, Response, Status};
use tonic_prost::ProstCodec;
use tower::service_fn;

use crate::proto::{
    GetMetricSpecResponse, GetMetricsRequest, GetMetricsResponse, IsActiveResponse, MetricSpec, MetricValue,
    SERVICE, ScaledObjectRef,
};
use crate::scaler::Scaler;
use crate::trigger::Trigger;

/// The name of the only metric. KEDA puts the index of the trigger in front of it, so it need not name the group.
const METRIC: &str = "millstream-backlog";
/// Largest request in bytes: names and the metadata of a trigger.
const LARGEST: usize = 64 << 10;
/// Maximum number of groups that are watched at the same time.
const WATCHED: usize = 1_000;

/// The service, for each connection a clone.
#[derive(Clone)]
pub(crate) struct ExternalScaler {
    scaler: Scaler,
    stopped: CancellationToken,
    room: Arc<Semaphore>,
}

impl ExternalScaler {
    /// Creates the service. Its streams end when `stopped` is cancelled.
    pub(crate) fn new(scaler: Scaler, stopped: CancellationToken) -> Self {
        Self { scaler, stopped, room: Arc::new(Semaphore::new(WATCHED)) }
    }

    async fn activity(self, object: ScaledObjectRef) -> Result<IsActiveResponse, Status> {
        let activity = self.scaler.read(&trigger(&object)?).await.map_err(|error| status(&error))?;
        Ok(IsActiveResponse { result: activity.is_active })
    }

    /// Only `true` is sent: what is active by another trigger must not be scaled in because this one is not. KEDA decides that with
    /// `IsActive` of all triggers.
    fn stream_is_active(self, object: &ScaledObjectRef) -> Result<BoxStream<IsActiveResponse>, Status> {
        let trigger = trigger(object)?;
        let full =
            |_| Status::resource_exhausted(format!("{WATCHED} groups are watched, which is the maximum"));
        let room = self.room.try_acquire_owned().map_err(full)?;
        let stopped = self.stopped.cancelled_owned();
        let activations = self.scaler.activations(trigger).take_until(stopped).map(move |()| {
            let _held_while_the_stream_is_open = &room;
            Ok(IsActiveResponse { result: true })
        });
        Ok(Box::pin(activations))
    }

    fn metric_spec(object: &ScaledObjectRef) -> Result<GetMetricSpecResponse, Status> {
        let target = trigger(object)?.target.get();
        let spec = MetricSpec {
            metric_name: METRIC.to_owned(),
            target_size: target.into(),
            target_size_float: target.into(),
        };
        Ok(GetMetricSpecResponse { metric_specs: vec![spec] })
    }

    async fn metrics(self, request: GetMetricsRequest) -> Result<GetMetricsResponse, Status> {
        if request.metric_name != METRIC {
            let text = format!("there is no metric {:?}, only {METRIC}", request.metric_name);
            return Err(Status::invalid_argument(text));
        }
        let trigger = trigger(&request.scaled_object_ref.unwrap_or_default())?;
        let activity = self.scaler.read(&trigger).await.map_err(|error| status(&error))?;
        let value = MetricValue {
            metric_name: METRIC.to_owned(),
            metric_value: i64::try_from(activity.backlog).unwrap_or(i64::MAX),
            #[expect(clippy::cast_precision_loss, reason = "a backlog of 2^53 messages does not exist")]
            metric_value_float: activity.backlog as f64,
        };
        Ok(GetMetricsResponse { metric_values: vec![value] })
    }
}

/// Returns the trigger that is asked for.
fn trigger(object: &ScaledObjectRef) -> Result<Trigger, Status> {
    Trigger::from_metadata(&object.scaler_metadata).map_err(|error| {
        let ScaledObjectRef { namespace, name, .. } = object;
        tracing::warn!(%namespace, %name, %error, "a ScaledObject has a trigger that cannot be answered");
        status(&error)
    })
}

/// Converts an error to the status that KEDA shows in its log and in the events of the `ScaledObject`.
fn status(error: &Error) -> Status {
    let text = error.to_string();
    match error.kind() {
        ErrorKind::InvalidConfig | ErrorKind::InvalidName => Status::invalid_argument(text),
        ErrorKind::NotFound => Status::not_found(text),
        ErrorKind::Denied => Status::permission_denied(text),
        ErrorKind::Unsupported => Status::unimplemented(text),
        ErrorKind::WrongType | ErrorKind::Protocol => Status::failed_precondition(text),
        _ if error.is_transient() => Status::unavailable(text),
        _ => Status::internal(text),
    }
}

/// Answers a request with one message.
async fn unary<Q, A>(
    request: http::Request<Body>,
    answer: impl AsyncFnOnce(Q) -> Result<A, Status>,
) -> http::Response<Body>
where
    Q: prost::Message + Default + 'static,
    A: prost::Message + 'static,
{
    let mut answer = Some(answer);
    let service = service_fn(|request: Request<Q>| {
        let answer = answer.take();
        async move {
            let answer = answer.ok_or_else(|| Status::internal("a call with two requests"))?;
            answer(request.into_inner()).await.map(Response::new)
        }
    });
    let mut grpc = Grpc::new(ProstCodec::<A, Q>::default()).max_decoding_message_size(LARGEST);
    grpc.unary(service, request).await
}

impl Service<http::Request<Body>> for ExternalScaler {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Self::Response, Infallible>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let this = self.clone();
        Box::pin(async move {
            Ok(match request.uri().path().strip_prefix(SERVICE) {
                Some("IsActive") => unary(request, async |object| this.activity(object).await).await,
                Some("GetMetricSpec") => unary(request, async |object| Self::metric_spec(&object)).await,
                Some("GetMetrics") => unary(request, async |asked| this.metrics(asked).await).await,
                Some("StreamIsActive") => {
                    let service = service_fn(|request: Request<ScaledObjectRef>| {
                        let opened = this.clone().stream_is_active(request.get_ref());
                        async move { opened.map(Response::new) }
                    });
                    let codec = ProstCodec::<IsActiveResponse, ScaledObjectRef>::default();
                    let mut grpc = Grpc::new(codec).max_decoding_message_size(LARGEST);
                    grpc.server_streaming(service, request).await
                }
                // KEDA goes on without `StreamMetricSpec`, which is optional.
                _ => Status::unimplemented("no such method").into_http(),
            })
        })
    }
}
