"""Errors of the group's side reach users with the options of this source in them."""

import pytest

from pyspark_kgroup.brief_errors import brief_errors
from pyspark_kgroup.wording import in_options_words
from spark_kgroup.errors import ConnectionFailed, FencedInstanceId, KgroupError, OptionError, UnknownTopic
from spark_kgroup.member.rejections import rejection
from spark_kgroup.model import ErrorCode


def words_of(error: KgroupError) -> str:
    with pytest.raises(type(error)) as raised, brief_errors():
        raise error
    assert raised.value is error
    return str(error)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (rejection("g", "JoinGroup", ErrorCode.INVALID_SESSION_TIMEOUT), "set kafka.session.timeout.ms within"),
        (rejection("g", "JoinGroup", ErrorCode.GROUP_MAX_SIZE_REACHED), "use fewer `members`, or raise group.max.size"),
        (ConnectionFailed("Check the bootstrap servers (`bootstrap.servers`)."), "(kafka.bootstrap.servers)."),
        (UnknownTopic("correct the option `topics`."), "correct the option `subscribe`."),
        (OptionError("Option `ssl.truststore.location` is"), "Option kafka.ssl.truststore.location is"),
        (ConnectionFailed("see `kgroup describe` and `sasl.oauthbearer.*`"), "`kgroup describe` and kafka.sasl.oauth"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_setting_in_an_error_is_named_as_the_option_that_users_give(error: KgroupError, words: str) -> None:
    assert words in words_of(error)


def test_the_error_of_a_fenced_seat_names_what_fences_one_under_spark() -> None:
    words = words_of(FencedInstanceId("g", "job-0"))
    assert words.startswith("Another process took the seat 'job-0' in group 'g' (FENCED_INSTANCE_ID). Either a second")
    for named in ("`instanceIdPrefix`", "self-join", "`kafka.group.id`", "python_streaming_source_runner"):
        assert named in words


def test_an_error_that_passes_twice_is_worded_once() -> None:
    error = FencedInstanceId("g", "job-0")
    with pytest.raises(FencedInstanceId), in_options_words():
        raise error
    once = str(error)
    assert words_of(error) == once
