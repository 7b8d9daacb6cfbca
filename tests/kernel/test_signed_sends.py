"""Sends that accounts have signed are taken by a kernel as the way by commands takes them; what accounts do not allow
is refused as there: the same answers, log, queues and counts, whatever changes between two reads."""

from __future__ import annotations

import operator
import secrets
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

import pytest

from rmqha.broker.services.traffic import Traffic
from rmqha.host.access.auth_filter import AuthFilter
from rmqha.host.access.quota_filter import QuotaFilter
from rmqha.host.net.session import Session
from rmqha.kernel.batch_kernel import SignedSend
from rmqha.model.access import AccessList, parse_access_list
from rmqha.model.authorization.policy import from_json
from rmqha.model.authorization.users import AuthorizationRules, User, UserDirectory
from rmqha.model.code import RequestCode
from rmqha.model.identity import Credentials
from rmqha.model.quota import Limit, QuotaLimits, Quotas
from rmqha.wire.auth.session_signature import PROOF, SessionSigner, session_message, session_proof
from rmqha.wire.auth.signature import sign, signed_message
from rmqha.wire.command import Command, HeaderCodec, Language, payload_bytes
from rmqha.wire.frame import FrameParser, encode_frame
from tests.broker.support import MAX_FRAME_BYTES, Broker, send_command
from tests.kernel.streams import FIELDS, PLAIN, batch_command, part
from tests.kernel.support import KERNELS, Fed, answers, broker_on, decoded, kernel_named, kernels
from tests.kernel.test_sends import alike, chunks
from tests.support.seeds import drawn_seed

NONCE, BINDING = "ab" * 32, b"certificate"
CASES = 300
SECRETS = {"operator": "operator-secret", "orders": "orders-secret", "reader": "reader-secret", "nobody": "no-secret"}
ACCOUNTS: dict[str, Any] = {
    "accounts": [
        {"accessKey": "operator", "secretKey": SECRETS["operator"], "admin": True},
        {"accessKey": "orders", "secretKey": SECRETS["orders"], "topicPerms": ["T=PUB", "Narrow=PUB|SUB"]},
        {"accessKey": "reader", "secretKey": SECRETS["reader"], "defaultTopicPerm": "SUB"},
    ]
}
PLAIN_FILE = parse_access_list(ACCOUNTS, "a test")


def users(*resources: str, **more: Any) -> UserDirectory:
    """The same accounts as users, `orders` being allowed these resources."""
    entries = [{"resource": item, "actions": ["Pub"], "decision": "Allow", **more} for item in resources]
    policies = {"orders": from_json([{"entries": entries}])} if resources else {}
    names = ("operator", "orders", "reader")
    all_users = [User(name, SECRETS[name], is_super=name == "operator") for name in names]
    return UserDirectory.of(all_users, policies, AuthorizationRules(is_on=True))


def without(name: str) -> AccessList:
    return AccessList({key: account for key, account in PLAIN_FILE.accounts.items() if key != name})


def with_secret(name: str, secret: str) -> AccessList:
    account = PLAIN_FILE.accounts[name]
    other = replace(account, credentials=Credentials(access_key=name, secret_key=secret))
    return AccessList({**PLAIN_FILE.accounts, name: other})


def with_topics(name: str, *topics: str) -> AccessList:
    account = parse_access_list(
        {"accounts": [{"accessKey": name, "secretKey": SECRETS[name], "topicPerms": list(topics)}]}, "a test"
    ).accounts[name]
    return AccessList({**PLAIN_FILE.accounts, name: account})


def unsigned_from(host: str) -> AccessList:
    account = replace(PLAIN_FILE.accounts["orders"], white_addresses=(host,))
    return AccessList({**PLAIN_FILE.accounts, "orders": account})


