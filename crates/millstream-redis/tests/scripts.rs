//! Every script alone against a real server, and the reader, the catalog and connections with it.
//!
//! Uses the server of `MILLSTREAM_TEST_REDIS`, or starts `redis-server`. Tests that would disturb others always
//! start one of their own.

#[path = "scripts/appender.rs"]
mod appender;
#[path = "scripts/bytes.rs"]
mod bytes;
#[path = "scripts/catalog.rs"]
mod catalog;
#[path = "scripts/connect.rs"]
mod connect;
#[path = "scripts/dead_letters.rs"]
mod dead_letters;
#[path = "scripts/deleting.rs"]
mod deleting;
#[path = "scripts/deleting_twice.rs"]
mod deleting_twice;
#[path = "scripts/durability.rs"]
mod durability;
#[path = "scripts/lag.rs"]
mod lag;
#[path = "scripts/leases.rs"]
mod leases;
#[path = "scripts/members.rs"]
mod members;
#[path = "scripts/members_together.rs"]
mod members_together;
#[path = "scripts/notes.rs"]
mod notes;
#[path = "scripts/parked.rs"]
mod parked;
#[path = "scripts/reader.rs"]
mod reader;
#[path = "scripts/recurring.rs"]
mod recurring;
#[path = "scripts/repairs.rs"]
mod repairs;
#[path = "scripts/retention.rs"]
mod retention;
#[path = "scripts/schedule.rs"]
mod schedule;
#[path = "scripts/schedule_faults.rs"]
mod schedule_faults;
#[path = "scripts/schedule_wake.rs"]
mod schedule_wake;
#[path = "scripts/seek.rs"]
mod seek;
#[path = "scripts/server.rs"]
mod server;
#[path = "scripts/settle.rs"]
mod settle;
#[path = "scripts/shared.rs"]
mod shared;
#[path = "scripts/tasks.rs"]
mod tasks;
#[path = "scripts/tasks_cost.rs"]
mod tasks_cost;
#[path = "scripts/tasks_faults.rs"]
mod tasks_faults;
#[path = "scripts/tasks_limits.rs"]
mod tasks_limits;
#[path = "scripts/tasks_outages.rs"]
mod tasks_outages;
#[path = "scripts/tasks_watch.rs"]
mod tasks_watch;
#[path = "scripts/trimming.rs"]
mod trimming;
#[path = "scripts/unfinished.rs"]
mod unfinished;
#[path = "scripts/whole.rs"]
mod whole;
