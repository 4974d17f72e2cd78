"""The source kind ``rabbitmq`` with a real broker: nothing is lost, a stream repeats nothing."""

from __future__ import annotations

import itertools
import json
import random
import struct
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import pamqp.encode
import pytest

from ha_engine.connectors.rabbitmq.connection import Connection
from ha_engine.connectors.rabbitmq.source import RabbitSource
from ha_engine.errors import SourceRefused, SourceUnavailable
from ha_engine.plugins import Messages, SourceBatch, SourcePlace
from ha_engine.testing import QueueSourceContract, SourceContract
from ha_engine.testing.sink_contract import SCHEMA, refusal_of
from tests.connectors.deliveries import numbered, rest, values
from tests.connectors.rabbitmq_broker import RabbitBroker
from tests.connectors.server import free_port
from tests.connectors.settings import require_bounded_batches
from tests.programs import needs
from tests.waiting import wait_until

pytestmark = [needs("rabbitmq-server"), pytest.mark.rotates("file")]

_names = (f"source{number}" for number in itertools.count())
KINDS = ("classic", "quorum", "stream")
_quorum = pytest.param("quorum", marks=pytest.mark.nightly("the case 'classic' runs instead"))


class Setting:
    """A queue or stream of the broker, and sources that read it."""

    def __init__(self, broker: RabbitBroker, kind: str, **arguments: Any) -> None:
        self.broker, self.kind, self.name = broker, kind, next(_names)
        self.declare(**arguments)

    def declare(self, **arguments: Any) -> None:
        self.broker.declare(self.name, self.kind, **arguments)

    def put(self, *values: bytes, **properties: Any) -> None:
        self.broker.put(self.name, *values, **properties)

    def options(self, **options: Any) -> dict[str, Any]:
        key = "stream" if self.kind == "stream" else "queue"
        return self.broker.options | {key: self.name} | options

    def made(self, *attributes: str, **options: Any) -> RabbitSource:
        place = SourcePlace("group", "stream", "source", SCHEMA, frozenset(attributes))
        return RabbitSource(RabbitSource.Options.model_validate(self.options(**options)), place)

    def opened(self, offset: str | None = None, **options: Any) -> RabbitSource:
        source = self.made(**options)
        source.open(offset)
        return source


@pytest.fixture(params=("classic", _quorum, "stream"))
def any_kind(rabbit: RabbitBroker, request: pytest.FixtureRequest) -> Setting:
    return Setting(rabbit, request.param)


@pytest.fixture(params=KINDS[:2])
def queue(rabbit: RabbitBroker, request: pytest.FixtureRequest) -> Setting:
    return Setting(rabbit, request.param)


@pytest.fixture
def stream(rabbit: RabbitBroker) -> Setting:
    return Setting(rabbit, "stream")


class _Contract:
    setting: Setting

    @pytest.fixture(autouse=True)
    def _use(self, rabbit: RabbitBroker) -> None:
        self.setting = Setting(rabbit, self.queue_kind)

    @property
    def queue_kind(self) -> str:
        raise NotImplementedError

    def options(self) -> dict[str, Any]:
        return self.setting.options()

    def put(self, rows: list[dict[str, Any]]) -> None:
        self.setting.put(*(json.dumps(row).encode() for row in rows))


class TestContractOfClassicQueues(_Contract, QueueSourceContract):
    kind = RabbitSource
    queue_kind = "classic"

    def make_queue(self) -> None:
        pass  # the fixture makes it


@pytest.mark.nightly("TestContractOfClassicQueues runs instead")
class TestContractOfQuorumQueues(TestContractOfClassicQueues):
    queue_kind = "quorum"


class TestContractOfStreams(_Contract, SourceContract):
    kind = RabbitSource
    queue_kind = "stream"


def next_batch(source: RabbitSource, rows_max: int = 1_000) -> SourceBatch:
    """Read until a batch comes."""
    found = list[SourceBatch]()

    def read() -> bool:
        batch = source.read(rows_max, 0.2)
        found.extend([] if batch is None else [batch])
        return bool(found)

    wait_until(read)
    return found[0]


def attributes_of(batch: SourceBatch) -> Mapping[str, Sequence[Any]]:
    assert isinstance(batch.rows, Messages)
    return batch.rows.attributes


