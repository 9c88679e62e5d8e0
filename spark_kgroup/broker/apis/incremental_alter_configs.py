"""IncrementalAlterConfigs v0 and v1 (key 44), of topics. They differ in their lengths alone.

Source: Kafka's ConfigurationControlManager.incrementalAlterConfigResource.
"""

from __future__ import annotations

from collections.abc import Mapping

from spark_kgroup.broker import topic_configs
from spark_kgroup.broker.apis.describe_configs import topic_of_resource
from spark_kgroup.broker.call import Call
from spark_kgroup.broker.cluster import Cluster
from spark_kgroup.broker.refusal import Refused
from spark_kgroup.model import ErrorCode
from spark_kgroup.wire.broker_schema import (
    AlterableConfig,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)

_SET, _DELETE, _APPEND, _SUBTRACT = range(4)
"""Operations (AlterConfigOp.OpType)."""


def answer(cluster: Cluster, request: IncrementalAlterConfigsRequest, _: Call) -> IncrementalAlterConfigsResponse:
    """Change all settings of a topic that are named, or none of them."""
    results = (_altered(cluster, each, validate_only=request.validate_only) for each in request.resources)
    return IncrementalAlterConfigsResponse(0, tuple(results))


def _altered(cluster: Cluster, wanted: AlterConfigsResource, *, validate_only: bool) -> AlterConfigsResourceResponse:
    kind, resource = wanted.resource_type, wanted.resource_name
    try:
        topic = topic_of_resource(cluster, kind, resource)
        changed = dict(topic.configs)
        for change in wanted.configs:
            _apply(changed, change)
    except Refused as refusal:
        return AlterConfigsResourceResponse(refusal.code, refusal.text, kind, resource)
    if not validate_only:
        topic.configs = changed
    return AlterConfigsResourceResponse(ErrorCode.NONE, None, kind, resource)


def _apply(changed: dict[str, str], change: AlterableConfig) -> None:
    if change.config_operation == _DELETE:
        changed.pop(change.name, None)
        return
    text = change.value if change.config_operation == _SET else _list(changed, change)
    topic_configs.check(change.name, text)
    changed[change.name] = text or ""


def _list(changed: Mapping[str, str], change: AlterableConfig) -> str:
    """The list that `change` adds to or takes from, after that."""
    setting = topic_configs.SETTINGS.get(change.name)
    if setting is None or setting.kind != topic_configs.LIST:
        text = f"Can't append to or subtract from key {change.name} because its type is not LIST."
        raise Refused(ErrorCode.INVALID_CONFIG, text)
    if change.config_operation not in (_APPEND, _SUBTRACT):
        raise Refused(ErrorCode.INVALID_REQUEST, f"Unknown operation {change.config_operation}.")
    there = [each for each in topic_configs.value_of(changed, change.name).split(",") if each]
    named = (change.value or "").split(",")
    if change.config_operation == _APPEND:
        return ",".join([*there, *(each for each in named if each not in there)])
    return ",".join(each for each in there if each not in named)
