#!/usr/bin/env python3
"""A site in Flask behind `tidegate room guard`. The guard keeps the crowd outside, so the site has hardly
anything to do:

    python3 site_flask.py
    tidegate room guard --origin http://127.0.0.1:3001 --rate 60/m --max-active 10

Visitors come to the guard (port 8080). This port must not be reachable past it: whoever calls here directly could
send any header.
"""
import os

from flask import Flask, request

app = Flask(__name__)


@app.get("/")
def shop():
    # The guard says who came through: the session, and the queue it belongs to.
    session = request.headers.get("X-WR-Session", "nobody")
    return f"<h1>Welcome</h1><p>Session {session}</p><form method=post action=/buy><button>Buy</button></form>"


@app.post("/buy")
def buy():
    # Whoever has bought needs the slot no longer: this header ends the session, and the next visitor is admitted.
    return "<h1>Thank you</h1>", 200, {"WR-Command": "complete"}


@app.get("/healthz")
def healthz():
    # For the monitoring, which has no session: start the guard with --open-path /healthz.
    return "ok"


if __name__ == "__main__":
    app.run(host="127.0.0.1", port=int(os.environ.get("PORT", "3001")))
