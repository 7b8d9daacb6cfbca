"""A session of clients that pop is answered as by Apache's broker (tests/interop/pair/test_pops_same.py)."""

from __future__ import annotations

import json
from collections.abc import Callable

from tests.broker.pop.session import GOLDEN, WITHOUT_ROUTES, Session
from tests.broker.support import Broker


def test_the_session_is_answered_as_apaches_broker_did(make_broker: Callable[..., Broker]) -> None:
    broker = make_broker().start()
    found, expected = Session(broker.ask, broker.config.broker_name).run(), json.loads(GOLDEN.read_text())
    assert {name: answer for name, answer in found.items() if answer != expected[name]} == {}
    assert found.keys() == expected.keys() - WITHOUT_ROUTES
