//! Arguments of handlers: state and parts of the message, as in axum.
//!
//! A handler is any `async fn` with one [`Delivery`]. With [`handler`] and [`with_state`] it may have other arguments: up to eight
//! [parts](FromMessage) of the message or of the state, and at last the message itself, as [`Payload`] or [`Delivery`].
//!
//! ```
//! use millstream_engine::extract::{Attempt, Payload, State, with_state};
//! # use millstream_engine::Delivery;
//! # #[derive(Clone)]
//! # struct Bank;
//! # impl Bank { async fn charge(&self, _: u64, _: u32) -> std::result::Result<(), String> { Ok(()) } }
//!
//! async fn charge(
//!     State(bank): State<Bank>,
//!     Attempt(attempt): Attempt,
//!     Payload(cents): Payload<u64>,
//! ) -> std::result::Result<(), String> {
//!     bank.charge(cents, attempt).await
//! }
//!
//! # fn example(bank: Bank) -> impl Fn(Delivery<u64>) {
//! let handler = with_state(bank, charge); // mq.consumer(CHARGES, "billing").start(handler)
//! # move |delivery| drop(handler(delivery)) }
//! ```

use std::future::{Ready, ready};

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::{Either, Map};
use millstream_core::{Converted, GroupName, Headers, IntoOutcome, MessageId, Outcome, TopicPartition};

use crate::delivery::{Deliverable, Delivery};
use crate::steps::Steps;

/// A part of a message or of the state, as an argument of a handler.
///
/// ```
/// use millstream_core::Outcome;
/// use millstream_engine::Delivery;
/// use millstream_engine::extract::FromMessage;
///
/// /// The tenant that a header names.
/// struct Tenant(String);
///
/// impl<S> FromMessage<S> for Tenant {
///     fn from_message<T>(delivery: &Delivery<T>, _: &S) -> Result<Self, Outcome> {
///         let tenant = delivery.headers().get_str("tenant");
///         tenant.map(|it| Self(it.to_owned())).ok_or_else(|| Outcome::dead_letter("no header `tenant`"))
///     }
/// }
/// ```
pub trait FromMessage<S>: Sized {
    /// Returns the part.
    ///
    /// # Errors
    /// The outcome of the message, whose handler is not called.
    fn from_message<T>(delivery: &Delivery<T>, state: &S) -> Result<Self, Outcome>;
}

/// The message, as the last argument of a handler.
pub trait FromDelivery<T> {
    /// Converts it.
    fn from_delivery(delivery: Delivery<T>) -> Self;
}

impl<T> FromDelivery<T> for Delivery<T> {
    fn from_delivery(delivery: Self) -> Self {
        delivery
    }
}

/// The decoded payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Payload<T>(pub T);

impl<T> FromDelivery<T> for Payload<T> {
    fn from_delivery(delivery: Delivery<T>) -> Self {
        Self(delivery.payload)
    }
}

/// A clone of the state that was passed to [`with_state`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct State<S>(pub S);

impl<S: Clone> FromMessage<S> for State<S> {
    fn from_message<T>(_: &Delivery<T>, state: &S) -> Result<Self, Outcome> {
        Ok(Self(state.clone()))
    }
}

/// The number of the attempt, from 1: [`Delivery::attempt`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attempt(pub u32);

impl<S> FromMessage<S> for Attempt {
    fn from_message<T>(delivery: &Delivery<T>, _: &S) -> Result<Self, Outcome> {
        Ok(Self(delivery.attempt()))
    }
}

/// The key, if there is one.
#[derive(Clone, PartialEq, Eq)]
pub struct Key(pub Option<Bytes>);

impl<S> FromMessage<S> for Key {
    fn from_message<T>(delivery: &Delivery<T>, _: &S) -> Result<Self, Outcome> {
        Ok(Self(delivery.key().cloned()))
    }
}

/// The id of the message in its partition's log, the same on every attempt: [`Delivery::origin`]. A task has none, so it is `0-0`: take
/// [`LastingId`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin(pub MessageId);

impl<S> FromMessage<S> for Origin {
    fn from_message<T>(delivery: &Delivery<T>, _: &S) -> Result<Self, Outcome> {
        Ok(Self(delivery.origin()))
    }
}

/// What names the message in its topic or queue, the same on every attempt: its partition and [`Delivery::origin`], or the id of the task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LastingId(pub String);

impl<S> FromMessage<S> for LastingId {
    fn from_message<T>(delivery: &Delivery<T>, _: &S) -> Result<Self, Outcome> {
        Ok(Self(delivery.message_id()))
    }
}

