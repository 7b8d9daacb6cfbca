"""The JSON header of a remoting frame, formats.md §12.1. Data plane: half of a send's cost is this decode.

Java sends every extFields value as a string; other clients send numbers and booleans raw, which arrive as their text.
"""

from __future__ import annotations

import json
from json.encoder import encode_basestring
from typing import Any

from rmqha.model.error import RemoteProtocolError
from rmqha.wire.command import Command, HeaderCodec, Language

MAX_EXT_COUNT = 1024
_LANGUAGE_NAMES = tuple(language.name for language in Language)
_LANGUAGE_BY_NAME: dict[Any, int] = {language.name: int(language) for language in Language}
_INT32_MAX = 2**31 - 1


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


# `raw_decode` does not look for white space at both ends, as `decode` would. Fractions keep their text.
_DECODER = json.JSONDecoder(parse_float=str, parse_constant=_refuse_constant)
_decode_first, _decode_whole = _DECODER.raw_decode, _DECODER.decode


def encode_json_header(command: Command) -> bytes:
    """Keys in RocketMQ's order; absent remark and empty extFields are left out."""
    ext = ",".join([f"{encode_basestring(key)}:{encode_basestring(value)}" for key, value in command.ext.items()])
    fields = f'"extFields":{{{ext}}},' if ext else ""
    remark = f'"remark":{encode_basestring(command.remark)},' if command.remark is not None else ""
    language = _LANGUAGE_NAMES[command.language] if 0 <= command.language < len(_LANGUAGE_NAMES) else "OTHER"
    return (
        f'{{"code":{command.code:d},{fields}"flag":{command.flag:d},"language":"{language}",'
        f'"opaque":{command.opaque:d},{remark}"serializeTypeCurrentRPC":"JSON","version":{command.version:d}}}'
    ).encode()


def decode_json_header(data: bytes) -> Command:
    """Raises RemoteProtocolError."""
    try:
        text = data.decode()
        if text[:1] == "{":
            header, end = _decode_first(text)
            if end != len(text):
                header = _decode_whole(text)
        else:
            header = _decode_whole(text)
    except (ValueError, RecursionError) as error:
        raise RemoteProtocolError(f"JSON header: {error}") from None
    if header.__class__ is not dict:
        raise RemoteProtocolError("JSON header is not an object")
    get = header.get
    ext = get("extFields")
    if ext is None:
        ext = {}
    elif ext.__class__ is not dict or len(ext) > MAX_EXT_COUNT:
        raise RemoteProtocolError(f"JSON header: extFields must be an object of at most {MAX_EXT_COUNT} fields")
    for value in ext.values():
        if value.__class__ is not str:
            ext = _as_text(ext)
            break
    # an escaped lone surrogate would be a string that no file and no reply can carry
    if "\\ud" in text or "\\uD" in text:
        _refuse_lone_surrogates(header)
    code, opaque, flag, version = get("code"), get("opaque", 0), get("flag", 0), get("version", 0)
    remark, language = get("remark"), get("language")
    if not (
        code.__class__ is opaque.__class__ is flag.__class__ is version.__class__ is int
        and -_INT32_MAX <= code <= _INT32_MAX
        and -_INT32_MAX <= opaque <= _INT32_MAX
        and 0 <= flag <= _INT32_MAX
        and 0 <= version <= _INT32_MAX
        and (remark is None or remark.__class__ is str)
    ):
        raise RemoteProtocolError("JSON header: code, opaque, flag and version must be 32-bit numbers, remark a string")
    command: Command = Command.__new__(Command)
    command.code = code
    command.ext = ext
    command.body = b""
    command.flag = flag
    command.opaque = opaque
    command.remark = remark
    command.language = _LANGUAGE_BY_NAME.get(language, Language.OTHER) if language.__class__ is str else Language.OTHER
    command.version = version
    command.codec = HeaderCodec.JSON
    return command


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


def _refuse_lone_surrogates(header: dict[str, Any]) -> None:
    try:
        json.dumps(header, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise RemoteProtocolError("JSON header: a string holds half of a surrogate pair") from None