def open_within(source: RabbitSource, offset: str | None = None) -> None:
    """Open ``source`` as the engine does, which tries again while it is unavailable."""

    def is_open() -> bool:
        try:
            source.open(offset)
        except SourceUnavailable:
            return False
        return True

    wait_until(is_open)


def read_until_failure(source: RabbitSource) -> None:
    wait_until(lambda: source.read(10, 0.1) is None and False)


# -- what a batch has ------------------------------------------------------------------------------


def test_messages_have_their_attributes(any_kind: Setting) -> None:
    names = ("key", "exchange", "message_id", "correlation_id", "content_type", "timestamp")
    at = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    any_kind.put(
        b"1",
        message_id="m1",
        correlation_id="c1",
        content_type="text/plain",
        timestamp=at,
        headers={"unit": "K", "count": 3},
    )
    source = any_kind.made(*names, "redelivered", "offset", "header.unit", "header.count")
    source.open(None)
    batch = next_batch(source)
    source.close()
    assert attributes_of(batch) == {
        "key": [any_kind.name],
        "exchange": [""],
        "message_id": ["m1"],
        "correlation_id": ["c1"],
        "content_type": ["text/plain"],
        "timestamp": [at],
        "redelivered": [False],
        "offset": [0 if any_kind.kind == "stream" else None],
        "header.unit": ["K"],
        "header.count": ["3"],
    }


def test_headers_that_a_producer_may_choose(any_kind: Setting) -> None:
    """Java writes an array of bytes, and a program may copy the headers of a stream's message."""
    any_kind.put(b"1", headers={"bytes": bytearray(b"abc"), "x-stream-offset": "17"})
    source = any_kind.made("header.bytes", "offset")
    source.open(None)
    assert attributes_of(next_batch(source)) == {
        "header.bytes": ["abc"],
        "offset": [0 if any_kind.kind == "stream" else None],
    }
    source.close()


def test_limit_of_connections_is_refused(rabbit: RabbitBroker) -> None:
    queue = Setting(rabbit, "classic")
    source = queue.made()
    limit = (
        """rabbit_vhost_limit:parse_set(<<"/">>, <<"{\\"max-connections\\": 0}">>, <<"test">>)"""
    )
    rabbit.evaluate(limit)
    try:
        with pytest.raises(SourceRefused, match="or raise a limit of connections"):
            source.open(None)
    finally:
        rabbit.evaluate('rabbit_vhost_limit:clear(<<"/">>, <<"test">>)')


