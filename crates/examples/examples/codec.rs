//! A codec and a layer of one's own.
//!
//! ```sh
//! cargo run --example codec
//! cargo run --example codec -- --url redis://127.0.0.1
//! ```
//!
//! The codec writes a reading of a sensor as 13 bytes. The layer signs payloads, on the side of the producer, and refuses what is not
//! signed, on the side of the consumer. What cannot be read, and what was changed, is kept as a dead letter.

use std::sync::Mutex;
use std::time::{Duration, SystemTime};

use anyhow::{Result, bail, ensure};
use async_trait::async_trait;
use bytes::{Buf, BufMut, Bytes};
use millstream::crates::core::BoxError;
use millstream::layer::{Answer, Layer, Next, ProducerLayer};
use millstream::{Codec, Delivery, Envelope, Millstream, Outcome, Reason, Topic};

#[derive(Clone, Copy, Debug, PartialEq)]
struct Reading {
    sensor: u32,
    celsius: f64,
}

/// One byte for the version, four for the sensor, eight for the temperature, big-endian.
struct Binary;

const VERSION: u8 = 1;

impl Codec<Reading> for Binary {
    fn name(&self) -> &'static str {
        "reading"
    }

    fn encode(&self, reading: &Reading) -> Result<Bytes, BoxError> {
        if !reading.celsius.is_finite() {
            return Err("a temperature is a number".into()); // the send fails with `ErrorKind::Encode`
        }
        let mut bytes = Vec::with_capacity(13);
        bytes.put_u8(VERSION);
        bytes.put_u32(reading.sensor);
        bytes.put_f64(reading.celsius);
        Ok(bytes.into())
    }

    /// Any bytes may come here: those of a later version, of another program, of somebody with `redis-cli`.
    fn decode(&self, payload: &Bytes) -> Result<Reading, BoxError> {
        let mut rest = payload.clone();
        match rest.try_get_u8() {
            Ok(VERSION) if rest.len() == 12 => {
                Ok(Reading { sensor: rest.get_u32(), celsius: rest.get_f64() })
            }
            Ok(VERSION) => Err("a reading has 13 bytes".into()),
            Ok(_) => Err("a version that is not known here".into()),
            Err(_) => Err("an empty payload".into()),
        }
    }
}

const READINGS: Topic<Reading> = Topic::with_codec("readings", &Binary).partitions(2);

/// Signs payloads with a checksum. It finds accidents only: for anything else there is `millstream::layer::Encryption`.
struct Checksum;

const HEADER: &str = "checksum";

/// FNV-1a, of 64 bits.
fn checksum(payload: &[u8]) -> [u8; 8] {
    let fold = |sum: u64, byte: &u8| (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    payload.iter().fold(0xcbf2_9ce4_8422_2325, fold).to_be_bytes()
}

impl ProducerLayer for Checksum {
    fn send(&self, message: &mut Envelope) -> Result<(), BoxError> {
        let sum = checksum(&message.payload);
        message.headers.append(HEADER, sum.to_vec());
        Ok(())
    }
}

#[async_trait]
impl Layer for Checksum {
    async fn handle(&self, delivery: Delivery<Bytes>, next: Next<'_>) -> Answer {
        match delivery.headers().get(HEADER) {
            Some(sum) if sum[..] == checksum(&delivery.payload) => next.run(delivery).await,
            Some(_) => Outcome::dead_letter("the checksum is wrong").into(),
            None => Outcome::dead_letter("there is no checksum").into(),
        }
    }
}

static SUM: Mutex<(u32, f64)> = Mutex::new((0, 0.0));

async fn add(reading: Delivery<Reading>) {
    let mut sum = SUM.lock().expect("no handler panics");
    *sum = (sum.0 + 1, sum.1 + reading.payload.celsius);
}

#[tokio::main]
async fn main() -> Result<()> {
    let url = match std::env::args().skip(1).collect::<Vec<_>>().as_slice() {
        [] => "memory://".to_owned(),
        [option, url] if option == "--url" => url.clone(),
        _ => bail!("usage: codec [--url URL]"),
    };
    // Runs on one server do not meet.
    let run = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?.as_micros();
    let mq = Millstream::at(url).namespace(format!("codec-{run}")).await?;
    let consumer = mq.consumer(READINGS, "mean").layer(Checksum).start(add).await?;

    let readings = mq.producer(READINGS).layer(Checksum).await?;
    for sensor in 0..100 {
        let reading = Reading { sensor, celsius: f64::from(sensor) / 2.0 };
        readings.send(&reading).key(sensor.to_be_bytes()).await?;
    }
    let refused = readings.send(&Reading { sensor: 7, celsius: f64::NAN }).await;
    ensure!(refused.is_err_and(|error| error.kind() == millstream::ErrorKind::Encode), "no number was sent");

    // What other programs may send to the same topic: bytes that are no reading, and readings that were changed on their way.
    let other = mq.producer(Topic::raw("readings").partitions(2)).await?;
    let foreign = Bytes::from_static(b"23 degrees");
    other.send(&foreign).header(HEADER, checksum(&foreign)).await?;
    let mut changed =
        Binary.encode(&Reading { sensor: 1, celsius: 20.0 }).map_err(anyhow::Error::from_boxed)?.to_vec();
    let sum = checksum(&changed);
    changed[4] ^= 1;
    other.send(&changed.into()).header(HEADER, sum).await?;
    tokio::time::timeout(Duration::from_secs(30), consumer.wait_idle()).await??;
    consumer.shutdown().await;

    let letters = mq.dead_letters(&READINGS, "mean").await?.list(10).await?;
    let mut reasons: Vec<&str> = letters.iter().map(|letter| letter.reason.as_str()).collect();
    reasons.sort_unstable();
    let (count, sum) = *SUM.lock().expect("no handler panics");
    println!("{count} readings, on average {} degrees; dead letters: {reasons:?}", sum / f64::from(count));
    ensure!((count, sum) == (100, 2_475.0), "{count} readings, together {sum} degrees");
    ensure!(reasons == [Reason::Rejected.as_str(), Reason::Undecodable.as_str()], "{reasons:?}");
    Ok(())
}
