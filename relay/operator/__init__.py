"""What people do by hand, in the order of the calls: look, replay, discard, pause. Each act is audited.

An act takes the lanes of the entries it changes, in short transactions: the relay waits for none of them long.
"""
