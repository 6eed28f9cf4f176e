"""Rules of settings: each error names flag, value, rule and remedy."""

from __future__ import annotations

import pytest

from hami.cli import errors, flags
from hami.cli.scheduler import TABLE

LEADING = (
    "--leader-elect",
    "--leader-elect-resource-name=l",
    "--leader-elect-resource-namespace=n",
)

BROKEN = {
    ("--http_bind=",): r"--http_bind: '' is no address to listen on; write HOST:PORT",
    ("--http_bind=8080",): "is no address to listen on",
    ("--http_bind=::1:80",): "is no address to listen on",
    ("--metrics-bind-address=:99999",): "is no address to listen on",
    ("--metrics-bind-address=127.0.0.1:8080",): "is where --http_bind listens; change the port",
    ("--metrics-bind-address=:8080",): "is where --http_bind listens",
    ("--cert_file=a",): r"--key_file: '' must be given, as --cert_file is; add --key_file=FILE",
    ("--key_file=a",): r"--cert_file: '' must be given",
    ("--client-ca-file=a",): "needs HTTPS",
    ("--scheduler-name=",): "is no name that a pod's schedulerName can have",
    ("--scheduler-name=No Good",): "is no name",
    ("--node-scheduler-policy=random",): "'random' is no policy; write one of binpack, spread",
    ("--node-scheduler-policy=",): "is no policy",
    ("--gpu-scheduler-policy=binpack,best",): "'binpack,best' is no policy; .* with commas",
    ("--gpu-scheduler-policy=",): "is no policy",
    ("--node-label-selector=gpu",): "holds 'gpu', which is not label=value",
    ("--node-label-selector=gpu=a b",): "which is not label=value",
    ("--node-label-selector=gpu=on,",): "which is not label=value",
    ("--node-label-selector=gpu=a,gpu=b",): "names 'gpu' twice",
    ("--accept-grant-forms=v2",): "'v2' is no list of forms of grants; write v3, or v1,v3 while",
    ("--accept-grant-forms=",): "is no list of forms of grants",
    ("--kube-qps=-1",): r"--kube-qps: -1\.0 is negative; write 0 for no limit",
    ("--kube-burst=-1",): "is negative",
    ("--kube-burst=1.5",): "'1.5' is no whole number",
    ("--kube-qps=nan",): "'nan' is no number",
    ("--kube-qps=many",): "'many' is no number",
    ("--kube-timeout=-3",): "is negative",
    ("--kube-timeout=soon",): "is not a duration; write for example 5m",
    ("--node-lock-timeout=300",): "'300' has no unit; write 5m",
    ("--node-lock-timeout=-5m",): "is negative",
    ("--node-lock-timeout=0",): "must be more than 0",
    ("--filter-budget=0s",): "must be more than 0",
    ("--profiling=maybe",): "--profiling: 'maybe' is not a boolean; write true or false",
    ("--leader-elect",): "--leader-elect-resource-name: '' must name the lease",
    LEADING[:2]: "--leader-elect-resource-namespace: '' must name the lease",
    ("--leader-elect-own-lease",): "needs --leader-elect",
    ("--overuse=delete",): "is not a way to handle overuse of cards",
    ("--overuse-grace=9s",): "is less than 10s: monitors look every five seconds",
    ("--leader-elect-renew-deadline=8s",): "must be less than --leader-elect-lease-duration",
    ("--leader-elect-retry-period=5s",): "must be less than --leader-elect-renew-deadline",
    ("--otlp-endpoint=collector:4318",): "is no http or https address; write .*http://collector",
    ("--otlp-endpoint=http://[",): "is no http or https address",
    ("-v=loud",): "-v: 'loud' is no level",
    ("config",): "'config' is no flag",
    ("--",): "'--' is no flag",
}

LEGAL = [
    ("--accept-grant-forms=v3",),
    ("--accept-grant-forms=v3, v1",),
    ("--http_bind=:0", "--metrics-bind-address=:0"),
    ("--http_bind=[::1]:443", "--metrics-bind-address="),
    ("--http_bind=127.0.0.1:80", "--metrics-bind-address=127.0.0.2:80"),
    ("--cert_file=a", "--key_file=b", "--client-ca-file=c"),
    ("--gpu-scheduler-policy=topology-aware, spread",),
    ("--node-label-selector=example.com/gpu=on, zone=",),
    ("--node-lock-retry-timeout=0",),
    ("--kube-timeout=1m",),
    LEADING,
    (*LEADING, "--leader-elect-own-lease"),
    ("--otlp-endpoint=https://collector:4318/x",),
    ("--drain-timeout=0", "--grant-key-dir="),
]


@pytest.mark.parametrize(("words", "message"), BROKEN.items())
def test_a_broken_rule_is_reported(words: tuple[str, ...], message: str) -> None:
    with pytest.raises(errors.UsageError, match=message):
        flags.resolve(TABLE, words, {})


@pytest.mark.parametrize("words", LEGAL)
def test_what_breaks_no_rule_is_taken(words: tuple[str, ...]) -> None:
    assert flags.resolve(TABLE, words, {}).warnings == ()


def test_the_message_names_the_variable_that_the_value_came_from() -> None:
    with pytest.raises(errors.UsageError, match=r"^HAMI_NODE_SCHEDULER_POLICY: 'x' is no policy"):
        flags.resolve(TABLE, [], {"HAMI_NODE_SCHEDULER_POLICY": "x"})
