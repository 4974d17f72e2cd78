"""GET /v1/queries/NAME/output: the published batches of a query, in order, while they are kept."""

from __future__ import annotations

from pathlib import Path

import httpx
import pyarrow as pa
import pytest
from google_crc32c import value as crc32c

from ha_engine.outbox.published import PublishedBatches
from tests.observer.published import QUERY, PublishingNode, rows_of

PATH = f"/v1/queries/{QUERY}/output"


async def ask(node: PublishingNode, path: str) -> httpx.Response:
    transport = httpx.ASGITransport(node.application())
    async with httpx.AsyncClient(transport=transport, base_url="http://node") as client:
        return await client.get(path)


@pytest.fixture
def node(tmp_path: Path) -> PublishingNode:
    return PublishingNode(tmp_path / "node", batches_max=3)


async def test_each_batch_follows_the_one_before(node: PublishingNode) -> None:
    node.publish(1, 2)
    for after in (0, 1):
        answer = await ask(node, f"{PATH}?after={after}")
        assert answer.headers["X-Batch"] == str(after + 1)
        assert answer.headers["X-Rows"] == "2"
        assert answer.headers["X-Group-Id"] == "group-1"
        assert answer.headers["X-CRC32C"] == str(crc32c(answer.content))
        with pa.ipc.open_file(answer.content) as reader:
            assert reader.read_all().equals(rows_of(after + 1))
    assert (await ask(node, f"{PATH}?after=2")).status_code == 204
    assert (await ask(node, PATH)).headers["X-Batch"] == "1"


async def test_a_batch_that_is_no_longer_kept_is_gone(node: PublishingNode) -> None:
    node.publish(1, 2, 3, 4, 5)
    answer = await ask(node, f"{PATH}?after=1")
    assert answer.status_code == 410
    assert answer.json()["oldest"] == 3
    assert "batch 2 of query delays is no longer kept" in answer.json()["error"]
    assert len(list((node.directory / "published" / QUERY).iterdir())) == 3


async def test_bad_requests_are_refused(node: PublishingNode) -> None:
    assert (await ask(node, "/v1/queries/absent/output")).status_code == 404
    for bad in ("x", "-1", "1.5", "9" * 20):
        assert (await ask(node, f"{PATH}?after={bad}")).status_code == 400


async def test_a_node_that_keeps_nothing_says_which_key_to_set(tmp_path: Path) -> None:
    node = PublishingNode(tmp_path / "node", batches_max=0)
    node.publish(1)
    answer = await ask(node, PATH)
    assert answer.status_code == 404
    assert "observe.keep_batches" in answer.json()["error"]


async def test_a_deleted_file_is_gone_and_a_damaged_one_has_another_checksum(
    node: PublishingNode,
) -> None:
    node.publish(1, 2)
    first, second = sorted((node.directory / "published" / QUERY).iterdir())
    first.unlink()
    assert (await ask(node, PATH)).json()["oldest"] == 2
    content = bytearray(second.read_bytes())
    content[20] ^= 1
    second.write_bytes(content)
    answer = await ask(node, f"{PATH}?after=1")
    assert answer.headers["X-CRC32C"] != str(crc32c(answer.content))


def test_batches_outlive_a_restart_within_the_bounds(tmp_path: Path) -> None:
    node = PublishingNode(tmp_path / "node")
    node.publish(1, 2, 3)
    size = max(path.stat().st_size for path in (tmp_path / "node/published/delays").iterdir())
    again = PublishedBatches(tmp_path / "node/published", 64, 2 * size)
    oldest = again.after(QUERY, 0)
    assert oldest is not None
    assert oldest.number == 2
    too_small = PublishedBatches(tmp_path / "node/published", 64, size - 1)
    assert too_small.after(QUERY, 0) is None


def test_a_batch_that_is_made_again_does_not_replace_the_first(node: PublishingNode) -> None:
    node.publish(1, 2)
    node.publish(1)
    kept = node.kept.after(QUERY, 1)
    assert kept is not None
    assert kept.number == 2
