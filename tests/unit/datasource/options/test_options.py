"""Options are checked before the source starts, and every refusal names the option and the fix."""

import pickle
import threading
import time

import pytest
from pyspark.sql.datasource import CaseInsensitiveDict

from pyspark_kgroup.offsets.offset_spec import AtTimestamp, OffsetSpec
from pyspark_kgroup.options.offset_bound import warnings_of_seconds
from pyspark_kgroup.options.parser import SourceOptions, parse
from pyspark_kgroup.options.rows import OPTIONS
from pyspark_kgroup.options.subscription import Subscription
from spark_kgroup import limits
from spark_kgroup.errors import OptionError
from spark_kgroup.model import TopicPartition

REQUIRED = {"kafka.bootstrap.servers": "a:9092,[::1]:9093", "kafka.group.id": "g", "subscribe": "t, u"}


def parsed(**options: str) -> SourceOptions:
    return parse(REQUIRED | options)


def refusal(**options: str) -> str:
    with pytest.raises(OptionError) as problem:
        parsed(**options)
    return str(problem.value)


# ------------------------------------------------------------------------------------------------- values


def test_options_that_are_not_given_have_their_defaults() -> None:
    options = parsed()
    assert options.bootstrap_servers == "a:9092,[::1]:9093"
    assert options.group_id == "g"
    assert options.subscription == Subscription(topics=("t", "u"))
    assert options.members is None
    assert options.instance_id_prefix == "g"
    assert options.starting_offsets.committed
    assert options.limit == (None, None)
    assert not options.include_headers
    assert options.fail_on_data_loss
    assert not options.read_committed
    assert options.assignors == ("cooperative-sticky",)
    assert options.session_timeout_ms == limits.SESSION_TIMEOUT_MS
    assert options.rebalance_timeout_ms == limits.REBALANCE_TIMEOUT_MS
    assert options.heartbeat_interval_ms == limits.HEARTBEAT_INTERVAL_MS
    assert options.metadata_max_age_ms == limits.METADATA_MAX_AGE_MS
    assert options.request_timeout_ms == limits.REQUEST_TIMEOUT_MS
    assert options.client_id == "spark-kgroup"
    assert options.passed_on == {}


def test_every_given_value_is_used() -> None:
    options = parsed(
        **{
            "members": " 2 ",
            "instanceIdPrefix": "job",
            "maxOffsetsPerTrigger": str(2**40),
            "includeHeaders": "TRUE",
            "failOnDataLoss": "False",
            "kafka.session.timeout.ms": "9000",
            "kafka.max.poll.interval.ms": "60000",
            "kafka.heartbeat.interval.ms": "1000",
            "kafka.metadata.max.age.ms": "500",
            "kafka.request.timeout.ms": "700",
            "kafka.partition.assignment.strategy": "cooperative-sticky, range",
            "kafka.isolation.level": "read_committed",
            "kafka.client.id": "me",
        }
    )
    assert options.instance_ids == ("job-0", "job-1")
    assert options.limit == (2**40, None)
    assert options.include_headers
    assert not options.fail_on_data_loss
    assert (options.session_timeout_ms, options.rebalance_timeout_ms) == (9000, 60000)
    assert (options.heartbeat_interval_ms, options.metadata_max_age_ms) == (1000, 500)
    assert options.request_timeout_ms == 700
    assert options.assignors == ("cooperative-sticky", "range")
    assert options.read_committed
    assert options.client_id == "me"


def test_names_match_in_the_case_in_which_spark_hands_them_over() -> None:
    given = CaseInsensitiveDict(REQUIRED | {"maxOffsetsPerTrigger": "7", "kafka.Fetch.Min.Bytes": "2"})
    options = parse(given)
    assert options.limit.offsets == 7
    assert options.passed_on == {"fetch.min.bytes": "2"}


def test_one_name_in_two_cases_with_two_values_is_refused() -> None:
    assert "given twice" in refusal(members="1", Members="2")
    assert parsed(members="1", Members="1").members == 1


def test_a_prefix_made_from_the_group_is_a_valid_instance_id() -> None:
    options = parse(REQUIRED | {"kafka.group.id": "my group/1" + "x" * 300, "members": "1000"})
    assert options.group_id.startswith("my group/1")
    assert options.instance_id_prefix.startswith("my_group_1")
    assert max(map(len, options.instance_ids)) <= 249


