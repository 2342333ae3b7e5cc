#!/usr/bin/env python3
"""Reads and writes the entries of Millstream, with nothing but the standard library.

    python3 docs/wire.py check docs/wire-vectors.json
    python3 docs/wire.py produce orders --key eu --header source=python '{"customer": "eu"}'
    python3 docs/wire.py consume orders --group audit --count 10

`check` compares this file with the vectors, which the tests of Millstream check too. `produce` sends one message to a topic that
exists. `consume` reads with a group of its own, by plain XREADGROUP: that disturbs no group of Millstream and must not have the name of
one. It keeps no order between partitions, claims nothing, and handles what it has read again after a crash.

Both commands talk to one server (--server HOST:PORT), not to a cluster. docs/protocol.md is the specification.
"""

import argparse
import json
import socket
import sys

FORMAT = 2
FORM, FORM_OF_PACKS = b"1", b"2"
MAX_MESSAGES, MAX_BYTES = 1000, 1 << 20
REDELIVERY = [b"attempt", b"origin", b"error", b"history"]
DEAD = [b"reason", b"attempts", b"error", b"origin", b"topic", b"partition", b"group", b"history"]
MAX_FIELDS = 3000
MASK = (1 << 64) - 1


class Malformed(Exception):
    """An entry that is no message."""


# Partitions and keys


def murmur2(data):
    """The 32-bit murmur2 hash with the seed of Kafka, signed."""
    m = 0x5BD1E995
    h = 0x9747B28C ^ len(data)
    whole = len(data) // 4 * 4
    for at in range(0, whole, 4):
        k = int.from_bytes(data[at : at + 4], "little") * m & 0xFFFFFFFF
        k ^= k >> 24
        h = (h * m & 0xFFFFFFFF) ^ (k * m & 0xFFFFFFFF)
    if whole < len(data):
        h = (h ^ int.from_bytes(data[whole:], "little")) * m & 0xFFFFFFFF
    h ^= h >> 13
    h = h * m & 0xFFFFFFFF
    h ^= h >> 15
    return h - (1 << 32) if h >> 31 else h


def partition_of(key, partitions):
    return (murmur2(key) & 0x7FFFFFFF) % partitions


def lock_shard(name):
    """64-bit FNV-1a, then the finisher of SplitMix64, modulo 256."""
    h = 0xCBF29CE484222325
    for byte in name.encode():
        h = (h ^ byte) * 0x100000001B3 & MASK
    h = (h ^ h >> 30) * 0xBF58476D1CE4E5B9 & MASK
    h = (h ^ h >> 27) * 0x94D049BB133111EB & MASK
    return (h ^ h >> 31) % 256


def escaped(data):
    plain = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-"
    return "".join(chr(byte) if byte in plain else f"%{byte:02X}" for byte in data)


def key_of(what, names):
    """The key of `what`, by the names of docs/protocol.md#keys."""
    topic, group = names.get("topic"), names.get("group")
    tag = "{%s:p:%s}" % (topic, names.get("partition"))
    lock = names.get("lock")
    keys = {
        "log": f"stream:topic:{tag}",
        "retry_log": f"stream:topic:{tag}:retry:{group}",
        "dead_letters": f"stream:topic:{tag}:dlq:{group}",
        "lease": f"streaming:mq:lease:{tag}:{group}",
        "fence": f"streaming:mq:fence:{tag}:{group}",
        "retry_due": f"streaming:mq:retry:{tag}:{group}",
        "retry_items": f"streaming:mq:retry:item:{tag}:{group}",
        "held": f"streaming:mq:held:{tag}:{group}",
        "packs": f"streaming:mq:packs:{tag}",
        "settled": f"streaming:mq:settled:{tag}:{group}",
        "topics": "streaming:mq:topics:registry",
        "topic_meta": "streaming:mq:topic:{%s}:meta" % topic,
        "topic_partitions": "streaming:mq:topic:{%s}:partitions" % topic,
        "topic_groups": "streaming:mq:topic:{%s}:groups" % topic,
        "topic_dictionaries": "streaming:mq:topic:{%s}:dictionaries" % topic,
        "members": "streaming:mq:members:{%s}:%s" % (topic, group),
        "marker": "streaming:mq:marker:{%s:m:%s:%s}" % (topic, group, escaped(names.get("id", b""))),
        "lock": "streaming:mq:lock:{lock:s:%d}:%s" % (lock_shard(lock), lock) if lock else None,
    }
    namespace = names.get("namespace")
    return (namespace + ":" if namespace else "") + keys[what]


