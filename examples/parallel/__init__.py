"""Kinds of parallelism over the backend "fanin", one example a file, each with a check. `fanin gallery` runs them."""