ACCESS = (
    PLAIN_FILE,
    without("orders"),
    with_secret("orders", "another-secret"),
    with_topics("orders", "Narrow=PUB", "T=SUB"),
    replace(PLAIN_FILE, white_addresses=("127.0.0.*",)),
    unsigned_from("127.0.0.1"),
    users("Topic:T"),
    users("Topic:Narr*"),
    users(),
)


@dataclass
class Accounts:
    access: AccessList = PLAIN_FILE


class Guarded(Fed):
    """A broker behind its accounts."""

    def __init__(
        self,
        broker: Broker,
        *,
        lean: bool,
        wanted: str = "any",
        limits: QuotaLimits | None = None,
        peer: str = "127.0.0.1:9",
    ) -> None:
        super().__init__(broker, lean=lean, peer=peer)
        self.accounts = Accounts()
        self.offered_count = 0
        service = cast(Any, broker.core.processor)
        self.quotas = Quotas(limits or QuotaLimits())
        metered = QuotaFilter(service, self.quotas, broker.clock, self.statistics, lambda _, resume: None)
        self.guard = AuthFilter(metered, self.accounts, self.statistics, None, wanted, self, metered)
        self._session._received = self.guard.received
        if lean:
            self._session._fast_path = self.guard

    @property
    def takes_any(self) -> bool:
        return self.broker.core.processor.takes_any

    def take(self, reads: Sequence[tuple[Session, bytes]], max_count: int) -> list[tuple[int, int]]:
        self.offered_count += 1
        return super().take(reads, max_count)

    def signed(self, data: bytes, max_count: int, nonce: str, proven: str = "") -> list[SignedSend]:
        return self.broker.core.kernel.signed(data, max_count, nonce, proven)

    def open(self) -> bytes:
        """Ask for the connection's random number, which is NONCE."""
        with patch.object(secrets, "token_hex", lambda size: NONCE):
            return self.read(encode_frame(Command(RequestCode.RMQHA_OPEN_SESSION)))

    def prove(self, name: str) -> None:
        """The connection has TLS and proves to be of that account."""
        credentials = Credentials(access_key=name, secret_key=SECRETS[name])
        self._session._tls = cast(Any, SimpleNamespace(binding=BINDING))
        proof = {"AccessKey": name, PROOF: session_proof(credentials, NONCE, BINDING)}
        (answer,) = decoded(self.read(encode_frame(Command(RequestCode.RMQHA_OPEN_SESSION, proof))))
        assert answer.code == 0


def both_guards(stack: ExitStack, kernel: str = "python", **keys: Any) -> tuple[Guarded, Guarded]:
    root = Path(stack.enter_context(tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None)))
    brokers = [stack.enter_context(broker_on(root / name)) for name in ("lean", "usual")]
    for broker in brokers:
        broker.core.send.traffic = Traffic()
    brokers[0].core.send._kernel = brokers[0].core.kernel = kernel_named(kernel)
    lean, usual = Guarded(brokers[0], lean=True, **keys), Guarded(brokers[1], lean=False, **keys)
    assert lean.open() == usual.open()
    return lean, usual


both_kernels = pytest.mark.parametrize("kernel", KERNELS)


class Signer:
    """A client that signs what it sends in different ways; its requests in our own form are counted."""

    def __init__(self) -> None:
        self._own = SessionSigner(NONCE)

    def signed(self, command: Command, name: str, form: str) -> Command:
        credentials = Credentials(access_key=name, secret_key=SECRETS.get(name, "unknown"))
        if form == "own":
            self._own.sign(command, credentials)
        elif form == "apache":
            sign(command, credentials)
        elif form == "java":
            sign(command, credentials)
            command.ext["AccessKey"] = command.ext.pop("AccessKey")  # as its hash table has them
        elif form == "behalf":
            command.ext["onBehalfOf"] = "orders"
            self._own.sign(command, credentials)
        return command


