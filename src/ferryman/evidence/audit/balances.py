"""What wallets hold and what their ledgers sum to, in statements that end in their time: no ledger is ever pruned."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from uuid import UUID

from ferryman.evidence.audit import store_wallets
from ferryman.evidence.audit.model import Held
from ferryman.evidence.audit.reading import Reading
from ferryman.evidence.audit.unfinished import cancelled
from ferryman.runtime.errors import FerrymanError

MOST = 500
_ROWS, _MANY_ROWS = 10_000, 50_000
"""Of a ledger: what is summed beside other wallets, and of one that is longer, at once."""


@dataclass
class Balances:
    """Reads as many wallets at once as the server can sum in a statement's time."""

    reading: Reading
    _at_once: int = MOST

    def of(self, wallets: Sequence[UUID]) -> Iterator[Held]:
        """Of each, in their order; each of one moment."""
        self._at_once = min(MOST, 2 * self._at_once)
        first = 0
        while first < len(wallets):
            portion = wallets[first : first + self._at_once]
            if (found := self._held(portion)) is not None:
                yield from (each if each.booked is not None else self._long(each.id) for each in found)
                first += len(portion)

    def _held(self, wallets: Sequence[UUID]) -> list[Held] | None:
        """None where that took too long: from then on fewer are asked for."""
        try:
            with self.reading.wallet() as db:
                return store_wallets.held(db, wallets, _ROWS)
        except FerrymanError as error:
            if not cancelled(error) or len(wallets) == 1:
                raise
            self._at_once = len(wallets) // 2
            return None

    def _long(self, wallet: UUID) -> Held:
        """One whose ledger is long, in as many statements as that takes, of one snapshot."""
        booked, moment = 0, None
        with self.reading.wallet_as_it_is() as db:
            [found] = store_wallets.held(db, [wallet], 0)
            while True:
                some, moment = store_wallets.booked_after(db, wallet, moment, _MANY_ROWS)
                if moment is None:
                    return found._replace(booked=booked)
                booked += some
