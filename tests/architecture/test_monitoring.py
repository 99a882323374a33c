"""Prometheus' and Grafana's files agree with the compose file and with the metrics there are."""

import json
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from ferryman.runtime import metrics
from ferryman.runtime.settings import Settings
from support.compose import COMPOSE, ROOT, environment, mounts, read_yaml

PROMETHEUS = read_yaml(ROOT / "deploy/prometheus/prometheus.yml")
[DATASOURCE] = read_yaml(ROOT / "deploy/grafana/provisioning/datasources/prometheus.yml")["datasources"]
[PROVIDER] = read_yaml(ROOT / "deploy/grafana/provisioning/dashboards/ferryman.yml")["providers"]
DASHBOARDS = {path.name: json.loads(path.read_text()) for path in (ROOT / "deploy/grafana/dashboards").glob("*.json")}
BY_PROMETHEUS = {"up"}
WORDS_OF_PROMQL = {"and", "or", "unless", "bool", "offset", "by", "without", "on", "ignoring"}


def test_prometheus_scrapes_what_it_can_reach() -> None:
    known = {name.partition(":")[0] for name in COMPOSE["services"]["prometheus"]["extra_hosts"]}
    for job in PROMETHEUS["scrape_configs"]:
        for target in (target for each in job["static_configs"] for target in each["targets"]):
            host, port = target.split(":")
            assert host in known | set(COMPOSE["services"]) | {"localhost"}
            assert job["job_name"] != "ferryman" or int(port) == Settings().health.port


def test_prometheus_and_grafana_read_the_files_where_they_look_for_them() -> None:
    assert mounted("/etc/prometheus/prometheus.yml").is_file()
    assert {path.parent.name for path in (ROOT / "deploy/grafana/provisioning").glob("*/*.yml")} == {
        Path(where).name for _, where in mounts(COMPOSE, "grafana") if where.startswith("/etc/grafana/provisioning/")
    }
    assert mounted(PROVIDER["options"]["path"]).is_dir()
    assert mounted(environment(COMPOSE, "grafana")["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]).is_file()


def test_grafana_asks_prometheus_where_it_listens() -> None:
    [port] = COMPOSE["services"]["prometheus"]["ports"]
    assert DATASOURCE["url"] == f"http://prometheus:{port.rpartition(':')[2]}"


@pytest.mark.parametrize("name", DASHBOARDS)
def test_every_metric_of_a_dashboard_exists(name: str) -> None:
    asked = {metric for query in queries(DASHBOARDS[name]) for metric in metrics_in(query)}
    assert asked
    assert unknown_metrics(asked) == set()


def test_a_metric_that_does_not_exist_is_found() -> None:
    query = 'time() - max by (service) (ferryman_last_progres{service=~"$service"}) > bool 3'
    assert unknown_metrics(metrics_in(query)) == {"ferryman_last_progres"}


@pytest.mark.parametrize("name", DASHBOARDS)
def test_the_panels_of_a_dashboard_have_a_number_and_a_datasource_each(name: str) -> None:
    panels = DASHBOARDS[name]["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    variables = DASHBOARDS[name]["templating"]["list"]
    assert {each["datasource"]["uid"] for each in [*panels, *variables]} == {DATASOURCE["uid"]}


def test_the_jobs_that_the_dashboards_name_are_scraped() -> None:
    jobs = {job for each in DASHBOARDS.values() for query in queries(each) for job in re.findall(r'job="(\w+)"', query)}
    assert jobs
    assert jobs <= {job["job_name"] for job in PROMETHEUS["scrape_configs"]}


def mounted(path: str) -> Path:
    """What a path inside Prometheus' or Grafana's container is in the tree."""
    for source, where in mounts(COMPOSE, "prometheus", "grafana"):
        if source.startswith(".") and Path(path).is_relative_to(where):
            return ROOT / source / Path(path).relative_to(where)
    raise AssertionError(f"{path} is not mounted")


def queries(dashboard: Mapping[str, Any]) -> Iterator[str]:
    for panel in dashboard["panels"]:
        yield from (target["expr"] for target in panel["targets"])
    for variable in dashboard["templating"]["list"]:
        asked = re.fullmatch(r"label_values\((.*), \w+\)", variable["query"]["query"])
        assert asked
        yield asked[1]


def metrics_in(query: str) -> set[str]:
    """The names in a query that are not functions, labels, strings, ranges or words of the language."""
    bare = re.sub(r'"[^"]*"|\{[^}]*\}|\[[^]]*\]', "", re.sub(r'"[^"]*"', "", query))
    bare = re.sub(r"\b(by|without|on|ignoring)\s*\([^)]*\)", "", bare)
    return set(re.findall(r"\b[a-zA-Z_:][\w:]*\b(?!\s*\()", bare)) - WORDS_OF_PROMQL


def unknown_metrics(names: set[str]) -> set[str]:
    families = list(metrics.REGISTRY.collect())
    known = {family.name for family in families} | {sample.name for family in families for sample in family.samples}
    if sys.platform != "linux":  # elsewhere the client library knows nothing of its process
        known |= {name for name in names if name.startswith("process_")}
    return names - known - BY_PROMETHEUS
