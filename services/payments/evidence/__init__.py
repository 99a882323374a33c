"""The case file of payments: what `trace`, `reconcile` and `audit` know of them, in the orchestrator's database and the
wallet's.
"""

from ferryman.evidence.casefile import CaseFile
from ferryman.evidence.sides import MAIN
from ferryman.services.payments.evidence.auditing import begin
from ferryman.services.payments.evidence.case import NAME, WALLET
from ferryman.services.payments.evidence.reconciling import PaymentReconciler
from ferryman.services.payments.evidence.tracing import PaymentTracer

_HELP = """\
Name why payments are still PENDING: from the ledger first, then from both outboxes and inboxes, and Kafka.

\b
  ferryman reconcile payments                                     pending for over 5 minutes, and why
  ferryman reconcile payments --older 1h --json | jq .counts
  ferryman reconcile payments --id 9f1c1a52-6f0e-4b7e-9d5a-3c1f0a7b2e10
  ferryman reconcile payments --yes --reason 'the wallet is mended'
  ferryman reconcile payments --settle 9f1c1a52-6f0e-4b7e-9d5a-3c1f0a7b2e10 --yes --reason 'given back: TX 4711'

Without --yes nothing is changed. With it, lost messages are asked for again through the machine, and FAILED entries are
replayed: an operation happens once, and whoever asks again is answered with its outcome. A payment that was asked for
less than payments.answer_seconds ago is left alone, and so is one whose reader is away, paused or far behind, so the
same command may run as often as you like. A FAILED payment whose amount stays taken is found by the results that came
too late, or by --id, and its amount is asked back. payments.wallet_database_url names the wallet's database.

Causes: never_published, not_consumed, consumer_failed, result_lost, waits_downstream, needs_person, evidence_expired,
not_given_back. Exit code 5 if some need a person, else 1 if --yes would mend some, else 0.
"""


CASE = CaseFile(
    name=NAME,
    noun="payment",
    databases={MAIN: "database_url", WALLET: "payments.wallet_database_url"},
    tracer=PaymentTracer(),
    reconciler=PaymentReconciler,
    audit=begin,
    short="Why payments are still PENDING; with --yes, mends what is safe.",
    help=_HELP,
    mending_role="ferryman_payments",
)
