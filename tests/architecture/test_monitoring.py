"""The files of Prometheus and Grafana agree with the compose file, the command line and the existing metrics.

As in `test_compose`, a check returns problems, and each entry of `FAULTS` shows that a check finds its fault.
"""

import copy
import json
import re
import shlex
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import click
import pytest

import ferryman.consumer.metrics
import ferryman.relay.metrics
import ferryman.runtime.chore
import ferryman.saga.metrics  # noqa: F401 - the import registers them
from ferryman.runtime.metrics import REGISTRY
from ferryman.runtime.settings import Settings
from support.compose import COMPOSE, ROOT, environment, mounts, parse_command_line, put, read_yaml, serving, settings_of

Files = dict[str, Any]
Check = Callable[[Files], list[str]]

FILES: Files = {
    "compose": COMPOSE,
    "prometheus": read_yaml(ROOT / "deploy/prometheus/prometheus.yml"),
    "alerts": read_yaml(ROOT / "deploy/prometheus/alerts.yml"),
    "datasource": read_yaml(ROOT / "deploy/grafana/provisioning/datasources/prometheus.yml")["datasources"][0],
    "provider": read_yaml(ROOT / "deploy/grafana/provisioning/dashboards/ferryman.yml")["providers"][0],
    "dashboards": {path.stem: json.loads(path.read_text()) for path in (ROOT / "deploy/grafana").rglob("*.json")},
}
OF_EVERY_TARGET = {"job", "instance"}
SUFFIXES = {"counter": ["_total"], "histogram": ["_bucket", "_sum", "_count"], "summary": ["_sum", "_count"]}

TOKEN = re.compile(
    r'\s*("(?:[^"\\]|\\.)*"|\$__rate_interval|(?:\d+(?:ms|[smhdwy]))+|\d+(?:\.\d+)?|[A-Za-z_:][\w:]*|[=!]~|[=!<>]=|\S)'
)
NAME = r"[A-Za-z_:][\w:]*"
RANGE = r"\$__rate_interval|(\d+(ms|[smhdwy]))+"
OPERATORS = [{"and", "or", "unless"}, {"==", "!=", "<=", ">=", "<", ">"}, {"+", "-", "*", "/"}]
AGGREGATIONS = {"sum", "min", "max", "avg", "count"}
FUNCTIONS = {
    "absent": (["vector"], "vector"),
    "deriv": (["range"], "vector"),
    "histogram_quantile": (["scalar", "vector"], "vector"),
    "increase": (["range"], "vector"),
    "label_replace": (["vector", "string", "string", "string", "string"], "vector"),
    "rate": (["range"], "vector"),
    "time": ([], "scalar"),
}


