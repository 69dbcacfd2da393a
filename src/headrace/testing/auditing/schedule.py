"""Draw schedules from a seed: all that is done to a loader, before anything runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import NamedTuple

__all__ = ["Leg", "Schedule", "Size", "draw_schedule"]

_MOST_LEGS = 5
_MOST_STEPS_BEYOND = 4
_KEEPS_ITS_SIZE = 0.3
_RESIZES = 0.7
_MERGES_WITHOUT_NEED = 0.25


class Size(NamedTuple):
    """A number of ranks, and of workers of each."""

    ranks: int
    workers: int

    def __str__(self) -> str:
        return f"{self.ranks}x{self.workers}"


@dataclass(frozen=True, slots=True)
class Leg:
    """One life of a job: from a start or a resume to an end of some kind.

    Attributes:
        size: The ranks and workers.
        steps: Number of batches that a rank takes before the states are saved; None: to the end of
            the last epoch.
        beyond: Number of batches that a rank takes after the save; at least one if there is one.
        victims: Ranks that are then killed, and the others ended with them; none: the loop is left.
        merged: Whether ranks load the merged state of all ranks before them, and not each its own.
    """

    size: Size
    steps: int | None = None
    beyond: int = 0
    victims: tuple[int, ...] = ()
    merged: bool = False

    def __str__(self) -> str:
        if self.steps is None:
            return f"{self.size} to the end"
        ending = "killed" if len(self.victims) == self.size.ranks else "leaves"
        if 0 < len(self.victims) < self.size.ranks:
            ending = f"rank {', '.join(map(str, self.victims))} killed"
        return f"{self.size} saves at {self.steps}, {ending} at +{self.beyond}"


@dataclass(frozen=True, slots=True)
class Schedule:
    """The legs of one run; the last of them goes to the end."""

    name: str
    legs: tuple[Leg, ...]

    @property
    def resized(self) -> bool:
        """True if the size changes on the way."""
        return len({leg.size for leg in self.legs}) > 1

    def __str__(self) -> str:
        """Return it in words.

        >>> print(Schedule("1", (Leg(Size(2, 0), 5, 1, (0, 1)), Leg(Size(1, 2), merged=True))))
        2x0 saves at 5, killed at +1 → 1x2 to the end
        """
        return " → ".join(map(str, self.legs))


def draw_schedule(
    seed: int, number: int, *, steps: Mapping[Size, int], can_merge: bool
) -> Schedule:
    """Return schedule ``number`` of a seed.

    Args:
        seed: The seed.
        number: The number of the schedule.
        steps: Number of steps of an uninterrupted run of each size.
        can_merge: Whether states can be merged; the size changes only then.
    """
    random = Random(f"{seed}/{number}")
    count = random.randint(2, _MOST_LEGS)
    sizes = _draw_sizes(random, list(steps), count, can_merge)
    places = [0.0, *sorted(random.random() for _ in range(count - 1))]
    legs = []
    for place, size in enumerate(sizes):
        resizes = place > 0 and size != sizes[place - 1]
        merges_anyway = can_merge and random.random() < _MERGES_WITHOUT_NEED
        merged = place > 0 and (resizes or merges_anyway)
        if place == count - 1:
            legs.append(Leg(size, merged=merged))
            continue
        share = places[place + 1] - places[place]
        legs.append(
            Leg(
                size,
                steps=max(1, round(share * steps[size])),
                beyond=random.randint(1, _MOST_STEPS_BEYOND),
                victims=_draw_victims(random, size.ranks),
                merged=merged,
            )
        )
    return Schedule(str(number), tuple(legs))


def _draw_sizes(random: Random, sizes: Sequence[Size], count: int, can_merge: bool) -> list[Size]:
    drawn = [random.choice(sizes)]
    stays = not can_merge or random.random() < _KEEPS_ITS_SIZE
    while len(drawn) < count:
        others = [size for size in sizes if size != drawn[-1]]
        resizes = bool(others) and not stays and random.random() < _RESIZES
        drawn.append(random.choice(others) if resizes else drawn[-1])
    return drawn


def _draw_victims(random: Random, ranks: int) -> tuple[int, ...]:
    fate = random.choice(["all", "all", "one", "none"])
    if fate == "one":
        return (random.randrange(ranks),)
    return tuple(range(ranks)) if fate == "all" else ()
