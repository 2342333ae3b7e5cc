-- Outbox: messages that are written in the transaction of their cause. No relay of this crate reads it: one of yours can, if it
-- selects rows in the order of id under SELECT … FOR UPDATE SKIP LOCKED, sends each with message_id as its dedup id, and
-- deletes it in the same transaction. It must not remember the last id: rows commit in another order than that of their ids.
CREATE TABLE IF NOT EXISTS millstream_outbox (
    id bigint AUTO_INCREMENT PRIMARY KEY,
    -- Dedup id of the message, 1 to 128 bytes.
    message_id varbinary(128) NOT NULL DEFAULT (uuid()),
    topic varchar(128) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    `key` varbinary(1024),
    -- An object {"name": "value"}, or an array of pairs [["name", "value"]]. A value that is no text is {"base64": "…"}.
    headers json,
    payload longblob NOT NULL,
    due_at datetime(3),
    created_at datetime(3) NOT NULL DEFAULT CURRENT_TIMESTAMP(3),
    dead_at datetime(3),
    error_kind varchar(32),
    error text,
    failures integer NOT NULL DEFAULT 0,
    KEY millstream_outbox_ready (dead_at, due_at, id)
) ENGINE = InnoDB;
