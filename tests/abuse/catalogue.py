"""All attacks by name."""

from __future__ import annotations

from tests.abuse.attack import Attack
from tests.abuse.attacks import bodies, floods, forged, slow, web

ATTACKS: dict[str, Attack] = {
    attack.name: attack for room in (bodies, floods, slow, forged, web) for attack in room.ATTACKS
}


def rows() -> list[str]:
    """Of the table in docs/operate/security.md."""
    return [f"| `{attack.name}` | {attack.what} | {attack.outcome} |" for attack in ATTACKS.values()]
