-- Money is whole numbers of the currency's smallest unit.
CREATE SCHEMA wallet;

CREATE TABLE wallet.wallets (
    id        uuid PRIMARY KEY,
    currency  text NOT NULL CHECK (length(currency) = 3),
    balance   bigint NOT NULL CHECK (balance >= 0),
    opened_at timestamptz NOT NULL DEFAULT clock_timestamp()
) WITH (fillfactor = 70);
COMMENT ON TABLE wallet.wallets IS 'what each wallet holds: always the sum of its entries';

-- What was decided, once for each (request_id, step, kind), and never pruned: whoever asks again is answered from here.
-- A deduction that was CANCELLED before it came stands here too, so that it finds its answer when it comes.
CREATE TABLE wallet.operations (
    request_id uuid NOT NULL,
    step       text NOT NULL CHECK (length(step) <= 200),
    kind       text NOT NULL CHECK (kind IN ('OPEN', 'DEDUCT', 'REFUND', 'CANCEL')),
    wallet_id  uuid NOT NULL,
    status     text NOT NULL GENERATED ALWAYS AS (CASE WHEN reason IS NULL THEN 'SUCCEEDED' ELSE 'FAILED' END) STORED,
    reason     text CHECK (reason IN ('INSUFFICIENT_FUNDS', 'NO_WALLET', 'WRONG_CURRENCY', 'CANCELLED',
                                      'INVALID_AMOUNT')),
    amount     bigint CHECK (amount >= 0),
    currency   text,
    balance    bigint CHECK (balance >= 0),
    decided_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (request_id, step, kind),
    CHECK (num_nulls(amount, currency, balance) = CASE WHEN reason IS NULL THEN 0 ELSE 3 END)
);
COMMENT ON COLUMN wallet.operations.amount IS 'what was moved; 0 where there was nothing to give back';
COMMENT ON COLUMN wallet.operations.balance IS 'of the wallet right after it';

-- Double entry: what a wallet gains is taken from a counter account of its currency, and the other way round.
CREATE TABLE wallet.entries (
    request_id uuid NOT NULL,
    step       text NOT NULL,
    kind       text NOT NULL,
    account    text NOT NULL CHECK (account IN ('wallet', 'payments', 'opening')),
    wallet_id  uuid NOT NULL,
    currency   text NOT NULL,
    amount     bigint NOT NULL CHECK (amount <> 0),
    PRIMARY KEY (request_id, step, kind, account)
);
COMMENT ON COLUMN wallet.entries.account IS 'that of the wallet itself, or a counter account of the currency';
CREATE INDEX entries_of_wallet ON wallet.entries (wallet_id) INCLUDE (amount) WHERE account = 'wallet';

-- Whoever books, books both sides: by statement, so that a batch costs one look.
CREATE FUNCTION wallet.refuse_unbalanced() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT FROM booked b GROUP BY b.request_id, b.step, b.kind, b.currency HAVING sum(b.amount) <> 0) THEN
        RAISE integrity_constraint_violation USING MESSAGE = 'the entries of an operation must sum to zero';
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER balanced AFTER INSERT ON wallet.entries REFERENCING NEW TABLE AS booked
    FOR EACH STATEMENT EXECUTE FUNCTION wallet.refuse_unbalanced();

-- What was written stays as it is, for every role: a mistake is mended by another operation.
CREATE FUNCTION wallet.refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE integrity_constraint_violation USING MESSAGE = format('%s of wallet.%s is refused: book another operation',
        TG_OP, TG_TABLE_NAME);
END $$;
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON wallet.operations
    FOR EACH STATEMENT EXECUTE FUNCTION wallet.refuse_change();
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON wallet.entries
    FOR EACH STATEMENT EXECUTE FUNCTION wallet.refuse_change();
CREATE TRIGGER stays BEFORE UPDATE OF id, currency OR DELETE OR TRUNCATE ON wallet.wallets
    FOR EACH STATEMENT EXECUTE FUNCTION wallet.refuse_change();

-- A wallet with what it holds at first; the ledger tells where that came from. One that is there already is refused.
CREATE FUNCTION wallet.open(id uuid, currency text, balance bigint DEFAULT 0) RETURNS uuid LANGUAGE plpgsql AS $$
#variable_conflict use_variable
BEGIN
    INSERT INTO wallet.wallets (id, currency, balance) VALUES (id, currency, balance);
    INSERT INTO wallet.operations (request_id, step, kind, wallet_id, amount, currency, balance)
    VALUES (id, 'open', 'OPEN', id, balance, currency, balance);
    INSERT INTO wallet.entries (request_id, step, kind, account, wallet_id, currency, amount)
    SELECT id, 'open', 'OPEN', e.account, id, currency, e.amount
    FROM (VALUES ('wallet', balance), ('opening', -balance)) e (account, amount) WHERE balance > 0;
    RETURN id;
END $$;
COMMENT ON FUNCTION wallet.open IS 'opens a wallet and books its first balance';
REVOKE EXECUTE ON FUNCTION wallet.open FROM PUBLIC;

-- Empty, or the books are wrong.
CREATE VIEW wallet.unbalanced AS
SELECT w.id, w.currency, w.balance, coalesce(e.booked, 0)::bigint AS booked
FROM wallet.wallets w
LEFT JOIN (
    SELECT wallet_id, sum(amount) AS booked FROM wallet.entries WHERE account = 'wallet' GROUP BY wallet_id
) e ON e.wallet_id = w.id
WHERE w.balance <> coalesce(e.booked, 0);
COMMENT ON VIEW wallet.unbalanced IS 'wallets that do not hold what their entries say';

-- Least privilege: the consumer decides, books, and moves balances; it opens no wallet and takes nothing back.
GRANT USAGE ON SCHEMA wallet TO ferryman_consumer, ferryman_monitor;
GRANT SELECT, UPDATE (balance) ON wallet.wallets TO ferryman_consumer;
GRANT SELECT, INSERT ON wallet.operations TO ferryman_consumer;
GRANT INSERT ON wallet.entries TO ferryman_consumer;
GRANT SELECT ON wallet.wallets, wallet.operations, wallet.entries, wallet.unbalanced TO ferryman_monitor;
GRANT SELECT ON ferryman.version_wallet TO ferryman_writer, ferryman_relay, ferryman_consumer, ferryman_monitor;