@pytest.mark.parametrize("session_timeout_ms", [3, 1_000, 6_000, 9_000, 300_000])
def test_the_heartbeat_follows_a_short_session(session_timeout_ms: int) -> None:
    options = parsed(**{"kafka.session.timeout.ms": str(session_timeout_ms)})
    assert options.heartbeat_interval_ms == min(limits.HEARTBEAT_INTERVAL_MS, session_timeout_ms // 3)


def test_a_heartbeat_slower_than_a_third_of_the_session_contradicts_it() -> None:
    message = refusal(**{"kafka.session.timeout.ms": "6000", "kafka.heartbeat.interval.ms": "2001"})
    assert "kafka.heartbeat.interval.ms is 2001 ms" in message
    assert "kafka.session.timeout.ms, which is 6000 ms" in message
    assert parsed(**{"kafka.session.timeout.ms": "6000", "kafka.heartbeat.interval.ms": "2000"})


# ----------------------------------------------------------------------------------------- startingOffsets


@pytest.mark.parametrize(("reset", "offset"), [("earliest", OffsetSpec.EARLIEST), ("latest", OffsetSpec.LATEST)])
def test_committed_falls_back_to_auto_offset_reset(reset: str, offset: int) -> None:
    starting = parsed(startingOffsets="committed", **{"kafka.auto.offset.reset": reset}).starting_offsets
    assert starting.committed
    assert starting.offset_of(TopicPartition("t", 0)) == offset
    assert parsed().starting_offsets.offset_of(TopicPartition("t", 0)) == OffsetSpec.LATEST


@pytest.mark.parametrize(
    ("given", "columns"),
    [
        ({}, "key value topic partition offset timestamp timestampType"),
        ({"includeHeaders": "true"}, "key value topic partition offset timestamp timestampType headers"),
        ({"columns": "Value, OFFSET,value"}, "value offset"),
        ({"columns": "timestamptype,headers"}, "timestampType headers"),
        ({"columns": "value", "includeHeaders": "true"}, "value headers"),
        ({"columns": "headers,value", "includeHeaders": "true"}, "headers value"),
    ],
)
def test_rows_have_the_columns_that_are_named_in_that_order(given: dict[str, str], columns: str) -> None:
    options = parsed(**given)
    assert options.columns == tuple(columns.split())
    assert options.include_headers == ("headers" in columns)
    assert options.read_settings().columns == options.columns


@pytest.mark.parametrize(("text", "hint"), [("valeu", "did you mean 'value'?"), ("", "it needs one or more of key,")])
def test_a_column_that_there_is_not_is_refused(text: str, hint: str) -> None:
    assert hint in refusal(columns=text)


@pytest.mark.parametrize(
    ("duration", "ms"),
    [
        ("PT1H", 3_600_000),
        ("P2DT3H4M5.678S", 183_845_678),
        ("pt0.5s", 500),
        ("P7D", 604_800_000),
        ("PT0S", 0),
        ("P999999999D", None),
    ],
)
def test_committed_falls_back_to_a_time_before_the_start(duration: str, ms: int | None) -> None:
    """Where there is no record since then, it is the end: a group that starts is no error."""
    before_ms = time.time_ns() // 1_000_000
    starting = parsed(**{"kafka.auto.offset.reset": f"by_duration:{duration}"}).starting_offsets
    after_ms = time.time_ns() // 1_000_000
    place = starting.offset_of(TopicPartition("t", 0))
    assert isinstance(place, AtTimestamp)
    assert (starting.committed, starting.later_is_latest) == (True, True)
    assert before_ms - ms <= place.ms <= after_ms - ms if ms is not None else place.ms == 0


@pytest.mark.parametrize(
    "text", ["by_duration", "by_duration:", "by_duration:P", "by_duration:PT", "by_duration:1h", "by_duration:-PT1H"]
)
def test_a_duration_that_is_none_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(OptionError, match=f"Option kafka.auto.offset.reset is '{text}': .* by_duration:PT1H"):
        parsed(**{"kafka.auto.offset.reset": text})


@pytest.mark.parametrize(("text", "offset"), [("earLiEst", OffsetSpec.EARLIEST), ("Latest", OffsetSpec.LATEST)])
def test_explicit_starting_offsets_are_not_the_group_s_committed_offsets(text: str, offset: int) -> None:
    starting = parsed(startingOffsets=text, **{"kafka.auto.offset.reset": "earliest"}).starting_offsets
    assert not starting.committed
    assert starting.offset_of(TopicPartition("t", 0)) == offset


def test_starting_offsets_by_partition() -> None:
    starting = parsed(startingOffsets='{"t": {"0": 23, "1": -2}, "u": {"0": -1}}').starting_offsets
    offsets = [starting.offset_of(TopicPartition(*tp)) for tp in [("t", 0), ("t", 1), ("u", 0)]]
    assert offsets == [23, OffsetSpec.EARLIEST, OffsetSpec.LATEST]
    assert not starting.committed
    with pytest.raises(OptionError, match=r"startingOffsets does not name u-1"):
        starting.offset_of(TopicPartition("u", 1))


def test_a_topic_may_start_at_a_word_in_any_case() -> None:
    starting = parsed(startingOffsets='{"t": {"0": 23}, "u": "eArLiEst"}').starting_offsets
    places = [starting.offset_of(TopicPartition(*tp)) for tp in [("t", 0), ("u", 0), ("u", 7)]]
    assert places == [23, OffsetSpec.EARLIEST, OffsetSpec.EARLIEST]
    starting.check([TopicPartition("t", 0), TopicPartition("u", 0), TopicPartition("u", 1)])
    with pytest.raises(OptionError, match="startingOffsets does not name t-1: name every"):
        starting.check([TopicPartition("t", number) for number in (0, 1)])
    with pytest.raises(
        OptionError, match=r"do not exist: t-0, u. Leave them out: there is no topic t, .* no topic u\."
    ):
        starting.check([])


def test_names_of_topics_in_starting_offsets_keep_their_case() -> None:
    starting = parsed(subscribe="Topic-A", startingOffsets='{"Topic-A": {"0": 23}}').starting_offsets
    assert starting.offset_of(TopicPartition("Topic-A", 0)) == 23
    assert "does not: topic-a" in refusal(subscribe="Topic-A", startingOffsets='{"topic-a": {"0": 23}}')


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("oldest", "it needs committed, earliest, latest, or JSON"),
        ("", "it needs committed"),
        ('{"t":{"0":1}', "not JSON"),
        ('{"t":[1]}', "'t' needs an object of partitions or earliest or latest"),
        ('{"t":"committed"}', "'t' needs an object of partitions or earliest or latest"),
        ('{"v":"latest"}', "names topics that `subscribe` does not: v"),
        ('{"t":{"x":1}}', "'t' has a partition 'x'"),
        ('{"t":{"00":1}}', "'t' has a partition '00'"),
        ('{"t":{"0":1.5}}', "t-0 has the offset 1.5"),
        ('{"t":{"0":true}}', "t-0 has the offset true"),
        ('{"t":{"0":-3}}', "t-0 has the offset -3"),
        ('{"t":{"0":9223372036854775808}}', "t-0 has the offset"),
        ('{"t":{"0":1,"0":2}}', "a name appears twice"),
        ('{"v":{"0":1}}', "names topics that `subscribe` does not: v"),
    ],
)
def test_malformed_starting_offsets(text: str, why: str) -> None:
    message = refusal(startingOffsets=text)
    assert "startingOffsets" in message
    assert why in message