# Entries: lists of (name, value), both bytes


def encode(payload, key=None, headers=()):
    fields = [(b"payload", payload)]
    if key is not None:
        fields.append((b"key", key))
    return fields + [(b"h:" + name.encode(), value) for name, value in headers]


def decode_body(fields):
    """Payload, key and headers of an entry of any writer. Limits of size are the consumer's, and not checked here."""
    if len(fields) > MAX_FIELDS:
        raise Malformed("too_large")
    payload, key, headers = None, None, []
    for name, value in fields:
        if name == b"payload":
            if payload is not None:
                raise Malformed("duplicate_payload")
            payload = value
        elif name == b"key":
            if key is not None:
                raise Malformed("duplicate_key")
            key = value
        elif name == b"mq:form" and value != FORM:
            raise Malformed("unknown_form")
        elif name.startswith(b"h:"):
            try:
                headers.append((name[2:].decode(), value))
            except UnicodeDecodeError:
                pass  # carried along, not shown
    if payload is None:
        raise Malformed("no_payload")
    return payload, key, headers


def varint(data, at):
    number, shift = 0, 0
    while True:
        byte = data[at]
        number, shift, at = number | (byte & 0x7F) << shift, shift + 7, at + 1
        if byte < 0x80:
            return number, at
        if shift > 28:
            raise Malformed("damaged_pack")


def decompress(data, compression, size, dictionaries):
    if compression == "none":
        return data
    name, named, version = compression.partition(":")
    if name == "zstd":
        dictionary = dictionaries(int(version)) if named else None
        if named and dictionary is None:
            raise Malformed("damaged_pack")
        from compression import zstd  # Python 3.14

        if not named:
            return zstd.ZstdDecompressor().decompress(data, size)
        dictionary = zstd.ZstdDict(dictionary)
        if zstd.get_frame_info(data).dictionary_id != dictionary.dict_id:
            raise Malformed("damaged_pack")
        return zstd.ZstdDecompressor(dictionary).decompress(data, size)
    if compression == "lz4":
        import lz4.block  # the package lz4

        return lz4.block.decompress(data, uncompressed_size=size)
    raise ValueError(f"unknown compression {compression}")


def unpack(entry_id, fields, dictionaries=lambda version: None):
    """The messages of an entry of a log, each with its id: one, unless the entry is a pack. `dictionaries` returns the topic's dictionary
    of a version, or None."""
    names = dict(fields)
    if names.get(b"mq:form") != FORM_OF_PACKS:
        return [(entry_id, fields)]
    try:
        count, compression, size = names[b"mq:pack"].decode().split(" ")
        count, size = int(count), int(size)
        if not (1 <= count <= MAX_MESSAGES and 1 <= size <= MAX_BYTES):
            raise Malformed("damaged_pack")
        data, at, messages = decompress(names[b"mq:messages"], compression, size, dictionaries), 0, []
        ms, last = entry_id.split("-")
        for position in range(count):
            length, at = varint(data, at)
            end, message = at + length, []
            while at < end:
                name, at = varint(data, at)
                if name >= 2:
                    name, at = data[at : at + name - 2], at + name - 2
                else:
                    name = (b"payload", b"key")[name]
                length, at = varint(data, at)
                message.append((name, data[at : at + length]))
                at += length
            if at != end or not message:
                raise Malformed("damaged_pack")
            messages.append((f"{ms}-{int(last) - (count - 1 - position)}", message))
        if at != len(data) or len(data) != size or int(last) < count - 1:
            raise Malformed("damaged_pack")
        return messages
    except (IndexError, KeyError, ValueError):
        raise Malformed("damaged_pack") from None


def split(fields, names):
    """The fields that Millstream put in front, and the body. Their position counts, not their names."""
    ours = [name for name, _ in fields[: len(names)]] == names
    return (dict(fields[: len(names)]), fields[len(names) :]) if ours else ({}, fields)


def opened(body):
    """The message of a body that is a pack of it alone."""
    try:
        messages = unpack("0-0", body)
    except (Malformed, ImportError):
        return body
    return messages[0][1] if len(messages) == 1 else body


def text(value):
    return value.decode(errors="replace")


def history_of(value):
    """Failures as (time in milliseconds, attempt, error), oldest first. Lines of another form are skipped."""
    failures = []
    for line in text(value).split("\n"):
        words = line.split(" ", 2)
        if len(words) >= 2 and words[0].isdigit() and words[1].isdigit():
            failures.append((int(words[0]), int(words[1]), words[2] if len(words) > 2 else ""))
    return failures


