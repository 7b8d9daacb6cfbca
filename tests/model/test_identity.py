"""Addresses as people and peers write them: each is understood in one way or refused with a sentence."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqha.model.identity import (
    MAX_CHECK_CODE_CHARS,
    is_loopback,
    join_address,
    make_check_code,
    name_in_check_code,
    node_label,
    node_name,
    parse_address,
)


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("127.0.0.1:9876", "127.0.0.1", 9876),
        ("localhost:1", "localhost", 1),
        ("broker_1.rack-2.example.:10911", "broker_1.rack-2.example.", 10911),
        ("bücher.example:9876", "bücher.example", 9876),
        ("[::1]:9876", "::1", 9876),
        ("[fe80::1%eth0]:9876", "fe80::1%eth0", 9876),
        # as a Java broker joins its brokerIP1 and its port: the last colon parts them
        ("::1:10911", "::1", 10911),
        ("2001:db8:0:0:0:0:0:7:10911", "2001:db8:0:0:0:0:0:7", 10911),
    ],
)
def test_an_address_has_a_host_and_a_port(text: str, host: str, port: int) -> None:
    assert parse_address(text) == (host, port)


NONE = (
    *("", "|", ":", "9876", "host", ":9876", "host:", "host:0", "host:65536", "host:²", "host:٣", "host:-1", "host:1."),
    *("a..b:1", ".:1", "http://host:80", "ho/st:1", "a@b:1", "host:1:2", "a b:1", "host:1 ", "ho\x00st:1", "\udcff:1"),
    *("[host]:1", "[::1:9876", "::1]:9876", "[]:1", "[::1]]:1", "[::1%]:1", "[::1%\x1b]:1", "ho\x1bst:1"),
    *("a" * 64 + ":1", "a." * 130 + "b:1", "ä" * 64 + ":1", "host:" + "0" * 5000 + "1"),
)


@pytest.mark.parametrize("text", NONE)
def test_anything_else_is_refused_with_a_sentence(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not an address of the form host:port$"):
        parse_address(text)


@pytest.mark.parametrize("text", ["::1", "::", "fe80::1%eth0", "2001:db8::", "2001:db8:0:0:0:0:0:7", "[::1]"])
def test_an_ipv6_host_without_a_port_hears_how_to_write_it(text: str) -> None:
    with pytest.raises(ValueError, match=r"an IPv6 host stands in brackets before its port, such as \[::1\]:9876$"):
        parse_address(text)


def test_port_0_is_an_address_only_for_who_listens() -> None:
    assert parse_address("[::1]:0", lowest_port=0) == ("::1", 0)


@given(st.text(st.sampled_from("ab1:.[]%-_²\udc80\x00 é"), max_size=12))
def test_no_text_is_understood_that_cannot_be_asked(text: str) -> None:
    try:
        host, port = parse_address(text)
    except ValueError:
        return
    host.encode("idna")
    assert 0 < port < 65536
    assert parse_address(join_address(host, port)) == (host, port)


def test_a_joined_address_says_where_the_host_ends() -> None:
    assert join_address("::1", 9876) == join_address("[::1]", 9876) == "[::1]:9876"
    assert join_address("broker", 9876) == "broker:9876"
    assert is_loopback("[::1]") and is_loopback("::1")


@pytest.mark.parametrize(
    ("name", "number", "address", "label"),
    [
        ("broker-a-1", 1, "h:1", "broker-a-1"),
        ("broker-a-1", 3, "h:1", "broker-a-1 (id 3)"),
        ("broker-a-11", 1, "", "broker-a-11 (id 1)"),
        ("broker-a-1", None, "", "broker-a-1"),
        ("", 3, "h:1", "replica 3 at h:1"),
        ("", 3, "", "replica 3"),
    ],
)
def test_a_node_goes_by_its_name_with_its_id_beside_it_where_they_differ(
    name: str, number: int | None, address: str, label: str
) -> None:
    assert node_label(name, number, address) == label


@given(broker_name=st.text(min_size=1, max_size=300), number=st.integers(1, 2**31 - 1), at_ms=st.integers(0, 2**53))
def test_a_check_code_tells_the_name_or_is_rocketmqs(broker_name: str, number: int, at_ms: int) -> None:
    name = node_name(broker_name, number)
    code = make_check_code("10.0.0.1:10911", at_ms, name)
    assert code.startswith(f"10.0.0.1:10911;{at_ms}") and len(code) <= MAX_CHECK_CODE_CHARS
    assert name_in_check_code(code) in (name, "")
    assert name_in_check_code(code) == name or len(name) > 200
    assert name_in_check_code(f"10.0.0.1:10911;{at_ms}") == ""
