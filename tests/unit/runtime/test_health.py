"""The health endpoint: /livez while loops make progress, /readyz with the reason if not ready, and the metrics."""

import socket
import urllib.error
import urllib.request

import pytest

from ferryman.runtime import health
from ferryman.runtime.errors import Misconfigured
from ferryman.runtime.life import Life
from ferryman.runtime.settings import Health


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def get(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_a_process_is_alive_while_its_loop_makes_progress() -> None:
    clock = Clock()
    life = Life("relay", clock=clock)
    with health.endpoint(Health(port=0, stall_seconds=30), [life]) as url:
        clock.now = 29
        assert get(f"{url}/livez") == (200, "alive\n")
        clock.now = 31
        assert get(f"{url}/livez") == (503, "relay: no progress for 31 s\n")
        life.progress()
        assert get(f"{url}/livez") == (200, "alive\n")


def test_a_service_that_drains_is_not_reported_dead() -> None:
    clock = Clock()
    life = Life("relay", clock=clock)
    clock.now = 1000
    life.stopping.set()
    with health.endpoint(Health(port=0), [life]) as url:
        assert get(f"{url}/livez") == (200, "alive\n")


def test_readiness_says_why_not_in_words() -> None:
    relay, wallet = Life("relay"), Life("wallet")
    with health.endpoint(Health(port=0), [relay, wallet]) as url:
        assert get(f"{url}/readyz") == (503, "relay: starting\nwallet: starting\n")
        relay.ready()
        wallet.not_ready("kafka: no broker answers")
        assert get(f"{url}/readyz") == (503, "wallet: kafka: no broker answers\n")
        wallet.ready()
        assert get(f"{url}/readyz") == (200, "ready\n")
        wallet.stopping.set()
        assert get(f"{url}/readyz")[0] == 503


def test_metrics_are_in_prometheus_format() -> None:
    life = Life("relay")
    life.ready()
    with health.endpoint(Health(port=0), [life]) as url:
        status, text = get(f"{url}/metrics")
    assert status == 200
    assert 'ferryman_ready{service="relay"} 1.0' in text
    assert "ferryman_build_info{version=" in text


def test_another_path_says_what_there_is() -> None:
    with health.endpoint(Health(port=0), []) as url:
        assert get(f"{url}/secrets") == (404, "ask /livez, /readyz or /metrics\n")


def test_a_port_in_use_names_the_setting_and_the_remedy() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(Misconfigured, match="choose a free port") as caught, health.endpoint(Health(port=port), []):
            pass
    assert caught.value.setting == "health.port"


def test_an_address_of_another_host_names_the_setting() -> None:
    with pytest.raises(Misconfigured) as caught, health.endpoint(Health(host="192.0.2.1", port=0), []):
        pass
    assert caught.value.setting == "health.host"


def test_switched_off_it_listens_nowhere() -> None:
    with health.endpoint(Health(enabled=False), []) as url:
        assert url is None
