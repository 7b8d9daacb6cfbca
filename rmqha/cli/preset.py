"""What the one key haMode = ap | cp stands for: plain keys, and a promise in words (A9). Pure."""

from __future__ import annotations

from collections.abc import Iterable

PRESETS: dict[str, dict[str, str]] = {
    "ap": {"brokerRole": "ASYNC_MASTER", "allAckInSyncStateSet": "false"},
    "cp": {"brokerRole": "SYNC_MASTER", "allAckInSyncStateSet": "true"},
}
"""What haMode writes into every broker's properties file besides itself."""


def guarantee(ha_mode: str, group_sizes: Iterable[int], *, sync_flush: bool) -> str:
    """What haMode promises, in words, with the plain keys that it stands for."""
    keys = " ".join(f"{key}={value}" for key, value in PRESETS[ha_mode].items())
    if ha_mode == "ap":
        return (
            f"haMode=ap: {keys}; a send is acknowledged when the master has it, so a group stays writable with one "
            "replica left, and what a dead master had not yet passed on is lost"
        )
    parts = []
    for replicas in sorted(set(group_sizes)):
        majority = replicas // 2 + 1
        if replicas == 1:
            parts.append("that is one copy, nothing protects it from the loss of its broker")
        elif replicas == 2:
            parts.append("that is both replicas, the loss of either takes no acknowledged message")
        else:
            parts.append(
                f"that is {majority} of {replicas} replicas at least, the loss of any {replicas - majority} takes no "
                "acknowledged message"
            )
    power = "none" if sync_flush else "those of the last moments (flushDiskType=ASYNC_FLUSH)"
    return (
        f"haMode=cp: {keys}; a send is acknowledged when the whole in-sync set has it: {'; '.join(parts)}; "
        f"a power loss of all replicas at once takes {power}"
    )
