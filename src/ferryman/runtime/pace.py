"""How long to rest behind a small portion of work, so that the next is larger: one pure function.

What comes in small portions costs most by the portion: claims, statements, commits, a request to Kafka for each
partition. Who finds less than it could take rests in proportion to what that took. Where nothing else is to do that is
a few milliseconds; where servers and machine are busy everything takes longer, and portions grow by themselves.
"""

_LONGEST_SECONDS = 0.05


def rest_seconds(worked: float, times: float, at_least: float = 0.0) -> float:
    """So many times what it took, within bounds."""
    return max(at_least, min(_LONGEST_SECONDS, times * worked))
