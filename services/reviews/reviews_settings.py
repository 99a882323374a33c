"""The settings under [reviews]."""

from ferryman import Section, setting


class ReviewsSettings(Section):
    """The settings of `ferryman run reviews`, and of its routes."""

    answer_seconds: float = setting(
        300.0, "How long a job waits for a result before it asks again for the recipients of whom it heard nothing.",
        unit="seconds", gt=0, le=86_400,
    )  # fmt: skip
