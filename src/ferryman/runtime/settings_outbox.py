"""The settings under [outbox.NAME]: descriptions of tables that are outboxes already."""

from itertools import combinations
from typing import Annotated, Literal, Self

from pydantic import model_validator

from ferryman.runtime.endpoints import BearerToken, HttpUrl, SigningSecret
from ferryman.runtime.setting import InvalidSetting, Seconds, Section, TextLike, setting

# Names of tables and columns: no quotes, no control characters, and no % that a driver would take for a placeholder.
_PART = r'[^\x00-\x1f".%]{1,63}'
_OF_A_NAME = "has 1 to 63 characters, and no quote, dot, % or control character"
Column = Annotated[str, TextLike(_PART, f"the name of a column {_OF_A_NAME}")]
Table = Annotated[
    str, TextLike(rf"{_PART}(\.{_PART})?", f"a table is written as name or schema.name; each {_OF_A_NAME}")
]
Word = Annotated[str, TextLike(r"[^\x00%]{1,100}", "a word has 1 to 100 characters, and no % or null character")]
Channel = Annotated[
    str,
    TextLike(
        r"kafka|http|email|[A-Za-z_][\w.]*:[A-Za-z_]\w*",
        "a channel is kafka, http or email, or a class of your own as module:Class",
    ),
]
Topic = Annotated[
    str, TextLike(r"[a-zA-Z0-9._-]{1,249}", "a topic has 1 to 249 letters, digits, dots, underscores and hyphens")
]


OutboxName = Annotated[str, TextLike(r"[^\s:]{1,60}", "the name of an outbox has 1 to 60 characters, no space, no :")]

_ALWAYS_WRITTEN = ("status", "attempts", "error")
_WRITTEN = {*_ALWAYS_WRITTEN, "lease", "next_attempt_at", "done_at", "reference", "updated_at"}


class OutboxColumns(Section):
    """The names of the columns. By default the names here, where the table has such columns."""

    id: Column | None = setting(None, "Unique: the message's `ce_id`. Default: `id`.")
    key: Column | None = setting(None, "The message's key. Default: `key`.")
    payload: Column | None = setting(None, "bytea, text, json or jsonb. Default: `payload`.")
    topic: Column | None = setting(None, "The topic, unless all rows go to one. Default: `topic`.")
    type: Column | None = setting(None, "The message's type, unless all rows have one. Default: `type`.")
    destination: Column | None = setting(
        None, "Where a channel sends the row, unless all rows go to one place. Default: `destination`, if it exists."
    )
    headers: Column | None = setting(None, "More headers, as a JSON object. Default: `headers`, if it exists.")
    content_type: Column | None = setting(
        None, "The content type. Default: `content_type`, if it exists; else it follows from the payload's column type."
    )
    status: Column | None = setting(None, "The status, in your words. Default: `status`.")
    attempts: Column | None = setting(None, "How many attempts failed. Default: `attempts`.")
    error: Column | None = setting(None, "Why the last attempt failed. Default: `error`.")
    created_at: Column | None = setting(None, "When the row was written. Default: `created_at`, if it exists.")
    next_attempt_at: Column | None = setting(
        None, "When the row is tried again. Default: `next_attempt_at`, if it exists; else calculated from the lease."
    )
    done_at: Column | None = setting(None, "When the row was sent. Default: `done_at`, if it exists.")
    reference: Column | None = setting(
        None, "What the receiver calls the message, as a channel was told. Default: `reference`, if it exists."
    )
    updated_at: Column | None = setting(
        None, "Set with every change of the row. Default: none; a trigger of your own may do it."
    )
    subject: Column | None = setting(
        None, "The id of what a row is about: `ferryman trace` finds a row by it too, where rows leave by a channel."
    )