@dataclass
class Query:
    """A parser of the part of PromQL that the files use. Anything else is a ValueError."""

    text: str
    selectors: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    groupings: list[set[str]] = field(default_factory=list)
    kind: str = ""
    _tokens: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._tokens += [*TOKEN.findall(self.text), ""]
        self.kind = self._expression()
        self._take("")

    def _take(self, *wanted: str) -> str:
        return self._matching("|".join(map(re.escape, wanted)) if wanted else "(?s).*")

    def _matching(self, pattern: str) -> str:
        if not re.fullmatch(pattern, self._tokens[0]):
            raise ValueError(f"unexpected {self._tokens[0] or 'end'}: {self.text}")
        return self._tokens.pop(0)

    def _list(self, item: Callable[[], str], opening: str = "(", closing: str = ")") -> list[str]:
        self._take(opening)
        items = []
        while self._tokens[0] != closing:
            items.append(item())
            if self._tokens[0] != closing:
                self._take(",")
        self._take(closing)
        return items

    def _expression(self, level: int = 0) -> str:
        if level == len(OPERATORS):
            return self._operand()
        kind = self._expression(level + 1)
        while self._tokens[0] in OPERATORS[level]:
            operator = self._take()
            if self._tokens[0] == "bool":
                self._take()
            if self._tokens[0] == "on":
                self._take()
                self.groupings.append(set(self._list(lambda: self._matching(NAME))))
            other = self._expression(level + 1)
            if not {kind, other} <= ({"vector"} if level == 0 else {"vector", "scalar"}):
                raise ValueError(f"{operator} between {kind} and {other}: {self.text}")
            kind = "vector" if "vector" in (kind, other) else kind
        return kind

    def _operand(self) -> str:
        token = self._take()
        if token == "(":
            kind = self._expression()
            self._take(")")
            return kind
        if token.startswith('"'):
            return "string"
        if re.fullmatch(r"\d+(\.\d+)?", token):
            return "scalar"
        if not re.fullmatch(NAME, token) or token in OPERATORS[0]:
            raise ValueError(f"unexpected {token or 'end'}: {self.text}")
        if token in AGGREGATIONS:
            return self._aggregation()
        return self._call(token) if self._tokens[0] == "(" else self._selector(token)

    def _aggregation(self) -> str:
        if self._tokens[0] == "by":
            self._take()
            self.groupings.append(set(self._list(lambda: self._matching(NAME))))
        self._arguments(["vector"])
        return "vector"

    def _call(self, name: str) -> str:
        if name not in FUNCTIONS:
            raise ValueError(f"unknown function {name}: {self.text}")
        wanted, kind = FUNCTIONS[name]
        self._arguments(wanted)
        return kind

    def _arguments(self, wanted: Sequence[str]) -> None:
        if (kinds := self._list(self._expression)) != list(wanted):
            raise ValueError(f"{kinds} where {wanted} should be: {self.text}")

    def _selector(self, name: str) -> str:
        matchers: dict[str, str] = {}

        def matcher() -> str:
            label, operator, value = self._matching(NAME), self._take("=", "!=", "=~", "!~"), self._matching('".*"')
            matchers[label] = operator + value
            return label

        if self._tokens[0] == "{":
            self._list(matcher, "{", "}")
        self.selectors.append((name, matchers))
        if self._tokens[0] != "[":
            return "vector"
        self._take("[")
        self._matching(RANGE)
        self._take("]")
        return "range"


def queries(files: Files) -> Iterator[tuple[str, str]]:
    """Yield the place and the text of the query of every alert, panel and variable."""
    for rule in rules(files):
        yield rule["alert"], rule["expr"]
    for dashboard in files["dashboards"].values():
        for panel in panels(dashboard):
            yield from ((panel["title"], target["expr"]) for target in panel["targets"])
        for variable in dashboard["templating"]["list"]:
            asked = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["query"]["query"])
            assert asked
            yield variable["name"], f"max by ({asked[2]}) ({asked[1]})"


def parsed(files: Files) -> Iterator[tuple[str, Query]]:
    for where, text in queries(files):
        yield where, Query(text)


def rules(files: Files) -> list[dict[str, Any]]:
    return [rule for group in files["alerts"]["groups"] for rule in group["rules"]]


