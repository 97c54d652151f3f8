"""Volumes as the clients of block protocols see them."""
