-- One audit for all that people do by hand; where a filter names a consumer, it was done to its inbox.
ALTER TABLE ferryman.outbox_audit DROP CONSTRAINT outbox_audit_act_check;
ALTER TABLE ferryman.outbox_audit ADD CONSTRAINT outbox_audit_act_check
    CHECK (act IN ('replay', 'discard', 'pause', 'resume', 'rebase', 'requeue'));

-- What was requeued or discarded, newest first, without a look at what waits.
CREATE INDEX inbox_rejected_settled ON ferryman.inbox_rejected (consumer, rejected_at) WHERE status <> 'REJECTED';

-- An operator of consumers needs no more than the consumer's role. Whoever pauses sees all that is paused.
GRANT SELECT, INSERT ON ferryman.outbox_audit TO ferryman_consumer;
GRANT INSERT, DELETE ON ferryman.inbox_paused TO ferryman_consumer;
GRANT SELECT ON ferryman.outbox_paused TO ferryman_consumer;
GRANT SELECT ON ferryman.inbox_paused, ferryman.inbox_start TO ferryman_relay;
