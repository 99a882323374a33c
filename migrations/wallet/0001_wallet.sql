-- Amounts are whole numbers of the currency's smallest unit.
CREATE SCHEMA wallet;

CREATE TABLE wallet.wallets (
    id        uuid PRIMARY KEY,
    currency  text NOT NULL CHECK (length(currency) = 3),
    balance   bigint NOT NULL CHECK (balance >= 0),
    opened_at timestamptz NOT NULL DEFAULT clock_timestamp()
) WITH (fillfactor = 70);
COMMENT ON TABLE wallet.wallets IS 'the balance of each wallet: always the sum of the ledger';

-- Every decision, once for each (request_id, step, kind), never pruned: repeated commands are answered from here.
-- A row is both sides of a double entry: the counter account of the currency loses what the wallet gains.
-- Refusals are recorded too, and so is a deduction that was CANCELLED before it came: it will find its answer.
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
           ELSE amount = 0 AND num_nonnulls(currency, balance) = 0 END),
    CONSTRAINT ledger_opens_once CHECK (kind <> 'OPEN' OR (request_id = wallet_id AND step = 'open'))
);
COMMENT ON COLUMN wallet.ledger.amount IS 'the gain of the wallet: negative for a deduction, 0 if nothing was moved';
COMMENT ON COLUMN wallet.ledger.balance IS 'the balance of the wallet after the operation';
COMMENT ON COLUMN wallet.ledger.reason IS 'why the operation was refused';
CREATE INDEX ledger_of_wallet ON wallet.ledger (wallet_id, decided_at) INCLUDE (amount);
CREATE INDEX ledger_opened ON wallet.ledger (wallet_id) WHERE kind = 'OPEN';

CREATE VIEW wallet.entries AS
SELECT l.request_id, l.step, l.kind, e.account, l.wallet_id, l.currency, e.amount, l.decided_at
FROM wallet.ledger l
CROSS JOIN LATERAL (
    VALUES ('wallet', l.amount), (CASE l.kind WHEN 'OPEN' THEN 'opening' ELSE 'payments' END, -l.amount)
) e (account, amount)
WHERE l.amount <> 0;
COMMENT ON VIEW wallet.entries IS 'both sides of each movement: the wallet, and the counter account of its currency';

-- The ledger is append-only for every role: a mistake is corrected by another operation.
CREATE FUNCTION wallet.refuse_change() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RAISE integrity_constraint_violation USING MESSAGE = format('%s of wallet.%s is refused: book another operation',
        TG_OP, TG_TABLE_NAME);
END $$;
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON wallet.ledger
    FOR EACH STATEMENT EXECUTE FUNCTION wallet.refuse_change();
CREATE TRIGGER stays BEFORE UPDATE OF id, currency OR DELETE OR TRUNCATE ON wallet.wallets
    FOR EACH STATEMENT EXECUTE FUNCTION wallet.refuse_change();

-- Opens a wallet with its first balance, which the ledger records. An existing wallet is refused.
CREATE FUNCTION wallet.open(id uuid, currency text, balance bigint DEFAULT 0) RETURNS uuid LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
BEGIN
    INSERT INTO wallet.wallets (id, currency, balance) VALUES (id, currency, balance);
    INSERT INTO wallet.ledger (request_id, step, kind, wallet_id, amount, currency, balance)
    VALUES (id, 'open', 'OPEN', id, balance, currency, balance);
    RETURN id;
END $$;
COMMENT ON FUNCTION wallet.open IS 'opens a wallet and books its first balance';
REVOKE EXECUTE ON FUNCTION wallet.open FROM PUBLIC;

-- This view is empty, or the books are wrong.
CREATE VIEW wallet.unbalanced AS
SELECT w.id, w.currency, w.balance, coalesce(e.booked, 0)::bigint AS booked
FROM wallet.wallets w
LEFT JOIN (SELECT wallet_id, sum(amount) AS booked FROM wallet.ledger GROUP BY wallet_id) e ON e.wallet_id = w.id
WHERE w.balance <> coalesce(e.booked, 0);
COMMENT ON VIEW wallet.unbalanced IS 'wallets whose balance differs from the ledger';

