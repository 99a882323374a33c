"""What reconciling counts."""

from ferryman.runtime.metrics import Named

_METERS = Named("ferryman_reconcile_", ["cause"], ())

CASES = _METERS.counter("cases_total", "Payments that were found pending beyond their age, by why.")
