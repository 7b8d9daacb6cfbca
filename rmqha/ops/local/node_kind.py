"""The kinds of server that a node may run."""

from __future__ import annotations

from enum import Enum


class NodeKind(Enum):
    """The kind of server that a node runs; the value is the name of its command."""

    NAMESRV = "namesrv"
    CONTROLLER = "controller"
    BROKER = "broker"