class OutboxWords(Section):
    """The words of the status column."""

    pending: list[Word] = setting(
        ["PENDING"], "To be sent. A row that failed gets the last of these words.", min_length=1
    )
    claimed: Word | None = setting(None, "Being sent. Without a word for it, the lease alone says so.")
    done: Word = setting("PUBLISHED", "Sent.")
    dead: Word | None = setting(
        None,
        "Given up. Without a word for it, a row keeps its pending word, and is not claimed after its last attempt.",
    )

    @property
    def every(self) -> list[str]:
        """Every word that is named."""
        return [*self.pending, *(word for word in (self.claimed, self.done, self.dead) if word is not None)]

    @model_validator(mode="after")
    def _differ(self) -> Self:
        words = self.every
        if len(set(words)) != len(words):
            raise ValueError("each word can have one meaning only: " + ", ".join(words))
        return self


class OutboxLease(Section):
    """The lease that shows that a relay has claimed a row."""

    column: Column = setting("claimed_at", "A timestamp column: a claim sets it, and settling requires the same value.")
    seconds: Seconds = setting(
        60.0, "How old a claim may be before another relay takes the row over: at least 6 s; with a channel at least "
        "15 s and twice `http.timeout_seconds`, or `email.timeout_seconds` for `email`.", unit="seconds", ge=6,
        danger="a row that takes longer is sent twice, with the same id; a sixth of it is the deadline of one publish",
    )  # fmt: skip


class OutboxRetry(Section):
    """The attempts of a row. A claim whose relay died counts as one; a claim released at SIGTERM does not."""

    limit: int = setting(
        5, "The number of failed attempts after which a row is given up; 0: never.", unit="attempts", ge=0, le=1000
    )
    base_seconds: Seconds = setting(1.0, "The wait after the first failure; it doubles with each.", unit="seconds")
    cap_seconds: Seconds = setting(300.0, "The longest wait.", unit="seconds")
    offset: int = setting(1, "The offset in `base * 2 ** (attempts - offset)`.", ge=0, le=10)
    jitter: float = setting(
        0.0, "The share of a wait that is left to chance, so that rows that failed together come apart. "
        "It needs the column `next_attempt_at`.", ge=0, le=1,
    )  # fmt: skip
    once: bool = setting(
        False, "Whether the first failure ends a row. Only rows whose process died are then sent again."
    )
    count_outages: bool = setting(
        False, "Whether an attempt counts that failed because Kafka, or the whole topic, is away. Channels count each.",
        danger="a short outage gives up every waiting row: a person must find them and send them",
    )  # fmt: skip
    max_outage_seconds: float | None = setting(
        None, "With channel `email`: how long a row waits, from when it was written, before attempts count that fail "
        "because the provider is away. Default: for ever.", unit="seconds", gt=0,
    )  # fmt: skip


