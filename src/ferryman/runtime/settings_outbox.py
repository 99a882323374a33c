"""The settings under [outbox.NAME]: tables that are outboxes already, described so that the relay can send them."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from ferryman.runtime.setting import Seconds, Section, setting

# Of a table or a column: no quotes, no control characters, and no % that a driver would take for a placeholder.
_PART = r'[^\x00-\x1f".%]{1,63}'
Column = Annotated[str, Field(pattern=rf"^{_PART}$")]
Table = Annotated[str, Field(pattern=rf"^{_PART}(\.{_PART})?$")]
Word = Annotated[str, Field(pattern=r"^[^\x00%]{1,100}$")]
Topic = Annotated[str, Field(pattern=r"^[a-zA-Z0-9._-]{1,249}$")]


class OutboxColumns(Section):
    """What the columns are called; by default as here, where the table has them."""

    id: Column | None = setting(None, "Unique: the message's `ce_id`. Default: `id`.")
    key: Column | None = setting(None, "The message's key. Default: `key`.")
    payload: Column | None = setting(None, "bytea, text, json or jsonb. Default: `payload`.")
    topic: Column | None = setting(None, "Where it goes, if not all go to one topic. Default: `topic`.")
    type: Column | None = setting(None, "The message's type, if not all have one. Default: `type`.")
    headers: Column | None = setting(None, "More headers, as a JSON object. Default: `headers`, if it is there.")
    content_type: Column | None = setting(
        None, "What the payload is. Default: `content_type`, if it is there; else by the payload's type."
    )
    status: Column | None = setting(None, "How it stands, in your words. Default: `status`.")
    attempts: Column | None = setting(None, "How many attempts failed. Default: `attempts`.")
    error: Column | None = setting(None, "Why the last attempt failed. Default: `error`.")
    created_at: Column | None = setting(None, "When it was written. Default: `created_at`, if it is there.")
    next_attempt_at: Column | None = setting(
        None, "When it is tried again. Default: `next_attempt_at`, if it is there; else reckoned from the lease."
    )
    done_at: Column | None = setting(None, "When it was sent. Default: `done_at`, if it is there.")


class OutboxWords(Section):
    """What the status column says."""

    pending: list[Word] = setting(["PENDING"], "To be sent; what failed gets the last of these words.", min_length=1)
    claimed: Word | None = setting(None, "Being sent. Without, the lease alone says so.")
    done: Word = setting("PUBLISHED", "Sent.")
    dead: Word | None = setting(
        None, "Given up. Without, a row keeps its pending word, and is not claimed again once its attempts are used up."
    )

    @model_validator(mode="after")
    def _differ(self) -> Self:
        words = [*self.pending, *(word for word in (self.claimed, self.done, self.dead) if word is not None)]
        if len(set(words)) != len(words):
            raise ValueError("each word must say one thing: " + ", ".join(words))
        return self


class OutboxLease(Section):
    """How a row says that a relay has it."""

    column: Column = setting("claimed_at", "A timestamp: claiming sets it, and settling asks for the same.")
    seconds: Seconds = setting(
        60.0, "A row that was claimed longer ago is taken over: its relay died.", unit="seconds", ge=6,
        danger="what takes longer is sent twice, with the same id; a sixth of it is the deadline of one publish",
    )  # fmt: skip


class OutboxRetry(Section):
    """How often a row is tried. A claim whose relay died counts; one that was given back at SIGTERM does not."""

    limit: int = setting(5, "After so many failed attempts a row is given up.", unit="attempts", ge=1, le=1000)
    base_seconds: Seconds = setting(1.0, "The wait after the first failure; it doubles with each.", unit="seconds")
    cap_seconds: Seconds = setting(300.0, "The longest wait.", unit="seconds")
    offset: int = setting(1, "Of `base * 2 ** (attempts - offset)`.", ge=0, le=10)
    count_outages: bool = setting(
        False, "Whether a publish counts that failed because Kafka, or the whole topic, is away.",
        danger="an outage of a minute gives up everything that waits: a person must find it and send it",
    )  # fmt: skip


class Outbox(Section):
    """One table that is an outbox already: `ferryman run relay` sends its rows, beside the journal's."""

    table: Table = setting(..., "Its name, with its schema: `shop.outbox`.")
    source: str | None = setting(None, "Which of [relay.sources] has it. Default: the one that there is.")
    channel: Literal["kafka"] = setting("kafka", "How its rows leave.")
    topic: Topic | None = setting(None, "The topic, if all its rows go to one.")
    type: Word | None = setting(None, "The type, if all its messages have one.")
    columns: OutboxColumns = setting(OutboxColumns, "What the columns are called.")
    words: OutboxWords = setting(OutboxWords, "What the status column says.")
    lease: OutboxLease = setting(OutboxLease, "How a row says that a relay has it.")
    retry: OutboxRetry = setting(OutboxRetry, "How often a row is tried.")
    order: Literal["none", "key"] = setting(
        "none", "`key`: a row waits for the earlier ones of its key (by `created_at`, then `id`).",
        danger="with key, one row of a key is sent at a time: slow where many rows have the same key",
    )  # fmt: skip
    batch_rows: int = setting(100, "The most rows of one claim.", unit="rows", ge=1, le=1000)
    poll_seconds: float = setting(0.2, "When nothing is due, how often to look.", unit="seconds", gt=0, le=60)
