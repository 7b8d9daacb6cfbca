"""Registrations of brokers with a name server (request 103), in the form of Apache RocketMQ's."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any

from rmqha.model.code import RequestCode
from rmqha.wire.bodies import TopicTableVersion
from rmqha.wire.command import Command
from rmqha.wire.lenient_json import dumps


def register_broker_request(
    *,
    cluster_name: str,
    broker_name: str,
    broker_id: int,
    address: str,
    ha_address: str,
    topic_config_table: Mapping[str, Mapping[str, Any]],
    data_version: Mapping[str, int],
) -> Command:
    """Request 103. `topic_config_table` and `data_version` have the shape of topics.json (formats.md §9)."""
    body = dumps(
        {
            "filterServerList": [],
            "topicConfigSerializeWrapper": {
                "dataVersion": data_version,
                "mappingDataVersion": TopicTableVersion().to_json(),
                "topicConfigTable": topic_config_table,
                "topicQueueMappingDetailMap": {},
                "topicQueueMappingInfoMap": {},
            },
        }
    )
    ext = {
        "brokerId": str(int(broker_id)),
        "bodyCrc32": str(zlib.crc32(body) & 0x7FFFFFFF),
        "clusterName": cluster_name,
        "brokerAddr": address,
        "enableActingMaster": "false",
        "haServerAddr": ha_address,
        "compressed": "false",
        "brokerName": broker_name,
    }
    return Command(RequestCode.REGISTER_BROKER, ext, body)
