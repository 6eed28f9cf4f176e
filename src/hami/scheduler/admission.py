"""Admission in the scheduler's process: rules, and what it knows of the cluster."""

from __future__ import annotations

from hami.admission import settings as admission_settings
from hami.admission.mig_offer import MigOffer
from hami.admission.settings import Context, Rules
from hami.cluster.state import Cluster
from hami.placement.request import Defaults
from hami.scheduler.settings import Settings
from hami.vendors import table
from hami.vendors.device_config import DeviceConfig
from hami.wire import text_values


def rules(settings: Settings, config: DeviceConfig) -> Rules:
    """Return the rules of admission in this process; reads the file of MIG chains."""
    switches = {"enable-iluvatar"} if settings.enable_iluvatar else ()
    vendors = table.switched_on(config.vendors, switches)
    return Rules(
        vendors=vendors,
        nvidia=config.nvidia,
        scheduler_name=settings.scheduler_name,
        force_overwrite_default_scheduler=settings.force_overwrite_default_scheduler,
        defaults=Defaults(settings.node_scheduler_policy, settings.gpu_scheduler_policy),
        hook_path=settings.hook_path,
        high_priority_namespaces=frozenset(
            text_values.comma_list(settings.high_priority_namespaces)
        ),
        high_priority_classes=frozenset(text_values.comma_list(settings.high_priority_classes)),
        fallback=admission_settings.plan(
            vendors,
            mode=settings.mig_fallback,
            end=settings.mig_fallback_gpu,
            file=settings.mig_fallback_file,
        ),
    )


def context(rules: Rules, mig_offer: MigOffer, cluster: Cluster) -> Context:
    """Return what admission depends on beside a pod."""
    return Context(
        rules=rules,
        mig_offer=mig_offer,
        headroom=cluster.quotas.headroom_at_admission,
        slices=cluster.slices,
    )
