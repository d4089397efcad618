"""The cost model: counted work and a machine's rates give predicted seconds."""

from weft.cost.collective_time import (
    GroupExtent,
    TrafficKind,
    copies,
    group_extent,
    multi_domain_estimates,
    one_domain_estimate,
    ring_seconds,
    speed_of_light,
    travel_estimate,
    travel_seconds,
)
from weft.cost.costs import KINDS, Costs, groups_of, work_seconds
from weft.cost.measured import Estimate
from weft.cost.trips import trips

__all__ = [
    "KINDS",
    "Costs",
    "Estimate",
    "GroupExtent",
    "TrafficKind",
    "copies",
    "group_extent",
    "groups_of",
    "multi_domain_estimates",
    "one_domain_estimate",
    "ring_seconds",
    "speed_of_light",
    "travel_estimate",
    "travel_seconds",
    "trips",
    "work_seconds",
]
