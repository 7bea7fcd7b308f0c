"""Scrapes HTTP ports once per second, as Prometheus does, until it is killed; prints a line per round.

Arguments: URLs.
"""

from __future__ import annotations

import sys
import time
import urllib.request

INTERVAL_S = 1.0
TIMEOUT_S = 10.0


def main(urls: list[str]) -> None:
    """Read all URLs once per second, for ever."""
    while True:
        size = 0
        for url in urls:
            with urllib.request.urlopen(url, timeout=TIMEOUT_S) as answer:
                size += len(answer.read())
        print(size, flush=True)
        time.sleep(INTERVAL_S)


if __name__ == "__main__":
    main(sys.argv[1:])
