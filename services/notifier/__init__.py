"""The notifier: tells each recipient of a review's version once, by e-mail, and reports whom it told."""

from ferryman import System

SYSTEM = System(
    name="notifier",
    owner="notifier",
    settings={"notifier": "ferryman.services.notifier.notifier_settings:NotifierSettings"},
    runs={
        "notifier": (
            "ferryman.services.notifier.mailer:notifier",
            "tells people of reviews by the provider that [email] names, and reports whom it told",
        )
    },
    outboxes="ferryman.services.notifier.notifier_settings:outboxes",
    outboxes_need="email.provider",
    catalogue=True,
)
