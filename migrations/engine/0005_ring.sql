-- Keys are forgotten oldest first; new ones go to the index's right end, so that an append pays little for it.
CREATE INDEX outbox_key_by_age ON ferryman.outbox_key (created_at);