/// The steps of the message: [`Delivery::steps`].
impl<S> FromMessage<S> for Steps {
    fn from_message<T>(delivery: &Delivery<T>, _: &S) -> Result<Self, Outcome> {
        Ok(delivery.steps())
    }
}

/// The epoch of the owner's lease, for stores that refuse smaller ones: [`Delivery::epoch`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fence(pub u64);

impl<S> FromMessage<S> for Fence {
    fn from_message<T>(delivery: &Delivery<T>, _: &S) -> Result<Self, Outcome> {
        Ok(Self(delivery.epoch()))
    }
}

impl<S> FromMessage<S> for Headers {
    fn from_message<T>(delivery: &Delivery<T>, _: &S) -> Result<Self, Outcome> {
        Ok(delivery.headers().clone())
    }
}

impl<S> FromMessage<S> for TopicPartition {
    fn from_message<T>(delivery: &Delivery<T>, _: &S) -> Result<Self, Outcome> {
        Ok(delivery.topic_partition().clone())
    }
}

impl<S> FromMessage<S> for GroupName {
    fn from_message<T>(delivery: &Delivery<T>, _: &S) -> Result<Self, Outcome> {
        Ok(delivery.group().clone())
    }
}

/// Function that can handle messages of `T` with a state `S`: its arguments are up to eight parts, and the message.
///
/// `A` is the type of its arguments; the compiler finds it.
#[diagnostic::on_unimplemented(
    message = "this function cannot handle messages of `{T}` with a state `{S}`",
    note = "its last argument is `Payload<{T}>` or `Delivery<{T}>`, those before are parts such as `State<{S}>`, and it is async",
    note = "if it has a `State` of another type, `with_state(state, function)` passes one of that type",
    note = "it returns `()`, an `Outcome`, a `Reply`, or a `Result` whose error becomes a retry"
)]
pub trait Handler<T, S, A>: Send + Sync + 'static {
    /// What it returns.
    type Output: IntoOutcome;

    /// What it returns, or the outcome of a message of which a part is missing.
    type Future: Future<Output = Converted<Self::Output>> + Send + 'static;

    /// Calls it.
    fn call(&self, delivery: Delivery<T>, state: &S) -> Self::Future;
}

/// Future of a function, and the conversion of its output.
type Converting<Fut> = Map<Fut, fn(<Fut as Future>::Output) -> Converted<<Fut as Future>::Output>>;

macro_rules! handlers {
    ($($part:ident)*) => {
        impl<T, S, F, Fut, M, $($part,)*> Handler<T, S, ($($part,)* M,)> for F
        where
            F: Fn($($part,)* M) -> Fut + Send + Sync + 'static,
            Fut: Future + Send + 'static,
            Fut::Output: IntoOutcome,
            M: FromDelivery<T>,
            $($part: FromMessage<S>,)*
        {
            type Output = Fut::Output;
            type Future = Either<Converting<Fut>, Ready<Converted<Fut::Output>>>;

            #[allow(non_snake_case, unused_variables, reason = "arguments have the names of their types")]
            fn call(&self, delivery: Delivery<T>, state: &S) -> Self::Future {
                $(
                    let $part = match $part::from_message(&delivery, state) {
                        Ok(part) => part,
                        Err(outcome) => return Either::Right(ready(outcome.into())),
                    };
                )*
                let convert: fn(Fut::Output) -> Converted<Fut::Output> = Converted::new;
                Either::Left(self($($part,)* M::from_delivery(delivery)).map(convert))
            }
        }
    };
}

handlers!();
handlers!(A1);
handlers!(A1 A2);
handlers!(A1 A2 A3);
handlers!(A1 A2 A3 A4);
handlers!(A1 A2 A3 A4 A5);
handlers!(A1 A2 A3 A4 A5 A6);
handlers!(A1 A2 A3 A4 A5 A6 A7);
handlers!(A1 A2 A3 A4 A5 A6 A7 A8);

/// Converts a function with parts of the message as arguments into a handler for
/// `ConsumerBuilder::start`.
pub fn handler<D, A, H>(handler: H) -> impl Fn(D) -> H::Future + Send + Sync + 'static
where
    D: Deliverable,
    H: Handler<D::Payload, (), A>,
{
    with_state((), handler)
}

/// The same with a state, of which [`State`] is a clone.
pub fn with_state<S, D, A, H>(state: S, handler: H) -> impl Fn(D) -> H::Future + Send + Sync + 'static
where
    S: Send + Sync + 'static,
    D: Deliverable,
    H: Handler<D::Payload, S, A>,
{
    move |message: D| handler.call(message.into_delivery(), &state)
}
