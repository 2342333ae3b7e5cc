//! All routes. The permission stands beside the path: what is not in this table is not served.

use std::sync::Arc;

use axum::http::Method;
use axum::routing::{MethodRouter, get};

use super::{Route, Scope, change, change_on, file, page};
use crate::access::Permission::{self, Admin, Operate, Read};
use crate::app::App;
use crate::paths::*;
use crate::{assets, pages};

/// Makes the handler of a route.
type Make = fn() -> MethodRouter<Arc<App>>;

/// A route that reads.
const fn read(path: &'static str, scope: Scope, make: Make) -> Route {
    Route { method: Method::GET, path, needs: Read, scope, nav: None, live: None, make }
}

/// A route that reads, in the list of pages.
const fn listed(title: &'static str, path: &'static str, scope: Scope, make: Make) -> Route {
    Route { method: Method::GET, path, needs: Read, scope, nav: Some(title), live: None, make }
}

/// A route whose page is refreshed, with what it costs beside shared readings: commands for each partition.
const fn live(commands: u64, mut route: Route) -> Route {
    route.live = Some(commands);
    route
}

/// A page that asks before a change, and so needs the right to it.
const fn confirmation(path: &'static str, needs: Permission, scope: Scope, make: Make) -> Route {
    Route { method: Method::GET, path, needs, scope, nav: None, live: None, make }
}

/// A route that changes something.
const fn post(path: &'static str, needs: Permission, scope: Scope, make: Make) -> Route {
    Route { method: Method::POST, path, needs, scope, nav: None, live: None, make }
}

