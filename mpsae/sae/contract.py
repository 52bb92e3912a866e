"""The contract that every SAE keeps: x ↦ codes ↦ x̂, one sparsity in training, any at inference."""

from __future__ import annotations

import copy
import inspect
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, is_dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Self, TypedDict, get_args

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from mpsae.checks import flag, one_of, option, tensor, whole
from mpsae.codes import Codes
from mpsae.ops.decode import sum_gathered
from mpsae.ops.pursuit import FLOATING, Stop, widest
from mpsae.sae import losses, reseed
from mpsae.sae import scaling as _scaling
from mpsae.sae.constraints import Constraint, constrained, tangent
from mpsae.sae.losses import Auxiliary, Revival
from mpsae.sae.reseed import Reseed
from mpsae.sae.scaling import Scaling


@dataclass(frozen=True, eq=False)
class Encoding:
    """What a variant's `_encode` returns; `pre` and `residual` where it has them anyway."""

    acts: Codes | Tensor
    """`Codes` where the width is fixed, else dense activations [..., d_sae]."""
    pre: Tensor | None = None
    """Pre-activations [..., d_sae]."""
    residual: Tensor | None = None
    """What is left of the input as `_encode` got it [..., d_in]; without it, codes are decoded."""


@dataclass(frozen=True, eq=False)
class Output:
    """What `sae(x)` returns."""

    x_hat: Tensor
    residual: Tensor
    """x − x̂."""
    acts: Codes | Tensor
    """As the SAE made them; `.codes` are the same in the one layout."""
    pre: Tensor | None = None

    @cached_property
    def codes(self) -> Codes:
        """The codes; dense activations are converted on first access."""
        return self.acts if isinstance(self.acts, Codes) else Codes.from_dense(self.acts)


pytree.register_pytree_node(
    Output,
    lambda out: ([out.x_hat, out.residual, out.acts, *([] if out.pre is None else [out.pre])], None),
    lambda leaves, _: Output(*leaves),
    serialized_type_name="mpsae.Output",
)


def _own_stream(seed: int) -> torch.Generator:
    """A generator for the SAE's own draws: data that are drawn with the same seed are other numbers."""
    return torch.Generator().manual_seed((0x6D70736165 + seed) % 2**63)


class _Kept(dict[str, Any]):
    """What holds only while the atoms do not change: filled inside `frozen`, shared by what `at` returns."""

    def __reduce__(self) -> tuple[type[_Kept], tuple[()]]:
        return _Kept, ()  # a deep copy has atoms of its own, and starts with nothing kept


class Shared(TypedDict, total=False):
    """What every SAE can be told; the defaults are those of `SAE`, for linear encoders `constraint="free"`."""

    constraint: Constraint
    """Norms of the atoms: 1, at most 1, or free."""
    tangent: bool
    """Whether gradients lose their part along each atom, which a projection would undo."""
    bias: bool
    """Whether the bias is learned; else it is 0."""
    seed: int
    """Decides the start, and whatever the SAE draws."""
    scaling: Scaling
    """What is done to inputs before they are read."""
    auxiliary: Auxiliary | None
    """The auxiliary loss on silent atoms."""
    revival: Revival | None
    """The nudge to atoms that fire for no input of a batch."""
    reseed: Reseed | None
    """Atoms made anew."""


