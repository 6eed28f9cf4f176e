"""Reasons to refuse a verb; the text goes to kube-scheduler, an event and the log."""

from __future__ import annotations

from hami.kube import errors
from hami.wire import extender_api, objects


class RefusedError(Exception):
    """A request cannot be granted; the message names the object, the rule and the remedy."""

    def __init__(self, message: str, pod: objects.Pod | None = None) -> None:
        super().__init__(message)
        #: The pod at fault: it gets an event with the message. None: no event.
        self.pod = pod


class BindRefusedError(RefusedError):
    """A pod is not bound."""


class CardsChangedError(Exception):
    """The cards in a Binding are not good any more; it was not sent."""


def bound_elsewhere(args: extender_api.BindingArgs, node: str) -> BindRefusedError:
    return BindRefusedError(
        f"pod {args.key} is bound to {node} already, not to {args.node}; to move it, delete it and "
        "create it again"
    )


def deleted(args: extender_api.BindingArgs) -> BindRefusedError:
    return BindRefusedError(
        f"pod {args.key} with UID {args.pod_uid} is deleted or finished; create a new one to have "
        "it scheduled"
    )


def changed_too_often(pod: str, node: str, times: int) -> BindRefusedError:
    return BindRefusedError(
        f"the cards of node {node} changed {times} times while pod {pod} was being bound; nothing "
        "to do: kube-scheduler retries"
    )


def binding_failed(error: errors.KubeError) -> BindRefusedError:
    """Say what happened to a Binding that no good answer came to."""
    if error.outcome_unknown:
        what = "it is not known whether the Binding took effect"
    elif isinstance(error, errors.ApiError):
        what = "the API server refused the Binding"
    else:
        what = "the Binding was not sent"
    return BindRefusedError(f"{what}: {error}")
