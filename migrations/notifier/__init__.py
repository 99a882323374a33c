"""The notifier's chain: the schema `notifier`, with one delivery for each recipient of a review's version."""
