"""Real parts for tests, demos and benches: servers that are found or started, and can be stopped, killed and paused.

Each part climbs a ladder: a URL that was given, Docker when an engine answers, what this machine has, what a wheel
brings; and says which rung it took and why the ones above were not to be had.
"""
