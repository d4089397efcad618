"""Cost: counted work and a machine make seconds."""

from weft.cost.costs import KINDS, Costs, groups_of, work_seconds
from weft.cost.travel import Kind, Reach, reach, ring_seconds, speed_of_light, travel_seconds
from weft.cost.trips import trips

__all__ = [
    "KINDS",
    "Costs",
    "Kind",
    "Reach",
    "groups_of",
    "reach",
    "ring_seconds",
    "speed_of_light",
    "travel_seconds",
    "trips",
    "work_seconds",
]