FORMS = ["own"] * 4 + ["apache", "java", "unsigned", "behalf"]
PROVEN = ["unsigned"] * 8 + FORMS
SIGNED = {"AccessKey", "Signature", "SignatureForm", "SignatureCount"}
FAULTS: dict[str, Callable[[Command], None]] = {
    "none": lambda command: None,
    "body": lambda command: setattr(command, "body", bytes(command.body) + b"!"),
    "field": lambda command: command.ext.update(e="1" if command.ext.get("e") != "1" else "2"),
    "topic": lambda command: command.ext.update(b="Narrow"),
    "code": lambda command: setattr(command, "code", 320 if command.code == 310 else 310),
    "count": lambda command: command.ext.update(SignatureCount=str(int(command.ext.get("SignatureCount", "0")) + 1)),
    "form": lambda command: command.ext.update(SignatureForm="3"),
    "no form": lambda command: (
        operator.delitem(command.ext, "SignatureForm") if "SignatureForm" in command.ext else None
    ),
    "signature": lambda command: command.ext.update(Signature="AAAA" + command.ext.get("Signature", "")[4:]),
    "more": lambda command: command.ext.update(z="1"),
}


def signed_stream(random: Random, forms: Sequence[str] = FORMS) -> bytes:
    """Frames of one connection that has asked for its number, most of them as they should be."""
    signer, frames = Signer(), list[bytes]()
    for opaque in range(random.randint(1, 12)):
        topic, queue_id = random.choice(["T"] * 9 + ["Narrow", "Narrow", "ReadOnly", "New"]), random.choice("001249")
        command = send_command(topic, 0, b"x" * opaque, i=PLAIN, n="broker-a", e=queue_id)
        if random.random() < 0.1:
            command = batch_command(part(b"b", PLAIN.encode()) * random.randint(0, 5))
        if random.random() < 0.1:
            name = random.choice(sorted(FIELDS))
            command.ext[name] = random.choice(FIELDS[name])
        command.codec = random.choice([HeaderCodec.JSON] * 19 + [HeaderCodec.ROCKETMQ])
        command.flag = random.choice([0] * 19 + [2])
        name = random.choice(["operator"] * 9 + ["orders"] * 9 + ["reader", "nobody"])
        signer.signed(command, name, random.choice(forms))
        FAULTS["none" if random.random() < 0.8 else random.choice(list(FAULTS))](command)
        command.opaque = opaque
        frames += [encode_frame(command)] * random.choice([1] * 9 + [2])
    if random.random() < 0.1:
        random.shuffle(frames)
    return b"".join(frames)


def outcome(fed: Guarded, stream: bytes) -> tuple[list[bytes], int]:
    return sorted(answers(fed.read(stream) + fed.settle())), fed.statistics.denied_count


@both_kernels
@pytest.mark.parametrize("wanted", ["any", "admin", "own"])
def test_the_same_answers_log_and_counts(kernel: str, wanted: str) -> None:
    random = Random(drawn_seed())
    with ExitStack() as stack:
        feds = both_guards(stack, kernel, wanted=wanted)
        for _ in range(CASES):
            for fed in feds:
                fed.guard._own_forms.clear()
                fed.guard._proven.clear()
                fed.accounts.access = PLAIN_FILE
                assert fed.open()
            proves = random.choice(["", "", "operator", "orders", "reader"])
            for fed in feds if proves else ():
                fed.prove(proves)
            stream = signed_stream(random, PROVEN if proves else FORMS)
            cuts = [random.randrange(1 << 16) for _ in range(random.choice([0, 0, 1, 2]))]
            for chunk in chunks(stream, cuts):
                access = PLAIN_FILE if random.random() < 0.7 else random.choice(ACCESS)
                for fed in feds:
                    fed.accounts.access = access
                assert outcome(feds[0], chunk) == outcome(feds[1], chunk)
        refused_count = feds[0].statistics.denied_count
        alike(*feds)
        assert refused_count > CASES / 10
        assert feds[0].taken_count > CASES / 4


