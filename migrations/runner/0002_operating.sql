-- Whoever operates the dispatcher needs no more than its role.
GRANT SELECT, INSERT, DELETE ON ferryman.described_paused TO ferryman_runner;
GRANT SELECT ON ferryman.bound_name TO ferryman_runner;
GRANT INSERT (who, act, reason, filter, entries) ON ferryman.outbox_audit TO ferryman_runner;
CREATE POLICY runner ON ferryman.outbox_audit FOR INSERT TO ferryman_runner WITH CHECK (
    act IN ('replay', 'discard', 'pause', 'resume') AND filter ->> 'outbox' = 'runner');
