"""Tile kernels that published durations are held against."""