@pytest.mark.parametrize(
    ("seconds", "time"),
    [
        (253_370_764_800, datetime(9999, 1, 1, tzinfo=UTC)),
        (1_700_000_000_000, datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)),  # milliseconds
        (1_700_000_000_000_000, None),
        (2**64 - 1, None),
    ],
)
def test_any_number_as_a_timestamp_stops_nothing(
    rabbit: RabbitBroker, seconds: int, time: datetime | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = Setting(rabbit, "classic")
    with monkeypatch.context() as patch:
        patch.setitem(pamqp.encode.METHODS, "timestamp", lambda _: struct.pack(">Q", seconds))
        queue.put(b"1", timestamp=datetime.now(UTC))
    source = queue.made("timestamp")
    source.open(None)
    assert attributes_of(next_batch(source)) == {"timestamp": [time]}
    source.close()


def test_text_that_is_not_utf8_stops_nothing(
    any_kind: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    def short(text: str) -> bytes:
        return bytes([len(text)]) + text.encode("latin-1")

    with monkeypatch.context() as patch:
        patch.setitem(pamqp.encode.METHODS, "shortstr", short)
        patch.setattr(pamqp.encode, "short_string", short)
        any_kind.put(b"1", message_id="\xe4", headers={"\xf6": "x", "inner": {"\xfc": 1}, "y": "z"})
    any_kind.put(b"2")
    source = any_kind.made("message_id", "header.y")
    source.open(None)
    batch = next_batch(source, 1)
    assert attributes_of(batch) == {"message_id": ["\ufffd"], "header.y": ["z"]}
    assert rest(source, 1) == [b"2"]
    source.close()


def test_batch_is_limited_in_bytes_but_a_single_larger_message_comes_alone(
    any_kind: Setting,
) -> None:
    require_bounded_batches(any_kind)


def test_call_of_a_closed_channel_is_unavailable(stream: Setting) -> None:
    options = RabbitSource.Options.model_validate(stream.options())
    connection = Connection(options, "test", SourceRefused, SourceUnavailable)
    connection.open()

    async def cancelled() -> None:
        channel = await connection.channel.get_underlay_channel()
        await channel.close()
        await channel.create_future()

    async def ended() -> None:
        raise Exception  # as a call that waits while aiormq closes the connection

    for call in (cancelled, ended):
        with pytest.raises(SourceUnavailable):
            connection.call(call(), "wait")
    connection.close()


def test_memory_of_what_the_broker_sends_ahead_is_limited(
    any_kind: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ha_engine.connectors.rabbitmq.consumer.BUFFER_BYTES_MAX", 100_000)
    sent = [b"%d" % row + b"." * 20_000 for row in range(40)]
    any_kind.put(*sent)
    source, found, offset = any_kind.made(), list[bytes | None](), None
    problems = list[str]()
    open_within(source)

    def read() -> bool:
        nonlocal offset
        try:
            batch = source.read(2, 0.2)
        except SourceUnavailable as error:
            problems.append(str(error))
            open_within(source, offset)
            return False
        if batch is not None:
            found.extend(values(batch))
            offset = batch.offset
        return len(set(found)) >= len(sent)

    wait_until(read)
    source.close()
    if any_kind.kind == "stream":
        assert not problems
        assert found == sent
    else:
        assert "has large messages; it is read again with prefetch " in problems[0]
        assert len(problems) < 4
    assert sorted(set(found), key=sent.index) == sent  # type: ignore[arg-type]


def test_broker_sends_no_more_messages_than_may_be_uncommitted(queue: Setting) -> None:
    queue.put(*numbered(*range(20)))
    source = queue.opened(prefetch=7)
    assert len(next_batch(source).rows) <= 7
    source.open(None)
    assert rest(source, 20) == numbered(*range(20))
    source.close()


def test_waiting_messages_of_a_queue_are_the_backlog(queue: Setting) -> None:
    queue.put(*numbered(*range(20)))
    source = queue.opened(prefetch=5)
    batch = next_batch(source, 5)
    assert batch.backlog is not None
    assert batch.backlog.events is not None
    wait_until(lambda: source.read(5, 0.1) is None)
    source.close()
    assert 15 <= batch.backlog.events <= 20


# -- the next active -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(
            "classic",
            marks=pytest.mark.nightly(
                "test_a_former_active_acknowledges_nothing_that_the_next_one_has runs instead"
            ),
        ),
        "quorum",
    ],
)
def test_the_next_active_waits_for_the_connection_of_the_former(
    rabbit: RabbitBroker, kind: str
) -> None:
    queue = Setting(rabbit, kind)
    queue.put(*numbered(*range(10)))
    former, following = queue.opened(), queue.made()
    next_batch(former, 4)
    with pytest.raises(SourceUnavailable, match="another consumer, such as the former active"):
        following.open(None)
    former.close()
    open_within(following)
    assert rest(following, 10) == numbered(*range(10))
    following.close()


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_single_active_consumer_gets_what_the_former_one_had(
    rabbit: RabbitBroker, kind: str
) -> None:
    queue = Setting(rabbit, kind, **{"x-single-active-consumer": True})
    queue.put(*numbered(*range(10)))
    if kind == "classic":  # a quorum queue ignores that the source wants to be alone
        with pytest.raises(SourceUnavailable, match="single_active_consumer: true"):
            queue.opened()
    former = queue.opened(single_active_consumer=True)
    next_batch(former, 4)
    following = queue.opened(single_active_consumer=True)
    assert following.read(10, 0.2) is None
    former.close()
    assert rest(following, 10) == numbered(*range(10))
    following.close()


def test_open_again_does_not_count_as_a_delivery(rabbit: RabbitBroker) -> None:
    """A quorum queue would drop the messages at its ``x-delivery-limit``."""
    queue = Setting(rabbit, "quorum", **{"x-delivery-limit": 1})
    queue.put(*numbered(*range(5)))
    source = queue.opened()
    for _ in range(10):
        batch = next_batch(source)
        source.open(batch.offset)
    assert rest(source, 5) == numbered(*range(5))
    source.close()


