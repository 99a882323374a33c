"""The chain of reviews: the schema `reviews`, with jobs, and the recipients of each."""
