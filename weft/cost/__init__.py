"""The cost model: counted work and a machine's rates give predicted seconds."""

from weft.cost.costs import KINDS, Costs, groups_of, work_seconds
from weft.cost.travel import Reach, TrafficKind, reach, ring_seconds, speed_of_light, travel_seconds
from weft.cost.trips import trips

__all__ = [
    "KINDS",
    "Costs",
    "Reach",
    "TrafficKind",
    "groups_of",
    "reach",
    "ring_seconds",
    "speed_of_light",
    "travel_seconds",
    "trips",
    "work_seconds",
]
