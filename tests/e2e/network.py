"""The lines between two nodes and from each to the database; a test may silence any of them."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
import threading
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

from tests.e2e.pair import NAMES, Pair
from tests.sync.proxy import Proxy

BETWEEN_NODES = "node-a to node-b"


class Network:
    """Proxies on a separate event loop. A silent line closes nothing, like a cut cable."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="network", daemon=True)
        self._proxies: dict[str, Proxy] = {}

    @classmethod
    @contextlib.contextmanager
    def of(cls, pair: Pair, database_url: str) -> Iterator[Network]:
        """Route the lines of ``pair``, which is not started yet, through proxies."""
        network = cls()
        network._thread.start()
        with tempfile.TemporaryDirectory(prefix="ha-engine-net-") as sockets:
            network._lead(pair, database_url, Path(sockets))
            try:
                yield network
            finally:
                network._end()

    def silence(self, *lines: str) -> None:
        """Silence the lines; return once no byte passes them."""
        for line in lines:
            self._call(self._proxies[line].stop)

    def heal(self) -> None:
        for proxy in self._proxies.values():
            self._call(proxy.go_on)

    def _call(self, change: Callable[[], None]) -> None:
        async def called() -> None:
            change()

        self._await(called())

    def _lead(self, pair: Pair, database_url: str, sockets: Path) -> None:
        asked = parse_qs(urlsplit(database_url).query)
        socket = f".s.PGSQL.{asked['port'][0]}"
        for name, node in pair.nodes.items():
            near = sockets / name
            near.mkdir()
            proxy = self._add(f"{name} to database", Path(asked["host"][0]) / socket)
            self._await(proxy.start_at(near / socket))
            host = quote(str(near), safe="")
            url = database_url.replace(quote(asked["host"][0], safe=""), host)
            node.reconfigure(database={"url": url})
        # The node with the smaller id dials.
        proxy = self._add(BETWEEN_NODES, pair.sync_port(NAMES[1]))
        self._await(proxy.start())
        peers = {NAMES[1]: f"127.0.0.1:{proxy.port}"}
        pair.nodes[NAMES[0]].reconfigure(event_sync={"peers": peers})

    def _add(self, line: str, target: int | Path) -> Proxy:
        self._proxies[line] = Proxy(target)
        return self._proxies[line]

    def _await(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(10)

    def _end(self) -> None:
        self.heal()
        for proxy in self._proxies.values():
            self._await(proxy.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()
