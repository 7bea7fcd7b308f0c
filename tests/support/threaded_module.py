"""A module that starts a thread when it is imported, as libraries with pools do."""

from __future__ import annotations

import threading

threading.Thread(target=threading.Event().wait, daemon=True).start()
