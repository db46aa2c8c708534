"""An SMTP server that tells what it was given: a line of JSON with its port, then one per e-mail.

Ends with its standard input. Addresses decide: refused@… does not exist, later@… is to be tried later, once.
"""

import json
import socket
import sys
from email import message_from_bytes, policy

from aiosmtpd.controller import Controller


class Handler:
    def __init__(self):
        self.tried = set()

    async def handle_RCPT(self, server, session, envelope, address, options):
        if address.startswith("refused"):
            return "550 5.1.1 no such user"
        if address.startswith("later") and address not in self.tried:
            self.tried.add(address)
            return "451 4.7.1 try later"
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, server, session, envelope):
        message = message_from_bytes(envelope.content, policy=policy.default)
        body = lambda kind: (message.get_body((kind,)) or message).get_content()
        told = {
            "from": envelope.mail_from,
            "to": envelope.rcpt_tos,
            "headers": [[name.lower(), str(value)] for name, value in message.items()],
            "kind": message.get_content_type(),
            "plain": body("plain"),
            "html": body("html"),
        }
        print(json.dumps(told), flush=True)
        return "250 OK"


wanted = int(sys.argv[1]) if len(sys.argv) > 1 else 0
with socket.socket() as probe:
    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    probe.bind(("127.0.0.1", wanted))
    port = probe.getsockname()[1]
controller = Controller(Handler(), hostname="127.0.0.1", port=port)
controller.start()
print(json.dumps({"port": port}), flush=True)
sys.stdin.read()
controller.stop()
