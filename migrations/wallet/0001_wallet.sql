-- Money is whole numbers of the currency's smallest unit.
CREATE SCHEMA wallet;

CREATE TABLE wallet.wallets (
    id        uuid PRIMARY KEY,
    currency  text NOT NULL CHECK (length(currency) = 3),
    balance   bigint NOT NULL CHECK (balance >= 0),
    opened_at timestamptz NOT NULL DEFAULT clock_timestamp()
) WITH (fillfactor = 70);
COMMENT ON TABLE wallet.wallets IS 'what each wallet holds: always the sum of the ledger';

-- What was decided, once for each (request_id, step, kind), and never pruned: whoever asks again is answered from here.
-- A row is both sides of a double entry: what the wallet gains, the counter account of its currency loses.
-- What was refused stands here too, and so does a deduction that was CANCELLED before it came: it finds its answer.
CREATE TABLE wallet.ledger (
    request_id uuid NOT NULL,
    decided_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    wallet_id  uuid NOT NULL,
    amount     bigint NOT NULL CHECK (CASE kind WHEN 'DEDUCT' THEN amount <= 0 ELSE amount >= 0 END),
    balance    bigint CHECK (balance >= 0),
    step       text NOT NULL CHECK (length(step) <= 200),
    kind       text NOT NULL CHECK (kind IN ('OPEN', 'DEDUCT', 'REFUND', 'CANCEL')),
    currency   text,
    reason     text CHECK (reason IN ('INSUFFICIENT_FUNDS', 'NO_WALLET', 'WRONG_CURRENCY', 'CANCELLED',
                                      'INVALID_AMOUNT')),
    PRIMARY KEY (request_id, step, kind),
    CHECK (CASE WHEN reason IS NULL THEN num_nulls(currency, balance) = 0
           ELSE amount = 0 AND num_nonnulls(currency, balance) = 0 END)
);
COMMENT ON COLUMN wallet.ledger.amount IS 'what the wallet gained: negative for a deduction, 0 where nothing was moved';
COMMENT ON COLUMN wallet.ledger.balance IS 'of the wallet right after it';
COMMENT ON COLUMN wallet.ledger.reason IS 'why it was refused';
CREATE INDEX ledger_of_wallet ON wallet.ledger (wallet_id, decided_at) INCLUDE (amount);

CREATE VIEW wallet.entries AS
SELECT l.request_id, l.step, l.kind, e.account, l.wallet_id, l.currency, e.amount, l.decided_at
FROM wallet.ledger l
CROSS JOIN LATERAL (
    VALUES ('wallet', l.amount), (CASE l.kind WHEN 'OPEN' THEN 'opening' ELSE 'payments' END, -l.amount)
) e (account, amount)
WHERE l.amount <> 0;
COMMENT ON VIEW wallet.entries IS 'both sides of what was moved: the wallet, and the counter account of its currency';

-- What was written stays as it is, for every role: a mistake is mended by another operation.
CREATE FUNCTION wallet.refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE integrity_constraint_violation USING MESSAGE = format('%s of wallet.%s is refused: book another operation',
        TG_OP, TG_TABLE_NAME);
END $$;
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON wallet.ledger
    FOR EACH STATEMENT EXECUTE FUNCTION wallet.refuse_change();
CREATE TRIGGER stays BEFORE UPDATE OF id, currency OR DELETE OR TRUNCATE ON wallet.wallets
    FOR EACH STATEMENT EXECUTE FUNCTION wallet.refuse_change();

-- A wallet with what it holds at first; the ledger tells where that came from. One that is there already is refused.
CREATE FUNCTION wallet.open(id uuid, currency text, balance bigint DEFAULT 0) RETURNS uuid LANGUAGE plpgsql AS $$
#variable_conflict use_variable
BEGIN
    INSERT INTO wallet.wallets (id, currency, balance) VALUES (id, currency, balance);
    INSERT INTO wallet.ledger (request_id, step, kind, wallet_id, amount, currency, balance)
    VALUES (id, 'open', 'OPEN', id, balance, currency, balance);
    RETURN id;
END $$;
COMMENT ON FUNCTION wallet.open IS 'opens a wallet and books its first balance';
REVOKE EXECUTE ON FUNCTION wallet.open FROM PUBLIC;

-- Empty, or the books are wrong.
CREATE VIEW wallet.unbalanced AS
SELECT w.id, w.currency, w.balance, coalesce(e.booked, 0)::bigint AS booked
FROM wallet.wallets w
LEFT JOIN (SELECT wallet_id, sum(amount) AS booked FROM wallet.ledger GROUP BY wallet_id) e ON e.wallet_id = w.id
WHERE w.balance <> coalesce(e.booked, 0);
COMMENT ON VIEW wallet.unbalanced IS 'wallets that do not hold what the ledger says';

-- Least privilege: the consumer decides, books, and moves balances; it opens no wallet and takes nothing back.
GRANT USAGE ON SCHEMA wallet TO ferryman_consumer, ferryman_monitor;
GRANT SELECT, UPDATE (balance) ON wallet.wallets TO ferryman_consumer;
GRANT SELECT, INSERT ON wallet.ledger TO ferryman_consumer;
GRANT SELECT ON wallet.wallets, wallet.ledger, wallet.entries, wallet.unbalanced TO ferryman_monitor;
GRANT SELECT ON ferryman.version_wallet TO ferryman_writer, ferryman_relay, ferryman_consumer, ferryman_monitor;
