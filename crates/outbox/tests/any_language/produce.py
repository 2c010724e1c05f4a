"""Enqueues as `docs/any-language.md` shows it: produce.py EXAMPLE TRANSACTIONS.

Transaction n has two messages of one key. Every third one is rolled back, and says so in its type.
"""

import importlib
import sys

example = importlib.import_module(sys.argv[1])
connection = example.connect()
for n in range(int(sys.argv[2])):
    undone = n % 3 == 0
    type = "undone" if undone else "kept"
    for part in ["a", "b"]:
        payload = f"python/{n:04}/{part}"
        if n % 2 == 0:
            payload = payload.encode()
        example.enqueue(connection, "orders", f"kůň-{n % 8}", type, payload, {"n": str(n)})
    if undone:
        connection.rollback()
    else:
        connection.commit()
connection.close()
