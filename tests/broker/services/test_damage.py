"""One rotten record: whoever asks for it is told, nobody gets it, everything else goes on."""

from __future__ import annotations

from rmqha.model.code import ResponseCode
from tests.broker.support import Broker, pull_command, send_command


def test_a_rotten_record_is_an_error_and_not_the_end(broker: Broker) -> None:
    for number in range(3):
        broker.ask(send_command(body=b"number %d" % number))
    broker.run(1000)
    path = broker.directory / "commitlog" / ("0" * 20)
    at = path.read_bytes().index(b"number 1")
    with path.open("r+b") as file:
        file.seek(at)
        file.write(b"N")
    good = broker.ask(pull_command())
    assert good.code == ResponseCode.SUCCESS
    assert b"number 0" in bytes(good.body)
    assert good.ext["nextBeginOffset"] == "1"
    bad = broker.ask(pull_command(offset=1))
    assert (bad.code, bytes(bad.body)) == (ResponseCode.SYSTEM_ERROR, b"")
    assert f"{path} at byte " in str(bad.remark)
    assert "expected a body with CRC" in str(bad.remark)
    assert broker.tracer.names().count("damaged") == 1
    assert b"number 2" in bytes(broker.ask(pull_command(offset=2)).body)
    assert broker.ask(send_command()).code == ResponseCode.SUCCESS
