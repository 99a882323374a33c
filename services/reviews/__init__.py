"""Reviews: a job for each version of a change tells its recipients, and is over when each of them was told."""

from ferryman import System

SYSTEM = System(
    name="reviews",
    owner="reviews",
    settings={"reviews": "ferryman.services.reviews.reviews_settings:ReviewsSettings"},
    runs={
        "reviews": (
            "ferryman.services.reviews.orchestrator:reviews",
            "notes who was told of a review, asks again where no result came, and ends its job",
        )
    },
    routes="ferryman.services.reviews.reviews_api:router",
    machines=("ferryman.services.reviews.orchestrator:MACHINE",),
    catalogue=True,
    tracer="ferryman.services.reviews.job_story:TRACER",
)
