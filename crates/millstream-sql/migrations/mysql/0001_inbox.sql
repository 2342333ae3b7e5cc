-- Inbox: operations that took effect. A row is written in the transaction of its effect.
CREATE TABLE IF NOT EXISTS millstream_inbox (
    -- Who did it: namespace, topic and group of a consumer, or a name that the program chose.
    scope varchar(400) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    -- Id of the operation, 1 to 256 bytes.
    id varbinary(256) NOT NULL,
    -- Epoch of the lease under which it was done, 0 if there was none.
    fence bigint NOT NULL,
    -- What the operation returned, if it is to be replayed.
    result blob,
    -- From then on the row counts as absent, and cleaning deletes it.
    expires_at datetime(3) NOT NULL,
    PRIMARY KEY (scope, id),
    KEY millstream_inbox_expires_at (expires_at)
) ENGINE = InnoDB;

-- Fences: the highest epoch under which anybody has worked on a resource. One row for each partition and group, never deleted
-- by cleaning.
CREATE TABLE IF NOT EXISTS millstream_fences (
    scope varchar(400) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    resource varchar(300) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    epoch bigint NOT NULL,
    raised_at datetime(3) NOT NULL,
    PRIMARY KEY (scope, resource)
) ENGINE = InnoDB;