def test_a_start_by_timestamp_comes_before_one_by_offsets() -> None:
    everywhere, by_partition = {"startingTimestamp": "1000"}, {"startingOffsetsByTimestamp": '{"t": {"0": 5, "1": 0}}'}
    starting = parsed(startingOffsets="earliest", **by_partition, **everywhere).starting_offsets
    assert starting.offset_of(TopicPartition("t", 0)) == AtTimestamp(1000)
    assert (starting.option, starting.committed, starting.later_is_latest) == ("startingTimestamp", False, False)
    starting = parsed(
        startingOffsets="earliest", **by_partition, startingOffsetsByTimestampStrategy="LATEST"
    ).starting_offsets
    assert [starting.offset_of(TopicPartition("t", number)) for number in (0, 1)] == [AtTimestamp(5), AtTimestamp(0)]
    assert starting.later_is_latest
    with pytest.raises(OptionError, match=r"startingOffsetsByTimestamp does not name t-2: name every .* topic\."):
        starting.offset_of(TopicPartition("t", 2))


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("startingTimestamp", "-1", "it needs 0 to 9223372036854775807 ms"),
        ("startingTimestamp", "9223372036854775808", "it needs 0 to"),
        ("startingTimestamp", "yesterday", "it needs 0 to"),
        ("startingOffsetsByTimestamp", "1000", "it needs JSON"),
        ("startingOffsetsByTimestamp", '{"t":"latest"}', "'t' needs an object of partitions"),
        ("startingOffsetsByTimestamp", '{"t":{"0":-2}}', "t-0 has the timestamp -2"),
        ("startingOffsetsByTimestamp", '{"t":{"0":"5"}}', 't-0 has the timestamp "5"'),
        ("startingOffsetsByTimestamp", '{"v":{"0":1}}', "names topics that `subscribe` does not: v"),
        ("startingOffsetsByTimestampStrategy", "earliest", "it needs error or latest"),
    ],
)
def test_malformed_timestamps(name: str, text: str, why: str) -> None:
    message = refusal(**{name: text})
    assert message.startswith(f"Option {name} ")
    assert why in message


