"""OMP-SAE: as MP-SAE, but after each pick the coefficients of all picks are fitted anew, by least squares."""

from __future__ import annotations

from mpsae.ops.pursuit import Stop
from mpsae.ops.pursuit.orthogonal import pursue_orthogonal_to_floors
from mpsae.sae.matching_pursuit import MatchingPursuitSAE


class OrthogonalPursuitSAE(MatchingPursuitSAE):
    """Picks one atom at a time; what is left is orthogonal to all picks, not to the last alone.

    >>> OrthogonalPursuitSAE(d_in=768, d_sae=19200, stop=32)

    An atom is never picked twice, so `repeat` is refused. The values of k picks are not those of the first k of more:
    read it with `at(k=…)`, which encodes again. Memory O(B · k²).
    """

    kind = "omp"
    _pursue = staticmethod(pursue_orthogonal_to_floors)

    def _read_with_stop_(self, stop: Stop) -> None:
        if stop.repeat:
            raise ValueError("an orthogonal pursuit never picks an atom twice: leave repeat=True out of its Stop")
        super()._read_with_stop_(stop)
