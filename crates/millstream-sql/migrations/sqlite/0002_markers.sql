-- Markers: operations that run (a lease with a token) or are done, for effects outside of this database.
CREATE TABLE IF NOT EXISTS millstream_markers (
    -- Namespace, topic and group.
    scope TEXT NOT NULL,
    -- Id of the operation, 1 to 256 bytes.
    id BLOB NOT NULL,
    -- Of the begin that was granted.
    token TEXT NOT NULL,
    holder TEXT NOT NULL,
    -- The ttl of the lease, in milliseconds.
    ttl_ms INTEGER NOT NULL,
    -- False while the operation runs.
    done BOOLEAN NOT NULL,
    result BLOB,
    -- Milliseconds since 1970. From then on the row counts as absent, and cleaning deletes it.
    expires_at INTEGER NOT NULL,
    PRIMARY KEY (scope, id)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS millstream_markers_expires_at ON millstream_markers (expires_at);
