"""The gRPC service for ranges of the journal refuses what it cannot answer, and says why."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import grpc
import pytest

from ha_engine import __version__
from ha_engine.auth import bears, token_of
from ha_engine.config.execution import ExecutionTls
from ha_engine.errors import AddressInUse, ConfigError
from ha_engine.journal.record import decode_all
from ha_engine.node.range_server import CALLS_MAX, RangeServer, RangeService
from ha_engine.v1 import ranges_pb2 as pb
from ha_engine.v1.ranges_pb2_grpc import RangesStub
from tests.programs import needs
from tests.query.range_nodes import GROUP, TOKEN, Loop, RangeNode, event
from tests.sync.authority import Authority

Code = grpc.StatusCode
RECORDS = [event(n, stream="flights" if n % 2 else "weather") for n in range(1, 101)]
BEARER = (("authorization", f"Bearer {TOKEN}"),)
GOOD = {
    "release": __version__,
    "group_id": GROUP,
    "stream": "flights",
    "first_sequence": 1,
    "last_sequence": 100,
    "last_epoch": 1,
}


@pytest.fixture(scope="module")
def loop() -> Iterator[Loop]:
    with closing(Loop()) as loop:
        yield loop


@pytest.fixture
def node(loop: Loop, tmp_path: Path) -> Iterator[RangeNode]:
    with closing(RangeNode(loop, tmp_path / "a", RECORDS, message_bytes=1 << 10)) as node:
        yield node


def read(node: RangeNode, metadata: Any = BEARER, **changed: Any) -> list[pb.Frames]:
    with grpc.insecure_channel(node.listen) as channel:
        return list(RangesStub(channel).Read(pb.ReadRequest(**GOOD | changed), metadata=metadata))


def test_messages_have_whole_frames_and_say_how_far_the_read_has_come(node: RangeNode) -> None:
    messages = read(node, first_sequence=10, last_sequence=90)
    assert len(messages) > 5
    before = 9
    for message in messages:
        assert len(message.frames) <= 1 << 10
        got = [record.position.sequence for record in decode_all(message.frames)]
        assert got == [n for n in range(before + 1, message.through + 1) if n % 2]
        before = message.through
    assert before == 90


def test_record_that_a_truncation_removed_is_an_error(node: RangeNode) -> None:
    node.journal.truncate_after(60)
    with pytest.raises(grpc.RpcError) as refused:
        read(node)
    assert refused.value.code() is Code.UNAVAILABLE
    assert "this node's journal does not have record 61" in refused.value.details()


REFUSALS = {
    "another release": (
        {"release": "0.1"},
        Code.FAILED_PRECONDITION,
        f"this worker runs ha-engine 0.1, but the node runs {__version__}; install the same "
        "ha-engine on every worker",
    ),
    "another group": (
        {"group_id": "other"},
        Code.FAILED_PRECONDITION,
        f"this node belongs to the group {GROUP}, not other; correct the addresses of the nodes",
    ),
    "no such record yet": (
        {"last_sequence": 101},
        Code.UNAVAILABLE,
        "this node's journal has no record 1.101; ask again later",
    ),
    "another record": (
        {"last_epoch": 2},
        Code.UNAVAILABLE,
        "this node's journal has no record 2.100; ask again later",
    ),
    "no record": (
        {"first_sequence": 0},
        Code.INVALID_ARGUMENT,
        "0 to 100 is no range of records",
    ),
    "backwards": (
        {"first_sequence": 5, "last_sequence": 4},
        Code.INVALID_ARGUMENT,
        "5 to 4 is no range of records",
    ),
}


@pytest.mark.parametrize(("changed", "code", "reason"), REFUSALS.values(), ids=REFUSALS)
def test_call_that_the_node_cannot_answer_is_refused(
    node: RangeNode, changed: dict[str, Any], code: grpc.StatusCode, reason: str
) -> None:
    with pytest.raises(grpc.RpcError) as refused:
        read(node, **changed)
    assert (refused.value.code(), refused.value.details()) == (code, reason)
    assert node.files.reads == 0


@pytest.mark.parametrize(
    "metadata",
    [(), (("authorization", "Bearer other"),), (("authorization", TOKEN),), (("x", TOKEN),)],
    ids=["none", "another", "another scheme", "another header"],
)
def test_call_without_the_token_is_refused_before_all_else(
    node: RangeNode, metadata: tuple[tuple[str, str], ...]
) -> None:
    with pytest.raises(grpc.RpcError) as refused:
        read(node, metadata, release="0.1")
    assert refused.value.code() is Code.UNAUTHENTICATED


def test_strangers_who_send_no_request_leave_room_for_readers(node: RangeNode, loop: Loop) -> None:
    async def hold_calls() -> list[Code]:
        async with grpc.aio.insecure_channel(node.listen) as channel:
            untyped: Any = channel
            method = untyped.stream_stream("/ha_engine.v1.Ranges/Read")
            calls = [method() for _ in range(5 * CALLS_MAX)]
            await asyncio.gather(*(call.wait_for_connection() for call in calls))
            messages = await asyncio.to_thread(read, node)
            assert messages[-1].through == 100
            return [await call.code() for call in calls]

    assert set(loop.run(hold_calls())) == {Code.UNAUTHENTICATED}


def test_token_is_derived_from_the_secret_which_it_does_not_reveal() -> None:
    token = token_of("the secret")
    assert token == token_of("the secret") != token_of("the secret ")
    assert len(token) == 64
    assert "secret" not in token
    assert bears(f"bearer {token}", token)
    assert not bears(f"Bearer {token}x", token)
    assert not bears(None, token)


def test_address_in_use_is_an_error_that_names_the_setting(node: RangeNode, loop: Loop) -> None:
    second = RangeServer(RangeService(node.known, TOKEN), node.listen, ExecutionTls())
    with pytest.raises(AddressInUse, match=rf"execution\.listen: {node.listen} is in use"):
        loop.run(second.start())


def test_unusable_certificate_is_an_error_that_names_the_section(
    node: RangeNode, loop: Loop, tmp_path: Path
) -> None:
    tls = ExecutionTls(
        certificate=tmp_path / "none.pem", key=tmp_path / "none.key", ca=tmp_path / "none.pem"
    )
    server = RangeServer(RangeService(node.known, TOKEN), "127.0.0.1:0", tls)
    with pytest.raises(ConfigError, match=r"execution\.tls"):
        loop.run(server.start())
    with pytest.raises(ConfigError, match=r"execution\.tls"):
        server.look_at_certificate()


@needs("openssl")
def test_authority_that_executors_could_not_use_is_an_error_at_the_start(
    node: RangeNode, loop: Loop, tmp_path: Path
) -> None:
    signing = Authority(tmp_path / "ca")
    files = {name: Path(file) for name, file in signing.files("a", san="IP:127.0.0.1").items()}
    (tmp_path / "empty.pem").touch()
    for name, reason in {"empty.pem": "has no certificate", "none.pem": "No such file"}.items():
        tls = ExecutionTls(**files | {"ca": tmp_path / name})
        server = RangeServer(RangeService(node.known, TOKEN), "127.0.0.1:0", tls)
        with pytest.raises(ConfigError, match=rf"execution\.tls\.ca: .*{name} .*{reason}"):
            loop.run(server.start())