class SAE(nn.Module):
    """A sparse autoencoder: atoms [d_sae, d_in], bias [d_in]; a variant writes `_encode` and what it means to read it.

    >>> out = sae(x)                                          # x [..., d_in]
    >>> sum(sae.losses(x, out).values()).backward()
    >>> opt.step()
    >>> sae.update_(x, out)                                   # after each optimiser step
    """

    kind: ClassVar[str]
    """The SAE's name on the command line and in files."""
    atomwise: tuple[str, ...] = ("atoms",)
    """Parameters with one row an atom."""
    scheduled: ClassVar[tuple[str, ...]] = ()
    """The sparsities that `schedule_` sets."""
    setting_buffers: tuple[str, ...] = ()
    """Buffers that hold numbers of the settings: sae.json has them."""
    options: ClassVar[dict[str, Any]] = {"auxiliary": Auxiliary, "revival": Revival, "reseed": Reseed}
    """Arguments that are dataclasses."""

    atoms: nn.Parameter
    bias: Tensor
    silent: Tensor

    def __init__(
        self,
        d_in: int,
        d_sae: int,
        *,
        constraint: Constraint = "sphere",
        tangent: bool = False,
        bias: bool = True,
        seed: int = 0,
        scaling: Scaling = "none",
        auxiliary: Auxiliary | None = None,
        revival: Revival | None = None,
        reseed: Reseed | None = None,
    ) -> None:
        super().__init__()
        self.d_in, self.d_sae = whole("d_in", d_in, 1), whole("d_sae", d_sae, 1)
        self.constraint = one_of("constraint", constraint, get_args(Constraint))
        self.tangent, self.seed = flag("tangent", tangent), whole("seed", seed, 0)
        self.scaling = one_of("scaling", scaling, get_args(Scaling))
        self.auxiliary = option("auxiliary", auxiliary, Auxiliary)
        self.revival = option("revival", revival, Revival)
        self.reseed = option("reseed", reseed, Reseed)
        rows = torch.randn(self.d_sae, self.d_in, generator=_own_stream(self.seed))
        self.atoms = nn.Parameter(nn.functional.normalize(rows, dim=-1))
        if flag("bias", bias):
            self.bias = nn.Parameter(torch.zeros(d_in))
        else:
            self.register_buffer("bias", torch.zeros(d_in))
        # Inputs seen since each atom last fired; how often each fired since atoms were last made anew.
        self.register_buffer("silent", torch.zeros(d_sae, dtype=torch.int64))
        if reseed is not None:
            self.register_buffer("fired", torch.zeros(d_sae, dtype=torch.int64))
        self.is_fitted = False  # has the scaling been taken from data
        _scaling.register_(self, scaling)
        self.removed_mean: tuple[float, ...] | None = None  # by a scaling that was folded into the tensors
        self.updates = 0
        self._is_reading = False  # made by `at`
        self._kept = _Kept()

    # What a variant writes.

    def _encode(self, x: Tensor) -> Encoding:
        raise NotImplementedError

    def _read_with_k_(self, k: int) -> None:
        """Set this SAE, a copy made by `at`, to k atoms an input."""
        raise NotImplementedError

    def _read_with_stop_(self, stop: Stop) -> None:
        """Set this SAE, a copy made by `at`, to another stop; refused where there is no pursuit."""
        raise ValueError(f"{type(self).__name__} makes no pursuit, so stop means nothing to it: use k")

    @property
    def _ignores_sign(self) -> bool:
        """Whether an atom and its opposite write the same."""
        return False

    def _renew_(self, mask: Tensor, directions: Tensor) -> None:
        """Start the atoms in `mask` [d_sae] again at `directions` [d_sae, d_in]; variants add their own parameters."""
        self.atoms.copy_(directions.where(mask[:, None], self.atoms.to(directions.dtype)))
        self.silent.masked_fill_(mask, 0)
        if self.reseed is not None:
            self.get_buffer("fired").masked_fill_(mask, 0)

    def _fold_(self, shift: Tensor, scale: Tensor) -> None:
        """Read x where (x − shift) · scale was read; a variant adds what is in units of the input."""
        self.bias.copy_(self.bias / scale + shift)

    # Settings: every argument of the constructor is an attribute of the same name.

    @classmethod
    def setting_names(cls) -> list[str]:
        """The arguments of the constructor."""
        names: list[str] = []
        for parameter in inspect.signature(cls).parameters.values():
            names += [*Shared.__annotations__] if parameter.kind is parameter.VAR_KEYWORD else [parameter.name]
        return names

    def settings(self) -> dict[str, Any]:
        """The arguments that make this SAE again, as JSON knows them."""
        values = {name: getattr(self, name) for name in self.setting_names()}
        values["bias"] = isinstance(self.bias, nn.Parameter)
        return {
            name: asdict(value) if is_dataclass(value) and not isinstance(value, type) else value
            for name, value in values.items()
        }

    @classmethod
    def from_settings(cls, settings: dict[str, Any]) -> Self:
        """The SAE that has these `settings`, at its random start."""
        arguments = dict(settings)
        for name, kind in cls.options.items():
            if (given := settings.get(name)) is not None:
                keys = [field.name for field in fields(kind)]
                if not isinstance(given, dict) or given.keys() != set(keys):
                    raise ValueError(f"{name} must have the keys {', '.join(keys)}; got {given!r}")
                arguments[name] = kind(**given)
        return cls(**arguments)

    @staticmethod
    def _wide(*tensors: Tensor) -> list[Tensor]:
        """The tensors in the widest of their types, at least float32: what is computed in."""
        dtype = widest(*tensors)
        return [t.to(dtype) for t in tensors]

    # Reading.

    @property
    def dictionary(self) -> Tensor:
        """The atoms as they are computed with: as they are, with the gradient that `tangent` asks for."""
        return tangent(self.atoms) if self.tangent else self.atoms

    def forward(self, x: Tensor) -> Output:
        """Codes and reconstruction of x [..., d_in]; reads no values, so that a training step never waits."""
        self._check_form(x)
        shift, scale = _scaling.shift_and_scale(self, x)
        read = _scaling.applied(x, shift, scale)
        encoding = self._encode_revived(read)
        if encoding.residual is not None:
            residual = _scaling.undone(encoding.residual, None, scale)
            return Output(x - residual, residual, encoding.acts, encoding.pre)
        x_hat = _scaling.undone(self._written(encoding.acts), shift, scale)
        return Output(x_hat, x - x_hat, encoding.acts, encoding.pre)

    def _encode_revived(self, x: Tensor) -> Encoding:
        """`_encode`; a variant that has pre-activations adds the nudge of `Revival(how="added")`."""
        return self._encode(x)

    def encode(self, x: Tensor, *, k: int | None = None, stop: Stop | int | None = None) -> Codes:
        """Codes of x [..., d_in]; with `k` or `stop`, as `at` reads them. Refuses NaN and Inf.

        Differentiable, so it keeps the graph: under `torch.no_grad()` it does not.
        """
        if k is not None or stop is not None:
            return self.at(k=k, stop=stop).encode(x)
        self._check_form(x)
        self._check_values(x)
        if not self._kept:
            self._check_tensors()
        acts = self._read(x)
        return acts if isinstance(acts, Codes) else Codes.from_dense(acts)

    def _read(self, x: Tensor) -> Codes | Tensor:
        """Activations as inference has them, whatever mode this SAE is in."""
        reading = copy.copy(self)
        reading.training = False
        return reading._encode(_scaling.applied(x, *_scaling.shift_and_scale(reading, x))).acts

    def decode(self, codes: Codes | Tensor) -> Tensor:
        """x̂ [..., d_in] of codes: gathered atoms, never dense; or of dense activations [..., d_sae]."""
        width = codes.d_sae if isinstance(codes, Codes) else codes.shape[-1]
        if width != self.d_sae:
            raise ValueError(f"the codes are of {width} atoms, this SAE has {self.d_sae}: decode with their own SAE")
        return _scaling.undone(self._written(codes), *_scaling.shift_and_scale(self, None))

    def _written(self, acts: Codes | Tensor) -> Tensor:
        """What the codes write, before the scaling is undone."""
        if isinstance(acts, Codes):
            return sum_gathered(acts.values, acts.indices, self.dictionary) + self.bias
        acts, atoms = self._wide(acts, self.dictionary)
        return acts @ atoms + self.bias

    def at(self, *, k: int | None = None, stop: Stop | int | None = None) -> Self:
        """The same tensors in eval mode, read at another sparsity: with k atoms an input, or until `stop` says."""
        if (k is None) == (stop is None):
            raise ValueError(f"at takes one of k and stop: k atoms, or a Stop (whose steps are k); got {k=}, {stop=}")
        other = copy.copy(self)
        other._buffers = dict(self._buffers)
        other.training, other._is_reading = False, True
        if stop is not None:
            other._read_with_stop_(Stop.of(stop))
        else:
            other._read_with_k_(whole("k", k, 1, "at least one atom an input"))
        return other

    @contextmanager
    def frozen(self) -> Iterator[Self]:
        """Atoms promised unchanged inside: what depends on them alone is done once.

        >>> with sae.frozen():
        ...     for x in batches:
        ...         codes = sae.encode(x)
        """
        if self._kept:
            yield self
            return
        self._check_tensors()
        atoms = self.atoms
        version = None if atoms.is_inference() else atoms._version  # inference tensors count no versions
        self._kept["checked"] = True
        try:
            yield self
        finally:
            self._kept.clear()
        if self.atoms is not atoms or (version is not None and atoms._version != version):
            raise RuntimeError(
                "the atoms were changed inside frozen(), so codes made there may be of either dictionary: "
                "change them outside"
            )

    # Training.

    def schedule_(self, name: str, value: float) -> None:
        """Set a sparsity between two updates: one of `scheduled`."""
        if name not in self.scheduled:
            has = f"{type(self).__name__} has {', '.join(self.scheduled)}"
            raise ValueError(f"{name!r} cannot be scheduled: {has}")
        if not value > 0:
            raise ValueError(f"{name} is how many atoms write an input, so it must be above 0; got {value}")
        if name == "k":
            self._read_with_k_(max(round(value), 1))
        else:
            setattr(self, name, value)

    def losses(self, x: Tensor, output: Output) -> dict[str, Tensor]:
        """Every weighted term of the loss; their sum is trained. Errors are those of the scaled inputs."""
        if self._is_reading:
            raise ValueError("what at() returns is for reading: train the SAE that it reads")
        residual = self._scaled_residual(x, output)
        terms = {"reconstruction": self._reconstruction(x, output, residual)}
        if self.auxiliary is not None:
            pre = output.pre
            if pre is None:
                left, atoms = self._wide(residual.detach(), self.dictionary)
                pre = left @ atoms.T
            k = max(self.d_in // 2, 1) if self.auxiliary.k is None else self.auxiliary.k
            error = losses.auxiliary(residual, pre, self.silent > self.auxiliary.after, self.dictionary, k)
            terms["auxiliary"] = self.auxiliary.weight * error
        if self.revival is not None and self.revival.how == "gradient":
            lifted = self._mean_pre(x, output).where(~self._fired(output.acts), 0.0)
            terms["revival"] = -self.revival.weight * lifted.sum()
        return terms

    def _reconstruction(self, x: Tensor, output: Output, residual: Tensor) -> Tensor:
        """The error that is trained, of the scaled residual."""
        return losses.squared_error(residual)

    def _scaled_residual(self, x: Tensor, output: Output) -> Tensor:
        return _scaling.applied(output.residual, None, _scaling.shift_and_scale(self, x)[1])

    def _residual_of(self, x: Tensor, acts: Codes | Tensor) -> Tensor:
        """The scaled residual that other activations of the same input leave."""
        return _scaling.applied(x, *_scaling.shift_and_scale(self, x)) - self._written(acts)

    def _mean_pre(self, x: Tensor, output: Output) -> Tensor:
        """The mean pre-activation of every atom [d_sae]; of a pursuit, its correlation with the centred input."""
        if output.pre is not None:
            return output.pre.reshape(-1, self.d_sae).mean(0)
        read = _scaling.applied(x, *_scaling.shift_and_scale(self, x))
        atoms, centred = self._wide(self.dictionary, read.reshape(-1, self.d_in).mean(0) - self.bias)
        return atoms @ centred

    @torch.no_grad()
    def update_(self, x: Tensor, output: Output) -> Tensor | None:
        """What follows each optimiser step: constraint, counters, running scales, atoms made anew.

        Returns the mask [d_sae] of atoms made anew, whose optimiser moments the loop clears; None where there are none.
        """
        renewed = self._rows_to_renew_from(x, output)  # of the scale that the batch was read with
        self.constrain_()
        inputs = x.shape[:-1].numel()
        self.silent.copy_((self.silent + inputs).where(~self._fired(output.acts), 0))
        if self.scaling == "norm":
            self.get_buffer("mean_norm").copy_(_scaling.next_mean_norm(self, x))
        self.updates += 1
        if self.reseed is None:
            return None
        fired = self.get_buffer("fired")
        fired.add_(self._fired_inputs(output.acts))
        if renewed is None:
            return None
        mask = reseed.choose(self.atoms, fired, self.reseed.bound, self._ignores_sign)
        directions, mask = reseed.worst_directions(*renewed, mask)
        self._renew_(mask, directions)
        fired.zero_()
        return mask

    def _rows_to_renew_from(self, x: Tensor, output: Output) -> tuple[Tensor, Tensor] | None:
        """Centred inputs and what is left of them [B, d_in], where this update makes atoms anew."""
        if self.reseed is None or not self.reseed.is_due(self.updates + 1):
            return None
        read = _scaling.applied(x, *_scaling.shift_and_scale(self, x)) - self.bias
        return read.reshape(-1, self.d_in), self._scaled_residual(x, output).reshape(-1, self.d_in)

    @torch.no_grad()
    def init_from_data_(self, x: Tensor, *, seed: int | None = None) -> Self:
        """Start from data: the bias at the mean of x [B, d_in], the atoms at the directions of random rows from it."""
        self._check_form(x)
        self._check_values(x)
        if self.scaling == "norm":  # what its running mean will come to
            shift, scale = None, math.sqrt(self.d_in) / x.to(widest(x)).norm(dim=-1).mean()
        else:
            shift, scale = _scaling.shift_and_scale(self, x)
        x = _scaling.applied(x, shift, scale)
        x = x.reshape(-1, self.d_in).to(widest(x))
        mean = x.mean(0) if isinstance(self.bias, nn.Parameter) else x.new_zeros(self.d_in)
        rows = x - mean
        rows = rows[rows.norm(dim=-1) > 1e-6 * x.norm(dim=-1)]
        if len(rows) < self.d_sae:
            raise ValueError(
                f"every atom starts at a row of its own: {self.d_sae} atoms need as many rows that differ from the "
                f"mean, x has {len(rows)}: pass more rows, or keep the random start"
            )
        seed = self.seed if seed is None else whole("seed", seed, 0)
        chosen = torch.randperm(len(rows), generator=_own_stream(seed))[: self.d_sae].to(rows.device)
        everything = torch.ones(self.d_sae, dtype=torch.bool, device=rows.device)
        self._renew_(everything, nn.functional.normalize(rows[chosen], dim=-1))
        self.bias.copy_(mean)
        return self

    def fit_scaling_(self, x: Tensor) -> Self:
        """Take the shift and scale of `scaling="scalar"` or `"standard"` from data x [B, d_in]."""
        self._check_form(x)
        self._check_values(x)
        if self.scaling not in ("scalar", "standard"):
            raise ValueError(
                f'scaling={self.scaling!r} takes nothing from data: make the SAE with "scalar" or "standard"'
            )
        _scaling.fit_(self, x)
        return self

    def folded(self) -> SAE:
        """This SAE with its scaling worked into its tensors, where that is exact: it reads x as given."""
        return _scaling.folded(self)

    @torch.no_grad()
    def constrain_(self) -> None:
        """Bring the atoms to the norms that the constraint asks for."""
        self.atoms.copy_(constrained(self.atoms.to(widest(self.atoms)), self.constraint))

    def _fired(self, acts: Codes | Tensor) -> Tensor:
        """Which atoms fired for any of the inputs [d_sae]."""
        return self._fired_inputs(acts) > 0

    def _fired_inputs(self, acts: Codes | Tensor) -> Tensor:
        """How often each atom fired [d_sae]; one that is picked again for an input counts again."""
        if not isinstance(acts, Codes):
            return (acts.reshape(-1, self.d_sae).abs() > 0).sum(0)  # NaN is no firing
        picks = acts.used.long().flatten()
        return picks.new_zeros(self.d_sae).scatter_add(0, acts.indices.long().flatten(), picks)

    # Files.

    def save(self, path: str | Path) -> None:
        """Write this SAE to the folder `path`; `mpsae.load` opens it."""
        from mpsae.sae import folder

        folder.save(self, Path(path))

    # Checks: form never looks at values; values are looked at where a person calls.

    def _check_form(self, x: Tensor) -> None:
        tensor("x", x)
        if not x.ndim or x.shape[-1] != self.d_in:
            raise ValueError(
                f"this SAE reads inputs of width {self.d_in}, x has shape {list(x.shape)}: "
                f"its last dimension must be {self.d_in}"
            )
        if x.dtype not in FLOATING:
            raise ValueError(f"x must be of a floating type; got {x.dtype}: use x.float()")
        if x.device != self.atoms.device:
            raise ValueError(
                f"x is on {x.device}, the SAE on {self.atoms.device}: move one, x.to({str(self.atoms.device)!r}) or "
                f"sae.to({str(x.device)!r})"
            )

    def _check_values(self, x: Tensor) -> None:
        rows = x.isfinite().all(-1)
        if not rows.all():
            bad = (~rows).reshape(-1).nonzero().flatten().tolist()
            raise ValueError(
                f"x must be finite; {len(bad)} of {rows.numel()} inputs hold NaN or Inf, the first is number {bad[0]}: "
                "drop or mend them"
            )

    def _check_tensors(self) -> None:
        for name, own in (*self.named_parameters(), *self.named_buffers()):
            finite = own.isfinite()
            if not finite.all():
                raise ValueError(
                    f"the {name} must be finite; {int((~finite).sum())} of {finite.numel()} numbers are NaN or Inf: "
                    "training has diverged; go back to an earlier checkpoint and lower the learning rate"
                )

    def extra_repr(self) -> str:
        own = inspect.signature(type(self)).parameters.values()
        told = {p.name: getattr(self, p.name) for p in own if p.kind is not p.VAR_KEYWORD and p.name != "constraint"}
        changed = {p.name for p in own if p.name in told and told[p.name] != p.default}
        shown = [f"{name}={value!r}" for name, value in told.items() if name in changed]
        return ", ".join([*shown, f"constraint={self.constraint!r}"])

    def _apply(self, fn: Any, recurse: bool = True) -> Self:
        if self._is_reading:
            raise ValueError(
                "what at() returns shares its tensors with the SAE it reads: move that one, then call at()"
            )
        with buffer_types_kept(self):
            return super()._apply(fn, recurse)


@contextmanager
def buffer_types_kept(module: nn.Module) -> Iterator[None]:
    """Around an nn.Module's `_apply`: buffers change their device with it, never their type.

    What a buffer holds is counted, averaged or steered by small steps, which half precision would round away.
    """
    before = dict(module.named_buffers())
    yield
    for name, buffer in before.items():
        module._buffers[name] = buffer.to(module.get_buffer(name).device)
