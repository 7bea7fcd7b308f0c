"""Compiled programs in files: BMv2 JSON as p4c writes it, plain or compressed with gzip (`.json.gz`).

The repository keeps its own compressed: p4c's JSON shrinks to a thirtieth.
"""

from __future__ import annotations

import gzip
import io
import zlib
from pathlib import Path

from fanin import files
from fanin.errors import ConfigurationError
from fanin.switch.p4.document import MAX_DOCUMENT_BYTES


def read_program(path: Path) -> bytes:
    """The program's JSON, decompressed if the name ends in `.gz`.

    ConfigurationError for a file that cannot be read, is not gzip, or holds more than MAX_DOCUMENT_BYTES.
    """
    data = files.read(path, "the compiled program", MAX_DOCUMENT_BYTES)
    if path.suffix != ".gz":
        return data
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(data)) as file:
            text = file.read(MAX_DOCUMENT_BYTES + 1)  # bounded: a small file can hold gigabytes
    except (OSError, EOFError, zlib.error) as error:
        raise ConfigurationError(
            f"the compiled program {files.name(path)} is not gzip: {error}. Remedy: name p4c's JSON"
        ) from None
    if len(text) > MAX_DOCUMENT_BYTES:
        raise ConfigurationError(
            f"the compiled program {files.name(path)} holds more than {MAX_DOCUMENT_BYTES:,} bytes. "
            "Remedy: name another file"
        )
    return text


def write_program(path: Path, text: bytes) -> None:
    """Write a program compressed; equal programs give equal files, since these contain neither name nor time."""
    path.write_bytes(gzip.compress(text, compresslevel=9, mtime=0))
