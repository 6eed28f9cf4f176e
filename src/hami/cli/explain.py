"""`hami explain POD`: why a pod waits, or which cards it got.

One GET of the pod, also as `kubectl hami explain POD`. `hami.cli.pod_story` reads the pod,
`hami.cli.explain_text` writes the text. Only for a pod that waits without reasons of hami's are
events, nodes and pods read, too, as far as the user may.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import sys
from collections.abc import Sequence

import msgspec

from hami.cli import cards_now, errors, explain_text, pod_story
from hami.cli import main as cli_main
from hami.kube import access, client, paths
from hami.kube import errors as kube_errors
from hami.scheduler import kube_scheduler
from hami.scheduler.settings import Settings
from hami.vendors import device_config, table
from hami.wire import codec, objects
from hami.wire import errors as wire_errors

_TIMEOUT_S = 15.0
#: Seconds for all lists together.
_LISTS_S = 60.0


def main(arguments: Sequence[str], *, prog: str) -> int:
    asked = _parser(prog).parse_args(arguments)
    given, _, name = asked.pod.rpartition("/")
    if not name or "/" in given:
        raise errors.usage("POD", asked.pod, "names no pod", "write NAME or NAMESPACE/NAME")
    if given and asked.namespace and given != asked.namespace:
        raise errors.usage("POD", asked.pod, f"is not in {asked.namespace}", "drop -n")
    vendors = device_config.load_or_built_in(asked.device_config_file or "").vendors
    try:
        found = access.find(asked.kubeconfig, context=asked.context)
        namespace = given or asked.namespace or found.namespace
        story = asyncio.run(_read(found, namespace, name, vendors, asked.scheduler_name))
    except kube_errors.AccessError as error:
        raise errors.UsageError(str(error)) from error
    except kube_errors.NotFound as error:
        raise errors.CommandError(
            f"pod {namespace}/{name} does not exist; check its name, -n and --context"
        ) from error
    except kube_errors.KubeError as error:
        raise errors.CommandError(f"{found.origin}: {error}") from error
    if asked.output == "json":
        sys.stdout.write(codec.encode(story).decode() + "\n")
    else:
        text = explain_text.text(
            story,
            managed=kube_scheduler.managed_resources(vendors),
            scheduler_name=asked.scheduler_name,
            now=dt.datetime.now(dt.UTC),
        )
        sys.stdout.write(text)
    return 0


async def _read(
    found: access.Access,
    namespace: str,
    name: str,
    vendors: Sequence[table.Vendor],
    scheduler_name: str,
) -> pod_story.Story:
    agent = f"hami/{cli_main.version_number()} explain"
    async with client.Client(found, user_agent=agent, timeout=_TIMEOUT_S) as api:
        data = await api.get(paths.pods(namespace, name))
        story = pod_story.gather(data, vendors, scheduler_name=scheduler_name)
        if story.state is not pod_story.State.WAITING or story.explanation is not None:
            return story
        if not story.scheduler_message:
            # The condition has the same text; without one there may still be an event.
            with contextlib.suppress(kube_errors.KubeError, wire_errors.WireError):
                message = await cards_now.last_failure(api, namespace, story.uid)
                story = msgspec.structs.replace(story, scheduler_message=message)
        pod = codec.decode(data, objects.Pod, what="pod")
        try:
            async with asyncio.timeout(_LISTS_S):
                now = dt.datetime.now(dt.UTC).replace(microsecond=0)
                would = await cards_now.decision(api, pod, vendors, now=now)
        except (kube_errors.KubeError, wire_errors.WireError) as error:
            return msgspec.structs.replace(story, would_error=str(error))
        except TimeoutError:
            slow = f"nodes and pods could not be listed within {_LISTS_S:.0f} s"
            return msgspec.structs.replace(story, would_error=slow)
        return msgspec.structs.replace(story, would=would)


def _parser(prog: str) -> errors.Parser:
    made = errors.Parser(
        prog=prog,
        description="Show why a pod waits for its cards, or which it got.\n"
        "Exit code 0: shown; 1: no such pod, or no answer; 2: wrong usage.",
    )
    made.add_argument("pod", metavar="POD", help="NAME or NAMESPACE/NAME")
    made.add_argument(
        "-n", "--namespace", default="", help="of the pod (default: that of the context)"
    )
    made.add_argument(
        "--kubeconfig", default="", metavar="FILE", help="default: the one that kubectl uses"
    )
    made.add_argument(
        "--context", default="", metavar="NAME", help="of the kubeconfig (default: its current one)"
    )
    made.add_argument(
        "-o", "--output", choices=("text", "json"), default="text", help="default: text"
    )
    name = Settings().scheduler_name
    made.add_argument(
        "--scheduler-name",
        default=name,
        metavar="NAME",
        help=f"schedulerName of hami's pods (default {name})",
    )
    made.add_argument(
        "--device-config-file",
        metavar="FILE",
        help="of `hami scheduler`, if resources have other names",
    )
    return made
