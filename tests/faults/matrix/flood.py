"""More requests at a time than a node acks: ``python -m tests.faults.matrix.flood URL NAME FIRST``.

The program sends one event in each request, on many connections that always wait for an answer. It
prints a line for each event: its number, the time of its request, the time of its ack or null, and
the epoch of its position or null.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time
from urllib.parse import urlsplit

CONNECTIONS = 200
EVENTS = 10_000
SECONDS = 15.0


async def _send(url: str, name: str, numbers: range) -> None:
    place = urlsplit(url)
    until = time.monotonic() + SECONDS
    reader, writer = await asyncio.open_connection(place.hostname, place.port)
    with contextlib.closing(writer):
        for event in numbers:
            if time.monotonic() > until:
                return
            body = json.dumps([{"id": event, "text": name}]).encode()
            began = time.monotonic()
            said = {"event": event, "sent_at": began, "acked_at": None, "epoch": None}
            try:
                writer.write(
                    b"POST /v1/streams/events/events HTTP/1.1\r\nHost: %b\r\n"
                    b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
                    % (place.netloc.encode(), len(body), body)
                )
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().partition(b"content-length:")[2].split()[0])
                answer = json.loads(await reader.readexactly(length))
                if head.startswith(b"HTTP/1.1 200"):
                    said |= {"acked_at": time.monotonic(), "epoch": answer["position"]["epoch"]}
            finally:
                print(json.dumps(said))


async def flood(url: str, name: str, first: int) -> None:
    share = EVENTS // CONNECTIONS
    shares = (range(begin, begin + share) for begin in range(first, first + EVENTS, share))
    await asyncio.gather(*(_send(url, name, one) for one in shares), return_exceptions=True)


if __name__ == "__main__":
    asyncio.run(flood(sys.argv[1], sys.argv[2], int(sys.argv[3])))
