"""Scrape HTTP ports once per second, as Prometheus does, till it is ended; a line for every round of all of them.

Arguments: URLs.
"""

from __future__ import annotations

import sys
import time
import urllib.request

INTERVAL_S = 1.0
TIMEOUT_S = 10.0


def main(urls: list[str]) -> None:
    """Read them all, and wait for the next second."""
    while True:
        size = 0
        for url in urls:
            with urllib.request.urlopen(url, timeout=TIMEOUT_S) as answer:
                size += len(answer.read())
        print(size, flush=True)
        time.sleep(INTERVAL_S)


if __name__ == "__main__":
    main(sys.argv[1:])
