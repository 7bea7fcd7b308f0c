"""fanin: in-network aggregation for data-parallel training."""

from fanin.options import Options

__version__ = "0.2.0"
__all__ = ["Options", "__version__"]
