//! A line on which the small requests of many callers that come at the same time are one request.

use futures_util::FutureExt;
use millstream_core::error::Result;
use redis::{Pipeline, Value};

use crate::conn::cluster::routed::Routed;
use crate::conn::connection::{Answers, Line};
use crate::conn::pooled::Pooled;
use crate::scripts::gather::Gather;

/// Number of commands of one request, or those of one caller: the server answers no other client meanwhile, and a page of an audit takes it
/// up to some milliseconds.
const COMMANDS: usize = 64;

/// The pool, for requests that only read: a verification asks for dozens of small things at once.
pub(crate) struct Gathered {
    pool: Routed<Pooled>,
    asked: Gather<Pipeline, Result<Vec<Value>>>,
}

impl Gathered {
    pub(crate) fn new(pool: &Routed<Pooled>) -> Self {
        Self { pool: pool.clone(), asked: Gather::of_this_moment() }
    }
}

impl Line for Gathered {
    fn send<'a>(&'a self, pipe: &'a Pipeline) -> Answers<'a> {
        Box::pin(async {
            let pool = self.pool.clone();
            let send = move |all: Vec<Pipeline>| async move { send_all(&pool, all).await }.boxed();
            match self.asked.ask(pipe.clone(), |task| _ = tokio::spawn(task), send).await {
                Some(answers) => answers,
                // The runtime of the first caller has ended.
                None => self.pool.send(pipe).await,
            }
        })
    }
}

/// Sends requests as few, and returns the answers to each.
async fn send_all(pool: &Routed<Pooled>, all: Vec<Pipeline>) -> Vec<Result<Vec<Value>>> {
    let mut answers = Vec::with_capacity(all.len());
    let mut rest = &all[..];
    while !rest.is_empty() {
        let mut commands = 0;
        let fits = rest.iter().take_while(|pipe| {
            commands += pipe.len();
            commands <= COMMANDS
        });
        let (some, behind) = rest.split_at(fits.count().max(1));
        let mut request = Pipeline::new();
        some.iter().flat_map(Pipeline::cmd_iter).for_each(|command| _ = request.add_command(command.clone()));
        let mut each = pool.send_each(&request).await.into_iter();
        for pipe in some {
            let own: Vec<_> = each.by_ref().take(pipe.len()).collect();
            answers.push(own.into_iter().collect());
        }
        rest = behind;
    }
    answers
}
