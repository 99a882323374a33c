"""Evidence of what became of messages, and of what they were for.

`trace`, `reconcile` and `audit` are engines that know no service. A service adds a case file, written on the modules of
this package: its rows, causes and invariants.
"""

from ferryman.runtime.desk import Act
from ferryman.runtime.desk import audit as write_down
from ferryman.runtime.times import moment, span

__all__ = ["Act", "moment", "span", "write_down"]
