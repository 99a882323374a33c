"""The measurements of `ferryman bench`: each goal beside its denominator, in the same run, on real servers."""
