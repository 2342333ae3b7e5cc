//! Cancels a message, and shows what became of it.

use millstream::TopicPartition;
use millstream::admin::{Cancel, CancelState};

use crate::actions::Order;
use crate::audit::subject::Subject;
use crate::failure::Failure;
use crate::request::context::Context;
use crate::request::params::Params;
use crate::view::href::Href;

/// Cancels a message for all groups of its topic.
pub(crate) async fn message(cx: Context, _: Params) -> Result<Href, Failure> {
    let (topic, (partition, id)) = (cx.topic()?, cx.place()?);
    let subject =
        Subject::topic(&topic).select("partition", partition.0.to_string()).select("id", id.to_string());
    let cancel = cx.admin().cancel_message(&TopicPartition { topic, partition }, id);
    run(&cx, Order::new("message cancel", subject), cancel).await
}

/// Cancels, and notes what became of it for each group.
pub(crate) async fn run(cx: &Context, order: Order, cancel: Cancel) -> Result<Href, Failure> {
    cx.act(order, |action| async move {
        for end in cancel.await? {
            let is_over = matches!(end.state, CancelState::Cancelled | CancelState::Stopped);
            if is_over {
                action.add(1);
            } else {
                action.skip(1);
            }
            let group = end.group.map(|group| format!("{group}: ")).unwrap_or_default();
            action.note(format!("{group}{}", told(&end.state)));
        }
        Ok(())
    })
    .await
}

fn told(state: &CancelState) -> &'static str {
    match state {
        CancelState::Cancelled => "cancelled, no handler had begun",
        CancelState::Stopped => "stopped, its handler has ended",
        CancelState::Withdrawn => "withdrawn: no handler will begin, but one of a former owner may still run",
        CancelState::Done => "it was done",
        CancelState::Dead(..) => "it was given up before, and is a dead letter",
        CancelState::Gone => "it is nowhere",
        _ => "asked: nobody has answered so far, and its handler may run",
    }
}
