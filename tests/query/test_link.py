"""Calls of the query process while the node stops, restarts or refuses."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest

from ha_engine.errors import QueryProcessFailed
from ha_engine.query.link import Address, NodeLink, Superseded
from ha_engine.v1 import local_pb2 as pb
from ha_engine.v1 import local_pb2_grpc as rpc

Code = grpc.StatusCode


class Answers(rpc.LocalServicer):
    """Aborts with each code in turn, then answers."""

    def __init__(self, *codes: grpc.StatusCode) -> None:
        self.left = list(codes)

    def Locate(  # noqa: N802
        self, request: pb.LocateRequest, context: grpc.ServicerContext
    ) -> pb.LocateReply:
        if self.left:
            context.abort(self.left.pop(0), "as the test wants")
        return pb.LocateReply(skipped=True)


@contextmanager
def linked(directory: Path, answers: Answers) -> Iterator[NodeLink]:
    server = grpc.server(ThreadPoolExecutor(2))
    rpc.add_LocalServicer_to_server(answers, server)
    server.add_insecure_port(f"unix:{directory / 's'}")
    server.start()
    try:
        yield NodeLink(Address(str(directory / "s"), "one"))
    finally:
        server.stop(grace=None).wait()


@pytest.mark.parametrize("code", [Code.UNAVAILABLE, Code.DEADLINE_EXCEEDED, Code.CANCELLED])
def test_call_to_a_stopping_node_is_repeated(tmp_path: Path, code: grpc.StatusCode) -> None:
    answers = Answers(code, code)
    with linked(tmp_path, answers) as link:
        assert link.call(link.stub.Locate, pb.LocateRequest()).skipped
    assert not answers.left


def test_a_call_that_the_node_cannot_answer_is_an_error(tmp_path: Path) -> None:
    with (
        linked(tmp_path, Answers(Code.INTERNAL)) as link,
        pytest.raises(QueryProcessFailed, match="INTERNAL: as the test wants"),
    ):
        link.call(link.stub.Locate, pb.LocateRequest())


def test_call_of_a_replaced_query_process_is_refused(tmp_path: Path) -> None:
    with linked(tmp_path, Answers(Code.PERMISSION_DENIED)) as link, pytest.raises(Superseded):
        link.call(link.stub.Locate, pb.LocateRequest())
