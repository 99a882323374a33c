"""Acts on the outbox by hand: look, replay, discard, pause. Each change is audited.

An act takes the lanes of the entries it changes, in short transactions: the relay waits for none of them long.
"""
