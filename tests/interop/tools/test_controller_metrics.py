"""Controllers of ours and Apache's show the same series of their requests and entries to Prometheus."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from urllib.request import urlopen

import pytest
from prometheus_client.parser import text_string_to_metric_families

from rmqha.model.code import RequestCode
from tests.interop.lab.java import Java
from tests.interop.lab.lab import Lab
from tests.interop.lab.processes import call
from tests.interop.lab.same_commands import WHOSE, opened

pytestmark = pytest.mark.interop

BROKER = {"clusterName": "c", "brokerName": "b", "brokerId": "1"}
ADDRESS = {"brokerAddress": "127.0.0.1:1", "brokerAddr": "127.0.0.1:1"}
BEAT = {"epoch": "-1", "maxOffset": "0", "confirmOffset": "-1"}
ASKED: tuple[tuple[int, dict[str, str]], ...] = (
    (RequestCode.CONTROLLER_GET_NEXT_BROKER_ID, BROKER),
    (RequestCode.CONTROLLER_APPLY_BROKER_ID, {**BROKER, "appliedBrokerId": "1", "registerCheckCode": "x;1"}),
    (RequestCode.CONTROLLER_REGISTER_BROKER, {**BROKER, **ADDRESS}),
    (RequestCode.BROKER_HEARTBEAT, {**BROKER, **ADDRESS, **BEAT}),
    (RequestCode.CONTROLLER_GET_REPLICA_INFO, BROKER),
    (RequestCode.CONTROLLER_GET_CONFIG, {}),
    (RequestCode.CONTROLLER_CLEAN_BROKER_METADATA, {**BROKER, "brokerControllerIdsToClean": "1"}),
    (4711, {}),
)
SERIES = ("request_total", "request_latency_microseconds", "dledger_op_total", "dledger_op_latency_microseconds")
KEYS: dict[str, Callable[[Lab], dict[str, str]]] = {
    "ours": lambda lab: {"httpPort": str(lab.spare_port)},
    "apaches": lambda lab: {"metricsExporterType": "PROM", "metricsPromExporterPort": str(lab.spare_port)},
}
OF_THE_SERVER = {"address", "group", "peer_id", "otel_scope_name"}


@pytest.fixture(scope="module")
def texts(java: Java, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """What each shows after the same requests."""
    labs: list[Lab] = []
    try:
        found = []
        for whose in WHOSE:
            lab = opened(java, tmp_path_factory.mktemp(whose), whose, KEYS[whose])
            labs.append(lab)
            for code, ext in ASKED:
                assert call(lab.controller, code, ext) is not None, code
            with urlopen(f"http://127.0.0.1:{lab.spare_port}/metrics") as answer:
                found.append(answer.read().decode())
        yield found
    finally:
        for lab in labs:
            lab.close()


Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def samples(text: str) -> Samples:
    """Values by name and labels, but for the labels that every series of a server has."""
    found: Samples = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name.startswith(SERIES):
                labels = {name: text for name, text in sample.labels.items() if name not in OF_THE_SERVER}
                if "le" in labels:
                    labels["le"] = str(float(labels["le"]))  # Java writes 1.0E7
                found[sample.name, frozenset(labels.items())] = sample.value
    return found


def test_the_series_are_those_of_apaches_controller(texts: list[str]) -> None:
    ours, apaches = map(samples, texts)
    assert {re.sub("_(bucket|sum|count)$", "", name) for name, _ in apaches} == set(SERIES)
    assert ours.keys() == apaches.keys()


def requests(text: str) -> dict[str, float]:
    """Number of requests by type."""
    found = samples(text).items()
    return {dict(labels)["request_type"]: value for (name, labels), value in found if name == SERIES[0]}


def test_requests_are_counted_alike(texts: list[str]) -> None:
    """But those that the laboratory asks until somebody leads."""
    ours, apaches = map(requests, texts)
    assert ours.pop("CONTROLLER_GET_METADATA_INFO") and apaches.pop("CONTROLLER_GET_METADATA_INFO")
    assert ours == apaches and set(ours.values()) == {1.0} and len(ours) == len(ASKED) - 1