-- The consumer decides by these two functions, which run with their owner's rights: balances change with the ledger alone.
-- Locked in order: two batches with the same wallets wait for one another and do not deadlock.
CREATE FUNCTION wallet.lock(wallets uuid[]) RETURNS TABLE (id uuid, currency text, balance bigint) LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_custom_plan AS $$
BEGIN
    RETURN QUERY SELECT w.id, w.currency, w.balance FROM wallet.wallets w WHERE w.id = ANY (wallets)
    ORDER BY w.id FOR UPDATE;
END $$;

-- Books decisions of this transaction, and returns how many. Those that another process has booked meanwhile are left out.
CREATE FUNCTION wallet.book(
    decided_at timestamptz, requests uuid[], steps text[], kinds text[], wallets uuid[], reasons text[], amounts bigint[],
    currencies text[], balances bigint[]
) RETURNS bigint LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    many bigint;
BEGIN
    IF 'OPEN' = ANY (kinds) OR book.decided_at NOT BETWEEN transaction_timestamp() AND clock_timestamp() THEN
        RAISE integrity_constraint_violation USING
            MESSAGE = 'only what is decided in this transaction is booked, and wallets are opened by wallet.open()';
    END IF;
    WITH booked AS (
        INSERT INTO wallet.ledger (request_id, step, kind, wallet_id, reason, amount, currency, balance, decided_at)
        SELECT n.request_id, n.step, n.kind, n.wallet_id, n.reason,
               CASE n.kind WHEN 'DEDUCT' THEN -coalesce(n.amount, 0) ELSE coalesce(n.amount, 0) END,
               n.currency, n.balance, book.decided_at
        FROM unnest(requests, steps, kinds, wallets, reasons, amounts, currencies, balances)
             n (request_id, step, kind, wallet_id, reason, amount, currency, balance)
        ORDER BY n.request_id, n.step, n.kind
        ON CONFLICT ON CONSTRAINT ledger_pkey DO NOTHING
        RETURNING wallet_id, amount
    ), changed AS (
        UPDATE wallet.wallets w SET balance = w.balance + c.amount
        FROM (SELECT b.wallet_id, sum(b.amount)::bigint AS amount FROM booked b GROUP BY b.wallet_id) c
        WHERE w.id = c.wallet_id AND c.amount <> 0
    )
    SELECT count(*) INTO many FROM booked;
    IF kinds && '{REFUND,CANCEL}' AND EXISTS (
        SELECT FROM wallet.ledger l
        WHERE l.request_id = ANY (requests) AND l.kind <> 'OPEN'
        GROUP BY l.request_id, l.step, l.wallet_id HAVING sum(l.amount) > 0
    ) THEN
        RAISE integrity_constraint_violation USING MESSAGE = 'no step gives back more than it took';
    END IF;
    RETURN many;
END $$;
REVOKE EXECUTE ON FUNCTION wallet.lock, wallet.book FROM PUBLIC;

-- Least privilege: the consumer books decisions; it opens no wallet, sets no balance and no time, and deletes nothing.
SELECT ferryman.need_role('CREATE ROLE ferryman_wallet NOLOGIN', 'decides on the commands of payments');
SELECT ferryman.bind('consumer', 'wallet', 'ferryman_wallet');
GRANT USAGE ON SCHEMA wallet TO ferryman_wallet, ferryman_monitor;
GRANT EXECUTE ON FUNCTION wallet.lock, wallet.book TO ferryman_wallet;
GRANT SELECT ON wallet.ledger TO ferryman_wallet;
GRANT SELECT ON wallet.wallets, wallet.ledger, wallet.entries, wallet.unbalanced TO ferryman_monitor;
GRANT SELECT ON ferryman.version_wallet
    TO ferryman_wallet, ferryman_writer, ferryman_relay, ferryman_consumer, ferryman_monitor;
