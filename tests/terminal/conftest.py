from tests.support.scripted_server import client, scripted

__all__ = ["client", "scripted"]
