"""A payment's story: what happened in order of time, and how it ends. Pure: what is known is passed."""

from dataclasses import replace

from ferryman.evidence.trace.ending import conclude
from ferryman.evidence.trace.events import events
from ferryman.evidence.trace.expired import expired
from ferryman.evidence.trace.model import Known, Story


def tell(known: Known) -> Story:
    ending, left = conclude(known), expired(known)
    return Story(events(known), replace(ending, why=f"{ending.why}. {left}") if left else ending)
