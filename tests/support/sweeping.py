"""A Celery app and a Django project, as a user has them. Run as a module, it makes one request that fails and one that
succeeds, and prints their statuses.
"""

import json
import os
from urllib.parse import urlsplit

from celery import Celery
from kombu.transport.sqlalchemy import Transport

from ferryman.celery import beat_entry, on_commit

Transport.polling_interval = 0.1  # a user has one second; no option of this transport sets it
app = Celery("shop", broker=os.environ["SHOP_BROKER"])
app.conf.beat_schedule = {"ferryman.sweep": beat_entry()}


def upload(request):  # type: ignore[no-untyped-def] # Django has no types
    """Record an event, and fail if the request says so."""
    from django.db import connection
    from django.http import HttpResponse

    with connection.cursor() as cursor:
        cursor.execute("SELECT runner.enqueue('file.uploaded', %s, '{}')", [request.GET["file"]])
    on_commit()
    if "fail" in request.GET:
        raise RuntimeError("the request fails after it recorded its event")
    return HttpResponse(status=201)


def main() -> None:
    import django
    from django.conf import settings
    from django.test import Client
    from django.urls import path

    url = urlsplit(os.environ["FERRYMAN_DATABASE_URL"])
    database = {
        "ENGINE": "django.db.backends.postgresql", "HOST": url.hostname, "PORT": url.port, "USER": url.username,
        "PASSWORD": url.password, "NAME": url.path[1:], "ATOMIC_REQUESTS": True,
    }  # fmt: skip
    settings.configure(DATABASES={"default": database}, ROOT_URLCONF=__name__, ALLOWED_HOSTS=["*"], LOGGING_CONFIG=None)
    globals()["urlpatterns"] = [path("files", upload)]  # Django looks for this name in ROOT_URLCONF
    django.setup()
    client = Client(raise_request_exception=False)
    print(json.dumps([client.post(f"/files?file={query}").status_code for query in ("1&fail", "2")]))


if __name__ == "__main__":
    main()