class Outbox(Section):
    """A table that is an outbox already.

    `ferryman run relay` sends its rows to Kafka, beside the journal; `ferryman run NAME` sends them by a channel.
    """

    table: Table = setting(..., "The table's name, with its schema: `shop.outbox`.")
    archive: Table | None = setting(
        None, "A table with the same columns that old rows are moved to: `outbox show` and `ferryman trace` look there."
    )
    source: str | None = setting(
        None,
        "The name in [relay.sources] of the database that has it. Needed if there are several, "
        "and none has the name of the outbox.",
    )
    channel: Channel = setting(
        "kafka",
        "How its rows leave: `kafka`, `http`, `email`, or `module:Class`, which has an `async def send(self, item)`.",
    )
    url: HttpUrl | None = setting(None, "With channel `http`: where all rows go. Else each names its `destination`.")
    secrets: list[SigningSecret] = setting(
        [], "With channel `http`: sign each request with these (Standard Webhooks); two while one replaces the other.",
        danger="who has one can sign in your name",
    )  # fmt: skip
    bearer: BearerToken | None = setting(
        None, "With channel `http`: the token of an `Authorization` header, beside the signature if there are secrets.",
        danger="who has it can post in your name",
    )  # fmt: skip
    unsigned: bool = setting(
        False, "With channel `http`: whether requests go out with neither a signature nor a token.",
        danger="the receiver cannot tell who sends",
    )  # fmt: skip
    topic: Topic | None = setting(None, "The topic, if all rows go to one.")
    type: Word | None = setting(None, "The type, if all messages have one.")
    columns: OutboxColumns = setting(OutboxColumns, "The names of the columns.")
    words: OutboxWords = setting(OutboxWords, "The words of the status column.")
    lease: OutboxLease = setting(OutboxLease, "The lease that shows that a relay has claimed a row.")
    retry: OutboxRetry = setting(OutboxRetry, "How often a row is tried.")
    order: Literal["none", "key"] = setting(
        "none", "`key`: a row waits for earlier rows of its key (by `created_at`, then `id`).",
        danger="with key, one row of a key is sent at a time: slow where many rows have the same key",
    )  # fmt: skip
    batch_rows: int = setting(100, "The most rows in one claim.", unit="rows", ge=1, le=1000)
    slots: int = setting(64, "With a channel: the most rows in flight at once.", unit="rows", ge=1, le=1000)
    slots_per_destination: int = setting(
        8, "With a channel: the most rows in flight to one destination that rows name.", unit="rows", ge=1, le=1000
    )
    per_second: float | None = setting(
        None, "With a channel: the most sends that begin in any second, in this process: each replica has its own. "
        "Default: no limit.", unit="rows a second", gt=0, le=100_000,
    )  # fmt: skip
    attempts_retention_seconds: float = setting(
        2_592_000.0, "With a channel: how long attempts are kept in `ferryman.outbox_attempt`: an hour at least; 0 is "
        "for ever.", unit="seconds", ge=0, danger="what became of an older attempt is not known any more",
    )  # fmt: skip
    poll_seconds: float = setting(
        0.2, "How often to look while nothing is due; sooner after work.", unit="seconds", gt=0, le=60
    )

    @model_validator(mode="after")
    def _mails_can_be_held(self) -> Self:
        if self.channel == "email" and self.words.dead is None:
            raise InvalidSetting(
                "a mail that may have been sent is held for a person, and there is no word for that",
                remedy='set words.dead: words = { dead = "FAILED", ... }',
            )
        return self

    @model_validator(mode="after")
    def _has_settings_of_its_channel_only(self) -> Self:
        by_http = {name: getattr(self, name) for name in ("url", "secrets", "bearer", "unsigned")}
        if self.channel in ("kafka", "email") and (given := [name for name, value in by_http.items() if value]):
            raise InvalidSetting(
                f"{given[0]} is of channel http, and the channel is {self.channel}",
                remedy=f'set channel = "http", or remove {given[0]}',
            )
        if self.channel != "kafka" and self.topic:
            raise InvalidSetting(
                f"topic is of channel kafka, and the channel is {self.channel}",
                remedy="remove topic, or channel",
            )
        if self.channel != "email" and self.retry.max_outage_seconds is not None:
            raise InvalidSetting(
                f"retry.max_outage_seconds is of channel email, and the channel is {self.channel}",
                remedy="remove it; retry.count_outages is for Kafka, and other channels count each failure",
            )
        if self.unsigned and self.signs:
            raise InvalidSetting(
                "unsigned is true, and there are secrets or a bearer", remedy="remove unsigned, or the others"
            )
        return self

    @model_validator(mode="after")
    def _what_is_written_has_a_column_of_its_own(self) -> Self:
        named = {"lease": self.lease.column, **self.columns.model_dump(exclude_none=True)}
        columns = {**{role: role for role in _ALWAYS_WRITTEN}, **named}
        for one, other in combinations(columns, 2):
            shared = columns[one] == columns[other] and {one, other} != {"lease", "next_attempt_at"}
            if shared and _WRITTEN & {one, other}:
                raise InvalidSetting(
                    f"the column {columns[one]} would be both {one} and {other}: to write one spoils the other",
                    remedy=f"name another column as {'lease.column' if other == 'lease' else f'columns.{other}'}",
                )
        return self

    @property
    def signs(self) -> bool:
        """True if requests have a signature or a token."""
        return bool(self.secrets) or self.bearer is not None
