"""A payment's story: what happened in order of time, and how it ends. Pure: what is known is passed."""

from ferryman.evidence.trace.ending import conclude
from ferryman.evidence.trace.events import events
from ferryman.evidence.trace.model import Known, Story


def tell(known: Known) -> Story:
    return Story(events(known), conclude(known))
