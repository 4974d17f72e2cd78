"""More requests at a time than a node acks.

    python -m tests.faults.matrix.flood URL NAME FIRST EVENTS SECONDS

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


async def _send(url: str, name: str, numbers: range, seconds: float) -> None:
    place = urlsplit(url)
    until = time.monotonic() + seconds
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


async def flood(url: str, name: str, first: int, events: int, seconds: float) -> None:
    share = events // CONNECTIONS
    shares = (range(begin, begin + share) for begin in range(first, first + events, share))
    sending = (_send(url, name, one, seconds) for one in shares)
    await asyncio.gather(*sending, return_exceptions=True)


if __name__ == "__main__":
    url, name, *numbers = sys.argv[1:]
    asyncio.run(flood(url, name, *map(int, numbers)))
