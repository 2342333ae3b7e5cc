-- Markers: operations that run (a lease with a token) or are done, for effects outside of this database.
CREATE TABLE IF NOT EXISTS millstream_markers (
    -- Namespace, topic and group.
    scope text NOT NULL,
    -- Id of the operation, 1 to 256 bytes.
    id bytea NOT NULL,
    -- Of the begin that was granted.
    token text NOT NULL,
    holder text NOT NULL,
    -- The ttl of the lease, in milliseconds.
    ttl_ms bigint NOT NULL,
    -- False while the operation runs.
    done boolean NOT NULL,
    result bytea,
    -- From then on the row counts as absent, and cleaning deletes it.
    expires_at timestamptz NOT NULL,
    PRIMARY KEY (scope, id)
) WITH (fillfactor = 80);
CREATE INDEX IF NOT EXISTS millstream_markers_expires_at ON millstream_markers (expires_at);
