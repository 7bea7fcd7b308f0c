"""Text: the documentation strings of Python's standard library, byte by byte, and a small causal transformer."""

from __future__ import annotations

import ast
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

BYTE_VALUES = 256
WINDOW_BYTES = 64
TRAIN_WINDOWS = 2048
TEST_WINDOWS = 256
WIDTH = 192
TRIGRAM_ROWS = 1 << 15
"""Rows of the table that embeds the last three bytes, by hash: most of the parameters, and cheap to compute."""


def docstrings() -> Iterator[str]:
    """Documentation strings of the modules of the standard library's top level, in order of file name."""
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        try:
            tree = ast.parse(path.read_bytes())
        except SyntaxError:  # a module of another Python version
            continue
        for node in ast.walk(tree):
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
                text = ast.get_docstring(node)
                if text:
                    yield text


def load() -> tuple[TensorDataset, TensorDataset]:
    """Training and test set: int64 windows [n, 64] of bytes and the bytes [n, 64] that follow each of them."""
    needed = (TRAIN_WINDOWS + TEST_WINDOWS) * WINDOW_BYTES + 1
    read = bytearray()
    # a generator, so that modules beyond the last one needed are not parsed, which saves most of a second
    for text in docstrings():
        read += f"{text}\n\n".encode()
        if len(read) >= needed:
            break
    corpus = torch.frombuffer(read, dtype=torch.uint8)[:needed].long()
    windows = corpus[:-1].view(-1, WINDOW_BYTES), corpus[1:].view(-1, WINDOW_BYTES)
    order = torch.randperm(len(windows[0]), generator=torch.Generator().manual_seed(0))
    test, train = order[:TEST_WINDOWS], order[TEST_WINDOWS:]
    return TensorDataset(*(part[train] for part in windows)), TensorDataset(*(part[test] for part in windows))


class Network(nn.Module):
    """Byte, trigram and position embeddings, two causal transformer layers: about 7.3 million parameters, 29 MB."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = nn.Embedding(BYTE_VALUES, WIDTH)
        self.trigrams = nn.Embedding(TRIGRAM_ROWS, WIDTH)
        self.positions = nn.Embedding(WINDOW_BYTES, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.logits = nn.Linear(WIDTH, BYTE_VALUES)

    def forward(self, windows: Tensor) -> Tensor:
        """Logits [n, 64, 256] of the byte after each byte of windows [n, 64]."""
        before = nn.functional.pad(windows, (2, 0))
        hashed = (before[:, :-2] * 961 + before[:, 1:-1] * 31 + before[:, 2:]) * 40503 % 65521 % TRIGRAM_ROWS
        positions = torch.arange(windows.shape[1], device=windows.device)
        hidden = self.bytes(windows) + self.trigrams(hashed) + self.positions(positions)
        mask = nn.Transformer.generate_square_subsequent_mask(windows.shape[1], device=windows.device)
        logits: Tensor = self.logits(self.layers(hidden, mask=mask, is_causal=True))
        return logits
