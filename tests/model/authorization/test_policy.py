"""Decisions by policies, beside a plain reference that looks for the most exact resource step by step."""

from __future__ import annotations

from ipaddress import ip_address, ip_network
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqha.model.authorization.policy import (
    MAX_SOURCE_COUNT,
    Access,
    Action,
    Policies,
    Policy,
    PolicyEntry,
    PolicyType,
    Resource,
    ResourcePattern,
    ResourceType,
    decide,
    from_json,
    merged,
    to_json,
    without,
)
from rmqha.model.error import ConfigError

NAMES = st.text("ab", max_size=3)
TYPES = st.sampled_from([ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER])
RESOURCES = st.one_of(
    st.builds(lambda type_, name: Resource(type_, ResourcePattern.LITERAL, name), TYPES, NAMES),
    st.builds(
        lambda type_, name: Resource(type_, ResourcePattern.PREFIXED, name),
        TYPES,
        st.text("ab", min_size=1, max_size=3),
    ),
    st.builds(lambda type_: Resource(type_, ResourcePattern.ANY), TYPES),
    st.just(Resource(ResourceType.ANY, ResourcePattern.ANY)),
)
GRANTED = st.sampled_from([action for action in Action if action is not Action.ANY])
SOURCES = st.sampled_from(["10.0.0.1", "10.0.0.0/24", "10.0.0.1/32", "0.0.0.0/0", "::1", "fd00::/8"])
ENTRIES = st.builds(
    PolicyEntry,
    RESOURCES,
    st.lists(GRANTED, min_size=1, max_size=3, unique=True).map(tuple),
    st.lists(SOURCES, max_size=2, unique=True).map(tuple),
    st.booleans(),
)


def _merged(parts: list[tuple[PolicyType, list[PolicyEntry]]]) -> Policies:
    return merged((), tuple(Policy(type_, tuple(entries)) for type_, entries in parts if entries))


POLICIES = st.lists(st.tuples(st.sampled_from(list(PolicyType)), st.lists(ENTRIES, max_size=5)), max_size=3).map(
    _merged
)
ACCESSES = st.builds(
    Access,
    type=TYPES,
    name=NAMES,
    any_of=st.frozensets(st.sampled_from([Action.PUB, Action.SUB, Action.GET, Action.UPDATE]), min_size=1),
    again_of=st.lists(st.tuples(NAMES, NAMES), max_size=2).map(tuple),
)
HOSTS = st.sampled_from(["10.0.0.1", "10.0.0.200", "10.0.1.1", "::1", "fd00::7", "127.0.0.1", "?"])


def reference(policies: Policies, access: Access, host: str) -> str:
    deciding = _deciding(policies, access, host)
    if not deciding:
        return "no matched policies."
    used = [deciding]
    if deciding[0].resource.pattern is not ResourcePattern.LITERAL:
        for pair in access.again_of:
            for type_, name in zip((ResourceType.GROUP, ResourceType.TOPIC), pair, strict=True):
                used.append(_deciding(policies, access._replace(type=type_, name=name), host))
    return "" if all(entry.allows for entries in used for entry in entries) else "the decision is deny."


def _deciding(policies: Policies, access: Access, host: str) -> list[PolicyEntry]:
    for kind in (PolicyType.CUSTOM, PolicyType.DEFAULT):
        entries = [entry for policy in policies if policy.type is kind for entry in policy.entries]
        fitting = [entry for entry in entries if _fits(entry, access, host)]
        own_type = [entry for entry in fitting if entry.resource.type is not ResourceType.ANY]
        for stage in (
            [entry for entry in own_type if entry.resource.pattern is ResourcePattern.LITERAL],
            _longest([entry for entry in own_type if entry.resource.pattern is ResourcePattern.PREFIXED]),
            [entry for entry in own_type if entry.resource.pattern is ResourcePattern.ANY],
            [entry for entry in fitting if entry.resource.type is ResourceType.ANY],
        ):
            if stage:
                return stage
    return []


def _longest(entries: list[PolicyEntry]) -> list[PolicyEntry]:
    length = max((len(entry.resource.name) for entry in entries), default=0)
    return [entry for entry in entries if len(entry.resource.name) == length]


