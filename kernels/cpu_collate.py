"""Samples laid out in padded rows on the CPU."""

from fastmask.kernels.reference_collate import count_positions, mark_real, pad_rows

__all__ = ["count_positions", "mark_real", "pad_rows"]
