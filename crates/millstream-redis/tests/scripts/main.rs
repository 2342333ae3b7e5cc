//! Every script alone against a real server, and the reader, the catalog and connections with it.
//!
//! Uses the server of `MILLSTREAM_TEST_REDIS`, or starts `redis-server`. Tests that would disturb others always
//! start one of their own.

mod appender;
mod appenders;
mod bytes;
mod catalog;
mod connect;
mod continuity;
mod dead_letters;
mod deleting;
mod deleting_twice;
mod lag;
mod leases;
mod load;
mod members;
mod members_together;
mod notes;
mod parked;
mod portions;
mod reader;
mod recurring;
mod repairs;
mod retention;
mod risks;
mod schedule;
mod schedule_faults;
mod schedule_wake;
mod seek;
mod server;
mod settle;
mod shared;
mod sharing_readers;
mod tasks;
mod tasks_cost;
mod tasks_faults;
mod tasks_limits;
mod tasks_outages;
mod tasks_watch;
mod trimming;
mod unfinished;
mod unique;
mod unique_refused;
mod whole;
