"""An endpoint of this machine that plays the replies of a test."""

import contextlib
import json
import socket
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

ECHO = "echo"
"""A reply: the headers of the request, as the answer."""


def completion(text):
    return json.dumps({"choices": [{"message": {"role": "assistant", "content": text}}]}).encode()


class Endpoint:
    """A server that plays a list of replies, the last one for ever: (status, body, headers), seconds of silence,
    None to hang up, or ECHO. A body is sent in pieces of ``piece`` bytes, with a ``pause`` in seconds after each.
    """

    def __init__(self, replies):
        self.replies, self.requests = list(replies), []
        self.piece, self.pause = None, 0.0
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                length = int(self.headers["Content-Length"])
                outer.requests.append((self.path, dict(self.headers), json.loads(self.rfile.read(length))))
                reply = outer.replies.pop(0) if len(outer.replies) > 1 else outer.replies[0]
                if isinstance(reply, float):
                    time.sleep(reply)
                    return
                if reply is None:  # hangs up without a word
                    self.connection.close()
                    return
                status, body, *headers = (200, completion(str(self.headers))) if reply is ECHO else reply
                self.send_response(status)
                for name, value in (*headers, ("Content-Length", str(len(body)))):
                    self.send_header(name, value)
                self.end_headers()
                size = outer.piece or len(body) or 1
                with contextlib.suppress(ConnectionError):  # nobody may wait for the rest
                    for start in range(0, len(body), size):
                        # a test of the command line may have left SIGPIPE at its default, which ends the process
                        self.connection.sendall(body[start : start + size], socket.MSG_NOSIGNAL)
                        time.sleep(outer.pause)

            def do_GET(self):
                outer.requests.append((self.path, dict(self.headers), None))
                self.send_error(404)

            def log_message(self, *arguments):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}/v1"
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()
