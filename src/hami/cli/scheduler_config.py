"""`hami scheduler config`: write the configuration of our kube-scheduler.

`hami.scheduler.kube_scheduler` makes it; this module reads the flags and writes it to stdout or
into a folder.
"""

from __future__ import annotations

import pathlib
import sys
from collections.abc import Mapping, Sequence

import msgspec

from hami.cli import errors, flag_values
from hami.scheduler import kube_scheduler
from hami.scheduler.kube_scheduler import Options
from hami.vendors import device_config, table
from hami.wire import errors as wire_errors
from hami.wire import text_values

_DEFAULTS = Options(managed_resources=())

#: Option -> help, in the order of the help; the flag is the option's name with dashes.
_TEXTS: Mapping[str, str] = {
    "url": "where `hami scheduler` answers",
    "scheduler_name": "the profile's name, which pods write as their schedulerName",
    "ca_file": "CA of that address, for https",
    "client_cert_file": "certificate to show there, where --client-ca-file asks for one",
    "client_key_file": "its key",
    "server_name": "name to expect in the certificate there; empty: the one in --url",
    "kubeconfig": "for the kube-scheduler; empty: its pod's service account",
    "lease_name": "as --leader-elect-resource-name of `hami scheduler`",
    "lease_namespace": "as --leader-elect-resource-namespace",
    "folder": "where the kube-scheduler will find these files",
}
_DURATIONS: Mapping[str, str] = {
    "lease_duration": "as --leader-elect-lease-duration",
    "renew_deadline": "as --leader-elect-renew-deadline",
    "retry_period": "as --leader-elect-retry-period",
    "http_timeout": "longest time that a pod may wait for a node with a lock",
}


def main(arguments: Sequence[str], *, prog: str) -> int:
    asked = _parser(prog).parse_args(arguments)
    configured = device_config.load_or_built_in(asked.device_config_file or "")
    for warning in configured.warnings:
        print(f"{prog}: {warning}", file=sys.stderr)  # noqa: T201 - for the user
    iluvatar = text_values.parse_bool(asked.enable_iluvatar, what="--enable-iluvatar")
    vendors = table.switched_on(configured.vendors, {"enable-iluvatar"} if iluvatar else ())
    options = msgspec.structs.replace(
        _DEFAULTS,
        managed_resources=kube_scheduler.managed_resources(vendors),
        leader_elect=text_values.parse_bool(asked.leader_elect, what="--leader-elect"),
        **{name: getattr(asked, name) for name in _TEXTS},
        **{
            name: text_values.parse_duration(getattr(asked, name), what=_flag(name))
            for name in _DURATIONS
        },
    )
    _check(options, insecure=asked.insecure)
    if asked.output_dir:
        _write(pathlib.Path(asked.output_dir), kube_scheduler.files(asked.kube_version, options))
    else:
        sys.stdout.write(kube_scheduler.render(asked.kube_version, options))
    return 0


def _parser(prog: str) -> errors.Parser:
    made = errors.Parser(
        prog=prog,
        description="Write the configuration of the kube-scheduler that runs beside\n"
        "`hami scheduler`. Versions before 1.19 need two files: use --output-dir.",
    )
    made.add_argument(
        "--kube-version", required=True, metavar="VERSION", help="of the kube-scheduler, as 1.30"
    )
    made.add_argument("--output-dir", metavar="DIR", help="write files there, not to stdout")
    made.add_argument(
        "--device-config-file", metavar="FILE", help="as for `hami scheduler`: names of resources"
    )
    made.add_argument(
        "--enable-iluvatar",
        nargs="?",
        const="true",
        default="false",
        metavar="true|false",
        help="as for `hami scheduler`: manage resources of Iluvatar's cards (default false)",
    )
    made.add_argument("--leader-elect", default="true", metavar="true|false", help="default true")
    made.add_argument(
        "--insecure", action="store_true", help="https without --ca-file: trust any certificate"
    )
    for name, text in _TEXTS.items():
        default = getattr(_DEFAULTS, name)
        made.add_argument(
            _flag(name), default=default, metavar="TEXT", help=_with_default(text, default)
        )
    for name, text in _DURATIONS.items():
        default = flag_values.duration(getattr(_DEFAULTS, name))
        made.add_argument(
            _flag(name), default=default, metavar="TIME", help=_with_default(text, default)
        )
    return made


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _with_default(text: str, default: str) -> str:
    return f"{text} (default {default})" if default else text


def _check(options: Options, *, insecure: bool) -> None:
    https = options.url.startswith("https://")
    if not https and not options.url.startswith("http://"):
        raise errors.usage(
            "--url",
            options.url,
            "is no http or https address",
            "write for example http://127.0.0.1:8080",
        )
    if https and not options.ca_file and not insecure:
        remedy = "add --ca-file=FILE, or --insecure if it is on loopback"
        raise errors.usage("--url", options.url, "needs a CA to be trusted", remedy)
    if bool(options.client_cert_file) != bool(options.client_key_file):
        raise errors.UsageError(
            "--client-cert-file and --client-key-file go together; give both or none"
        )
    if not 0 < options.retry_period < options.renew_deadline < options.lease_duration:
        raise errors.UsageError(
            f"--retry-period {options.retry_period:g}s, --renew-deadline "
            f"{options.renew_deadline:g}s, --lease-duration {options.lease_duration:g}s: each must "
            "be more than the one before, or two could lead at once; write for example 1s, 6s, 8s"
        )
    if options.http_timeout <= 0:
        shown = wire_errors.shorten(options.http_timeout)
        raise errors.UsageError(f"--http-timeout: {shown} must be more than 0; write 10m")


def _write(folder: pathlib.Path, files: Mapping[str, str]) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (folder / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise errors.CommandError(
            f"--output-dir: {error.filename or folder} cannot be written: {error.strerror}; "
            "choose a folder that you may write to"
        ) from error
