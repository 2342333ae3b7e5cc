// BullMQ: `node bullmq.cjs URL MESSAGES RUNS`. Prints a line per run: messages/s sent, messages/s consumed, p50 and p99 in µs, and
// CPU of the server in µs/message.
'use strict';
const { Queue, Worker } = require('bullmq');
const { Redis } = require('ioredis');

const [url, messages, runs] = [process.argv[2], Number(process.argv[3]), Number(process.argv[4])];
const [WARM_UP, RATE, SECONDS] = [2_000, 200, 5];
// Jobs of one `addBulk`, and jobs that the worker has at once.
const [BULK, CONCURRENCY] = [500, 100];
const connection = { host: new URL(url).hostname, port: Number(new URL(url).port) };
const redis = new Redis(url);

// A JSON object of 128 bytes.
function payload(due) {
  const data = { due: String(due).padStart(20, '0'), pad: '' };
  return { ...data, pad: 'x'.repeat(128 - JSON.stringify(data).length) };
}

const now = () => Number(process.hrtime.bigint() / 1_000n);

async function cpu() {
  const info = await redis.info('cpu');
  return ['user', 'sys'].reduce((sum, of) => sum + Number(info.match(new RegExp(`used_cpu_${of}:([0-9.]+)`))[1]), 0);
}

// A worker, and a promise that is kept when so many jobs are finished on the server.
function start(name, count, handler) {
  const worker = new Worker(name, handler, { connection, concurrency: CONCURRENCY, removeOnComplete: { count: 0 } });
  const finished = new Promise((resolve, reject) => {
    worker.on('completed', () => --count || resolve());
    worker.on('failed', (_, error) => reject(error));
    worker.on('error', reject);
  });
  return { worker, finished };
}

async function latencies(queue) {
  const all = [];
  const handler = async ({ data }) => { all.push(now() - Number(data.due)); };
  const { worker, finished } = start(queue.name, RATE * SECONDS, handler);
  await worker.waitUntilReady();
  const [first, sends] = [now() + 500_000, []];
  for (let n = 0; n < RATE * SECONDS; n++) {
    const due = first + (n * 1e6) / RATE;
    // Timers have a resolution of milliseconds: the rest is spent in the event loop, which goes on meanwhile.
    await new Promise(resolve => setTimeout(resolve, Math.max(0, (due - now()) / 1e3 - 2)));
    while (now() < due) await new Promise(setImmediate);
    sends.push(queue.add('bench', payload(due)));
  }
  await Promise.all([finished, ...sends]);
  await worker.close();
  all.sort((a, b) => a - b);
  return [0.5, 0.99].map(quantile => all[Math.ceil(all.length * quantile) - 1]);
}

async function run(count, measured) {
  await redis.flushdb();
  const queue = new Queue('bench', { connection });
  await queue.waitUntilReady();
  const [cpuBefore, began] = [await cpu(), now()];
  for (let sent = 0; sent < count; sent += BULK) {
    const size = Math.min(BULK, count - sent);
    await queue.addBulk(Array.from({ length: size }, () => ({ name: 'bench', data: payload(0) })));
  }
  const sent = now();
  const { worker, finished } = start('bench', count, async () => {});
  await finished;
  const [consumed, cpuAfter] = [now(), await cpu()];
  await worker.close();
  if (measured) {
    const rates = [sent - began, consumed - sent].map(micros => (count * 1e6) / micros);
    console.log(...rates, ...await latencies(queue), ((cpuAfter - cpuBefore) * 1e6) / count);
  }
  await queue.close();
}

(async () => {
  await run(WARM_UP, false);
  for (let n = 0; n < runs; n++) await run(messages, true);
  await redis.quit();
})().catch(error => { console.error(error); process.exit(1); });
