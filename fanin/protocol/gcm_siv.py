"""The tag of AES-128-GCM-SIV, written as RFC 8452 and FIPS 197 have it: for reading and tests, not for speed.

A deterministic authenticator: POLYVAL, a polynomial over GF(2^128) at a secret point, makes 128 bits of a message of
any length, and AES makes the tag of them. Two messages have the same hash with probability (blocks + 1) / 2^127 at
most, and AES is a pseudorandom permutation, so tags look like random numbers also where all messages have one nonce.

Twin of native/kernels/gcm_siv_body.hpp. Gueron, Langley, Lindell: "AES-GCM-SIV: Nonce Misuse-Resistant Authenticated
Encryption", RFC 8452; the same: "AES-GCM-SIV: Specification and Analysis", IACR ePrint 2017/168.
"""

from __future__ import annotations

import functools
import struct

BLOCK_BYTES = 16
KEY_BYTES = 16
NONCE_BYTES = 12
ROUNDS = 10
_BITS = 128


# --- AES-128 (FIPS 197) ---


def _doubled(byte: int) -> int:
    """The byte times x in GF(2^8), modulo x^8 + x^4 + x^3 + x + 1."""
    return (byte << 1) ^ (0x11B if byte & 0x80 else 0)


def _byte_product(a: int, b: int) -> int:
    product = 0
    while b:
        product ^= a if b & 1 else 0
        a, b = _doubled(a), b >> 1
    return product


@functools.cache
def _s_box() -> bytes:
    """The inverse in GF(2^8), then an affine map (section 5.1.1)."""
    inverses = [0] * 256
    for byte in range(1, 256):
        inverses[byte] = next(other for other in range(1, 256) if _byte_product(byte, other) == 1)
    spread = [inverse * 0x101 for inverse in inverses]  # the byte twice, so that shifts are rotations
    return bytes((0x63 ^ two ^ two >> 4 ^ two >> 5 ^ two >> 6 ^ two >> 7) & 0xFF for two in spread)


def _expanded(key: bytes) -> list[bytes]:
    """The round keys (section 5.2)."""
    s_box, words, constant = _s_box(), [key[at : at + 4] for at in range(0, KEY_BYTES, 4)], 1
    while len(words) < 4 * (ROUNDS + 1):
        word = words[-1]
        if len(words) % 4 == 0:
            word = bytes(s_box[byte] for byte in word[1:] + word[:1])
            word, constant = bytes([word[0] ^ constant]) + word[1:], _doubled(constant)
        words.append(_xor(words[-4], word))
    return [b"".join(words[at : at + 4]) for at in range(0, len(words), 4)]


def _xor(a: bytes, b: bytes) -> bytes:
    return bytes(x ^ y for x, y in zip(a, b, strict=True))


def _mixed(column: bytes) -> bytes:
    """MixColumns of one column (section 5.1.3)."""
    a, b, c, d = column
    rows = ((a, b, c, d), (b, c, d, a), (c, d, a, b), (d, a, b, c))
    return bytes(_doubled(w) ^ _doubled(x) ^ x ^ y ^ z for w, x, y, z in rows)


def aes128(key: bytes, block: bytes) -> bytes:
    """The ciphertext of one block of 16 bytes."""
    s_box, (first, *keys) = _s_box(), _round_keys(key)
    state = _xor(block, first)
    for number, round_key in enumerate(keys, 1):
        substituted = bytes(s_box[byte] for byte in state)
        state = bytes(substituted[(5 * place) % BLOCK_BYTES] for place in range(BLOCK_BYTES))  # ShiftRows
        if number < ROUNDS:
            state = b"".join(_mixed(state[at : at + 4]) for at in range(0, BLOCK_BYTES, 4))
        state = _xor(state, round_key)
    return state


@functools.lru_cache(maxsize=256)
def _round_keys(key: bytes) -> tuple[bytes, ...]:
    return tuple(_expanded(key))


# --- POLYVAL (RFC 8452, section 3) ---

_EACH_BYTE = int.from_bytes(bytes([1]) * 2 * _BITS, "big")
_HALF = _BITS // 2


def _spread(number: int) -> int:
    """A byte for each bit: a product then has, in each byte, how many ones meet there, at most 128."""
    return int.from_bytes(f"{number:0{_BITS}b}".encode(), "big") & _EACH_BYTE


def _carryless(a: int, b: int) -> int:
    """The product of two polynomials of 128 bits."""
    counts = _spread(a) * _spread(b) & _EACH_BYTE
    return int(counts.to_bytes(2 * _BITS, "big").translate(bytes([0x30, 0x31]) * 128), 2)


def dot(a: int, b: int) -> int:
    """a * b / x^128 modulo x^128 + x^127 + x^126 + x^121 + 1; bit i of a number is the coefficient of x^i."""
    product = _carryless(a, b)
    for _ in range(2):  # a multiple of the polynomial makes the low 64 bits 0, and dividing by x^64 drops them
        low = product & (1 << _HALF) - 1
        product = (product ^ low << 128 ^ low << 127 ^ low << 126 ^ low << 121 ^ low) >> _HALF
    return product


def polyval(key: bytes, blocks: bytes) -> bytes:
    """The hash of whole blocks under a key of 16 bytes."""
    point, value = int.from_bytes(key, "little"), 0
    for at in range(0, len(blocks), BLOCK_BYTES):
        value = dot(value ^ int.from_bytes(blocks[at : at + BLOCK_BYTES], "little"), point)
    return value.to_bytes(BLOCK_BYTES, "little")


# --- the tag (RFC 8452, section 4) ---


@functools.lru_cache(maxsize=256)
def keys_of(key: bytes, nonce: bytes) -> tuple[bytes, bytes]:
    """The keys of the hash and of AES that a key gives for a nonce."""
    halves = [aes128(key, struct.pack("<I", counter) + nonce)[:8] for counter in range(4)]
    return halves[0] + halves[1], halves[2] + halves[3]


def tag(key: bytes, nonce: bytes, plaintext: bytes, associated: bytes) -> bytes:
    """The tag, of 16 bytes. fanin tags packets as associated data, beside an empty plaintext."""
    hash_key, aes_key = keys_of(key, nonce)
    lengths = struct.pack("<QQ", 8 * len(associated), 8 * len(plaintext))
    hashed = bytearray(polyval(hash_key, _padded(associated) + _padded(plaintext) + lengths))
    hashed[:NONCE_BYTES] = _xor(bytes(hashed[:NONCE_BYTES]), nonce)
    hashed[-1] &= 0x7F
    return aes128(aes_key, bytes(hashed))


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % BLOCK_BYTES)
