"""Why a card or a node is refused: HAMi's vocabulary, which tools and users read.

While all cards are judged at once a refusal is a bit. Two bytes per card are enough: `Standing` for
what does not depend on how full the card is, `Usage` for what does. The bits are in the order in
which reasons are reported, so a card's reason is its lowest bit, first of `Standing`, then of
`Usage`.
"""

from __future__ import annotations

import enum

from hami.cluster import card_table


class Reason(enum.StrEnum):
    """Of one card, counted over the cards of a node."""

    CARD_NOT_HEALTH = "CardNotHealth"
    CARD_CORDONED = "CardCordoned"
    CARD_TYPE_MISMATCH = "CardTypeMismatch"
    MODE_NOT_FIT = "ModeNotFit"
    CARD_UUID_MISMATCH = "CardUuidMismatch"
    CARD_TIME_SLICING_EXHAUSTED = "CardTimeSlicingExhausted"
    EXCLUSIVE_DEVICE_ALLOCATE_CONFLICT = "ExclusiveDeviceAllocateConflict"
    RESOURCE_QUOTA_NOT_FIT = "ResourceQuotaNotFit"
    CARD_INSUFFICIENT_MEMORY = "CardInsufficientMemory"
    CARD_INSUFFICIENT_CORE = "CardInsufficientCore"
    CARD_COMPUTE_UNITS_EXHAUSTED = "CardComputeUnitsExhausted"
    CARD_MIG_TOPOLOGY_INFEASIBLE = "CardMigTopologyInfeasible"
    CARD_NOT_FOUND_CUSTOM_FILTER_RULE = "CardNotFoundCustomFilterRule"
    NUMA_NOT_FIT = "NumaNotFit"
    ALLOCATED_CARDS_INSUFFICIENT_REQUEST = "AllocatedCardsInsufficientRequest"


class NodeReason(enum.StrEnum):
    """Of a whole node, before any card is looked at."""

    UNREGISTERED = "node unregistered"
    NO_SUCH_DEVICE = "Device type not found"
    TOO_FEW_CARDS = "NodeInsufficientDevice"
    #: The same word in HAMi; `checks.NODE_DETAILS` tells the two apart.
    TOO_FEW_IDS = "NodeInsufficientDevice"


class Standing(enum.IntFlag):
    """Refusals that do not depend on use. The first three are kept in the tables."""

    ABSENT = card_table.ABSENT
    NOT_HEALTHY = card_table.NOT_HEALTHY
    CORDONED = card_table.CORDONED
    TYPE = 8
    MODE = 16
    UUID = 32


class Usage(enum.IntFlag):
    """Refusals that depend on what is used, on the request and on the vendor's rule."""

    SLOTS = 1
    NOT_IDLE = 2
    QUOTA = 4
    MEMORY = 8
    CORES = 16
    NOT_EXCLUSIVE = 32
    NO_COMPUTE_LEFT = 64
    RULE = 128


STANDING_REASONS: dict[int, Reason] = {
    Standing.NOT_HEALTHY: Reason.CARD_NOT_HEALTH,
    Standing.CORDONED: Reason.CARD_CORDONED,
    Standing.TYPE: Reason.CARD_TYPE_MISMATCH,
    Standing.MODE: Reason.MODE_NOT_FIT,
    Standing.UUID: Reason.CARD_UUID_MISMATCH,
}

USAGE_REASONS: dict[int, Reason] = {
    Usage.SLOTS: Reason.CARD_TIME_SLICING_EXHAUSTED,
    Usage.NOT_IDLE: Reason.EXCLUSIVE_DEVICE_ALLOCATE_CONFLICT,
    Usage.QUOTA: Reason.RESOURCE_QUOTA_NOT_FIT,
    Usage.MEMORY: Reason.CARD_INSUFFICIENT_MEMORY,
    Usage.CORES: Reason.CARD_INSUFFICIENT_CORE,
    Usage.NOT_EXCLUSIVE: Reason.EXCLUSIVE_DEVICE_ALLOCATE_CONFLICT,
    Usage.NO_COMPUTE_LEFT: Reason.CARD_COMPUTE_UNITS_EXHAUSTED,
}