# ---------------------------------------------------------------------------------------- minOffsetsPerTrigger


@pytest.mark.parametrize(
    ("text", "expected_ms"), [("90s", 90_000), ("15m", 900_000), ("2min", 120_000), ("1H", 3_600_000), ("250", 250)]
)
def test_a_trigger_delay_is_written_as_spark_writes_durations(text: str, expected_ms: int) -> None:
    assert parsed(maxTriggerDelay=text).max_trigger_delay_ms == expected_ms
    assert parsed().max_trigger_delay_ms == 900_000


@pytest.mark.parametrize("text", ["", "soon", "-1s", "1.5s", "3 weeks", "7us"])
def test_a_trigger_delay_that_is_no_duration_is_refused(text: str) -> None:
    assert refusal(maxTriggerDelay=text).startswith(f"Option maxTriggerDelay is {text!r}: it needs a number and ms, s")


def test_a_minimum_of_offsets_above_the_maximum_is_refused() -> None:
    assert parsed(minOffsetsPerTrigger="5", maxOffsetsPerTrigger="5").min_offsets_per_trigger == 5
    message = refusal(minOffsetsPerTrigger="6", maxOffsetsPerTrigger="5")
    assert message.startswith("Option minOffsetsPerTrigger is 6, and maxOffsetsPerTrigger 5: no batch")


# ------------------------------------------------------------------------------------------------ refusals


@pytest.mark.parametrize("name", REQUIRED)
def test_a_required_option_is_missing(name: str) -> None:
    with pytest.raises(OptionError, match=rf"Option {name} is missing: .+ It needs .+\."):
        parse({other: value for other, value in REQUIRED.items() if other != name})


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("subscribe", ""),
        ("kafka.bootstrap.servers", "broker"),
        ("kafka.bootstrap.servers", "broker:0"),
        ("kafka.bootstrap.servers", "a:1,b:65536"),
        ("kafka.bootstrap.servers", "::1:9092"),
        ("kafka.bootstrap.servers", "ho$t:9092"),
        ("kafka.bootstrap.servers", "a..b:9092"),
        ("kafka.bootstrap.servers", "[:::]:9092"),
        ("kafka.bootstrap.servers", " , "),
        ("kafka.group.id", " "),
        ("subscribe", ","),
        ("subscribe", "a b"),
        ("members", "0"),
        ("members", "-1"),
        ("members", "two"),
        ("members", "1_0"),
        ("members", "٣"),
        ("members", "1001"),
        ("instanceIdPrefix", "a/b"),
        ("instanceIdPrefix", ""),
        ("instanceIdPrefix", "x" * 241),
        ("maxOffsetsPerTrigger", "0"),
        ("maxOffsetsPerTrigger", str(2**63)),
        ("includeHeaders", "yes"),
        ("failOnDataLoss", "maybe"),
        ("kafka.session.timeout.ms", "45s"),
        ("kafka.max.poll.interval.ms", str(2**31)),
        ("kafka.metadata.max.age.ms", "99"),
        ("kafka.auto.offset.reset", "none"),
        ("kafka.isolation.level", "serializable"),
        ("minPartitions", "a"),
        ("minPartitions", "1.0"),
        ("minPartitions", "0"),
        ("minPartitions", "-1"),
        ("kafka.partition.assignment.strategy", "org.apache.kafka.clients.consumer.Sticky"),
        ("kafka.partition.assignment.strategy", ""),
    ],
)
def test_a_value_out_of_range_names_option_value_and_range(name: str, text: str) -> None:
    message = refusal(**{name: text})
    row = next(option for option in OPTIONS if option.name == name)
    assert message.startswith(f"Option {name} is {text!r}: it needs {row.range}")


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("memberz", "members"),
        ("startingOffset", "startingOffsets"),
        ("group.id", "kafka.group.id"),
        ("bootstrap.servers", "kafka.bootstrap.servers"),
        ("kafka.bootstrap.server", "kafka.bootstrap.servers"),
        ("kafka.fetch.min.byte", "kafka.fetch.min.bytes"),
    ],
)
def test_an_unknown_option_is_refused_with_the_nearest_name(name: str, near: str) -> None:
    assert refusal(**{name: "1"}) == f"Option {name.lower()} is unknown: did you mean {near}?"