def own_sends(signer: SessionSigner, count: int, name: str = "orders", topic: str = "T") -> list[bytes]:
    frames = []
    for number in range(count):
        command = send_command(topic, number % 2, b"x", i=PLAIN, n="broker-a")
        signer.sign(command, Credentials(access_key=name, secret_key=SECRETS[name]))
        command.opaque = number
        frames.append(encode_frame(command))
    return frames


def codes(data: bytes) -> list[int]:
    return [command.code for command in decoded(data)]


@both_kernels
@pytest.mark.parametrize("form", ["own", "apache", "java"])
def test_signed_sends_and_batches_are_taken(kernel: str, form: str) -> None:
    with ExitStack() as stack:
        lean, usual = both_guards(stack, kernel)
        signer, frames = Signer(), []
        for number in range(30):
            body = part(b"b%d" % number, PLAIN.encode()) * 3
            command = batch_command(body) if number % 3 == 0 else send_command("T", 1, b"x", i=PLAIN, n="broker-a")
            signer.signed(command, "orders" if number % 2 else "operator", form)
            command.opaque = number
            frames.append(encode_frame(command))
        stream = b"".join(frames)
        assert outcome(lean, stream) == outcome(usual, stream)
        assert (lean.taken_count, lean.statistics.denied_count) == (30, 0)
        alike(lean, usual)


@both_kernels
def test_what_was_taken_does_not_count_again(kernel: str) -> None:
    """A replay of a send that a kernel has taken is refused, in the same read and in later ones."""
    with ExitStack() as stack:
        lean, usual = both_guards(stack, kernel)
        first, second, third = own_sends(SessionSigner(NONCE), 3)
        for stream, expected in (
            (first + second + second, [0, 0, 16]),
            (first, [16]),
            (second, [16]),
            (third, [0]),
            (third, [16]),
        ):
            for fed in (lean, usual):
                assert sorted(codes(fed.read(stream) + fed.settle())) == expected
        assert lean.taken_count == 3
        alike(lean, usual)


@both_kernels
def test_what_the_kernel_leaves_has_not_been_counted(kernel: str) -> None:
    """What is not plain goes the usual way, where its signature is looked at for the first time."""
    with ExitStack() as stack:
        lean, usual = both_guards(stack, kernel)
        signer, frames = SessionSigner(NONCE), []
        for number in range(12):
            properties = PLAIN if number % 4 != 2 else "DELAY\x013\x02" + PLAIN
            command = send_command("T", 0, b"x", i=properties, n="broker-a")
            signer.sign(command, Credentials(access_key="operator", secret_key=SECRETS["operator"]))
            command.opaque = number
            frames.append(encode_frame(command))
        for stream in (b"".join(frames[:5]), b"".join(frames[5:6]), b"".join(frames[6:])):
            found = [outcome(fed, stream) for fed in (lean, usual)]
            assert found[0] == found[1]
            assert found[0][1] == 0
        assert 2 < lean.taken_count < 12
        alike(lean, usual)


STALE: dict[str, AccessList] = {
    "removed": without("orders"),
    "another secret": with_secret("orders", "another-secret"),
    "right taken": with_topics("orders", "T=SUB"),
    "right of another topic": with_topics("orders", "Narrow=PUB"),
    "user without policies": users(),
    "user of another topic": users("Topic:Narrow"),
}


@pytest.mark.parametrize("change", STALE)
@pytest.mark.parametrize("form", ["own", "apache", "unsigned"])
def test_changed_accounts_count_for_the_next_read(change: str, form: str) -> None:
    with ExitStack() as stack:
        feds = both_guards(stack)
        for fed in feds if form == "unsigned" else ():
            fed.prove("orders")
        signers = [Signer(), Signer()]

        def send(fed: Guarded, signer: Signer) -> list[int]:
            command = signer.signed(send_command("T", 0, b"x", i=PLAIN, n="broker-a"), "orders", form)
            return codes(fed.read(encode_frame(command)) + fed.settle())

        for access, expected in ((PLAIN_FILE, 0), (STALE[change], 16), (PLAIN_FILE, 0), (users("Topic:T"), 0)):
            for fed, signer in zip(feds, signers, strict=True):
                fed.accounts.access = access
                assert send(fed, signer) == [expected]
        assert (feds[0].taken_count, feds[0].statistics.denied_count) == (3, 1)
        alike(*feds)


