//! How long single commands keep a server busy, in processor time: what others do on the machine does not count, nor how fast
//! its processors are at the moment.

use std::time::Duration;

use redis::Value;

use crate::server::Bench;

/// A command that took less wall time than this is no candidate for keeping the server busy.
const LIGHT: Duration = Duration::from_micros(200);

/// A bare loop in the server, and the processor time that it took where the bounds of these tests were chosen.
const YARDSTICK: &str = "local x = 0 for i = 1, 1000000 do x = x + i end return 0";
const USUAL: Duration = Duration::from_millis(4);

/// Begun by [`Bench::watch_load`].
pub(crate) struct Load {
    cpu: Duration,
    yardstick: Duration,
}

impl Bench {
    /// Notes from now on which commands a private server runs.
    pub(crate) async fn watch_load(&mut self) -> Load {
        let yardstick = self.yardstick().await;
        self.cmd("CONFIG SET slowlog-log-slower-than 0 slowlog-max-len 100000").await;
        self.cmd("SLOWLOG RESET").await;
        Load { cpu: self.cpu().await, yardstick }
    }

    /// Processor time of the yardstick now.
    async fn yardstick(&mut self) -> Duration {
        let before = self.cpu().await;
        let _: i64 = redis::Script::new(YARDSTICK).invoke_async(&mut self.raw).await.expect("done");
        self.cpu().await - before
    }

    /// Processor time of the server's main thread.
    async fn cpu(&mut self) -> Duration {
        let Value::BulkString(text) = self.cmd("INFO cpu").await else { panic!("no text") };
        let text = String::from_utf8(text).expect("text");
        let of = |name: &str| -> f64 {
            let line = text.lines().find_map(|line| line.strip_prefix(name)).expect("told since 6.2");
            line.trim_start_matches(':').parse().expect("seconds")
        };
        Duration::from_secs_f64(of("used_cpu_sys_main_thread") + of("used_cpu_user_main_thread"))
    }

    /// Since then no command kept the server busy for longer than `most`, or in proportion where a bare loop takes longer than
    /// [`USUAL`] before or after it. Two figures must say so. The mean of all that are not light: work that is not cut up is one
    /// command, and shows. And the time of the commands in which half of all wall time was spent: one that was pushed off its
    /// processor is not half of it.
    pub(crate) async fn is_never_held_up(&mut self, since: &Load, most: Duration) {
        let cpu = self.cpu().await - since.cpu;
        let Value::Array(entries) = self.cmd("SLOWLOG GET -1").await else { panic!("no list") };
        let took = |entry: &Value| match entry {
            // Those of this measurement do not count: to reset a long list of commands takes long.
            Value::Array(parts) => (!is_ours(&parts[3])).then(|| match parts.get(2) {
                Some(Value::Int(micros)) => Duration::from_micros(u64::try_from(*micros).unwrap_or(0)),
                other => panic!("{other:?}"),
            }),
            other => panic!("{other:?}"),
        };
        let mut all: Vec<Duration> = entries.iter().filter_map(took).collect();
        all.sort_unstable_by(|one, other| other.cmp(one));
        let heavy: Vec<Duration> = all.iter().copied().take_while(|took| *took >= LIGHT).collect();
        let count = u32::try_from(heavy.len().max(1)).expect("few");
        let mean = cpu / count;
        let (half, mut spent) = (all.iter().sum::<Duration>() / 2, Duration::ZERO);
        let mut until_half = all.iter().take_while(|took| {
            let is_before = spent < half;
            spent += **took;
            is_before
        });
        let typical = until_half.by_ref().last().copied().unwrap_or_default();
        let yardstick = self.yardstick().await.max(since.yardstick);
        let most = most.mul_f64((yardstick.as_secs_f64() / USUAL.as_secs_f64()).max(1.0));
        assert!(
            mean.min(typical) <= most,
            "{mean:?} of processor time for each of {count} commands, and half of the time in those of {typical:?} or more; {most:?} at the \
             most, where a bare loop takes {yardstick:?}; by the clock {heavy:?}"
        );
    }
}

/// Whether a command is one by which this module measures.
fn is_ours(command: &Value) -> bool {
    let Value::Array(words) = command else { return false };
    let Some(Value::BulkString(name)) = words.first() else { return false };
    [&b"SLOWLOG"[..], b"CONFIG", b"INFO"].iter().any(|ours| name.eq_ignore_ascii_case(ours))
}

#[tokio::test]
#[should_panic(expected = "of processor time for each of")]
async fn one_long_command_is_found() {
    let mut bench = Bench::private(&[]).await;
    let load = bench.watch_load().await;
    bench.cmd("PING").await;
    let busy = redis::Script::new("local x = 0 for i = 1, 20000000 do x = x + i end return 0");
    let _: i64 = busy.invoke_async(&mut bench.raw).await.expect("done");
    bench.is_never_held_up(&load, Duration::from_millis(5)).await;
}
