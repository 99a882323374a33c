"""What the API counts."""

from ferryman.runtime.metrics import Named

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)

_METERS = Named("ferryman_api_", ["route"], _SECONDS)

REQUESTS = _METERS.counter(
    "requests_total", "Requests that were answered; what no route takes is of the route `other`.", ["route", "status"]
)
SECONDS = _METERS.histogram("request_seconds", "How long an answer took, from the request's headers on.")


def answered(route: str, status: int, seconds: float) -> None:
    REQUESTS.labels(route, str(status)).inc()
    SECONDS.labels(route).observe(seconds)
