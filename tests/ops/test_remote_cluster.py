"""A cluster elsewhere, found from one name server's address alone."""

from __future__ import annotations

import pytest

from rmqha.model.error import UnreachableError
from rmqha.ops.cluster_view import ask_cluster, problems
from rmqha.ops.remote_cluster import cluster_of
from rmqha.ops.snapshot import ClusterSnapshot
from rmqha.ops.survey import BootstrapAddresses, Survey
from tests.ops.recorded import RecordedCluster


@pytest.mark.parametrize("case", ["well", "broken"])
async def test_what_the_directory_holds_is_found_by_asking(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded = RecordedCluster(case, monkeypatch)
    bootstrap = BootstrapAddresses(tuple(recorded.state.namesrv_addresses.split(";")))
    found = cluster_of(await Survey(recorded.client, bootstrap, 5.0).run())
    wanted = {(node.kind, node.address, node.group) for node in recorded.state.nodes.values()}
    assert {(node.kind, node.address, node.group) for node in found.nodes.values()} == wanted
    assert (found.name, found.ha_mode) == (recorded.state.name, recorded.state.ha_mode)
    view = await ask_cluster(recorded.client, found)
    assert bool(problems(view)) == (case == "broken")
    assert "not running" not in problems(view).values(), "whether a process runs elsewhere is not known"
    assert problems(found.view()) == problems(view), "the look that found it is as good as the next"


def test_nobody_answers() -> None:
    with pytest.raises(UnreachableError, match="no address is given"):
        cluster_of(ClusterSnapshot())
