"""What a peer of the HA port proves of itself (haSecurity). Pure."""

from __future__ import annotations

from typing import NamedTuple

from rmqha.model.offset import BrokerId


class HaClaim(NamedTuple):
    """`address` is where the controllers know the replica, its broker address."""

    broker_id: BrokerId
    address: str