def decode(stream, entry_id, fields):
    """An entry of a log ("log") or of a retry log ("retry")."""
    lead, body = split(fields, REDELIVERY) if stream == "retry" else ({}, fields)
    return {
        "attempt": int(lead.get(b"attempt", b"1")),
        "origin": text(lead.get(b"origin", entry_id.encode())),
        "error": text(lead[b"error"]) if lead.get(b"error") else None,
        "history": history_of(lead.get(b"history", b"")),
        "body": opened(body) if stream == "retry" else body,
    }


def decode_dead(entry_id, fields):
    lead, body = split(fields, DEAD)
    return {
        "reason": text(lead.get(b"reason", b"")),
        "attempts": int(lead.get(b"attempts", b"0")),
        "error": text(lead.get(b"error", b"")),
        "origin": text(lead.get(b"origin", entry_id.encode())),
        "history": history_of(lead.get(b"history", b"")),
        "body": opened(body),
    }


# Vectors


def from_json(value):
    """Bytes are text, or {"hex": …} where they need not be UTF-8."""
    return bytes.fromhex(value["hex"]) if isinstance(value, dict) else value.encode()


def pairs(values):
    return [(from_json(name), from_json(value)) for name, value in values]


def message_of(body):
    try:
        return decode_body(body)
    except Malformed as why:
        return str(why)


def expected_message(vector):
    if "malformed" in vector:
        return vector["malformed"]
    message = vector["message"]
    key = message.get("key")
    headers = [(name, from_json(value)) for name, value in message.get("headers", [])]
    return from_json(message["payload"]), None if key is None else from_json(key), headers


def check(path):
    with open(path, encoding="utf-8") as file:
        vectors = json.load(file)
    failures, count = [], 0

    def compare(what, found, expected):
        nonlocal count
        count += 1
        if found != expected:
            failures.append(f"{what}: {found!r} instead of {expected!r}")

    for vector in vectors["partitions"]:
        key = from_json(vector["key"])
        compare(f"hash of {key!r}", murmur2(key), vector["hash"])
        compare(f"partition of {key!r}", partition_of(key, vector["partitions"]), vector["partition"])
    for vector in vectors["keys"]:
        names = {name: value for name, value in vector.items() if name not in ("what", "key")}
        if "id" in names:
            names["id"] = from_json(names["id"])
        compare(f"key {vector['what']}", key_of(vector["what"], names), vector["key"])
    for vector in vectors["encoded"]:
        payload, key, headers = expected_message(vector)
        compare(vector["name"], encode(payload, key, headers), pairs(vector["entry"]))
    for vector in vectors["entries"]:
        found = decode(vector["stream"], vector["id"], pairs(vector["entry"]))
        compare(vector["name"], message_of(found["body"]), expected_message(vector))
        for name in ("attempt", "origin", "error"):
            compare(f"{vector['name']}: {name}", found[name], vector[name])
        compare(f"{vector['name']}: history", [list(each) for each in found["history"]], vector["history"])
    for vector in vectors["dead_letters"]:
        found = decode_dead(vector["id"], pairs(vector["entry"]))
        compare(vector["name"], message_of(found["body"]), expected_message(vector))
        for name in ("reason", "attempts", "error", "origin"):
            compare(f"{vector['name']}: {name}", found[name], vector[name])
        compare(f"{vector['name']}: history", [list(each) for each in found["history"]], vector["history"])
    for vector in vectors["packs"]:
        dictionaries = {int(version): from_json(value) for version, value in vector.get("dictionaries", {}).items()}
        try:
            messages = unpack(vector["id"], pairs(vector["entry"]), dictionaries.get)
            found = [[message_id, message] for message_id, message in messages]
        except Malformed as why:
            found = str(why)
        except ImportError as why:
            print(f"{vector['name']}: not checked, {why}", file=sys.stderr)
            continue
        expected = vector.get("malformed") or [[one["id"], pairs(one["entry"])] for one in vector["messages"]]
        compare(vector["name"], found, expected)
    for failure in failures:
        print(failure, file=sys.stderr)
    print(f"{count} checks, {len(failures)} failed")
    return 1 if failures else 0


# A server