/// The table.
pub(crate) static ROUTES: &[Route] = &[
    read("/", Scope::Any, || get(pages::root)),
    read("/assets/{name}", Scope::Open, || get(assets::serve)),
    live(0, listed("Overview", OVERVIEW, Scope::Any, || page(pages::overview::show))),
    read(FIND, Scope::Any, || page(pages::find::show)),
    confirmation(TOPIC_CREATE, Admin, Scope::General, || page(pages::topics::form)),
    post(TOPIC_CREATE, Admin, Scope::General, || change_on(pages::topics::form, pages::topics::create)),
    live(0, read(TOPIC, Scope::Topic, || page(pages::topic::show))),
    read(TOPIC_MEMORY, Scope::Topic, || page(pages::topic::memory)),
    confirmation(TOPIC_ALTER, Admin, Scope::Topic, || page(pages::topics::change::preview)),
    post(TOPIC_ALTER, Admin, Scope::Topic, || {
        change_on(pages::topics::change::preview, pages::topics::change::alter)
    }),
    post(TOPIC_EXPAND, Admin, Scope::Topic, || {
        change_on(pages::topics::change::preview, pages::topics::change::expand)
    }),
    confirmation(TOPIC_DELETE, Admin, Scope::Topic, || page(pages::topics::delete::confirm_page)),
    post(TOPIC_DELETE, Admin, Scope::Topic, || {
        change_on(pages::topics::delete::confirm_page, pages::topics::delete::delete)
    }),
    read(VERIFY, Scope::Topic, || page(pages::topics::verify::show)),
    post(VERIFY, Operate, Scope::Topic, || change(pages::topics::verify::check)),
    post(REPAIR, Admin, Scope::Topic, || {
        change_on(pages::topics::verify::show, pages::topics::verify::repair)
    }),
    read(MESSAGES, Scope::Topic, || page(pages::messages::list)),
    read(MESSAGE, Scope::Topic, || page(pages::messages::story::show)),
    post(MESSAGE_CANCEL, Admin, Scope::Topic, || change(pages::messages::cancel::message)),
    post(MESSAGE_SIGNAL, Operate, Scope::Topic, || {
        change_on(pages::messages::story::show, pages::messages::steps::message)
    }),
    read(PAYLOAD, Scope::Topic, || file(pages::messages::payload)),
    live(2, read(DELAYED, Scope::Topic, || page(pages::delayed::list))),
    post(DELAYED_NOW, Operate, Scope::Topic, || change(pages::delayed::change)),
    post(DELAYED_CANCEL, Admin, Scope::Topic, || change(pages::delayed::change)),
    post(DELAYED_MOVE, Operate, Scope::Topic, || change_on(pages::delayed::list, pages::delayed::change)),
    read(TOPIC_SCHEDULES, Scope::Topic, || page(pages::schedules::show)),
    post(TOPIC_SCHEDULES_CHANGE, Operate, Scope::Topic, || change(pages::schedules::change)),
    read(BATCHES, Scope::Topic, || page(pages::batches::list)),
    live(0, read(BATCH, Scope::Topic, || page(pages::batches::show::show))),
    confirmation(BATCH_CANCEL, Admin, Scope::Topic, || page(pages::batches::change::confirm)),
    post(BATCH_CANCEL, Admin, Scope::Topic, || {
        change_on(pages::batches::change::confirm, pages::batches::change::change)
    }),
    confirmation(BATCH_CLOSE, Admin, Scope::Topic, || page(pages::batches::change::confirm)),
    post(BATCH_CLOSE, Admin, Scope::Topic, || {
        change_on(pages::batches::change::confirm, pages::batches::change::change)
    }),
    live(0, read(GROUP, Scope::Topic, || page(pages::group::show))),
    confirmation(PAUSE, Operate, Scope::Topic, || page(pages::group::confirm_pause)),
    post(PAUSE, Operate, Scope::Topic, || change_on(pages::group::confirm_pause, pages::group::change)),
    post(RESUME, Operate, Scope::Topic, || change(pages::group::change)),
    confirmation(RESET, Admin, Scope::Topic, || page(pages::reset::preview)),
    post(RESET, Admin, Scope::Topic, || change_on(pages::reset::preview, pages::reset::reset)),
    read(POSITIONS, Scope::Topic, || file(pages::reset::export)),
    live(4, read(PENDING, Scope::Topic, || page(pages::pending::list))),
    live(4, read(RETRIES, Scope::Topic, || page(pages::shelf::retries::list))),
    confirmation(RETRIES_NOW, Operate, Scope::Topic, || page(pages::shelf::change::confirm)),
    post(RETRIES_NOW, Operate, Scope::Topic, || {
        change_on(pages::shelf::change::confirm, pages::shelf::change::change)
    }),
    confirmation(RETRIES_KILL, Admin, Scope::Topic, || page(pages::shelf::change::confirm)),
    post(RETRIES_KILL, Admin, Scope::Topic, || {
        change_on(pages::shelf::change::confirm, pages::shelf::change::change)
    }),
    live(0, read(DEAD, Scope::Topic, || page(pages::shelf::letters::errors))),
    read(DEAD_LIST, Scope::Topic, || page(pages::shelf::letters::list)),
    confirmation(DEAD_REPLAY, Operate, Scope::Topic, || page(pages::shelf::change::confirm)),
    post(DEAD_REPLAY, Operate, Scope::Topic, || {
        change_on(pages::shelf::change::confirm, pages::shelf::change::change)
    }),
    confirmation(DEAD_PURGE, Admin, Scope::Topic, || page(pages::shelf::change::confirm)),
    post(DEAD_PURGE, Admin, Scope::Topic, || {
        change_on(pages::shelf::change::confirm, pages::shelf::change::change)
    }),
    read(DEAD_EXPORT, Scope::Topic, || file(pages::shelf::export::lines)),
    read(LETTER, Scope::Topic, || page(pages::shelf::letter::show)),
    confirmation(LETTER_EDIT, Admin, Scope::Topic, || page(pages::shelf::letter::form)),
    post(LETTER_EDIT, Admin, Scope::Topic, || {
        change_on(pages::shelf::letter::form, pages::shelf::letter::edit)
    }),
    live(0, listed("Delay queues", QUEUES, Scope::General, || page(pages::queues::list))),
    live(0, read(QUEUE, Scope::General, || page(pages::queues::show))),
    post(QUEUE_PAUSE, Operate, Scope::General, || change(pages::queues::pause)),
    post(QUEUE_RESUME, Operate, Scope::General, || change(pages::queues::pause)),
    read(TASK, Scope::General, || page(pages::queues::task)),
    post(TASK_NOW, Operate, Scope::General, || change(pages::queues::run_now)),
    post(TASK_CANCEL, Admin, Scope::General, || change(pages::queues::cancel)),
    post(TASK_SIGNAL, Operate, Scope::General, || change_on(pages::queues::task, pages::queues::signal)),
    read(TASKS_DEAD, Scope::General, || page(pages::shelf::tasks::list)),
    confirmation(TASKS_REPLAY, Operate, Scope::General, || page(pages::shelf::change::confirm)),
    post(TASKS_REPLAY, Operate, Scope::General, || {
        change_on(pages::shelf::change::confirm, pages::shelf::change::change)
    }),
    confirmation(TASKS_PURGE, Admin, Scope::General, || page(pages::shelf::change::confirm)),
    post(TASKS_PURGE, Admin, Scope::General, || {
        change_on(pages::shelf::change::confirm, pages::shelf::change::change)
    }),
    read(QUEUE_SCHEDULES, Scope::General, || page(pages::schedules::show)),
    post(QUEUE_SCHEDULES_CHANGE, Operate, Scope::General, || change(pages::schedules::change)),
    listed("Schedules", SCHEDULES, Scope::Any, || page(pages::schedules::all)),
    live(0, listed("Limits", LIMITS, Scope::General, || page(pages::limits::list))),
    confirmation(LIMIT_RULE, Admin, Scope::General, || page(pages::limits::form)),
    post(LIMIT_RULE, Admin, Scope::General, || change_on(pages::limits::form, pages::limits::set_rule)),
    live(0, listed("Locks", LOCKS, Scope::General, || page(pages::locks::list))),
    confirmation(LOCK_RELEASE, Admin, Scope::General, || page(pages::locks::confirm)),
    post(LOCK_RELEASE, Admin, Scope::General, || change_on(pages::locks::confirm, pages::locks::release)),
    live(0, listed("Redis", REDIS, Scope::General, || page(pages::server::show))),
    live(0, listed("Audit log", AUDIT, Scope::Any, || page(pages::audit::list))),
    read(ACTION, Scope::Action, || page(pages::actions::show)),
    post(ACTION_CANCEL, Operate, Scope::Action, || change(pages::actions::cancel)),
];
