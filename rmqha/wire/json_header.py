"""The JSON header of a remoting frame, formats.md §12.1. Data plane: decoding it is half of a send's cost.

Java sends every extFields value as a string; other clients send numbers and booleans raw, which arrive as their text.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable
from json.encoder import encode_basestring
from json.scanner import make_scanner
from typing import Any

from rmqha.model.error import RemoteProtocolError
from rmqha.model.principal import UNRESTRICTED
from rmqha.wire.command import FLAG_RESPONSE, PROTOCOL_VERSION, Command, HeaderCodec, Language

MAX_EXT_COUNT = 1024
_LANGUAGE_NAMES = tuple(language.name for language in Language)
_LANGUAGE_BY_NAME: dict[Any, int] = {language.name: int(language) for language in Language}
_LANGUAGE_COUNT = len(_LANGUAGE_NAMES)
_check_numbers = struct.Struct(">iiii").pack
"""Function that raises struct.error for values that are no signed 32-bit numbers, four in one call."""
_join = "".join
_quote = encode_basestring


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


# The scanner does not look for white space at both ends, as `decode` would. Fractions keep their text.
_DECODER: Any = json.JSONDecoder(parse_float=str, parse_constant=_refuse_constant)
_decode_first, _decode_whole = make_scanner(_DECODER), _DECODER.decode


_HEADER = '{"code":%d,%s"flag":%d,"language":"%s","opaque":%d,%s"serializeTypeCurrentRPC":"JSON","version":%d}'


def encode_json_header(command: Command) -> bytes:
    """Encode a header. Keys are in RocketMQ's order; an absent remark and empty extFields are left out."""
    ext, remark, language = command.ext, command.remark, command.language
    header = _HEADER % (
        command.code,
        f'"extFields":{{{",".join([f"{_quote(key)}:{_quote(value)}" for key, value in ext.items()])}}},' if ext else "",
        command.flag,
        _LANGUAGE_NAMES[language] if 0 <= language < _LANGUAGE_COUNT else "OTHER",
        command.opaque,
        "" if remark is None else f'"remark":{_quote(remark)},',
        command.version,
    )
    return header.encode()


_SUCCESS = (
    f'{{"code":0,%s"flag":{FLAG_RESPONSE},"language":"{Language.PYTHON.name}","opaque":%d,%s'
    f'"serializeTypeCurrentRPC":"JSON","version":{PROTOCOL_VERSION}}}'
)


def encode_json_success(opaque: int, ext: dict[str, str], remark: str | None) -> bytes:
    """Encode the header of the response SUCCESS without making a Command."""
    fields = (
        f'"extFields":{{{",".join([f"{_quote(key)}:{_quote(value)}" for key, value in ext.items()])}}},' if ext else ""
    )
    return (_SUCCESS % (fields, opaque, "" if remark is None else f'"remark":{_quote(remark)},')).encode()


def json_success_template(names: Iterable[str], remark: str) -> str:
    """Template of the header of the response SUCCESS whose fields are numbers: for those, and the opaque behind
    them."""
    fields = ",".join([f'{_quote(name).replace("%", "%%")}:"%d"' for name in names])
    shown = _quote(remark).replace("%", "%%")
    return _SUCCESS.replace("%d", "%%d") % (f'"extFields":{{{fields}}},', f'"remark":{shown},')


def decode_json_header(data: bytes) -> Command:
    """Decode a header to a command without a body. Raises RemoteProtocolError."""
    try:
        text = data.decode()
        if text[:1] == "{":
            header, end = _decode_first(text, 0)
            if end != len(text):
                header = _decode_whole(text)
        else:
            header = _decode_whole(text)
            if header.__class__ is not dict:
                raise RemoteProtocolError("JSON header is not an object")
        get = header.get
        ext = get("extFields")
        if ext is None:
            ext = {}
        elif ext.__class__ is not dict or len(ext) > MAX_EXT_COUNT:
            raise RemoteProtocolError(f"JSON header: extFields must be an object of at most {MAX_EXT_COUNT} fields")
        try:
            # one pass in C that finds values which are not strings; the text is looked at below
            texts = _join(ext.values())
        except TypeError:
            ext = _as_text(ext)
            texts = _join(ext.values())
        code, opaque, flag, version = get("code"), get("opaque", 0), get("flag", 0), get("version", 0)
        _check_numbers(code, opaque, flag, version)
        remark = get("remark")
        if remark is not None:
            texts += remark
        # an escaped half of a surrogate pair would be a string that no file and no reply can carry
        if not (texts.isascii() and _join(ext).isascii()):
            (texts + _join(ext)).encode()
    except StopIteration as error:
        raise RemoteProtocolError(f"JSON header: a value is missing at character {error.value}") from None
    except (ValueError, TypeError, RecursionError, struct.error) as error:
        raise RemoteProtocolError(f"JSON header: {error}") from None
    # the constructor's keyword arguments would cost as much as the scan of a small header
    command: Command = Command.__new__(Command)
    command.code = code
    command.ext = ext
    command.body = b""
    command.flag = flag
    command.opaque = opaque
    command.remark = remark
    command.language = _language(get("language"))
    command.version = version
    command.codec = HeaderCodec.JSON
    command.principal = UNRESTRICTED
    return command


def _language(name: Any) -> int:
    return _LANGUAGE_BY_NAME.get(name, Language.OTHER) if isinstance(name, str) else Language.OTHER


def _as_text(ext: dict[str, Any]) -> dict[str, str]:
    found: dict[str, str] = {}
    for key, value in ext.items():
        if isinstance(value, bool):
            found[key] = "true" if value else "false"
        elif isinstance(value, str | int):
            found[key] = str(value)
        elif value is not None:
            raise RemoteProtocolError(f"JSON header: extFields.{key} must be a string, number or boolean")
    return found
