"""Where requeued messages come: topics of one consumer's own, so that no other group sees them."""

from hashlib import sha256

_MARK = ".retry."
_LONGEST_TOPIC = 249


def retry_topic(topic: str, consumer: str) -> str:
    """Of a retry topic, itself; a name that would be too long is cut, and told apart by a hash."""
    suffix = _MARK + consumer
    if is_retry_topic(topic, consumer):
        return topic
    if len(topic) + len(suffix) <= _LONGEST_TOPIC:
        return topic + suffix
    mark = sha256(topic.encode()).hexdigest()[:16]
    return f"{topic[: _LONGEST_TOPIC - len(suffix) - len(mark) - 1]}-{mark}{suffix}"


def is_retry_topic(topic: str, consumer: str) -> bool:
    return topic.endswith(_MARK + consumer)


def original(topic: str, consumer: str) -> str:
    """Where a message came first: what is rejected again goes to the same dead letters."""
    return topic.removesuffix(_MARK + consumer)