@pytest.mark.nightly("test_random_failures_lose_nothing runs, which ends connections instead")
@pytest.mark.parametrize("end", ["stop", "kill"])
def test_restart_of_the_broker_loses_nothing(rabbit: RabbitBroker, end: str) -> None:
    settings = [Setting(rabbit, kind) for kind in KINDS]
    sources, offsets = [one.opened() for one in settings], list[str]()
    for setting, source in zip(settings, sources, strict=True):
        setting.put(*numbered(*range(50)))
        offsets.append(next_batch(source, 20).offset)
    rabbit.sync()
    getattr(rabbit, end)()
    for source, offset in zip(sources, offsets, strict=True):
        with pytest.raises(SourceUnavailable):
            read_until_failure(source)
        with pytest.raises(SourceUnavailable, match=r"RabbitMQ at 127\.0\.0\.1"):
            source.open(offset)
    rabbit.start()
    for setting, source, offset in zip(settings, sources, offsets, strict=True):
        open_within(source, offset)
        first = json.loads(offset)["offset"] + 1 if setting.kind == "stream" else 0
        assert rest(source, 50 - first) == numbered(*range(first, 50))
        source.close()


def test_random_failures_lose_nothing(any_kind: Setting) -> None:
    """Nodes take over at random, and connections end at random, also after a commit. A stream
    repeats nothing."""
    chance = random.Random(7)
    found, put, offset = list[bytes | None](), 0, None
    source = any_kind.opened()
    batch: SourceBatch | None = None

    def commit() -> None:
        nonlocal offset
        if batch is not None:
            found.extend(values(batch))
            offset = batch.offset

    for _ in range(80):
        match chance.randrange(8):
            case 0 | 1 | 2:
                count = chance.randrange(1, 50)
                any_kind.put(*numbered(*range(put, put + count)))
                put += count
            case 3:
                source.close()
                source, batch = any_kind.made(), None
                open_within(source, offset)
            case 4:
                commit()  # and the acknowledgement is lost
                source.close()
                open_within(source, offset)
                batch = None
            case 5:
                open_within(source, offset)
                batch = None
            case _:
                commit()
                batch = source.read(chance.randrange(1, 40), 0.05)
    commit()
    source.close()
    open_within(source, offset)

    def is_complete() -> bool:
        nonlocal batch
        batch = source.read(1_000, 0.1)
        commit()
        return len(set(found)) == put

    wait_until(is_complete)
    source.close()
    if any_kind.kind == "stream":
        assert found == numbered(*range(put))
    else:
        assert list(dict.fromkeys(found)) == numbered(*range(put))


# -- streams ---------------------------------------------------------------------------------------


SMALL = {"x-max-length-bytes": 60_000, "x-stream-max-segment-size-bytes": 10_000}


def test_offsets_that_retention_removed_are_refused_or_skipped(rabbit: RabbitBroker) -> None:
    stream = Setting(rabbit, "stream", **SMALL)
    stream.put(*numbered(0, 1, 2))
    source = stream.opened()
    offset = next_batch(source, 1).offset
    source.close()
    assert json.loads(offset)["offset"] == 0

    def put_and_read() -> None:
        stream.put(*[b"x" * 1_000] * 20)
        other = stream.opened(offset)
        try:
            other.read(10, 0.5)
        finally:
            other.close()

    with pytest.raises(SourceRefused, match=r"no longer has the offsets 1 to \d+, .*skip_lost"):
        wait_until(put_and_read)
    other = stream.opened(offset, skip_lost=True)
    stream.put(b"last")
    batch = next_batch(other)
    other.close()
    assert len(batch.dead_letters) == 1
    assert f"stream {stream.name}, offsets 1 to " in batch.dead_letters[0].place


def test_retention_of_what_was_read_is_no_loss(rabbit: RabbitBroker) -> None:
    stream = Setting(rabbit, "stream", **SMALL)
    source, count = stream.opened(), 0
    for _ in range(8):
        stream.put(*[b"x" * 1_000] * 20)
        found = rest(source, 20)
        count += len(found)
        assert len(found) == 20
    source.close()
    assert count == 160


def test_stream_that_was_created_again_is_refused(stream: Setting) -> None:
    stream.put(*numbered(*range(5)))
    source = stream.opened()
    while json.loads(offset := next_batch(source).offset)["offset"] < 4:
        pass
    source.close()
    rabbit = stream.broker
    rabbit.delete(stream.name)
    stream.declare()
    stream.put(*numbered(*range(10, 20)))
    other = stream.opened(offset)
    with pytest.raises(SourceRefused, match="another message at offset 4 than was read"):
        read_until_failure(other)


