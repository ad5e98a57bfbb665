"""A server process for the tests of its clients: ``PORT FOLDER [die-after|die-before]``.

It dies by SIGKILL at its first submission: after the study is stored and before the answer, or before it is stored.
"""

import os
import signal
import sys

import uvicorn

from hpo.service.app import create_app
from hpo.service.config import ServerConfig


def dying(app, when):
    async def handle(scope, receive, send):
        if scope["type"] != "http" or scope["method"] != "POST":
            await app(scope, receive, send)
            return
        if when == "die-after":

            async def swallow(message):
                pass

            await app(scope, receive, swallow)
        os.kill(os.getpid(), signal.SIGKILL)

    return handle


if __name__ == "__main__":
    port, folder, *when = sys.argv[1:]
    application = create_app(ServerConfig(storage=f"sqlite:///{folder}/hpo.db", folder=folder))
    uvicorn.run(
        dying(application, when[0]) if when else application,
        port=int(port),
        log_level="error",
        timeout_graceful_shutdown=1,
    )
