"""Messages of all versions that the embedded broker serves are read and written as kio does."""

from dataclasses import fields
from datetime import datetime
from functools import cache
from importlib import import_module
from typing import Any
from uuid import UUID

import pytest
from harness.kio_messages import as_tuples, encode_entity
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from kio.serial import entity_reader
from kio.static.primitive import Records
from unit.wire.test_codec import example, values

from spark_kgroup.errors import ProtocolViolation
from spark_kgroup.wire import codec
from spark_kgroup.wire.broker_group_schema import GROUP_LAYOUTS
from spark_kgroup.wire.broker_schema import LAYOUTS as OTHER_LAYOUTS
from spark_kgroup.wire.broker_schema import Layout
from spark_kgroup.wire.schema import API_OF

st.register_type_strategy(Records, st.binary(max_size=20).map(Records))

LAYOUTS = {**OTHER_LAYOUTS, **GROUP_LAYOUTS}
EACH = [(layout, version) for layout in LAYOUTS.values() for version in range(layout.first, layout.last + 1)]
NAMES = [f"{layout.name}-v{version}" for layout, version in EACH]


def kios(layout: Layout, version: int) -> tuple[Any, Any]:
    """kio's types of the request and the response."""
    snake = "".join(f"_{one.lower()}" if one.isupper() else one for one in layout.name)[1:]
    module = import_module(f"kio.schema.{snake}.v{version}")
    return getattr(module, f"{layout.name}Request"), getattr(module, f"{layout.name}Response")


def in_version(value: Any, kind: Any, version: int) -> Any:
    """The values of one of our structs that a version has in their places, without tagged ones, as `as_tuples` does."""
    there = [each for each in codec._layout(kind) if each.on.tag is None and codec._has(each, version)]
    return tuple(_field(value[each.place], each.type, version) for each in there)


def _field(value: Any, kind: Any, version: int) -> Any:
    element = codec._without_none(kind)[0]
    if value is None or isinstance(value, str | bytes | int | UUID):
        return value
    (inner, _) = element.__args__
    return tuple(in_version(one, inner, version) if hasattr(inner, "_fields") else one for one in value)


def same(ours: Any, kios: Any) -> bool:
    """kio has instants as datetimes, and None for -1."""
    if isinstance(kios, datetime):
        return bool(ours == round(kios.timestamp() * 1000))
    if isinstance(ours, tuple) and kios is not None:
        return len(ours) == len(kios) and all(map(same, ours, kios))
    return bool(ours == kios or (ours == -1 and kios is None))


def judge(kio: Any, ours: Any, data: st.DataObject, flexible: bool, version: int) -> None:
    raw = encode_entity(data.draw(values(kio)))
    by_kio, _ = entity_reader(kio)(raw, 0)
    value = codec.decode_struct(ours, raw, flexible=flexible, version=version)
    assert same(in_version(value, ours, version), as_tuples(by_kio))
    assert codec.encode_struct(value, flexible=flexible, version=version) == raw  # with its tagged fields


@pytest.mark.parametrize(("layout", "version"), EACH, ids=NAMES)
@settings(max_examples=12, deadline=None, phases=[Phase.generate], suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_any_message_is_read_and_written_as_kio_does(layout: Layout, version: int, data: st.DataObject) -> None:
    request, response = kios(layout, version)
    flexible = version >= layout.flexible_since
    assert (request.__flexible__, response.__flexible__) == (flexible, flexible)
    assert int(request.__api_key__) == layout.key
    judge(request, layout.request, data, flexible, version)
    judge(response, layout.response, data, flexible, version)


@pytest.mark.parametrize(("layout", "version"), EACH, ids=NAMES)
def test_a_request_cut_off_anywhere_is_refused_and_more_bytes_are_ignored(layout: Layout, version: int) -> None:
    flexible = version >= layout.flexible_since
    raw = encode_entity(example(kios(layout, version)[0]))
    frame = (b"\0" if flexible else b"") + raw
    for at in range(len(frame)):
        with pytest.raises(ProtocolViolation):
            codec.decode_request(layout.request, frame[:at], 0, version=version, flexible=flexible)
    more, whole = (
        codec.decode_request(layout.request, each, 0, version=version, flexible=flexible)
        for each in (frame + b"0", frame)
    )
    assert more == whole


@cache
def laid_out() -> dict[tuple[int, int], Layout]:
    return {(layout.key, version): layout for layout, version in EACH}


@pytest.mark.parametrize("ours", [one for one, api in API_OF.items() if (api.key, api.version) in laid_out()])
def test_what_our_client_sends_the_broker_reads(ours: Any) -> None:
    api = API_OF[ours]
    layout = laid_out()[api.key, api.version]
    request = codec.decode_struct(ours, encode_entity(example(kios(layout, api.version)[0])), flexible=api.flexible)
    frame = codec.encode_request(request, 77, "näme")[4:]
    header, at = codec.decode_request_header(frame)
    assert header == (api.key, api.version, 77, "näme")
    read = codec.decode_request(layout.request, frame, at, version=api.version, flexible=api.flexible)
    assert in_version(read, layout.request, api.version) == request


def test_a_tagged_field_that_is_not_as_long_as_it_claims_is_refused() -> None:
    fetch = LAYOUTS[1]
    raw = encode_entity(example(kios(fetch, 12)[0]))
    cluster_id = b"\x00\x06\x06n\xc3\xa4me"  # tag 0, 6 bytes, and a text of 5
    assert raw.count(cluster_id) == 1
    with pytest.raises(ProtocolViolation, match="tagged field 0 that is not as long as it claims"):
        codec.decode_struct(
            fetch.request, raw.replace(cluster_id, b"\x00\x07\x06n\xc3\xa4me"), flexible=True, version=12
        )


def test_each_default_is_kafkas() -> None:
    """kio has the defaults of Kafka's schema beside the fields of the newest version."""
    for layout in LAYOUTS.values():
        for kio, ours in zip(kios(layout, layout.last), (layout.request, layout.response), strict=True):
            tagged = {each.name: each.on.default for each in codec._layout(ours) if each.on.tag is not None}
            theirs = {each.name: each.default for each in fields(kio) if "tag" in each.metadata}
            assert set(tagged) == set(theirs)
            assert [tagged[name] for name in theirs] == [as_tuples(one) for one in theirs.values()]
