"""What `ferryman bench` measures: each goal beside its denominator, in the same run, on real servers.

`goals` has the goals, `figures` what a measured one is; `runs` says which measurement gives which; a file per idea
measures it.
"""
