"""What a group promises in words, by its keys: no sentence may say more than the group keeps."""

from __future__ import annotations

from typing import Any

import pytest

from rmqha.model.config.servers import BrokerConfig
from rmqha.ops.guarantee import ACK_DEFAULTS, Guarantee, conditions, effective_keys, promise


def of(keys: dict[str, str], **facts: Any) -> Guarantee:
    return promise(effective_keys({"totalReplicas": "3", **keys}), **facts)


def losses(keys: dict[str, str], **facts: Any) -> str:
    return "\n".join(of(keys, **facts).losses)


def notes(keys: dict[str, str], **facts: Any) -> str:
    return "\n".join(of(keys, **facts).notes)


# --- keys and their source --------------------------------------------------------------------------------------------
def test_a_preset_is_expanded_and_each_key_names_its_source() -> None:
    found = effective_keys(
        {"haMode": "cp", "totalReplicas": "5", "slaveTimeout": "3000", "flushDiskType": "SYNC_FLUSH"}
    )
    assert {key: (item.value, item.source) for key, item in found.items() if item.source != "default"} == {
        "haMode": ("cp", "file"),
        "brokerRole": ("SYNC_MASTER", "preset haMode=cp"),
        "allAckInSyncStateSet": ("true", "preset haMode=cp"),
        "minInSyncReplicas": ("3", "preset haMode=cp"),
        "totalReplicas": ("5", "file"),
        "flushDiskType": ("SYNC_FLUSH", "file"),
    }


def test_without_a_preset_the_plain_keys_stand() -> None:
    found = effective_keys({"brokerRole": "SYNC_MASTER", "inSyncReplicas": "2"})
    assert (found["brokerRole"].source, found["inSyncReplicas"].value) == ("file", "2")
    assert (found["allAckInSyncStateSet"].value, found["allAckInSyncStateSet"].source) == ("false", "default")


def test_under_ap_a_plain_key_in_the_file_counts() -> None:
    """What the broker does: the preset only fills in what the file leaves out."""
    found = effective_keys({"haMode": "ap", "brokerRole": "SYNC_MASTER", "inSyncReplicas": "2"})
    assert (found["brokerRole"].value, found["brokerRole"].source) == ("SYNC_MASTER", "file")
    assert found["allAckInSyncStateSet"].source == "preset haMode=ap"
    assert "2 of the set's replicas" in promise(found).acknowledged


def test_the_controllers_number_of_replicas_counts() -> None:
    found = effective_keys({"haMode": "cp", "totalReplicas": "3"}, total_replicas=5)
    assert (found["totalReplicas"].value, found["totalReplicas"].source) == ("5", "controllers")
    assert found["minInSyncReplicas"].value == "3"


# --- CP ---------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("total", "majority", "minority"), [("2", 2, "1 replica"), ("3", 2, "1 replica"), ("5", 3, "2 re")]
)
def test_cp_survives_a_minority(total: str, majority: int, minority: str) -> None:
    found = of({"haMode": "cp", "totalReplicas": total})
    assert found.kind == "CP"
    assert f"at least {majority} of {total} replicas" in found.acknowledged
    assert found.losses[0].startswith(minority)
    assert "nothing acknowledged is lost" in found.losses[0]


def test_cp_says_what_the_loss_of_all_power_takes() -> None:
    assert "about the last 500 ms" in losses({"haMode": "cp"})
    synced = losses({"haMode": "cp", "flushDiskType": "SYNC_FLUSH"})
    assert "all replicas lose power at once: nothing acknowledged is lost" in synced


def test_one_copy_synced_promises_less() -> None:
    """Ruling 6."""
    keys = {"haMode": "cp", "totalReplicas": "2"}
    assert "one copy, synced" in notes(keys, one_copy_synced=True)
    assert "what it acknowledged alone is lost; without power: nothing is" in losses(keys, one_copy_synced=True)
    assert "one copy" not in notes(keys) + losses(keys)


def test_a_group_of_one_promises_nothing_against_its_loss() -> None:
    assert "one replica is all there is" in losses({"haMode": "cp", "totalReplicas": "1"})


def test_too_small_a_set_is_said_first() -> None:
    assert of({"haMode": "cp"}, set_size=1).notes[0].startswith("the set has 1 now: sends are refused")
    assert not any("set has" in note for note in of({"haMode": "cp"}, set_size=2).notes)


# --- AP ---------------------------------------------------------------------------------------------------------------
def test_ap_with_the_defaults_loses_what_was_not_copied() -> None:
    found = of({"haMode": "ap"})
    assert (found.kind, found.acknowledged) == ("AP", "a message is acknowledged when the master has it, in memory")
    assert "acknowledged and not yet copied is lost" in found.losses[0]


