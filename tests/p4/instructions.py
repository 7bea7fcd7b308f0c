"""A few of the native interpreter's instructions in Python, and random code made of them: for the tests of what is done
with code when a program is translated.
"""

from __future__ import annotations

from random import Random

from fanin.switch.p4.native_passes import Code

LIMB = (1 << 64) - 1
CONSTANTS = [0, 1, 5]
PLACES = 4
FRAME = list(range(PLACES + 1))
"""One limb more: an operand of two limbs may begin at the last place."""
MAX_STEPS = 400
JUMPS = ("JUMP_ZERO", "JUMP_NONZERO", "JUMP_EQ", "JUMP_NE", "JUMP_LT", "JUMP_LE", "JUMP_EQ_WIDE", "JUMP_NE_WIDE")


def run(code: list[Code], labels: list[int], entry: int, frame: list[int]) -> tuple[list[int], int] | None:
    """The frame at the end and how many instructions that took; None where that is too long."""
    frame = list(frame)

    def read(place: int) -> int:
        return CONSTANTS[-1 - place] if place < 0 else frame[place]

    at = labels[entry]
    for step in range(MAX_STEPS):
        operation, n, d, a, b = code[at]
        at += 1
        if operation == "HALT":
            return frame, step
        if operation == "ZERO":
            frame[d : d + n] = [0] * n
        elif operation == "COPY":
            frame[d] = read(a) & LIMB >> 64 - n
        elif operation == "ADD":
            frame[d] = read(a) + read(b) & LIMB >> 64 - n
        elif operation == "JUMP" or _holds(operation, n, a, b, read):
            at = labels[d]
    return None


def _holds(operation: str, n: int, a: int, b: int, read: object) -> bool:
    assert callable(read)
    limbs = n if operation.endswith("_WIDE") else 1
    left = [read(a + each) for each in range(limbs)]
    if operation in ("JUMP_ZERO", "JUMP_NONZERO"):
        return (left[0] == 0) is (operation == "JUMP_ZERO")
    right = [read(b + each) for each in range(limbs)]
    kind = operation.split("_")[1]
    return bool({"EQ": left == right, "NE": left != right, "LT": left < right, "LE": left <= right}[kind])


def random_code(random: Random) -> tuple[list[Code], list[int], list[int]]:
    """Instructions, labels, and the labels that others know."""
    count = random.randrange(4, 30)
    labels = [random.randrange(count) for _ in range(random.randrange(1, 8))]
    code: list[Code] = []
    for _ in range(count - 1):
        operand = random.choice([-3, -2, -1, *range(PLACES)])
        kind = random.randrange(8)
        if kind == 0:
            code.append(("ZERO", random.choice([1, 2]), random.randrange(PLACES), 0, 0))
        elif kind in (1, 2):
            code.append(("COPY", random.choice([1, 8, 64]), random.randrange(PLACES), operand, 0))
        elif kind == 3:
            code.append(("ADD", 64, random.randrange(PLACES), random.randrange(PLACES), operand))
        elif kind == 4:
            code.append(("JUMP", 0, random.randrange(len(labels)), 0, 0))
        else:
            operation = random.choice(JUMPS)
            wide = operation.endswith("_WIDE")
            first, second = random.randrange(PLACES), random.randrange(PLACES) if wide else operand
            code.append((operation, 2 if wide else 1, random.randrange(len(labels)), first, second))
    code.append(("HALT", 0, 0, 0, 0))
    return code, labels, random.sample(range(len(labels)), random.randrange(1, len(labels) + 1))