def test_what_one_address_may_is_not_what_another_may() -> None:
    """An account that need not sign from one of them, and a user with a policy for it."""
    with ExitStack() as stack:
        here, _ = both_guards(stack)
        there = Guarded(here.broker, lean=True, peer="10.0.0.2:9")
        there.guard = there._session._fast_path = here.guard
        there._session._received = here.guard.received
        for access, secret in ((unsigned_from("127.0.0.1"), "wrong"), (users("Topic:T", sourceIps=["127.0.0.1"]), "")):
            here.accounts.access = access
            command = send_command("T", 0, b"x", i=PLAIN, n="broker-a")
            sign(command, Credentials(access_key="orders", secret_key=secret or SECRETS["orders"]))
            for fed, expected in ((here, 0), (there, 16), (here, 0), (there, 16)):
                assert codes(fed.read(encode_frame(command)) + fed.settle()) == [expected]
        assert (here.taken_count, there.taken_count) == (4, 0)


def test_a_topic_that_went_away_or_may_not_be_written_is_refused() -> None:
    with ExitStack() as stack:
        feds = both_guards(stack)
        frames = own_sends(SessionSigner(NONCE), 4, "operator")
        for fed in feds:
            topics = fed.broker.core.topics
            topic = topics.get("T")
            assert topic is not None
            assert codes(fed.read(frames[0]) + fed.settle()) == [0]
            topics.put(replace(topic, perm=4))
            assert codes(fed.read(frames[1]) + fed.settle()) == [16]
            topics.put(topic)
            assert codes(fed.read(frames[2]) + fed.settle()) == [0]
        assert feds[0].taken_count == 2
        alike(*feds)


@pytest.mark.parametrize(
    "limits",
    [
        QuotaLimits(account=Limit(7)),
        QuotaLimits(address=Limit(5)),
        QuotaLimits(account=Limit(0, 2000)),
        QuotaLimits(by_account={"orders": Limit(3, 1500)}),
        QuotaLimits(account=Limit(1_000_000)),
    ],
)
def test_quotas_are_asked_for_all_but_admins(limits: QuotaLimits) -> None:
    """What the kernel leaves does not count twice."""
    random = Random(drawn_seed())
    with ExitStack() as stack:
        feds = both_guards(stack, limits=limits)
        signer = SessionSigner(NONCE)
        for _ in range(40):
            frames = []
            for opaque in range(random.randint(1, 8)):
                properties = PLAIN if random.random() < 0.8 else "DELAY\x013\x02" + PLAIN
                command = send_command("T", 0, b"x" * random.randrange(300), i=properties, n="broker-a")
                name = random.choice(["operator", "orders", "orders"])
                signer.sign(command, Credentials(access_key=name, secret_key=SECRETS[name]))
                command.opaque = opaque
                frames.append(encode_frame(command))
            found = [outcome(fed, b"".join(frames)) for fed in feds]
            assert found[0] == found[1]
            assert levels(feds[0].quotas) == levels(feds[1].quotas)
            pause_ms = random.choice([0, 100, 1000])
            for fed in feds:
                fed.broker.clock.ms += pause_ms
        refused = [fed.statistics.quota_refused_count for fed in feds]
        assert refused[0] == refused[1] and (refused[0] > 0) == (limits.account.requests_per_second != 1_000_000)
        assert feds[0].taken_count > 20
        alike(*feds)


def levels(quotas: Quotas) -> list[dict[str, list[int | None]]]:
    """Levels of the buckets of each account, and of each address."""
    return [
        {
            name: [None if bucket is None else bucket._level for bucket in (buckets.requests, buckets.size)]
            for name, buckets in table.items()
        }
        for table in (quotas._accounts, quotas._addresses)
    ]


