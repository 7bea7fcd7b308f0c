"""How colours look, to ordinary eyes and to those that lack a kind of cone."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Colour = npt.NDArray[np.float64]
"""A colour of three components."""

VISIONS: dict[str, Any] = {
    "trichromat": np.eye(3),
    "protanope": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deuteranope": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
    "tritanope": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]
    ),
}
"""Matrices from linear RGB to linear RGB: Machado, Oliveira and Fernandes, 2009, severity 1."""
TO_XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
"""Matrix of linear sRGB (IEC 61966-2-1)."""
WHITE = np.array([0.95047, 1.0, 1.08883])
"""The white point D65."""


def linear(colour: str) -> Colour:
    """Linear RGB, 0..1, of `#rrggbb`."""
    values = np.array([int(colour[at : at + 2], 16) for at in (1, 3, 5)]) / 255
    return np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


def luminance(colour: str) -> float:
    """Relative luminance, 0..1, of `#rrggbb`."""
    return float(TO_XYZ[1] @ linear(colour))


def lab(rgb: Colour) -> Colour:
    """CIELAB of linear RGB; what no screen can show is moved to what it can."""
    relative = TO_XYZ @ np.clip(rgb, 0.0, 1.0) / WHITE
    x, y, z = np.where(relative > 0.008856, np.cbrt(relative), 7.787 * relative + 16 / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])
