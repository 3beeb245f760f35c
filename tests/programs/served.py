"""Holds rows that preforked workers share, and answers requests for them by HTTP."""
import os

rows = {n: "row %d %d" % (n, n * 7919) for n in range(400_000)}


def application(environ, start_response):
    first = int(environ["PATH_INFO"][1:])
    found = [str(os.getpid())] + [rows[n] for n in range(first, first + 2_000)]
    start_response("200 OK", [("Content-Type", "text/plain")])
    return ["\n".join(found).encode()]