@pytest.mark.parametrize(
    ("keys", "rule", "loss"),
    [
        ({"inSyncReplicas": "2"}, "when 2 of the set's replicas have it", "1 replica with the newest messages gone"),
        ({"inSyncReplicas": "3"}, "when 3 of the set's replicas have it", "2 replicas with the newest messages gone"),
        (
            {"inSyncReplicas": "3", "minInSyncReplicas": "2", "enableAutoInSyncReplicas": "true"},
            "or as many as live and are close enough, never fewer than 2",
            "1 replica with the newest messages gone",
        ),
        (
            {"inSyncReplicas": "3", "enableAutoInSyncReplicas": "true"},
            "never fewer than 1",
            "acknowledged and not yet copied is lost",
        ),
        ({"allAckInSyncStateSet": "true"}, "every member of the SyncStateSet", "alone in the set"),
        (
            {"allAckInSyncStateSet": "true", "minInSyncReplicas": "2", "inSyncReplicas": "2"},
            "every member",
            "1 replica with",
        ),
    ],
)
def test_numeric_rules_print_their_loss_window(keys: dict[str, str], rule: str, loss: str) -> None:
    """Ruling 11."""
    found = of({"brokerRole": "SYNC_MASTER", **keys})
    assert rule in found.acknowledged
    assert loss in found.losses[0]
    told = "does not answer the controllers" in "".join(found.notes)
    assert told == (loss.endswith("gone")), "only where one copy among several decides"


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"inSyncReplicas": "2"}, "inSyncReplicas=2 without effect, because of brokerRole=ASYNC_MASTER"),
        (
            {"brokerRole": "SYNC_MASTER", "inSyncReplicas": "2", "allAckInSyncStateSet": "true"},
            "inSyncReplicas=2 without effect, because of allAckInSyncStateSet=true",
        ),
        (
            {"inSyncReplicas": "2", "enableAutoInSyncReplicas": "true"},
            "inSyncReplicas=2 and enableAutoInSyncReplicas=true without effect",
        ),
    ],
)
def test_keys_without_effect_are_named(keys: dict[str, str], words: str) -> None:
    assert words in notes(keys)


def test_a_downgrade_is_said_first() -> None:
    keys = {"brokerRole": "SYNC_MASTER", "inSyncReplicas": "3", "enableAutoInSyncReplicas": "true"}
    assert of(keys, needed=2).notes[0] == "downgraded: 2 of 3 replicas are needed now"
    assert "downgraded" not in notes(keys, needed=3)


def test_what_waits_for_nobody_is_never_covered() -> None:
    for keys in ({"haMode": "cp"}, {"haMode": "ap"}, {"brokerRole": "SYNC_MASTER", "inSyncReplicas": "2"}):
        assert "WAIT=false" in notes(keys)


def test_a_static_group_elects_nobody() -> None:
    found = of({"brokerRole": "SYNC_MASTER"}, is_static=True)
    assert found.kind == "static"
    assert "the master and 1 replica more have it" in found.acknowledged
    assert found.losses[0].startswith("the master dies: nobody takes its place")


# --- what it needs besides --------------------------------------------------------------------------------------------
def test_conditions_under_apaches_servers() -> None:
    """Ruling 10."""
    ours = conditions(controllers_ours=True, master_ours=True, unclean=False, is_cp=True, is_static=False)
    assert ours == []
    theirs = conditions(controllers_ours=False, master_ours=True, unclean=False, is_cp=True, is_static=False)
    assert "needs enableElectUncleanMaster=false there" in theirs[0]
    assert "cleanBrokerMetadata" in theirs[0]
    java = conditions(controllers_ours=True, master_ours=False, unclean=None, is_cp=False, is_static=False)
    assert "the promise is Apache's" in java[0]
    silent = conditions(controllers_ours=None, master_ours=True, unclean=None, is_cp=True, is_static=False)
    assert silent == ["no controller answers: whether the group can elect is not known"]


def test_unclean_elections_are_shown() -> None:
    """C4."""
    cp = conditions(controllers_ours=True, master_ours=True, unclean=True, is_cp=True, is_static=False)
    assert "contradicts haMode=cp" in cp[0]
    ap = conditions(controllers_ours=True, master_ours=True, unclean=True, is_cp=False, is_static=False)
    assert "one that lacks messages is elected" in ap[0]


def test_the_defaults_are_those_of_the_broker() -> None:
    defaults = BrokerConfig().to_properties()
    assert {key: defaults[key] for key in ACK_DEFAULTS} == ACK_DEFAULTS
