"""p4/tna/words.p4: loops over the words of a packet, for a preprocessor that has none.

`python -m tools.p4_words` prints the file; `make constants` writes it and `make drift` compares. The C preprocessor can
neither count nor recurse, so FROM_n and REST_n are two chains of macros, each link of which names the next one. There
are two chains since a macro is not expanded inside of its own expansion, and REST_n may stand inside of a FROM_n.
"""

from __future__ import annotations

import sys

MAX_WORDS = 64
"""The longest packet that the program may be compiled for: a multiple of 8."""
MAX_WORKERS = 32
"""fanin.protocol.wire.MAX_WORKERS, as the bits of a bitmap."""
WORKERS_PER_LINE = 8
CONTINUATION_COLUMN = 119

HEAD = (
    "/* What there is once for each word of a packet, or for each worker.\n"
    " *\n"
    " * EACH_WORD(M): M(0, 1) M(1, 2) ... M(WORDS - 1, WORDS). "
    "REST_n(M): the same from word n on, and may stand inside of M. */\n"
    "#ifndef FANIN_TNA_WORDS_P4\n"
    "#define FANIN_TNA_WORDS_P4\n"
)


def text() -> str:
    """The whole file."""
    lines = [HEAD]
    for n in range(MAX_WORDS):
        lines.append(f"#if WORDS > {n}")
        lines += [f"#define {chain}_{n}(M) M({n}, {n + 1}) {chain}_{n + 1}(M)" for chain in ("FROM", "REST")]
        lines.append("#else")
        lines += [f"#define {chain}_{n}(M)" for chain in ("FROM", "REST")]
        lines.append("#endif")
    lines += [f"#define {chain}_{MAX_WORDS}(M)" for chain in ("FROM", "REST")]
    lines += ["", "#define EACH_WORD(M) FROM_0(M)", "", f"/* M(0) ... M({MAX_WORKERS - 1}). */"]
    starts = range(0, MAX_WORKERS, WORKERS_PER_LINE)
    calls = [" ".join(f"M({n})" for n in range(start, start + WORKERS_PER_LINE)) for start in starts]
    rows = ["#define EACH_WORKER(M)", *(f"    {each}" for each in calls)]
    lines += [f"{row:<{CONTINUATION_COLUMN}}\\" for row in rows[:-1]] + rows[-1:]
    return "\n".join([*lines, "", "#endif", ""])


if __name__ == "__main__":
    sys.stdout.write(text())