def test_quotas_that_are_set_while_it_runs_count_at_once() -> None:
    with ExitStack() as stack:
        lean, _ = both_guards(stack)
        signer = SessionSigner(NONCE)
        for limits, expected in (
            (QuotaLimits(), [0, 0]),
            (QuotaLimits(account=Limit(1)), [0, 2]),
            (QuotaLimits(), [0, 0]),
        ):
            lean.quotas.configure(limits)
            assert codes(lean.read(b"".join(own_sends(signer, 2))) + lean.settle()) == expected
        lean.accounts.access = unsigned_from("127.0.0.1")
        assert codes(lean.read(b"".join(own_sends(signer, 2))) + lean.settle()) == [0, 0]
        assert lean.taken_count == 6, "behind the refused one only one is looked at"


def test_a_turn_serves_the_account_whose_sends_were_taken() -> None:
    with ExitStack() as stack:
        lean, _ = both_guards(stack)
        signer = SessionSigner(NONCE)
        for names in (["operator", "orders"], ["operator"]):
            lean.read(b"".join(frame for name in names for frame in own_sends(signer, 1, name)))
            assert lean._session._entry.owner == names[-1]
        assert lean.taken_count == 3


@pytest.mark.parametrize("cause", ["held", "wrong"])
def test_a_look_at_what_nobody_takes_is_short(cause: str) -> None:
    """What goes the usual way is looked at twice; behind it only one send, until one is taken again."""
    with ExitStack() as stack:
        lean, _ = both_guards(stack)
        signer, looked = SessionSigner(NONCE), list[int]()
        for _ in range(20):
            signer.sign(send_command(), Credentials(access_key="orders", secret_key="any"))
        allowed = lean.guard._check_sends

        def counting(*given: Any) -> Any:
            found = allowed(*given)
            looked.append(len(found.sends))
            return found

        with patch.object(lean.guard, "_check_sends", counting):
            lean.broker.shell.holds = True
            lean.read(b"".join(own_sends(signer, 20)))
            lean.broker.shell.holds = False
            for _ in range(6):
                lean.read(b"".join(own_sends(signer, 20)))
        assert looked == [20, 1, 2, 4, 8, 16, 20]


@both_kernels
def test_sends_of_a_connection_that_has_proved_itself_are_taken(kernel: str) -> None:
    """Beside signed ones, also of another account."""
    with ExitStack() as stack:
        lean, usual = both_guards(stack, kernel)
        signer, frames = Signer(), []
        for number in range(30):
            command = send_command("T", 1, b"x", i=PLAIN, n="broker-a")
            form = "own" if number % 10 == 9 else "unsigned"
            frames.append(encode_frame(signer.signed(command, "operator", form)))
        assert set(codes(lean.read(frames[0]) + lean.settle())) == {16}
        assert set(codes(usual.read(frames[0]) + usual.settle())) == {16}
        for fed in (lean, usual):
            fed.prove("orders")
        found = [outcome(fed, b"".join(frames)) for fed in (lean, usual)]
        assert found[0] == found[1]
        assert (lean.taken_count, lean.statistics.denied_count) == (30, 1)
        assert lean._session._entry.owner == "operator", "the last one's"
        alike(lean, usual)


def test_nobody_looks_at_signatures_for_a_kernel_that_takes_nothing() -> None:
    """While the log's tail is full all sends go the usual way, which looks at them: of one of a MiB twice would take a
    millisecond more."""
    with ExitStack() as stack:
        lean, usual = both_guards(stack)
        frames = b"".join(own_sends(SessionSigner(NONCE), 5))
        looked = list[int]()
        signed = lean.signed

        def noted(*given: Any) -> Any:
            looked.append(1)
            return signed(*given)

        with patch.object(lean, "signed", noted):
            for fed in (lean, usual):
                stack.enter_context(patch.object(fed.broker.core.throttle, "_waiting", {"another": None}))
            assert outcome(lean, frames) == outcome(usual, frames)
        assert (looked, lean.taken_count) == ([], 0)


