-- Outbox: messages that are written in the transaction of their cause. A relay sends them and deletes them.
-- Any program may insert rows. It sets message_id (optional), topic, key, headers, payload and due_at, and nothing else.
CREATE TABLE IF NOT EXISTS millstream_outbox (
    -- The transaction that wrote the row. A row is sent once no transaction runs that is as old as this one.
    tx xid8 NOT NULL DEFAULT pg_current_xact_id(),
    -- Order of the rows of a shard.
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    -- Rows with the same key are in the same shard; those without a key are spread.
    shard smallint NOT NULL GENERATED ALWAYS AS (
        CASE WHEN key IS NULL THEN (id % 16)::smallint ELSE (get_byte(sha256(key), 0) % 16)::smallint END
    ) STORED,
    -- Dedup id of the message, 1 to 128 bytes.
    message_id text NOT NULL DEFAULT gen_random_uuid()::text
        CHECK (octet_length(message_id) BETWEEN 1 AND 128),
    topic text NOT NULL,
    key bytea,
    -- An object {"name": "value"}, or an array of pairs [["name", "value"]] where a name may occur twice. A value that is no
    -- text is {"base64": "…"}.
    headers json,
    payload bytea NOT NULL,
    -- Not sent before this time, by the clock of the database.
    due_at timestamptz,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- Set by the relay on a row that cannot be sent. Set it to NULL to have the row sent again.
    dead_at timestamptz,
    -- Kind and text of the error, and how many times the relay gave the row up.
    error_kind text,
    error text,
    failures integer NOT NULL DEFAULT 0
);
-- Rows come and go: dead ones are to be removed early.
ALTER TABLE millstream_outbox SET (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 10000);
CREATE INDEX IF NOT EXISTS millstream_outbox_ready ON millstream_outbox (shard, id)
    WHERE due_at IS NULL AND dead_at IS NULL;
CREATE INDEX IF NOT EXISTS millstream_outbox_due ON millstream_outbox (due_at)
    WHERE due_at IS NOT NULL AND dead_at IS NULL;
CREATE INDEX IF NOT EXISTS millstream_outbox_dead ON millstream_outbox (id) WHERE dead_at IS NOT NULL;

-- One relay at a time sends the rows of a shard.
CREATE TABLE IF NOT EXISTS millstream_outbox_leases (
    shard smallint PRIMARY KEY,
    -- The relay; NULL if none.
    holder text,
    -- Grows with every grant.
    epoch bigint NOT NULL DEFAULT 0,
    until timestamptz NOT NULL DEFAULT '-infinity'
) WITH (fillfactor = 50);
INSERT INTO millstream_outbox_leases (shard) SELECT generate_series(0, 15) ON CONFLICT DO NOTHING;

-- The relays that run, among which the shards are shared.
CREATE TABLE IF NOT EXISTS millstream_outbox_relays (
    holder text PRIMARY KEY,
    until timestamptz NOT NULL
) WITH (fillfactor = 50);

-- Wakes the relays at the commit: one empty notification for each transaction, however many rows it wrote. Without it they
-- find the rows within 2 s: ALTER TABLE millstream_outbox DISABLE TRIGGER millstream_outbox_wake.
CREATE OR REPLACE FUNCTION millstream_outbox_wake() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('millstream_outbox', '');
    RETURN NULL;
END $$;
DROP TRIGGER IF EXISTS millstream_outbox_wake ON millstream_outbox;
CREATE TRIGGER millstream_outbox_wake AFTER INSERT ON millstream_outbox
    FOR EACH STATEMENT EXECUTE FUNCTION millstream_outbox_wake();