@pytest.mark.nightly("test_stream_that_was_created_again_is_refused runs, which finds a message")
def test_stream_that_ends_before_the_offset_is_refused(stream: Setting) -> None:
    stream.put(*numbered(*range(5)))
    source = stream.opened()
    while json.loads(offset := next_batch(source).offset)["offset"] < 4:
        pass
    source.close()
    stream.broker.delete(stream.name)
    stream.declare()
    empty = stream.opened(offset)
    assert empty.read(10, 0.1) is None
    stream.put(b"other")
    with pytest.raises(SourceUnavailable, match="not empty any longer"):
        read_until_failure(empty)
    with pytest.raises(SourceRefused, match="ends at offset 0, but the source has read up to off"):
        stream.opened(offset)


def test_peek_and_check_take_nothing(any_kind: Setting) -> None:
    any_kind.put(b"1", b"2", b"3")
    other = any_kind.made()
    other.check()
    if any_kind.kind == "stream":
        assert values(other.peek(None, 2, 5))[:1] == [b"1"]
    else:
        with pytest.raises(SourceRefused, match="cannot show rows without taking them"):
            other.peek(None, 2, 5)
    source = any_kind.opened()
    assert rest(source, 3) == [b"1", b"2", b"3"]
    source.close()


def test_offset_of_something_else_is_refused_by_a_stream(stream: Setting) -> None:
    stream.put(b"1")
    source = stream.opened()
    offset = next_batch(source).offset
    source.close()
    with pytest.raises(SourceRefused, match="belongs to stream OTHER"):
        stream.opened(offset.replace(stream.name, "OTHER"))
    with pytest.raises(SourceRefused, match="another kind of source"):
        stream.opened("17")


# -- failures --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_queue_as_a_stream_and_stream_as_a_queue_are_refused(
    rabbit: RabbitBroker, kind: str
) -> None:
    queue, stream = Setting(rabbit, kind), Setting(rabbit, "stream")
    with pytest.raises(SourceRefused, match=f"is no stream; write queue: {queue.name} instead"):
        queue.opened(queue=None, stream=queue.name)
    with pytest.raises(SourceRefused, match=f"is a stream; write stream: {stream.name} instead"):
        stream.opened(queue=stream.name, stream=None)


def test_queue_whose_process_is_down_is_unavailable(rabbit: RabbitBroker) -> None:
    """RabbitMQ replies NOT_FOUND, as for a queue that does not exist."""
    queue = Setting(rabbit, "classic")
    state = (
        f'Name = rabbit_misc:r(<<"/">>, queue, <<"{queue.name}">>), rabbit_misc:execute_mnesia_'
        "transaction(fun() -> rabbit_amqqueue:update(Name, fun(Q) -> "
        "amqqueue:set_state(Q, %s) end) end), ok"
    )
    source = queue.made()
    rabbit.evaluate(state % "crashed")
    for call in (lambda: source.open(None), source.check):
        with pytest.raises(SourceUnavailable, match=f"'{queue.name}' in vhost '/' has crashed"):
            call()
    rabbit.evaluate(state % "live")
    source.open(None)
    source.close()


def test_broker_that_is_down_is_unavailable(any_kind: Setting) -> None:
    source, began = any_kind.made(port=free_port()), time.monotonic()
    for call in (lambda: source.open(None), source.check):
        with pytest.raises(SourceUnavailable, match=r"RabbitMQ at 127\.0\.0\.1:\d+ is not avail"):
            call()
    with pytest.raises(SourceUnavailable, match="is not open"):
        source.read(10, 0.1)
    source.close()
    assert time.monotonic() - began < 20


def test_wrong_credentials_are_refused_and_not_shown(any_kind: Setting) -> None:
    source = any_kind.made(user="guest", password="Sesame")
    for call in (lambda: source.open(None), source.check):
        with pytest.raises(SourceRefused, match="login of user guest; correct user and") as error:
            call()
        assert "Sesame" not in str(error.value) + repr(error.value.__cause__)


