"""No planted secret survives, and what is no secret stays readable."""

from __future__ import annotations

import json
import string
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqha.cli.diagnosis.redact import GONE, is_secret, redact, redact_bytes
from tests.support.machine_speed import cpu_ms, reference_ms

SECRETS = st.text(string.ascii_letters + string.digits + "+/=!%$_-.~", min_size=8, max_size=40).map(lambda s: f"Zq{s}")
WORDS = st.text(string.ascii_letters + string.digits + " +/=!%$'\"\\_{}[],:;#", min_size=8, max_size=40).map(
    lambda s: f"Zq{s}"
)
NAMES = st.sampled_from(
    [
        "secretKey",
        "password",
        "tls.server.keyPassword",
        "accessKey",
        "API_KEY",
        "authToken",
        "db.passwd",
        "client-secret",
    ]
)
LEFT = st.sampled_from(["", "  ", "- "])


@given(NAMES, WORDS, LEFT, st.sampled_from(["=", " = ", ": ", ":"]))
def test_lines_of_files(name: str, secret: str, left: str, sign: str) -> None:
    text = f"listenPort=10911\n{left}{name}{sign}{secret}\nbrokerName=broker-a\n"
    found = redact(text)
    assert secret.strip() not in found
    assert GONE in found
    assert found.startswith("listenPort=10911\n")
    # a backslash at the end of a line continues it
    assert found.endswith("brokerName=broker-a\n") or secret.endswith("\\")


@given(NAMES, WORDS, st.sampled_from([None, 1, 4]))
def test_json(name: str, secret: str, indent: int | None) -> None:
    document = {
        "role": "MASTER",
        "inner": [{name: secret}, {name: [secret, {"x": secret}]}],
        "note": f"{name}={secret}",
    }
    found = redact(json.dumps(document, indent=indent))
    assert secret not in found
    assert json.dumps(secret)[1:-1] not in found
    assert json.loads(found)["role"] == "MASTER"


@given(NAMES, SECRETS, SECRETS)
def test_log_lines_and_sentences(name: str, secret: str, other: str) -> None:
    lines = [
        f"2026-11-22T06:00:00.000Z denied {name}={secret} peer=10.0.0.1:99",
        f"2026-11-22T06:00:00.000Z denied reason={json.dumps(f'{name}={secret}, {name}={other}')} peer=10.0.0.1:99",
        f"rmqha: my.conf:3: expected key=value, found '{name} {secret}'",
        f"rmqha: my.conf:3: {name} is given twice, as '{secret}' and '{other}'",
        f"{{'role': 1, '{name}': '{secret}', \"{name}\": \"{other}\"}} broken json",
    ]
    found = redact("\n".join(lines))
    assert secret not in found
    assert other not in found
    assert len(found.splitlines()) == len(lines)


@given(SECRETS)
def test_urls_and_private_keys(secret: str) -> None:
    body = secret.replace("=", "")
    pem = f"x\n-----BEGIN RSA PRIVATE KEY-----\n{body}\n{body}\n-----END RSA PRIVATE KEY-----\ny\n"
    assert redact(pem) == f"x\n{GONE}\ny\n"
    assert body not in redact(pem[: pem.index("-----END")]), "a log tail may end inside"
    assert body not in redact(pem[20:]), "or begin inside"
    assert body not in redact(f"follows https://user:{body}@host:1/p")


@given(NAMES, SECRETS)
def test_values_over_several_lines(name: str, secret: str) -> None:
    assert secret not in redact(f'{name} = """\n{secret}\n{secret}"""\nx = 1\n')
    assert secret not in redact(f"{name}=abc\\\n   {secret}\\\n {secret}\nx=1\n")


@given(WORDS, st.binary(max_size=50), st.binary(max_size=50))
def test_known_secrets_stand_nowhere(secret: str, before: bytes, after: bytes) -> None:
    assert secret not in redact(f"nothing names it: {secret}x{secret}", [secret])
    assert json.dumps(secret)[1:-1] not in redact(json.dumps({"innocent": secret}), [secret])
    data = redact_bytes(before + b"\xff\xfe" + secret.encode() + after, [secret])
    assert secret.encode() not in data
    assert len(data) == len(before) + 2 + len(secret.encode()) + len(after)


@pytest.mark.parametrize(
    "text",
    [
        "tls.server.keyPath=/etc/rmqha/server.key\n",
        "credentialsFile=/etc/rmqha/tools.yml\n",
        "2026-11-22T06:00:00.000Z master_elected group=broker-a epoch=3\n",
        "key-field=id\nkeys=order-17\n",
        '{\n "role": "MASTER",\n "lagBytes": 17\n}\n',
    ],
)
def test_what_is_no_secret_stays(text: str) -> None:
    assert redact(text) == text


@pytest.mark.parametrize(
    ("name", "expected"), [("secretKey", True), ("tls.client.keyPassword", True), ("keyPath", False), ("keys", False)]
)
def test_names(name: str, expected: bool) -> None:
    assert is_secret(name) is expected


def test_a_file_of_json_stays_json() -> None:
    text = '{\n  "a": 1,\n  "secretKey": "x y",\n  "b": 2\n}'
    assert json.loads(redact(text)) == {"a": 1, "secretKey": GONE, "b": 2}


LIMIT_MS = 5000
"""CPU time on the reference machine."""
PIECES = (
    "://", "a:b@", "://a:", "password", "password ", "password: x ", "password='", 'password="\\\\', "secret=", " ",
    "-----BEGIN ", "-----BEGIN A PRIVATE KEY-----", '"""', "\\\n", "password\n", "password) ",
)  # fmt: skip


@pytest.mark.parametrize("piece", PIECES)
@pytest.mark.parametrize("end", ["", "\n", "x"])
def test_no_text_that_others_made_takes_long(piece: str, end: str) -> None:
    """Logs hold names and reasons that peers chose."""
    for text in (piece * (60_000 // len(piece)) + end, "password" + piece * (200_000 // len(piece)) + end):
        assert reference_ms(partial(cpu_ms, partial(redact, text)), LIMIT_MS) < LIMIT_MS


def test_the_user_of_an_address_goes_and_nothing_else() -> None:
    assert redact("at http://u:p@h:1/x and a@b:1") == f"at http://{GONE}@h:1/x and a@b:1"
    assert redact("'http://u:p@h' http://h:1/@") == f"'http://{GONE}@h' http://{GONE}@"
    assert redact("http://h:1/ x@y") == "http://h:1/ x@y"
