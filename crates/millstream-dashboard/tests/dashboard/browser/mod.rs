//! The dashboard in Chromium: nothing hostile runs, nothing is inaccessible, and the script does what it should.

mod chromium;
mod on_cluster;
mod on_redis;