def pattern(text: str, **more: str) -> SourceOptions:
    return parse(
        {name: value for name, value in REQUIRED.items() if name != "subscribe"} | {"subscribePattern": text} | more
    )


def test_a_pattern_subscribes_to_each_topic_whose_whole_name_it_matches() -> None:
    subscription = pattern("orders-\\p{Digit}+").subscription
    assert "orders-12" in subscription
    assert "orders-12-dlq" not in subscription
    assert subscription.topics == ()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "Option subscribePattern is ''"),
        ("(a", "Option subscribePattern is '(a'"),
        (r"(a)\1", "back reference"),
    ],
)
def test_a_pattern_that_is_not_taken_is_refused_with_its_reason(text: str, message: str) -> None:
    with pytest.raises(OptionError) as problem:
        pattern(text)
    assert message in str(problem.value)


def test_topics_and_a_pattern_together_are_refused_and_so_is_neither() -> None:
    assert refusal(subscribePattern="t.*") == (
        "Options subscribe and subscribePattern are both given: leave one of them out."
    )
    with pytest.raises(OptionError, match="Or set subscribePattern"):
        parse({name: value for name, value in REQUIRED.items() if name != "subscribe"})


def test_starting_offsets_of_a_topic_that_the_pattern_does_not_match_are_refused() -> None:
    with pytest.raises(OptionError, match="`subscribePattern` does not: u"):
        pattern("t", startingOffsets='{"u": {"0": 1}}')


@pytest.mark.parametrize(
    ("name", "fix"),
    [
        ("path", "`subscribe`"),
        ("assign", "`subscribe`"),
        ("groupIdPrefix", "`kafka.group.id`"),
        ("kafka.group.instance.id", "`instanceIdPrefix`"),
        ("kafka.key.deserializer", "DataFrame operations"),
        ("kafka.interceptor.classes", "Leave it out"),
        ("kafka.sasl.kerberos.principal", "SCRAM"),
        ("kafka.sasl.login.callback.handler.class", "`tokenCallback`"),
        ("kafka.ssl.enabled.protocols", "Leave it out"),
        ("kafka.ssl.cipher.suites", "Leave it out"),
        ("kafka.fetch.max.wait.ms", "`kafka.fetch.wait.max.ms`"),
    ],
)
def test_options_of_other_sources_are_refused_with_the_change_to_make(name: str, fix: str) -> None:
    message = refusal(**{name: "secret-value"})
    assert message.startswith(f"Option {name} cannot be used with this source: ")
    assert fix in message
    assert "secret-value" not in message


@pytest.mark.parametrize(
    ("name", "accepted", "refused"),
    [
        ("kafka.enable.auto.commit", "false", "true"),
        ("kafka.enable.auto.offset.store", "false", "true"),
    ],
)
def test_a_refused_option_is_allowed_with_the_value_that_holds_anyway(name: str, accepted: str, refused: str) -> None:
    assert parsed(**{name: accepted}).passed_on == {}
    assert f"Option {name} cannot be used" in refusal(**{name: refused})


# --------------------------------------------------------------------------------------- the group's protocol


def test_the_group_protocol_is_classic_unless_it_is_said_otherwise_in_any_case() -> None:
    assert (parsed().group_protocol, parsed().remote_assignor) == ("classic", None)
    chosen = parsed(**{"kafka.group.protocol": "CONSUMER", "kafka.group.remote.assignor": "range"})
    assert (chosen.group_protocol, chosen.remote_assignor) == ("consumer", "range")
    assert chosen.passed_on == {}
    assert "it needs classic or consumer" in refusal(**{"kafka.group.protocol": "streams"})


def test_member_ids_are_the_broker_s_unless_it_is_said_otherwise_in_any_case() -> None:
    assert parsed().member_ids == "broker"
    assert parsed(memberIds="Client").member_ids == "client"
    assert parsed(memberIds="AUTO").member_ids == "auto"
    assert "it needs broker, client or auto" in refusal(memberIds="uuid")