# --- what a signature is of -----------------------------------------------------------------------------------------
def same(data: bytes, nonce: str = NONCE, max_count: int = 64, proven: str = "") -> list[SignedSend]:
    """What each kernel finds, which is the same; and each message is what `rmqha.wire.auth` signs."""
    expected, *others = [kernel.signed(data, max_count, nonce, proven) for kernel in kernels()]
    for found in others:
        assert found == expected, data
    at = 0
    for send in expected:
        (command,) = FrameParser(MAX_FRAME_BYTES).feed(data[at : send.end])
        at = send.end
        assert send.size_bytes == payload_bytes(command)
        if not send.signature:
            assert (send.code, send.topic, send.access_key) == (command.code, command.ext["b"], proven) and proven
            assert (send.number, send.message) == (0, b"") and SIGNED.isdisjoint(command.ext)
            continue
        message = session_message(command, nonce) if send.number else signed_message(command)
        ext = command.ext
        assert send.message == message
        assert (send.code, send.topic, send.access_key) == (command.code, ext["b"], ext["AccessKey"])
        assert send.signature.decode() == ext["Signature"]
        assert send.number == int(ext.get("SignatureCount", "0"))
    return expected


def test_both_kernels_find_what_is_signed() -> None:
    random, count, unsigned_count = Random(drawn_seed()), 0, 0
    for _ in range(2 * CASES):
        stream = signed_stream(random, random.choice([FORMS, PROVEN]))
        at = 0
        while at < len(stream):
            nonce, most = random.choice([NONCE, NONCE, NONCE, "", "x"]), random.choice([64, 64, 1, 0])
            found = same(stream[at:], nonce, most, random.choice(["", "orders"]))
            count += len(found)
            unsigned_count += sum(not send.signature for send in found)
            at += max(4 + int.from_bytes(stream[at : at + 4], "big"), 4)
    assert count > CASES and unsigned_count > CASES / 4


def test_damaged_frames_are_found_alike() -> None:
    random, signer = Random(drawn_seed()), Signer()
    wholes = [
        encode_frame(signer.signed(send_command("T", 1, b"body", i=PLAIN, n="broker-a"), "orders", form))
        for form in ("own", "apache", "java", "unsigned", "unsigned")
    ]
    pieces = [
        *(
            b'"',
            b"\\",
            b"\\u0001",
            b"\\u0000",
            b',"',
            b'":"',
            b'"a":"',
            b'"b":"U",',
            b"Signature",
            b"AccessKey",
            b"0",
            b"-",
        ),
        *(b"\x01", b"\xff", b"}", b'SignatureCount":"9', b'"SignatureForm":"3"', b"PYTHON", b"RUST", b"NODE_JS"),
    ]
    for _ in range(20 * CASES):
        data = bytearray().join(random.choice(wholes) for _ in range(2))
        for _ in range(random.randint(1, 2)):
            at, piece = random.randrange(len(data)), random.choice(pieces)
            if random.random() < 0.5:
                data[at : at + len(piece)] = piece
            else:
                size, word, at = int.from_bytes(data[:4], "big"), int.from_bytes(data[4:8], "big"), 8 + at % 300
                data[at:at] = piece
                data[:8] = (size + len(piece)).to_bytes(4, "big") + (word + len(piece)).to_bytes(4, "big")
        same(bytes(data), proven=random.choice(["", "orders"]))


@pytest.mark.parametrize("language", list(Language))
def test_each_language_is_one_that_signs(language: Language) -> None:
    command = send_command("T", 1, b"body" * 50_000, i=PLAIN * 20)
    command.language, command.version = language, 0
    data = encode_frame(Signer().signed(command, "orders", "own"))
    assert len(same(data * 3)) == 3
