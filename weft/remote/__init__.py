"""Remote devices: a client without devices drives a server that has them, over gRPC.

Programs travel as StableHLO text or as saved executables, arrays as their elements; nothing that is
received is run as Python. `client.py` is one side, `server.py` the other, `wire.py` what they send.
"""