class Server:
    """One connection, in RESP2."""

    def __init__(self, address):
        host, _, port = address.rpartition(":")
        self.file = socket.create_connection((host, int(port))).makefile("rwb")

    def call(self, *args):
        args = [arg if isinstance(arg, bytes) else str(arg).encode() for arg in args]
        self.file.write(b"*%d\r\n" % len(args) + b"".join(b"$%d\r\n%s\r\n" % (len(arg), arg) for arg in args))
        self.file.flush()
        reply = self.read()
        if isinstance(reply, Exception):
            raise reply
        return reply

    def read(self):
        line = self.file.readline()
        if not line.endswith(b"\r\n"):
            raise ConnectionError("the connection is closed")
        kind, rest = line[:1], line[1:-2]
        if kind == b"+":
            return rest
        if kind == b"-":
            return RuntimeError(text(rest))
        if kind == b":":
            return int(rest)
        if kind == b"$":
            return None if rest == b"-1" else self.file.read(int(rest) + 2)[:-2]
        return None if rest == b"-1" else [self.read() for _ in range(int(rest))]


def partitions_of(server, names):
    meta = key_of("topic_meta", names)
    count, stored, deleting = server.call("HMGET", meta, "partitionCount", "format", "deleting")
    if count is None or deleting is not None:
        sys.exit(f"topic {names['topic']} does not exist: millstream topic create {names['topic']}")
    if int(stored) > FORMAT:
        sys.exit(f"topic {names['topic']} has format {int(stored)}, this program knows {FORMAT}")
    return int(count)


def produce(args, names):
    server = Server(args.server)
    partitions = partitions_of(server, names)
    key = None if args.key is None else args.key.encode()
    headers = [(name, value.encode()) for name, _, value in (each.partition("=") for each in args.header)]
    # Without a key any partition will do; a program that sends more takes one after the other.
    names["partition"] = 0 if key is None else partition_of(key, partitions)
    fields = [part for field in encode(args.payload.encode(), key, headers) for part in field]
    print(names["partition"], text(server.call("XADD", key_of("log", names), "*", *fields)))


def consume(args, names):
    server = Server(args.server)
    logs = [key_of("log", dict(names, partition=each)) for each in range(partitions_of(server, names))]
    if args.group.encode() in (server.call("SMEMBERS", key_of("topic_groups", names)) or []):
        sys.exit(f"{args.group} is a group of Millstream: choose another name")
    for log in logs:
        try:
            server.call("XGROUP", "CREATE", log, args.group, "0", "MKSTREAM")
        except RuntimeError as error:
            if not str(error).startswith("BUSYGROUP"):
                raise
    known = {}

    def dictionaries(version):
        # One that is not there is asked for again: it may be a later one.
        if known.get(version) is None:
            known[version] = server.call("HGET", key_of("topic_dictionaries", names), version)
        return known[version]

    left, after = args.count, "0"  # First what was read before and not acknowledged, then what is new.
    while left > 0:
        streams = logs + [after] * len(logs)
        reply = server.call(
            "XREADGROUP", "GROUP", args.group, args.name, "COUNT", left, "BLOCK", 5000, "STREAMS", *streams
        )
        entries = [(log, entry) for log, found in reply or [] for entry in found]
        if not entries:
            if after == ">":
                break
            after = ">"
        for log, (entry_id, flat) in entries[:left]:
            if flat is not None:  # None: it was deleted meanwhile.
                # A pack is acknowledged as a whole: this program notes nothing of one that it has half handled.
                for message_id, fields in unpack(text(entry_id), list(zip(flat[::2], flat[1::2])), dictionaries):
                    print(text(log), message_id, message_of(decode("log", message_id, fields)["body"]))
            server.call("XACK", log, args.group, entry_id)
            left -= 1


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", default="127.0.0.1:6379", metavar="HOST:PORT")
    parser.add_argument("--namespace")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("check").add_argument("vectors")
    sending = commands.add_parser("produce")
    sending.add_argument("topic")
    sending.add_argument("payload")
    sending.add_argument("--key")
    sending.add_argument("--header", action="append", default=[], metavar="NAME=VALUE")
    reading = commands.add_parser("consume")
    reading.add_argument("topic")
    reading.add_argument("--group", required=True)
    reading.add_argument("--name", default="python")
    reading.add_argument("--count", type=int, default=10)
    args = parser.parse_args()
    if args.command == "check":
        sys.exit(check(args.vectors))
    names = {"topic": args.topic, "namespace": args.namespace}
    (produce if args.command == "produce" else consume)(args, names)


if __name__ == "__main__":
    main()
