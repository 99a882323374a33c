-- Each courier forgets the old attempts of its own outbox.
DROP INDEX ferryman.outbox_attempt_by_age;
CREATE INDEX outbox_attempt_by_age ON ferryman.outbox_attempt (outbox, ended_at);
