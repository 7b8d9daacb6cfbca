"""When certificates begin and end."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime

import pytest
import trustme
from hypothesis import given
from hypothesis import strategies as st

from rmqha.host.access.live_files import common_validity_ms

END = datetime(2031, 5, 6, 7, 8, 9, tzinfo=UTC)
GOOD = trustme.CA().cert_pem.bytes().decode()


def end_of(pem: str) -> datetime:
    found = common_validity_ms(pem)
    assert found is not None
    return datetime.fromtimestamp(found[1] / 1000, UTC)


@pytest.mark.parametrize("end", [END, END.replace(year=2051)])
def test_the_end_is_read_in_both_forms_of_time(end: datetime) -> None:
    """RFC 5280: two digits of the year up to 2049, four from 2050."""
    chain = trustme.CA().issue_cert("localhost", not_after=end).cert_chain_pems
    assert end_of("".join(blob.bytes().decode() for blob in chain)) == end


def test_the_first_to_end_counts() -> None:
    ca = trustme.CA()
    later = ca.issue_cert("a", not_after=END.replace(year=2032)).cert_chain_pems[0].bytes().decode()
    sooner = ca.issue_cert("b", not_after=END).cert_chain_pems[0].bytes().decode()
    assert end_of(f"{later}\nwords between\n{sooner}") == END


def test_the_last_to_begin_counts() -> None:
    begins = [datetime(2031, 1, day, tzinfo=UTC) for day in (1, 3, 2)]
    pems = [trustme.CA().issue_cert("a", not_before=begin, not_after=END).cert_chain_pems[0] for begin in begins]
    found = common_validity_ms("".join(pem.bytes().decode() for pem in pems))
    assert found is not None and found[0] == round(begins[1].timestamp() * 1000)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "no PEM",
        "-----BEGIN CERTIFICATE-----\nAAAA",
        "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
        "-----BEGIN CERTIFICATE-----\nMIIBCgKCAQEA\n-----END CERTIFICATE-----\n",
        "-----BEGIN CERTIFICATE-----\n\n-----END CERTIFICATE-----\n",
    ],
)
def test_what_is_no_certificate_has_no_end(text: str) -> None:
    assert common_validity_ms(text) is None


@given(st.binary(max_size=200), st.integers(0, 400))
def test_whatever_a_file_holds_is_no_crash(noise: bytes, at: int) -> None:
    """Broken DER inside good PEM."""
    der = ssl.PEM_cert_to_DER_cert(GOOD)
    bent = der[:at] + noise + der[at + len(noise) :]
    found = common_validity_ms(ssl.DER_cert_to_PEM_cert(bent))
    assert found is None or len(found) == 2
