-- Markers: operations that run (a lease with a token) or are done, for effects outside of this database.
CREATE TABLE IF NOT EXISTS millstream_markers (
    -- Namespace, topic and group.
    scope varchar(400) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    -- Id of the operation, 1 to 256 bytes.
    id varbinary(256) NOT NULL,
    -- Of the begin that was granted.
    token varchar(128) NOT NULL,
    holder varchar(128) NOT NULL,
    -- The ttl of the lease, in milliseconds.
    ttl_ms bigint NOT NULL,
    -- False while the operation runs.
    done boolean NOT NULL,
    result mediumblob,
    -- From then on the row counts as absent, and cleaning deletes it.
    expires_at datetime(3) NOT NULL,
    PRIMARY KEY (scope, id),
    KEY millstream_markers_expires_at (expires_at)
) ENGINE = InnoDB;