@pytest.mark.parametrize(
    ("protocol", "name", "value", "remedy"),
    [
        ("classic", "kafka.group.remote.assignor", "uniform", "set kafka.group.protocol=consumer"),
        ("consumer", "kafka.partition.assignment.strategy", "range", "set kafka.group.remote.assignor"),
        ("consumer", "memberIds", "client", "each seat's process makes its own there"),
        ("consumer", "kafka.session.timeout.ms", "45000", "the group's consumer.session.timeout.ms"),
        ("consumer", "kafka.heartbeat.interval.ms", "3000", "the group's consumer.heartbeat.interval.ms"),
    ],
)
def test_an_option_that_the_group_protocol_has_no_use_for_is_refused_with_the_fix(
    protocol: str, name: str, value: str, remedy: str
) -> None:
    message = refusal(**{"kafka.group.protocol": protocol, name: value})
    assert f"Option {name} has no effect with kafka.group.protocol={protocol}" in message
    assert remedy in message


# ------------------------------------------------------------------------------------------- librdkafka


def test_other_kafka_options_go_to_librdkafka_and_ours_win() -> None:
    options = parsed(
        **{"kafka.fetch.wait.max.ms": "7", "kafka.client.rack": "r1", "kafka.auto.offset.reset": "earliest"}
    )
    config = options.consumer_config()
    assert config["fetch.wait.max.ms"] == "7"
    assert config["client.rack"] == "r1"
    assert config["bootstrap.servers"] == options.bootstrap_servers
    assert config["auto.offset.reset"] == "error"
    assert config["enable.auto.commit"] == config["enable.auto.offset.store"] == "false"
    assert config["isolation.level"] == "read_uncommitted"
    assert "session.timeout.ms" not in config
    assert (
        parsed(**{"kafka.isolation.level": "read_committed"}).consumer_config()["isolation.level"] == "read_committed"
    )


def test_librdkafka_judges_the_properties_passed_on_and_no_thread_is_left_running() -> None:
    threads = threading.active_count()
    message = refusal(**{"kafka.fetch.min.bytes": "many"})
    assert "fetch.min.bytes" in message
    assert "Invalid value" in message
    assert "`kafka.message.max.bytes`" in refusal(**{"kafka.fetch.max.bytes": "0"})
    assert parsed(**{"kafka.fetch.max.bytes": "52428800"})
    assert threading.active_count() == threads


def test_secrets_are_never_shown() -> None:
    options = parse(REQUIRED)
    options.passed_on.update({"sasl.password": "hush", "sasl.oauthbearer.client.secret": "hush", "client.rack": "r1"})
    for text in (repr(options), str(options), repr(options.passed_on), f"{options.passed_on}"):
        assert "hush" not in text
        assert "r1" in text


def test_options_travel_between_processes() -> None:
    options = parsed(startingOffsets='{"t": {"0": 23}}', **{"kafka.client.rack": "r1"})
    assert pickle.loads(pickle.dumps(options)) == options


def test_a_limit_in_bytes_needs_the_sidecars_that_report_record_sizes() -> None:
    assert parse({**REQUIRED, "maxBytesPerTrigger": "64000000"}).limit == (None, 64_000_000)
    refused = r"maxBytesPerTrigger and prefetchBytes=0 exclude each other: record sizes.*sidecars.*Leave one"
    with pytest.raises(OptionError, match=refused):
        parse({**REQUIRED, "maxBytesPerTrigger": "1", "prefetchBytes": "0"})


# ------------------------------------------------------------------------------------------- timestamps in seconds


@pytest.mark.parametrize(
    ("options", "warned"),
    [
        (
            {"startingTimestamp": "1700000000"},
            ["Option startingTimestamp has the timestamp 1700000000, which is before"],
        ),
        (
            {"endingOffsetsByTimestamp": '{"t": {"0": 1700000000000, "1": 1700000001}}'},
            ["Option endingOffsetsByTimestamp has the timestamp 1700000001, which is before March 1973"],
        ),
        ({"startingTimestamp": "1700000000000"}, []),
        ({"startingTimestamp": "0"}, []),
        ({"startingOffsets": '{"t": {"0": 7}}'}, []),
    ],
)
def test_a_timestamp_that_is_likely_in_seconds_is_warned_of(options: dict[str, str], warned: list[str]) -> None:
    checked = parse(REQUIRED | options)
    warnings = list(warnings_of_seconds([checked.starting_offsets, checked.ending_offsets]))
    assert [warning[: len(wanted)] for warning, wanted in zip(warnings, warned, strict=True)] == warned
