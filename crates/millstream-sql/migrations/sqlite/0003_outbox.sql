-- Outbox: messages that are written in the transaction of their cause. A relay sends them and deletes them.
-- Any program may insert rows. It sets message_id (optional), topic, key, headers, payload and due_at, and nothing else.
-- There is one writer at a time, so the order of ids is the order of commits: no row appears before one that was sent.
CREATE TABLE IF NOT EXISTS millstream_outbox (
    -- AUTOINCREMENT: an id is never used again, so a relay that was paused deletes no later row.
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    -- Dedup id of the message, 1 to 128 bytes.
    message_id TEXT NOT NULL DEFAULT (lower(hex(randomblob(16))))
        CHECK (typeof(message_id) = 'text' AND length(CAST(message_id AS BLOB)) BETWEEN 1 AND 128),
    topic TEXT NOT NULL CHECK (typeof(topic) = 'text'),
    key BLOB CHECK (typeof(key) IN ('blob', 'text', 'null')),
    -- JSON: an object {"name": "value"}, or an array of pairs [["name", "value"]] where a name may occur twice. A value that is
    -- no text is {"base64": "…"}.
    headers TEXT CHECK (typeof(headers) IN ('text', 'null')),
    payload BLOB NOT NULL CHECK (typeof(payload) IN ('blob', 'text')),
    -- Not sent before this time. All times are milliseconds since 1970, by the clock of the machine.
    due_at INTEGER CHECK (typeof(due_at) IN ('integer', 'null')),
    created_at INTEGER NOT NULL DEFAULT (CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)),
    -- Set by the relay on a row that cannot be sent. Set it to NULL to have the row sent again.
    dead_at INTEGER,
    -- Kind and text of the error, and how many times the relay gave the row up.
    error_kind TEXT,
    error TEXT,
    failures INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX IF NOT EXISTS millstream_outbox_ready ON millstream_outbox (id) WHERE due_at IS NULL AND dead_at IS NULL;
CREATE INDEX IF NOT EXISTS millstream_outbox_due ON millstream_outbox (due_at)
    WHERE due_at IS NOT NULL AND dead_at IS NULL;
CREATE INDEX IF NOT EXISTS millstream_outbox_dead ON millstream_outbox (id) WHERE dead_at IS NOT NULL;

-- One relay at a time sends the rows. There is one shard, since there is one writer.
CREATE TABLE IF NOT EXISTS millstream_outbox_leases (
    shard INTEGER PRIMARY KEY,
    -- The relay; NULL if none.
    holder TEXT,
    -- Grows with every grant.
    epoch INTEGER NOT NULL DEFAULT 0,
    until INTEGER NOT NULL DEFAULT 0
);
INSERT OR IGNORE INTO millstream_outbox_leases (shard) VALUES (0);

-- The relays that run.
CREATE TABLE IF NOT EXISTS millstream_outbox_relays (
    holder TEXT PRIMARY KEY,
    until INTEGER NOT NULL
);
