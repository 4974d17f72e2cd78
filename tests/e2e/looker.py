"""A browser that watches the page of a node until it shows some words, and takes a picture.

python -m tests.e2e.looker URL PICTURE WORDS...
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.browser import browsing
from tests.waiting import wait_until

OPEN = "open"
PATIENCE = 300.0


def main(url: str, picture: str, *words: str) -> None:
    with browsing() as browser:
        browser.open(url)
        sys.stdout.write(f"{OPEN}\n")
        sys.stdout.flush()
        wait_until(
            lambda: all(word in browser.text() for word in words), within=PATIENCE, every=0.1
        )
        Path(picture).write_bytes(browser.picture())
        sys.stdout.write(browser.text("#verdict"))


if __name__ == "__main__":
    main(*sys.argv[1:])
