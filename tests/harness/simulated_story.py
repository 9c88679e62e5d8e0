"""The events of a simulated world in words, for the message of a failure."""

from __future__ import annotations

from enum import Enum

from spark_kgroup.member import contract
from spark_kgroup.model import MemberIdentity, TopicPartition


def short(value: object) -> str:
    """One line of the trace: names without their packages, partitions by their numbers."""
    match value:
        case contract.JoinRequest(identity=who, protocols=protocols, reason=reason):
            return f"Join({_who(who)} claims {short(protocols[0][1].owned)}@{protocols[0][1].generation}: {reason})"
        case contract.SyncRequest(identity=who, assignments=shares):
            return f"Sync({_who(who)} {({m: short(s) for m, s in shares}) or ''})"
        case (
            contract.HeartbeatRequest(identity=who)
            | contract.RenameRequest(identity=who)
            | contract.LeaveRequest(identity=who)
        ):
            return f"{type(value).__name__.removesuffix('Request')}({_who(who)})"
        case MemberIdentity():
            return _who(value)
        case Enum():
            return str(value.value)
        case frozenset():
            return str(sorted(tp.partition for tp in value if isinstance(tp, TopicPartition)))
        case _ if isinstance(value, contract.Event | contract.Effect):
            values = {name: getattr(value, name) for name in value.__dataclass_fields__ if name != "members"}
            return f"{type(value).__name__}({', '.join(f'{n}={short(v)}' for n, v in values.items() if v)})"
    return str(value)


def is_heartbeat(effect: contract.Effect) -> bool:
    """Whether the effect sends a heartbeat."""
    return isinstance(effect, contract.Send) and isinstance(effect.request, contract.HeartbeatRequest)


def _who(identity: MemberIdentity) -> str:
    return f"{identity.member_id or identity.instance_id}@{identity.generation}"
