"""RQ: `python rival_rq.py URL MESSAGES RUNS`. Prints a line per run: messages/s sent, messages/s consumed, p50 and p99 in µs, and
CPU of the server in µs/message."""

import json
import math
import sys
import threading
import time

from redis import Redis
from rq import Queue, SimpleWorker

WARM_UP, RATE, SECONDS = 2_000, 200, 5
BULK = 500  # jobs of one `enqueue_many`
latencies = []


def now():
    return time.perf_counter_ns() // 1_000


def payload(due):
    """An object whose JSON has 128 bytes. RQ stores it pickled and compressed."""
    data = {"due": str(due).rjust(20, "0"), "pad": ""}
    return data | {"pad": "x" * (128 - len(json.dumps(data, separators=(",", ":"))))}


def nothing(data):
    pass


def record(data):
    latencies.append(now() - int(data["due"]))


def connect(url):
    redis = Redis.from_url(url)
    # Without a time limit, there is no timer for each job.
    return redis, Queue("bench", connection=redis, default_timeout=-1)


def cpu(redis):
    info = redis.info("cpu")
    return info["used_cpu_user"] + info["used_cpu_sys"]


def send_at_rate(url):
    _, queue = connect(url)
    first = now() + 500_000
    for n in range(RATE * SECONDS):
        due = first + n * 1_000_000 // RATE
        time.sleep(max(0, due - now()) / 1e6)
        queue.enqueue(record, payload(due), result_ttl=0)


def work(url, **until):
    """Runs a worker, in this thread and process."""
    redis, queue = connect(url)
    SimpleWorker([queue], connection=redis, log_job_description=False).work(logging_level="WARNING", **until)


def run(url, count, measured):
    redis, queue = connect(url)
    redis.flushdb()
    cpu_before, began = cpu(redis), now()
    for sent in range(0, count, BULK):
        payloads = [payload(0) for _ in range(min(BULK, count - sent))]
        queue.enqueue_many([Queue.prepare_data(nothing, (it,), timeout=-1, result_ttl=0) for it in payloads])
    sent = now()
    work(url, burst=True)
    consumed, cpu_after = now(), cpu(redis)
    if measured:
        latencies.clear()
        sender = threading.Thread(target=send_at_rate, args=(url,))
        sender.start()
        work(url, max_jobs=RATE * SECONDS)
        sender.join()
        latencies.sort()
        quantiles = [latencies[math.ceil(len(latencies) * quantile) - 1] for quantile in (0.5, 0.99)]
        rates = [count * 1e6 / micros for micros in (sent - began, consumed - sent)]
        print(*rates, *quantiles, (cpu_after - cpu_before) * 1e6 / count, flush=True)


def main():
    url, messages, runs = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    run(url, WARM_UP, False)
    for _ in range(runs):
        run(url, messages, True)


if __name__ == "__main__":
    # RQ imports the module of a job by its name: that must be this one, with its latencies.
    import rival_rq

    rival_rq.main()
