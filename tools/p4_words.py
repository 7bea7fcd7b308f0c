"""Generates p4/tna/words.p4: loops over the words of a packet, for a preprocessor that has no loops.

`python -m tools.p4_words` prints the file; `make constants` writes it and `make drift` compares. The C preprocessor can
neither count nor recurse, so WORD_n, PAIR_n and FOUR_n are chains of macros, each of which names the next one.
"""

from __future__ import annotations

import sys

MAX_WORDS = 64
"""Most words of a packet that the program may be compiled for; a multiple of 8."""
MAX_WORKERS = 32
"""fanin.protocol.wire.MAX_WORKERS: the number of bits of a bitmap."""
CHAINS = (("WORD", 1, 2), ("PAIR", 2, 2), ("FOUR", 4, 5))
"""For each chain of macros: its name, words that each macro is about, and numbers that a macro names."""
WORKERS_PER_LINE = 8
CONTINUATION_COLUMN = 119

HEAD = (
    "/* Loops: macros that repeat another macro for each word of a packet, or for each worker.\n"
    " *\n"
    " * EACH_WORD(M): M(0, 1) M(1, 2) ... M(WORDS - 1, WORDS). EACH_PAIR(M): M(0, 1) M(2, 3) ... EACH_FOUR(M):\n"
    " * M(0, 1, 2, 3, 4) M(4, 5, 6, 7, 8) ..., the last number being that of the next four. */\n"
    "#ifndef FANIN_TNA_WORDS_P4\n"
    "#define FANIN_TNA_WORDS_P4\n"
)


def text() -> str:
    """The text of the whole file."""
    lines = [HEAD]
    for n in range(MAX_WORDS):
        lines.append(f"#if WORDS > {n}")
        chains = [(name, step, last) for name, step, last in CHAINS if n % step == 0]
        for name, step, last in chains:
            numbers = ", ".join(str(each) for each in range(n, n + last))
            lines.append(f"#define {name}_{n}(M) M({numbers}) {name}_{n + step}(M)")
        lines.append("#else")
        lines += [f"#define {name}_{n}(M)" for name, _, _ in chains]
        lines.append("#endif")
    lines += [f"#define {name}_{MAX_WORDS}(M)" for name, _, _ in CHAINS]
    lines += ["", "#define EACH_WORD(M) WORD_0(M)", "#define EACH_PAIR(M) PAIR_0(M)", "#define EACH_FOUR(M) FOUR_0(M)"]
    lines += ["", f"/* M(0) ... M({MAX_WORKERS - 1}). */"]
    starts = range(0, MAX_WORKERS, WORKERS_PER_LINE)
    calls = [" ".join(f"M({n})" for n in range(start, start + WORKERS_PER_LINE)) for start in starts]
    rows = ["#define EACH_WORKER(M)", *(f"    {each}" for each in calls)]
    lines += [f"{row:<{CONTINUATION_COLUMN}}\\" for row in rows[:-1]] + rows[-1:]
    return "\n".join([*lines, "", "#endif", ""])


if __name__ == "__main__":
    sys.stdout.write(text())