def test_missing_permissions_are_refused_by_name(any_kind: Setting) -> None:
    name = f"reader-{any_kind.name}"
    any_kind.broker.add_user(name, "pw", "^$", "^$", "^$")
    source = any_kind.made(user=name, password="pw")
    with pytest.raises(SourceRefused, match=f"queue '{any_kind.name}'.*give the user this perm"):
        source.open(None)
    other = any_kind.made(user=name, password="pw", virtual_host="a b/c")
    with pytest.raises(SourceRefused, match=f"virtual host a b/c for user {name}; create it"):
        other.open(None)


@pytest.mark.parametrize("name", [".", "..", "a%2Fb"])
def test_a_virtual_host_that_the_library_changes_is_refused(any_kind: Setting, name: str) -> None:
    with pytest.raises(ValueError, match="cannot be used"):
        any_kind.made(virtual_host=name)


def test_missing_queue_is_refused(any_kind: Setting) -> None:
    any_kind.broker.delete(any_kind.name)
    source = any_kind.made()
    for call in (lambda: source.open(None), source.check):
        with pytest.raises(SourceRefused, match=f"no queue '{any_kind.name}'.*create it"):
            call()


def test_queue_that_is_deleted_is_noticed(any_kind: Setting) -> None:
    source = any_kind.opened()
    any_kind.broker.delete(any_kind.name)
    with pytest.raises(SourceUnavailable, match="ended the consumer: it was deleted"):
        read_until_failure(source)
    with pytest.raises(SourceRefused, match="no queue"):
        source.open(None)
    any_kind.declare()
    source.open(None)
    any_kind.put(b"1")
    assert rest(source, 1) == [b"1"]
    source.close()


@pytest.mark.nightly("test_random_failures_lose_nothing runs, which ends connections instead")
@pytest.mark.parametrize("kind", KINDS[:2])
def test_messages_that_are_not_acknowledged_in_time_come_again(
    rabbit: RabbitBroker, kind: str
) -> None:
    """The broker ends a channel whose messages wait longer than ``consumer_timeout``."""
    broker, queue = rabbit, Setting(rabbit, kind)
    broker.evaluate("application:set_env(rabbit, consumer_timeout, 200)")
    try:
        queue.put(b"1", b"2")
        source = queue.opened()
        offset = next_batch(source).offset
        with pytest.raises(SourceUnavailable, match="acknowledgement on channel 1 timed out"):
            wait_until(lambda: source._source._consumer.take(10, 0.2) and False)  # type: ignore
    finally:
        broker.evaluate("application:set_env(rabbit, consumer_timeout, 1800000)")
    open_within(source, offset)
    assert rest(source, 2) == [b"1", b"2"]
    source.close()


def test_tls_needs_a_certificate_that_the_authority_signed(rabbit: RabbitBroker) -> None:
    any_kind, broker = Setting(rabbit, "classic"), rabbit
    files = broker.authority.files("client")
    options = {"host": "localhost", "port": broker.tls_port, "tls": True}
    mine = {"certificate_file": files["certificate"], "key_file": files["key"]}
    any_kind.put(b"1")
    source = any_kind.opened(**options, **mine, ca_file=files["ca"])
    assert rest(source, 1) == [b"1"]
    source.close()
    with pytest.raises(SourceRefused, match=r"certificate that is not accepted: .*correct ca_file"):
        any_kind.opened(**options, **mine)
    with pytest.raises(SourceRefused, match=r"missing\.pem cannot be read"):
        any_kind.opened(**options, ca_file="/missing.pem")
    # The broker ends these connections without a reason, or never answers.
    with pytest.raises(SourceUnavailable):
        any_kind.opened(**options, ca_file=files["ca"], timeout="1s")
    with pytest.raises(SourceUnavailable):
        any_kind.opened(port=broker.tls_port, timeout="1s")


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"queue": None}, "either queue or stream"),
        ({"stream": "s"}, "either queue or stream"),
        ({"skip_lost": True}, "skip_lost belongs to a stream"),
        ({"ca_file": "/ca.pem"}, "need tls: true"),
        ({"tls": True, "key_file": "/k"}, "belong together"),
        ({"prefetch": 0}, "prefetch"),
    ],
)
def test_options_that_contradict_are_refused(wrong: dict[str, Any], reason: str) -> None:
    assert reason in refusal_of(RabbitSource.Options, {"host": "h", "queue": "q"} | wrong)
