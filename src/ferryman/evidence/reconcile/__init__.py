"""Payments that are still pending beyond their age: why, by what both databases know; and what mends them."""
