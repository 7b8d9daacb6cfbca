"""What the one key haMode = ap | cp stands for (A9); `rmqha.cli.guarantee` says what that promises. Pure."""

from __future__ import annotations

PRESETS: dict[str, dict[str, str]] = {
    "ap": {"brokerRole": "ASYNC_MASTER", "allAckInSyncStateSet": "false"},
    "cp": {"brokerRole": "SYNC_MASTER", "allAckInSyncStateSet": "true"},
}
"""What haMode writes into every broker's properties file besides itself."""
