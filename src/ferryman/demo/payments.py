"""The payments demo, from its servers to the audit."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ferryman import use_schemas
from ferryman.demo.payment_flow import DemoServers, DemoServices, DemoState, PaymentFlow, open_wallets
from ferryman.evidence.audit import AuditBooks
from ferryman.evidence.casefile import CaseFile
from ferryman.evidence.sides import open_sides
from ferryman.migrations.chains import ENGINE
from ferryman.runtime.system import load as load_target
from ferryman.runtime.system import settings_model
from ferryman.schemas import OURS
from ferryman.schemas.catalogue import load
from ferryman.schemas.cluster_topics import ClusterTopics
from ferryman.services import systems
from ferryman.services.payments import SYSTEM
from ferryman.testing import places, stack
from ferryman.testing.parts import Reach


@dataclass(frozen=True, slots=True)
class PaymentsOutcome:
    """The final state of the payments, and the audit of both databases."""

    parts: tuple[str, ...]
    ready_seconds: float
    state: DemoState
    books: AuditBooks

    @property
    def good(self) -> bool:
        """True if every requested payment has ended and the audit found nothing wrong."""
        state, counts = self.state, self.books.counts
        audited = counts["requests.SUCCEEDED"] + counts["requests.FAILED"]
        return state.pending == 0 and audited == state.sent and not self.books.wrongs

    def as_json(self) -> dict[str, Any]:
        """Return the outcome as JSON data."""
        state = self.state
        return {
            "verdict": "ok" if self.good else "wrong",
            "parts": list(self.parts), "ready_seconds": round(self.ready_seconds, 2),
            "payments": {"requested": state.sent, "succeeded": state.succeeded, "failed": state.failed,
                         "pending": state.pending},
            "killed": state.killed, "audit": self.books.as_json(),
        }  # fmt: skip


def run(
    reach: Reach, inherited: Mapping[str, str], show: Callable[[DemoState], None], ready: Callable[..., None]
) -> PaymentsOutcome:
    """Run the demo on servers of its own. Call `ready` once they are up, and `show` with each state."""
    began = time.monotonic()
    folder = places.scratch("demo")
    try:
        with stack.open_stack(reach=reach, registry_too=False, owners=(ENGINE, "payments")) as parts:
            wallet_url = stack.new_database(parts.database_url, "wallet")
            stack.migrate(wallet_url, (ENGINE, "wallet"))
            servers = DemoServers.with_logins(parts.database_url, wallet_url, parts.kafka.url)
            topics, catalogue = ClusterTopics(parts.settings.kafka), load(OURS)
            topics.apply(catalogue, topics.differences(catalogue), replication=1)
            ready_seconds = time.monotonic() - began
            ready(parts.climbs, ready_seconds)
            use_schemas()
            wallets = open_wallets(wallet_url)
            with DemoServices(servers, folder, inherited) as services:
                state = PaymentFlow(services, servers.url("api", "payments"), wallets, show).run()
                books = _audit(servers)
            return PaymentsOutcome(tuple(map(str, parts.climbs)), ready_seconds, state, books)
    finally:
        places.discard(folder)


def _audit(servers: DemoServers) -> AuditBooks:
    settings = settings_model(systems()).model_validate({
        "database_url": servers.url("audit", "payments"),
        "payments": {"wallet_database_url": servers.url("audit", "wallet")},
        "kafka": {"bootstrap_servers": servers.kafka},
    })  # fmt: skip
    case: CaseFile = load_target(str(SYSTEM.evidence))
    with open_sides(settings, case.databases, "demo") as sides:
        return case.audit(sides, cut_seconds=0, standstill_seconds=0).run()  # everything had its time
