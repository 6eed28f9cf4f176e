"""Run all controllers as one client of the sandbox's API server."""

from __future__ import annotations

import asyncio
import socket

from hami.kube.client import Client
from hami.kube.events import EventRecorder
from hami_sandbox.controllers.controller import Api, Controller, Watches
from hami_sandbox.controllers.deployments import Deployments
from hami_sandbox.controllers.garbage import Garbage
from hami_sandbox.controllers.jobs import Jobs
from hami_sandbox.controllers.namespaces import Namespaces
from hami_sandbox.controllers.replica_sets import ReplicaSets

COMPONENT = "hami-sandbox-controllers"


async def run(client: Client, *, job_backoff: float = 10.0) -> None:
    """Run until cancelled.

    `job_backoff` is how many seconds pass before the first failed pod of a job is replaced.
    """
    api = Api(client)
    watches = Watches(client)
    events = EventRecorder(client, component=COMPONENT, host=socket.gethostname())
    garbage = Garbage(api, watches)
    controllers: tuple[Controller, ...] = (
        Namespaces(api, watches),
        Deployments(api, watches, events),
        ReplicaSets(api, watches, events),
        Jobs(api, watches, events, backoff=job_backoff),
    )
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(events.run(), name="events")
        tasks.create_task(watches.run(), name="watches")
        for controller in controllers:
            tasks.create_task(controller.run(), name=controller.name)
        # Before all watches are synced an owner might seem to be deleted.
        await watches.wait_synced()
        tasks.create_task(garbage.run(), name=garbage.name)
