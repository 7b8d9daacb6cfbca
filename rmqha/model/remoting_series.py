"""Series of a server's remoting port, the same for every kind of server. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from rmqha.model.series import Kind, Series, Sheet

SESSIONS = Series("rmqha_remoting_sessions", Kind.GAUGE, "Open connections")
RECEIVED = Series("rmqha_remoting_received_total", Kind.COUNTER, "Requests received")
RECEIVED_BYTES = Series("rmqha_remoting_received_bytes_total", Kind.COUNTER, "Bytes received")
SENT_BYTES = Series("rmqha_remoting_sent_bytes_total", Kind.COUNTER, "Bytes sent")
REFUSED = Series(
    "rmqha_remoting_refused_total", Kind.COUNTER, "Connections refused: too many, or not as TLS wants them"
)
BAD_FRAMES = Series(
    "rmqha_remoting_bad_frames_total", Kind.COUNTER, "Connections closed for bytes that are no protocol"
)
SLOW_READERS = Series("rmqha_remoting_slow_readers_total", Kind.COUNTER, "Connections closed as answers were not read")
PUSHED_OUT = Series(
    "rmqha_remoting_pushed_out_total",
    Kind.COUNTER,
    "Connections without a request that were closed to make room for new ones",
)
SHED = Series(
    "rmqha_remoting_shed_total", Kind.COUNTER, "Connections closed as half frames took too much memory together"
)
HALF_FRAME_BYTES = Series("rmqha_remoting_half_frame_bytes", Kind.GAUGE, "Bytes of frames that are not complete")
DENIED = Series("rmqha_remoting_denied_total", Kind.COUNTER, "Requests that the accounts do not allow")
FAILED = Series(
    "rmqha_remoting_failed_requests_total",
    Kind.COUNTER,
    "Requests that met a bug of the server; each closed its connection (event request_failed has the traceback)",
)
QUOTA_REFUSED = Series("rmqha_quota_refused_total", Kind.COUNTER, "Requests refused as beyond a quota")
_KEYS = {
    "session_count": SESSIONS,
    "received_count": RECEIVED,
    "received_bytes": RECEIVED_BYTES,
    "sent_bytes": SENT_BYTES,
    "refused_count": REFUSED,
    "bad_frame_count": BAD_FRAMES,
    "slow_reader_count": SLOW_READERS,
    "pushed_out_count": PUSHED_OUT,
    "shed_count": SHED,
    "half_frame_bytes": HALF_FRAME_BYTES,
    "denied_count": DENIED,
    "failed_request_count": FAILED,
    "quota_refused_count": QUOTA_REFUSED,
}
SERIES = tuple(_KEYS.values())


def put_remoting(sheet: Sheet, counts: Mapping[str, int]) -> None:
    """`counts`: those of `rmqha.host.remoting.Statistics`."""
    for key, series in _KEYS.items():
        sheet.put(series, counts[key])