def panels(dashboard: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [panel for panel in dashboard["panels"] if panel["type"] != "row"]


def known_metrics() -> set[str]:
    return {"up"} | {
        metric.name + suffix for metric in REGISTRY.collect() for suffix in SUFFIXES.get(metric.type, [""])
    }


def labels_of(metric: str) -> set[str]:
    """Return the label names of a metric, which the library shows publicly only if there are values."""
    names = getattr(REGISTRY._names_to_collectors.get(metric), "_labelnames", ())
    return {*names, *OF_EVERY_TARGET, *(["le"] if metric.endswith("_bucket") else [])}


def mounted(files: Files, path: str) -> Path | None:
    """Return the file in the tree that is mounted at this path in Prometheus' or Grafana's container."""
    for source, where in mounts(files["compose"], "prometheus", "grafana"):
        if source.startswith(".") and Path(path).is_relative_to(where):
            return ROOT / source / Path(path).relative_to(where)
    return None


def targets_out_of_reach(files: Files) -> list[str]:
    compose, problems = files["compose"], []
    hosts = {name.partition(":")[0] for name in compose["services"]["prometheus"]["extra_hosts"]} | {"localhost"}
    for job in files["prometheus"]["scrape_configs"]:
        for target in (target for each in job.get("static_configs", []) for target in each["targets"]):
            host, port = target.split(":")
            if host not in hosts or (host != "localhost" and int(port) != Settings().health.port):
                problems.append(target)
        for found in job.get("dns_sd_configs", []):
            wrong = [name for name in found["names"] if name not in serving(compose)]
            known = [settings_of(compose, name).health.port for name in found["names"] if name not in wrong]
            problems += [*wrong, *(str(port) for port in known if (found["type"], found["port"]) != ("A", port))]
    return problems


def services_that_nobody_scrapes(files: Files) -> list[str]:
    found = [each for job in files["prometheus"]["scrape_configs"] for each in job.get("dns_sd_configs", [])]
    return sorted(set(serving(files["compose"])) - {name for each in found for name in each["names"]})


def files_that_are_not_mounted(files: Files) -> list[str]:
    looked_for = [
        "/etc/prometheus/prometheus.yml",
        *(str(Path("/etc/prometheus") / each) for each in files["prometheus"]["rule_files"]),
        *(f"/etc/grafana/provisioning/{name}" for name in ("datasources/prometheus.yml", "dashboards/ferryman.yml")),
        files["provider"]["options"]["path"],
        environment(files["compose"], "grafana")["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"],
    ]
    return [path for path in looked_for if not (there := mounted(files, path)) or not there.exists()]


def rules_that_nobody_reads(files: Files) -> list[str]:
    read = [mounted(files, str(Path("/etc/prometheus") / each)) for each in files["prometheus"]["rule_files"]]
    return [] if ROOT / "deploy/prometheus/alerts.yml" in read else ["alerts.yml"]


def wrong_datasources(files: Files) -> list[str]:
    [port] = files["compose"]["services"]["prometheus"]["ports"]
    asking = [each for one in files["dashboards"].values() for each in [*panels(one), *one["templating"]["list"]]]
    uids = {each["datasource"]["uid"] for each in asking} - {files["datasource"]["uid"]}
    return sorted(uids | ({files["datasource"]["url"]} - {f"http://prometheus:{port.rpartition(':')[2]}"}))


def broken_queries(files: Files) -> list[str]:
    problems = []
    for where, text in queries(files):
        try:
            problems += [] if Query(text).kind == "vector" else [f"{where}: not a vector"]
        except ValueError as error:
            problems.append(f"{where}: {error}")
    return problems


def unknown_metrics(files: Files) -> list[str]:
    asked = {name for _, query in parsed(files) for name, _ in query.selectors}
    if sys.platform != "linux":  # elsewhere the client library knows nothing of its process
        asked = {name for name in asked if not name.startswith("process_")}
    return sorted(asked - known_metrics())


def unknown_labels(files: Files) -> list[str]:
    """Return labels that do not exist, in the matchers of a metric or in groupings and joins."""
    problems = []
    for where, query in parsed(files):
        matched = [label for name, matchers in query.selectors for label in matchers.keys() - labels_of(name)]
        there = set[str]().union(*(labels_of(name) for name, _ in query.selectors))
        problems += [f"{where}: {label}" for label in {*matched, *set[str]().union(*query.groupings) - there}]
    return problems


def jobs_that_are_not_scraped(files: Files) -> list[str]:
    names = [job["job_name"] for job in files["prometheus"]["scrape_configs"]]
    asked = {matchers["job"] for _, query in parsed(files) for _, matchers in query.selectors if "job" in matchers}
    return [each for each in asked if not any(re.fullmatch(each.lstrip("=~").strip('"'), name) for name in names)]


def panels_that_clash(files: Files) -> list[str]:
    problems = []
    for dashboard in files["dashboards"].values():
        ids, cells = Counter(panel["id"] for panel in dashboard["panels"]), Counter[tuple[int, int]]()
        for at in (panel["gridPos"] for panel in dashboard["panels"]):
            cells.update(product(range(at["x"], at["x"] + at["w"]), range(at["y"], at["y"] + at["h"])))
        problems += [str(what) for what, times in [*ids.items(), *cells.items()] if times > 1]
        problems += [str(cell) for cell in cells if cell[0] >= 24]
    return problems


def alerts_that_prometheus_refuses(files: Files) -> list[str]:
    names = Counter(rule["alert"] for rule in rules(files))
    known = {"alert", "expr", "for", "keep_firing_for", "labels", "annotations"}
    waits = [rule["for"] for rule in rules(files) if not re.fullmatch(r"(\d+[smhd])+", rule.get("for", "0s"))]
    return [*(key for rule in rules(files) for key in rule.keys() - known), *waits, *(n for n in names if names[n] > 1)]


def alerts_that_do_not_say_what_to_do(files: Files) -> list[str]:
    problems = []
    for rule in rules(files):
        said = rule["annotations"]
        try:
            program, *arguments = shlex.split(re.sub(r"\{\{.*?\}\}", "some", said.get("command") or "nothing at all"))
            parse_command_line(arguments)
            wrong = [] if program == "ferryman" and said.get("summary") else [said]
        except click.ClickException as error:
            wrong = [error.format_message()]
        problems += [f"{rule['alert']}: {each}" for each in wrong]
        problems += [] if rule["labels"].get("severity") in {"critical", "warning"} else [rule["alert"]]
    return problems


def texts_that_name_what_an_alert_has_not(files: Files) -> list[str]:
    problems = []
    for rule in rules(files):
        query = Query(rule["expr"])
        there = query.groupings[0] if query.groupings else labels_of(query.selectors[0][0])
        filled = "|".join([r"\$value", r"\$value \| humanizeDuration", *(rf"\$labels\.{label}" for label in there)])
        for text in rule["annotations"].values():
            left = re.sub(r"\{\{ (" + filled + r") \}\}", "", text)
            problems += [f"{rule['alert']}: {left}"] if "{{" in left or "}}" in left else []
    return problems


CHECKS: dict[str, Check] = {
    "Prometheus can reach every target": targets_out_of_reach,
    "every running service of ours is scraped": services_that_nobody_scrapes,
    "every configured file is mounted": files_that_are_not_mounted,
    "Prometheus reads the alerts": rules_that_nobody_reads,
    "Grafana uses the address of Prometheus": wrong_datasources,
    "every query is valid": broken_queries,
    "every metric exists": unknown_metrics,
    "every label exists": unknown_labels,
    "every job is scraped": jobs_that_are_not_scraped,
    "every panel has a unique number and place": panels_that_clash,
    "Prometheus accepts the alerts": alerts_that_prometheus_refuses,
    "every alert has a summary and the command to run next": alerts_that_do_not_say_what_to_do,
    "every text of an alert uses existing labels": texts_that_name_what_an_alert_has_not,
}

DNS = "prometheus.scrape_configs.0.dns_sd_configs"
RULE = "alerts.groups.0.rules.3"
PANEL = "dashboards.ferryman.panels.3"
EXPR = f"{PANEL}.targets.0.expr"
FAULTS: Sequence[tuple[Check, str, Any]] = (
    (targets_out_of_reach, f"{DNS}.0.names", ["relais"]),
    (targets_out_of_reach, f"{DNS}.0.names", ["migrate"]),
    (targets_out_of_reach, f"{DNS}.0.port", 9465),
    (targets_out_of_reach, f"{DNS}.0.type", "SRV"),
    (targets_out_of_reach, "compose.services.relay.environment.FERRYMAN_HEALTH__PORT", "9465"),
    (targets_out_of_reach, "prometheus.scrape_configs.1.static_configs.0.targets", ["host.docker.internal:9465"]),
    (targets_out_of_reach, "compose.services.prometheus.extra_hosts", []),
    (services_that_nobody_scrapes, DNS, []),
    (files_that_are_not_mounted, "prometheus.rule_files", ["alarms.yml"]),
    (files_that_are_not_mounted, "compose.services.prometheus.volumes", ["prometheus:/prometheus"]),
    (files_that_are_not_mounted, "provider.options.path", "/var/lib/grafana/dashboards"),
    (rules_that_nobody_reads, "prometheus.rule_files", []),
    (rules_that_nobody_reads, "prometheus.rule_files", ["prometheus.yml"]),
    (wrong_datasources, "datasource.url", "http://prometheus:9091"),
    (wrong_datasources, f"{PANEL}.datasource.uid", "victoria"),
    (broken_queries, f"{RULE}.expr", "max by (source (ferryman_relay_source_connected) == 0"),
    (broken_queries, f"{RULE}.expr", "ferryman_relay_source_connected == "),
    (broken_queries, f"{RULE}.expr", "ferryman_relay_source_connected[5m] == 0"),
    (broken_queries, f"{RULE}.expr", "rate(ferryman_relay_published_total) == 0"),
    (broken_queries, f"{RULE}.expr", "missing(ferryman_relay_source_connected)"),
    (broken_queries, f"{RULE}.expr", "time() > 60"),
    (broken_queries, EXPR, 'ferryman_ready{service="$service}'),
    (unknown_metrics, f"{RULE}.expr", "ferryman_relay_source_conected == 0"),
    (unknown_metrics, EXPR, 'time() - ferryman_last_progres{service=~"$service"} > bool 3'),
    (unknown_metrics, EXPR, "rate(ferryman_relay_published[5m])"),
    (unknown_metrics, EXPR, "rate(ferryman_relay_claim_seconds[5m])"),
    (unknown_labels, f"{RULE}.expr", "max by (sources) (ferryman_relay_source_connected) == 0"),
    (unknown_labels, EXPR, 'ferryman_ready{source=~"$source"}'),
    (unknown_labels, EXPR, "sum by (le) (ferryman_relay_claim_seconds_count)"),
    (jobs_that_are_not_scraped, EXPR, 'up{job="ferrymen"}'),
    (panels_that_clash, f"{PANEL}.id", 1),
    (panels_that_clash, f"{PANEL}.gridPos.w", 13),
    (panels_that_clash, "dashboards.ferryman.panels.2.gridPos.w", 9),
    (alerts_that_prometheus_refuses, f"{RULE}.sevrity", "critical"),
    (alerts_that_prometheus_refuses, f"{RULE}.for", "a minute"),
    (alerts_that_prometheus_refuses, f"{RULE}.alert", "FerrymanNoRelay"),
    (alerts_that_do_not_say_what_to_do, f"{RULE}.annotations.summary", ""),
    (alerts_that_do_not_say_what_to_do, f"{RULE}.annotations.command", ""),
    (alerts_that_do_not_say_what_to_do, f"{RULE}.annotations.command", "ferryman outbox"),
    (alerts_that_do_not_say_what_to_do, f"{RULE}.annotations.command", "ferryman outbox list --status BROKEN"),
    (alerts_that_do_not_say_what_to_do, f"{RULE}.labels", {}),
    (texts_that_name_what_an_alert_has_not, f"{RULE}.annotations.summary", "{{ $labels.topic }} waits"),
    (texts_that_name_what_an_alert_has_not, f"{RULE}.annotations.summary", "{{ $labels.source } is away"),
)


@pytest.mark.parametrize("sentence", CHECKS)
def test_monitoring_files(sentence: str) -> None:
    assert CHECKS[sentence](FILES) == []


@pytest.mark.parametrize(("check", "place", "value"), FAULTS)
def test_monitoring_check_finds_its_fault(check: Check, place: str, value: Any) -> None:
    faulty = copy.deepcopy(FILES)
    put(faulty, place, value)
    assert check(faulty)


def test_every_monitoring_check_has_a_fault() -> None:
    assert {check for check, _, _ in FAULTS} == set(CHECKS.values())
