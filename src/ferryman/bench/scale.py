"""How much a run measures: the goals' own numbers, or fewer to see that it works."""

from dataclasses import dataclass

FULL_ENTRIES = 1_000_000
QUICK = 100
KEYS = 10_000
PARTITIONS = 6
PAYLOAD_BYTES = 200
STEADY_RATE = 1000


@dataclass(frozen=True, slots=True)
class Scale:
    """Counts follow `entries`; times are shorter only in a quick run."""

    entries: int = FULL_ENTRIES
    quick: bool = False

    @classmethod
    def of(cls, entries: int, *, quick: bool) -> "Scale":
        return cls(max(1000, entries // QUICK) if quick else entries, quick)

    @property
    def retained(self) -> int:
        """Five million beside one."""
        return 5 * self.entries

    @property
    def commands(self) -> int:
        """For one run of a consumer: a hundred thousand beside a million."""
        return max(2000, self.entries // 10)

    @property
    def windows(self) -> int:
        """Twenty thousand beside a million."""
        return max(200, self.entries // 50)

    @property
    def rounds(self) -> int:
        """How often what is compared is measured by turns."""
        return 1 if self.quick else 3

    @property
    def steady_seconds(self) -> float:
        return 1.5 if self.quick else 30

    @property
    def warm_seconds(self) -> float:
        return 0.5 if self.quick else 5

    @property
    def idle_seconds(self) -> float:
        return 2 if self.quick else 20

    @property
    def quiet_seconds(self) -> float:
        """The server logs its running transactions up to 25 s after its last WAL: that is not the relay's."""
        return 0.5 if self.quick else 26

    @property
    def trials(self) -> int:
        """How many first entries after idleness."""
        return 3 if self.quick else 20

    @property
    def transactions(self) -> int:
        """How many single-row transactions of each kind."""
        return 200 if self.quick else 5000