def _fits(entry: PolicyEntry, access: Access, host: str) -> bool:
    resource = entry.resource
    if resource.type is not ResourceType.ANY:
        if resource.type is not access.type:
            return False
        if resource.pattern is ResourcePattern.LITERAL and resource.name != access.name:
            return False
        if resource.pattern is ResourcePattern.PREFIXED and access.name[: len(resource.name)] != resource.name:
            return False
    if Action.ALL not in entry.actions and not set(entry.actions) & access.any_of:
        return False
    if not entry.sources:
        return True
    if host == "?":
        return False
    networks = [ip_network(source) for source in entry.sources]
    return any(network.version == ip_address(host).version and ip_address(host) in network for network in networks)


@given(POLICIES, ACCESSES, HOSTS)
def test_the_decision_is_that_of_the_reference(policies: Policies, access: Access, host: str) -> None:
    assert decide(policies, access, host) == reference(policies, access, host)


@given(POLICIES, ACCESSES, HOSTS, ENTRIES)
def test_a_denial_of_the_very_resource_always_counts(
    policies: Policies, access: Access, host: str, entry: PolicyEntry
) -> None:
    literal = Resource(access.type, ResourcePattern.LITERAL, access.name)
    denial = Policy(PolicyType.CUSTOM, (PolicyEntry(literal, (Action.ALL,), (), False),))
    assert decide(merged(policies, (denial,)), access, host) == "the decision is deny."


@given(POLICIES)
def test_json_gives_the_same_policies(policies: Policies) -> None:
    if policies:
        assert from_json(to_json(policies)) == policies


@given(POLICIES, POLICIES)
def test_what_is_put_twice_changes_nothing_more(policies: Policies, more: Policies) -> None:
    once = merged(policies, more)
    assert merged(once, more) == once


@given(POLICIES, st.sampled_from(list(PolicyType)), RESOURCES)
def test_what_is_taken_out_is_gone_and_nothing_else(policies: Policies, type_: PolicyType, resource: Resource) -> None:
    def resources(of: Policies) -> set[tuple[PolicyType, Resource]]:
        return {(policy.type, entry.resource) for policy in of for entry in policy.entries}

    left = without(policies, type_, resource)
    assert resources(left) == resources(policies) - {(type_, resource)}
    assert all(policy.entries for policy in left)


@given(RESOURCES)
def test_a_key_names_its_resource(resource: Resource) -> None:
    assert Resource.parse(resource.key) == resource


@pytest.mark.parametrize("key", ["", "Topic", "topics:a", "Topic:a\n", "Topic:" + "a" * 600, "User:a"])
def test_what_is_no_resource(key: str) -> None:
    assert Resource.parse(key) is None


def test_names_of_types_are_taken_however_they_are_written() -> None:
    assert Resource.parse("tOpIc:a*") == Resource(ResourceType.TOPIC, ResourcePattern.PREFIXED, "a")
    assert Resource.parse("Any:x") == Resource.parse("*")


ENTRY: dict[str, Any] = {"resource": "Topic:a", "actions": ["Pub"], "decision": "Allow"}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"resource": ""}, "The resource is null."),
        ({"resource": "Planet:a"}, "The resource is null."),
        ({"actions": []}, "The actions is empty."),
        ({"actions": ["Fly"]}, "The actions is empty."),
        ({"actions": "Pub"}, "actions must be a list"),
        ({"actions": ["Pub", "any"]}, "The actions can not be Any."),
        ({"sourceIps": [" "]}, "The source ip is empty."),
        ({"sourceIps": ["10.0.0.300"]}, "The source ip is invalid."),
        ({"sourceIps": ["10.0.0.0/255.0.0.0"]}, "The source ip is invalid."),
        ({"sourceIps": [f"10.0.0.{n}" for n in range(MAX_SOURCE_COUNT + 1)]}, "an entry has at most 64 source"),
        ({"decision": "Maybe"}, "The decision is null or illegal."),
        ({"decision": None}, "The decision is null or illegal."),
    ],
)
def test_what_is_no_entry(change: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        from_json([{"entries": [{**ENTRY, **change}]}])


@pytest.mark.parametrize("value", [None, [], [{"entries": []}], [3], "x"])
def test_what_is_no_policy(value: object) -> None:
    with pytest.raises(ConfigError):
        from_json(value)


def test_a_policy_without_a_type_is_a_custom_one() -> None:
    (policy,) = from_json([{"entries": [ENTRY, {**ENTRY, "decision": "deny"}]}])
    assert policy.type is PolicyType.CUSTOM
    assert [entry.allows for entry in policy.entries] == [False], "the later one about a resource counts"
